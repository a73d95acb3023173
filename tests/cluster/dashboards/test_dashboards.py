"""Every query of every panel, asked of a real Prometheus that scrapes every part: none is without an answer."""

import math
import re
import time
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.dashboards.dashboard_queries import (
    Target,
    dashboards,
    filled_in,
    label_values,
    targets,
    without_fallback,
)
from tests.cluster.dashboards.scraped_fleet import scraped_fleet
from tests.cluster.ipujob.operator_bed import Bed, bed_fixture, until  # noqa: F401 - the fixture
from tests.metrics_page import PAGE

from muster_sandbox.programs.packages import NoPackages
from muster_sandbox.prometheus import Prometheus, PrometheusPrograms, find_programs

# counters whose first series comes with an error that nothing here makes: what docs/metrics.md says of them, which is
# held to the code, has to do
ONLY_WITH_AN_ERROR = {"muster_operator_reconcile_errors_total", "muster_tainter_write_errors_total"}
BY_JOBS = {"muster_step_seconds_sum", "muster_step_seconds_count"}  # no job runs here
# the work of pods is booked five minutes late, and here no pod with accelerators runs that long
BOOKED_LATE = (
    "muster_goodput_interruptions_total", "muster_goodput_job_seconds_total", "muster_goodput_team_accelerator_seconds",
    'cause="goodput"', 'cause="unknown"',
)  # fmt: skip
METRIC = re.compile(r"\b(?:muster|autopilot)_[a-z_]+\b")
SUFFIX = re.compile(r"_(bucket|count|sum)$")


@pytest.fixture
def found() -> PrometheusPrograms:
    try:
        return find_programs(lambda line: print(line, flush=True))
    except NoPackages as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.timeout(1200)  # as all guards against hanging: far more than it takes
async def test_every_query_of_every_panel_finds_something(bed: Bed, found: PrometheusPrograms, tmp_path: Path) -> None:
    started = time.time()
    async with scraped_fleet(bed, found, tmp_path / "stage") as stage:
        await stage.a_bad_night()
        node = list(stage.nodes)[2]
        left = [
            each for each in targets()
            if (ONLY_WITH_AN_ERROR | BY_JOBS).isdisjoint(METRIC.findall(each.expr))
            and not any(text in each.expr for text in BOOKED_LATE)
        ]  # fmt: skip

        async def answered() -> bool:
            left[:] = [each for each in left if not _found(stage.prometheus, each, node, started)]
            return not left

        try:
            await until(answered, "each query finds something")
        except AssertionError as error:
            raise AssertionError(f"without data: {[each.place for each in left]}") from error
        # each fault is counted, also the first of its check since the tainter started
        [faults] = [each.expr for each in targets() if (each.dashboard, each.panel) == ("muster-tainter", "Faults")]

        async def opened() -> bool:
            steps = stage.prometheus.query(filled_in(faults, node=node, rate="30m"))
            return {each.labels["step"]: each.value for each in steps}.get("opened", 0) >= 4

        await until(opened, "each fault is counted")  # one scrape that fails hides all series until the next one
        for each in targets():
            _found(stage.prometheus, each, node, started)  # those left out above are PromQL, too
        for uid, board in dashboards().items():
            for variable in board["templating"]["list"]:
                if variable["type"] == "query":
                    query, label = label_values(variable, node)
                    await until(partial(_values, stage.prometheus, query, label), f"{uid}: {query}")


async def _values(prometheus: Prometheus, query: str, label: str) -> list[str]:
    return [each.labels[label] for each in prometheus.query(query) if label in each.labels]


def _found(prometheus: Prometheus, target: Target, node: str, since_s: float) -> bool:
    """Whether there was a value at any time: a gauge of what waits is gone when nothing does."""
    expr = without_fallback(filled_in(target.expr, node=node))
    found = prometheus.query_range(expr, start_s=since_s, end_s=time.time(), step_s=0.5)
    return any(not math.isnan(value) for series in found for _, value in series.points)


def test_what_panels_ask_for_is_documented() -> None:
    text = PAGE.read_text()
    for target in targets():
        for metric in METRIC.findall(target.expr):
            assert any(f"`{name}`" in text for name in (metric, SUFFIX.sub("", metric))), (target.place, metric)


def test_each_panel_says_what_it_means_and_no_two_dashboards_have_one_uid() -> None:
    boards = dashboards()
    names = ("fleet", "goodput", "ipujobs", "network", "node", "tainter")
    assert sorted(boards) == [f"muster-{name}" for name in names]
    for uid, board in boards.items():
        names = {variable["name"] for variable in board["templating"]["list"]}
        assert names >= {"datasource"}
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in board["panels"]:
            if panel["type"] == "row":
                continue
            place = f"{uid}: {panel['title']}"
            assert len(panel["description"]) > 20, place
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, place
            for target in panel["targets"]:
                used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "__range"}
                assert used <= names, (place, used)


def test_links_lead_to_dashboards_and_variables_that_exist() -> None:
    boards = dashboards()
    text = "".join(str(board) for board in boards.values())
    links = set(re.findall(r"/d/([\w-]+)/[\w-]+\?([^']*)", text))
    assert {uid for uid, _ in links} == {"muster-node"}
    for uid, query in links:
        names = {variable["name"] for variable in boards[uid]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", query)) <= names
