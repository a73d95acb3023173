"""Conditions that other agents set on Nodes, as findings."""

from typing import Any

import pytest

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.record.node_record import ClosedFault, Fault, NodeRecord
from muster_tainter.policy.sections.sources import Sources
from muster_tainter.sources.conditions import ConditionFeed, conditions_of

T = 1_700_000_000
RULES = Sources.model_validate(
    {
        "conditions": [
            {"type": "KernelDeadlock", "class": "reboot"},
            {"type": "AcceleratedHardwareReady", "status": ["False", "Unknown"], "reason": ["NvidiaXID*", "DCGM*"]},
            {"type": "XidCriticalError", "verdict": "WARN"},
        ]
    }
)


def condition(kind: str = "KernelDeadlock", status: str = "True", since: int = T, **fields: Any) -> NodeCondition:
    return NodeCondition(type=kind, status=status, last_transition_time=rfc3339_whole(since), **fields)


def node(*conditions: NodeCondition) -> Node:
    return Node(metadata=Metadata(name="n1"), status=NodeStatus(conditions=conditions))


def fault(kind: str = "KernelDeadlock", occurrence: int = T, **fields: Any) -> Fault:
    return Fault(check="condition", component="host", reason=kind, occurrence=occurrence, **fields)


class Told:
    def __init__(self) -> None:
        self.memory = NodeRecord()
        self.sources = RULES
        self.found: list[ReportedFinding] = []
        self.over: list[ClearedFault] = []

    def feed(self) -> ConditionFeed:
        return ConditionFeed(
            lambda: self.sources,
            lambda _: self.memory,
            lambda _node, _check, finding: self.found.append(finding),
            lambda _node, _check, cleared: self.over.append(cleared),
            lambda: rfc3339_whole(T + 999),
        )

    def close(self, kind: str, occurrence: int, at: int) -> None:
        ended = ClosedFault(
            check="condition", component="host", reason=kind, occurrence=occurrence, closed_at=rfc3339_whole(at)
        )
        self.memory = NodeRecord(closed=(ended, *self.memory.closed))


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_condition_that_a_rule_names_is_a_finding_of_its_node() -> None:
    [finding] = conditions_of(node(condition(reason="DockerHung", message="task dockerd:5 blocked")), RULES)
    assert (finding.component, finding.reason, finding.verdict) == ("host", "KernelDeadlock", "FAIL")
    assert (finding.fault_class, finding.occurrence) == ("reboot", T)
    for fact in ("KernelDeadlock", "True", "DockerHung", "task dockerd:5 blocked"):
        assert fact in finding.message


@pytest.mark.parametrize(
    "other",
    [
        condition(status="False"),
        condition(status="Unknown"),
        condition("Unnamed"),
        condition("AcceleratedHardwareReady", "True"),
        condition("AcceleratedHardwareReady", "False", reason="EFAError"),
    ],
)
def test_what_no_rule_covers_is_none(other: NodeCondition) -> None:
    assert conditions_of(node(other), RULES) == ()


def test_verdict_status_and_reason_are_the_rule_s() -> None:
    found = conditions_of(
        node(condition("XidCriticalError"), condition("AcceleratedHardwareReady", "Unknown", reason="DCGMError")), RULES
    )
    assert [(finding.reason, finding.verdict) for finding in found] == [
        ("XidCriticalError", "WARN"),
        ("AcceleratedHardwareReady", "FAIL"),
    ]


@pytest.mark.parametrize("since", [None, "", "yesterday", "0001-01-01T00:00:00Z"])
def test_a_condition_without_a_time_is_a_firing_all_the_same(since: str | None) -> None:
    [finding] = conditions_of(
        node(NodeCondition(type="KernelDeadlock", status="True", last_transition_time=since)), RULES
    )
    assert finding.occurrence == 1


def test_it_is_told_once_and_over_by_the_source_s_word(told: Told) -> None:
    feed = told.feed()
    for _ in range(3):
        feed.look("n1", node(condition()))
    feed.look("n1", node(condition(status="False", since=T + 60)))
    feed.look("n1", node(condition(status="False", since=T + 60)))
    assert [finding.occurrence for finding in told.found] == [T]
    assert [(over.reason, over.occurrence, over.how) for over in told.over] == [("KernelDeadlock", T, "source")]


def test_a_new_leader_says_that_it_is_over_what_an_earlier_one_told(told: Told) -> None:
    told.memory = NodeRecord(open=(fault(),))
    told.feed().look("n1", node(condition(status="False")))
    assert [over.occurrence for over in told.over] == [T]


@pytest.mark.parametrize("now", [node(), node(condition(status="Unknown")), node(condition(status="?"))])
def test_absence_and_unknown_end_nothing(told: Told, now: Node) -> None:
    told.memory = NodeRecord(open=(fault(),))
    feed = told.feed()
    feed.look("n1", now)
    assert told.over == []


def test_a_type_that_the_policy_names_no_more_is_over(told: Told) -> None:
    feed = told.feed()
    feed.look("n1", node(condition()))
    told.sources = Sources()
    feed.look("n1", node())
    assert [(over.reason, over.occurrence, over.how) for over in told.over] == [("KernelDeadlock", T, "source")]


def test_what_a_person_closed_stays_closed_until_it_goes_and_comes(told: Told) -> None:
    told.close("KernelDeadlock", T, T + 100)
    feed = told.feed()
    feed.look("n1", node(condition()))
    assert [finding.occurrence for finding in told.found] == [T]  # the number that is closed
    feed.look("n1", node(condition(status="False", since=T + 200)))
    feed.look("n1", node(condition(since=T + 300)))
    assert told.found[-1].occurrence == T + 300


def test_a_clock_that_was_set_back_makes_a_higher_number_all_the_same(told: Told) -> None:
    feed = told.feed()
    feed.look("n1", node(condition(since=T)))
    feed.look("n1", node(condition(status="False", since=T - 3500)))
    told.close("KernelDeadlock", T, T + 100)
    feed.look("n1", node(condition(since=T - 3400)))
    assert told.found[-1].occurrence == T + 1
    feed.look("n1", node(condition(since=T - 3400, message="other words")))
    assert told.found[-1].occurrence == T + 1


def test_a_condition_that_went_and_came_between_two_looks_is_a_new_firing(told: Told) -> None:
    feed = told.feed()
    feed.look("n1", node(condition(since=T)))
    feed.look("n1", node(condition(since=T + 50)))
    assert [finding.occurrence for finding in told.found] == [T, T + 50]


def test_a_node_that_is_gone_is_forgotten(told: Told) -> None:
    feed = told.feed()
    feed.look("n1", node(condition()))
    feed.look("n1", None)
    assert feed.reported == {}
    feed.look("n1", node(condition()))
    assert len(told.found) == 2


def test_a_cached_node_keeps_what_the_policy_names_and_nothing_else() -> None:
    from muster_tainter.fleet.projection import slim_node

    full = node(condition(reason="r", message="m"), condition("DiskPressure"), condition("XidCriticalError", "False"))
    slim = slim_node(full, frozenset(), RULES.condition_types)
    assert [c.type for c in slim.status.conditions] == ["KernelDeadlock", "XidCriticalError"]
    assert conditions_of(slim, RULES) == conditions_of(full, RULES)
