"""Events and the condition of a Node: their names and times."""

from typing import Any

import msgspec

from muster_kube.api.objects import NodeCondition
from muster_tainter.events.recorder import condition_patch, event_name
from muster_tainter.faults.messages import CONDITION, Notice


def test_the_same_news_has_the_same_name_and_other_news_another() -> None:
    news = Notice("NodeTainted", "a", "x")
    assert event_name("n1", news) == event_name("n1", Notice("NodeTainted", "b", "x"))
    assert (
        len({event_name("n1", news), event_name("n2", news), event_name("n1", Notice("NodeUntainted", "a", "x"))}) == 3
    )
    assert len(event_name("n" * 253, news)) <= 253


def test_a_condition_keeps_its_transition_time_while_its_status_stays(make: Any) -> None:
    old = NodeCondition(type=CONDITION, status="False", reason="Xid79", last_transition_time="2026-01-01T00:00:00Z")
    node = msgspec.structs.replace(make.node(), status=msgspec.structs.replace(make.node().status, conditions=(old,)))
    for status, since in (("False", "2026-01-01T00:00:00Z"), ("True", "2026-02-01T00:00:00Z")):
        body: Any = condition_patch(node, NodeCondition(type=CONDITION, status=status), "2026-02-01T00:00:00Z")
        assert body["status"]["conditions"][0]["lastTransitionTime"] == since
