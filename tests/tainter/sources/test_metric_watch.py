"""When a node's finding begins and ends, by the answers to a query."""

from typing import Any

import pytest

from muster_tainter.policy.sections.sources import MetricQuery
from muster_tainter.sources.prometheus.metric_watch import MetricTurn, MetricWatch, NodesAnswered


def watch(**fields: Any) -> MetricWatch:
    ends = {} if "endQuery" in fields else {"endAfter": "60s"}
    return MetricWatch(MetricQuery.model_validate({"name": "Hot", "query": "temp > 90", **ends, **fields}))


def bad(*nodes: str, **others: Any) -> NodesAnswered:
    return NodesAnswered(bad=frozenset(nodes), **others)


def test_a_finding_begins_at_once_and_is_told_once() -> None:
    one = watch()
    assert one.look(bad("n1"), 0) == MetricTurn(("n1",), ())
    assert one.look(bad("n1", "n2"), 30) == MetricTurn(("n2",), ())


def test_with_for_it_begins_only_after_that_time_without_a_gap() -> None:
    one = watch(**{"for": "60s"})
    assert one.look(bad("n1", "n2"), 0).begun == ()
    assert one.look(bad("n1"), 30).begun == ()
    assert one.look(bad("n1", "n2"), 30).begun == ("n1",)
    assert one.look(bad("n1", "n2"), 30).begun == ()
    assert one.look(bad("n1", "n2"), 30).begun == ("n2",)


def test_time_without_answers_does_not_count() -> None:
    one = watch(**{"for": "60s"})
    for _ in range(100):
        assert one.look(bad("n1"), 0).begun == ()


def test_not_a_number_is_neither_bad_nor_missing() -> None:
    one = watch(**{"for": "30s"})
    one.look(bad("n1"), 0)
    assert one.look(bad(unknown=frozenset({"n1"})), 30).begun == ()
    assert one.look(bad("n1"), 30).begun == ()  # from the start
    assert one.look(bad("n1"), 30).begun == ("n1",)
    for _ in range(10):
        assert one.look(bad(unknown=frozenset({"n1"})), 30).ended == ()


def test_it_ends_when_missing_long_enough() -> None:
    one = watch()
    one.look(bad("n1"), 0)
    assert one.look(bad(), 59).ended == ()
    assert one.look(bad("n1"), 1).ended == ()  # returned: the time begins anew
    assert one.look(bad(), 59).ended == ()
    assert one.look(bad(), 1).ended == ("n1",)
    assert one.look(bad("n1"), 30).begun == ("n1",)


def test_with_an_end_query_a_missing_node_stays_bad() -> None:
    one = watch(endQuery="temp < 80")
    one.look(bad("n1", "n2"), 0)
    assert one.look(bad(), 86_400).ended == ()
    assert one.look(bad("n1", good=frozenset({"n1", "n2"})), 30).ended == ("n2",)
    assert one.look(bad(good=frozenset({"n1"})), 30).ended == ("n1",)


def test_a_finding_that_may_not_begin_yet_begins_later() -> None:
    one = watch()
    assert one.look(bad("n1"), 0, wait={"n1"}).begun == ()
    assert one.look(bad("n1"), 30).begun == ("n1",)


@pytest.mark.parametrize("answer", [bad(), bad("n1")])
def test_an_adopted_finding_does_not_begin_again_and_can_end(answer: NodesAnswered) -> None:
    one = watch()
    one.adopt("n1")
    assert one.look(answer, 0) == MetricTurn((), ())
    assert one.look(bad(), 60).ended == ("n1",)
