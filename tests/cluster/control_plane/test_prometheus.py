"""The test bed's Prometheus scrapes, answers, and says what is wrong."""

from pathlib import Path

import psutil
import pytest

from muster_sandbox.programs.packages import NoPackages
from muster_sandbox.prometheus import Prometheus, PrometheusPrograms, QueryRefused, find_programs, scrape_config


@pytest.fixture(scope="module")
def found() -> PrometheusPrograms:
    try:
        return find_programs(lambda line: print(line, flush=True))
    except NoPackages as error:
        pytest.fail(str(error), pytrace=False)


def test_it_scrapes_itself_and_answers_and_nothing_is_left(found: PrometheusPrograms, tmp_path: Path) -> None:
    rule = {"alert": "Up", "expr": "up == 1", "labels": {"severity": "page"}}
    rules = tmp_path / "rules.yaml"
    rules.write_text(str({"groups": [{"name": "g", "rules": [rule]}]}))
    with Prometheus(found, tmp_path / "prometheus", [], rules=[rules]) as running:
        own = running.url.removeprefix("http://")
        running.scrape([scrape_config("itself", own, node="here")])
        running.until_scraped()
        [up] = running.until('up{node="here"}')
        assert (up.labels["job"], up.value) == ("itself", 1.0)
        [series] = running.query_range("up", start_s=up.time_s - 5, end_s=up.time_s + 5, step_s=1)
        assert {value for _, value in series.points} == {1.0}
        assert [sample.value for sample in running.query("scalar(up) + 1")] == [2.0]
        with pytest.raises(QueryRefused, match="parse error"):
            running.query("rate(up[")
        running.until('ALERTS{alertname="Up", alertstate="firing"}')
        assert {alert["labels"]["severity"] for alert in running.alerts()} == {"page"}
        with pytest.raises(TimeoutError, match=r"up == 0\n.*/metrics up"):
            running.until("up == 0", limit_s=0)
        with pytest.raises(RuntimeError, match="scrape_timeouts"):
            running.scrape([{"job_name": "bad", "scrape_timeouts": "1s"}])
        pid = running._component.pid
    assert not psutil.pid_exists(pid)
