"""From a Prometheus over HTTP to findings of nodes, as the leader runs it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.tainter.sources.loki_stub import Answer, serving
from tests.tainter.sources.prometheus_stub import PrometheusServer
from tests.tainter.sources.test_loki_feed import NOW, Cluster, until

from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.record.node_record import ClosedFault, Fault, NodeRecord
from muster_tainter.policy.sections.sources import Sources

NAME = "prometheus.queries[0]"
QUERY = {"name": "Hot", "query": "temp > 90", "verdict": "FAIL", "class": "reset", "endAfter": "1s"}
ENDS_BY_QUERY = {name: value for name, value in QUERY.items() if name != "endAfter"} | {"endQuery": "temp < 80"}
OPEN = Fault("prometheus", "host", "Hot", occurrence=7_000, verdict="FAIL", since=rfc3339_whole(NOW - 60))
EVERY_S = 0.01


def closed_fault(*, occurrence: int, closed_at: str, how: str) -> ClosedFault:
    return ClosedFault("prometheus", "host", "Hot", occurrence=occurrence, closed_at=closed_at, how=how)


def follow(cluster: Cluster, server: PrometheusServer, *queries: dict[str, Any]) -> None:
    sources = Sources.model_validate({"prometheus": {"url": server.url, "queries": [*(queries or (QUERY,))]}})
    assert sources.prometheus is not None
    prometheus = sources.prometheus.model_copy(update={"every": EVERY_S})
    cluster.sources = sources.model_copy(update={"prometheus": prometheus})
    if cluster.feeds is not None:
        cluster.feeds.look_at_all()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def server() -> AsyncIterator[PrometheusServer]:
    metrics = PrometheusServer()
    async with serving(metrics):
        yield metrics


async def test_a_returned_node_has_the_finding_until_it_is_missing_long_enough(
    cluster: Cluster, server: PrometheusServer
) -> None:
    follow(cluster, server)
    server.hot("n1", "n3")  # n3 does not exist
    async with cluster.leading():
        await until(lambda: cluster.found, "found")
        await server.asked_again()
        assert cluster.over == []
        server.hot()
        await until(lambda: cluster.over, "over")
    [(node, check, finding)] = cluster.found
    assert (node, check, finding.component, finding.reason) == ("n1", "prometheus", "host", "Hot")
    assert (finding.verdict, finding.fault_class, finding.occurrence) == ("FAIL", "reset", int(NOW * 1000))
    assert [(node, cleared.how, cleared.occurrence) for node, _, cleared in cluster.over] == [
        ("n1", "source", finding.occurrence)
    ]
    assert cluster.value("lines_total", source=NAME, what="homeless")


async def test_an_end_query_ends_it_and_a_missing_node_does_not(cluster: Cluster, server: PrometheusServer) -> None:
    follow(cluster, server, ENDS_BY_QUERY)
    server.hot("n1", "n2")
    async with cluster.leading():
        await until(lambda: len(cluster.found) == 2, "found")
        server.hot()
        await server.asked_again()
        assert cluster.over == []
        server.hot("n2", query="temp < 80")
        await until(lambda: cluster.over, "over")
    assert [node for node, *_ in cluster.over] == ["n2"]


@pytest.mark.parametrize(
    "failure",
    [(503, {}, b"overloaded"), (400, {}, b"parse error"), (200, {}, b"<html>")],
    ids=["away", "refused", "garbage"],
)
async def test_a_server_that_fails_neither_begins_nor_ends_anything(
    cluster: Cluster, server: PrometheusServer, failure: Answer
) -> None:
    follow(cluster, server)
    server.hot("n1")
    async with cluster.leading():
        await until(lambda: cluster.value("up", source=NAME) == 1.0, "up")
        await until(lambda: cluster.found, "found")
        server.failure = failure
        await until(lambda: cluster.value("up", source=NAME) == 0.0, "down")
        await server.asked_again()
        assert (len(cluster.found), cluster.over) == (1, [])
        server.failure = None
        await until(lambda: cluster.value("up", source=NAME) == 1.0, "up again")


@pytest.mark.parametrize(
    "series",
    [[({}, "1")], [({"instance": "n1"}, "1")], [({"node": f"n{i}"}, "1") for i in range(10_001)]],
    ids=["no labels", "no node label", "too many"],
)
async def test_a_query_that_names_no_node_or_too_many_is_an_error(
    cluster: Cluster,
    server: PrometheusServer,
    series: list[tuple[dict[str, str], str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    follow(cluster, server)
    server.series["temp > 90"] = series
    async with cluster.leading():
        await until(lambda: [one for one in caplog.records if one.levelname == "ERROR"], "an error in the log")
        await server.asked_again()
    assert cluster.found == []


async def test_not_a_number_finds_nothing(cluster: Cluster, server: PrometheusServer) -> None:
    follow(cluster, server)
    server.hot("n1", value="NaN")
    async with cluster.leading():
        await until(lambda: cluster.value("lines_total", source=NAME, what="malformed"), "read")
        await server.asked_again()
    assert cluster.found == []


async def test_a_new_leader_keeps_the_open_finding_and_its_number_without_waiting(
    cluster: Cluster, server: PrometheusServer
) -> None:
    follow(cluster, server, QUERY | {"for": "1h"})
    for name in ("n1", "n2"):
        cluster.remember(name, NodeRecord(open=(OPEN,)))
    server.hot("n1")
    async with cluster.leading():
        await until(lambda: cluster.over, "over")
    assert [(node, finding.occurrence) for node, _, finding in cluster.found] == [("n1", 7_000)]
    assert [(node, cleared.occurrence) for node, _, cleared in cluster.over] == [("n2", 7_000)]


@pytest.mark.parametrize(("how", "again"), [("person", []), ("proof", []), ("source", ["n1"]), ("passing", ["n1"])])
async def test_what_was_closed_while_the_query_returned_it_opens_again_only_after_a_gap(
    cluster: Cluster, server: PrometheusServer, how: str, again: list[str]
) -> None:
    follow(cluster, server, ENDS_BY_QUERY)
    closed = closed_fault(occurrence=int(NOW * 1000) - 5, closed_at=rfc3339_whole(NOW + 100), how=how)
    cluster.remember("n1", NodeRecord(closed=(closed,)))
    server.hot("n1")
    async with cluster.leading():
        await server.asked_again()
        await until(lambda: cluster.found or not again, "found")
        assert [node for node, *_ in cluster.found] == again
        assert all(finding.occurrence > (NOW + 100) * 1000 for *_, finding in cluster.found)
        if not again:
            server.hot()
            server.hot("n1", query="temp < 80")
            await server.asked_again()
            server.hot("n1")
            server.hot(query="temp < 80")
            await until(lambda: cluster.found, "found")


async def test_a_query_that_left_the_policy_ends_its_findings_of_an_earlier_leader_too(
    cluster: Cluster, server: PrometheusServer
) -> None:
    cluster.remember("n2", NodeRecord(open=(OPEN,)))
    follow(cluster, server)
    server.hot("n1", "n2")
    async with cluster.leading():
        await until(lambda: len(cluster.found) == 2, "found")
        cluster.sources = Sources()
        assert cluster.feeds is not None
        cluster.feeds.look_at_all()
        await until(lambda: len(cluster.over) == 2, "over")
    assert {(node, cleared.reason, cleared.how) for node, _, cleared in cluster.over} == {
        ("n1", "Hot", "source"), ("n2", "Hot", "source"),
    }  # fmt: skip


async def test_the_next_occurrence_waits_until_the_end_of_the_last_one_is_written(
    cluster: Cluster, server: PrometheusServer
) -> None:
    follow(cluster, server)
    cluster.remember("n1", NodeRecord(open=(OPEN,)))
    async with cluster.leading():
        await until(lambda: cluster.over, "over")
        server.hot("n1")
        await server.asked_again()
        assert cluster.found == []
        closed = closed_fault(occurrence=7_000, closed_at=rfc3339_whole(NOW), how="source")
        cluster.remember("n1", NodeRecord(closed=(closed,)))
        await until(lambda: cluster.found, "found")
    [(_, _, finding)] = cluster.found
    assert finding.occurrence > NOW * 1000
