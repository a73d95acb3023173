"""Events and the condition of a Node: their names and times."""

from typing import Any

import msgspec
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata, Node, NodeCondition
from muster_tainter.events.recorder import BURST, REFILL_S, EventRecorder, condition_patch, event_name
from muster_tainter.faults.messages import CONDITION, Notice
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics


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


def test_a_node_with_ever_new_findings_has_few_events_about_them_and_those_about_its_taint() -> None:
    now = [0.0]
    metrics = TainterMetrics()
    replica = Replica(may_write=lambda: True, clock=lambda: now[0])
    recorder = EventRecorder(KubeClient.__new__(KubeClient), FakeFleet(), replica, metrics, look_again=lambda _: None)
    bad, good = (Node(metadata=Metadata(name=name)) for name in ("bad", "good"))
    for number in range(1000):
        recorder.record(bad, Notice("NodeFaultOpened", "m", f"c/d/{number}", per_finding=True))
    recorder.record(bad, Notice("NodeTainted", "m", "taint"))
    recorder.record(good, Notice("NodeFaultOpened", "m", "c/d/1", per_finding=True))
    assert len(recorder) == BURST + 2
    assert metrics.registry.get_sample_value("muster_tainter_events_dropped_total") == 1000 - BURST
    now[0] += REFILL_S
    for number in (1001, 1002):
        recorder.record(bad, Notice("NodeFaultOpened", "m", f"c/d/{number}", per_finding=True))
    assert len(recorder) == BURST + 3
