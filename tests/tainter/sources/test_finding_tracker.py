"""Signs become findings that are told on change, numbered, bounded, and over by somebody's word."""

from typing import Any

import pytest

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Origin, Verdict
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import FINDINGS_LIMIT, ClearedFault, ReportedFinding
from muster_tainter.faults.record.node_record import ClosedFault, Fault, NodeRecord
from muster_tainter.sources.loki.finding_tracker import FindingTracker

T = 1_700_000_000.0
GPU = "gpu/0000:3b:00.0"


def sign(at: float = T, reason: str = "Xid79", verdict: Verdict = Verdict.FAIL, **fields: Any) -> Sign:
    values: dict[str, Any] = {"component": GPU, "message": f"{reason} happened", "fault_class": FaultClass.REBOOT}
    return Sign(reason=reason, verdict=verdict, at=at, origin=Origin.KERNEL, **(values | fields))


class Told:
    def __init__(self) -> None:
        self.memory = NodeRecord()
        self.found: list[ReportedFinding] = []
        self.over: list[ClearedFault] = []
        self.firings = FindingTracker(
            "loki",
            lambda _: self.memory,
            lambda _node, _check, finding: self.found.append(finding),
            lambda _node, _check, cleared: self.over.append(cleared),
        )


@pytest.fixture
def told() -> Told:
    return Told()


def test_lines_of_one_firing_are_one_finding_that_counts(told: Told) -> None:
    for second in range(100):
        assert told.firings.take("n1", sign(T + second))
    assert {finding.occurrence for finding in told.found} == {int(T * 1000)}
    assert len(told.found) == 2  # the first, and the count a minute later
    assert told.found[-1].count == 61


def test_a_worse_verdict_is_told_at_once_and_a_milder_one_takes_nothing_back(told: Told) -> None:
    told.firings.take("n1", sign(verdict=Verdict.WARN, fault_class=FaultClass.NONE))
    told.firings.take("n1", sign(T + 1))
    told.firings.take("n1", sign(T + 2, verdict=Verdict.WARN, fault_class=FaultClass.NONE))
    assert [(finding.verdict, finding.fault_class) for finding in told.found] == [("WARN", ""), ("FAIL", "reboot")]


def test_a_line_from_before_the_end_of_its_fault_is_told_to_nobody(told: Told) -> None:
    ended = ClosedFault(
        check="loki", component=GPU, reason="Xid79", occurrence=int(T * 1000), closed_at=rfc3339_whole(T + 100)
    )
    told.memory = NodeRecord(closed=(ended,))
    assert not told.firings.take("n1", sign(T + 50))
    assert told.found == []
    assert told.firings.take("n1", sign(T + 101))
    assert told.found[0].occurrence == int((T + 101) * 1000)


def test_what_a_person_ended_is_let_go_and_the_next_line_counts_from_one(told: Told) -> None:
    told.firings.take("n1", sign(count=7))
    ended = ClosedFault(
        check="loki", component=GPU, reason="Xid79", occurrence=int(T * 1000), closed_at=rfc3339_whole(T + 100)
    )
    told.memory = NodeRecord(closed=(ended,))
    forgotten: list[tuple[str, tuple[str, str]]] = []
    told.firings.settle(lambda node, key: forgotten.append((node, key)))
    assert forgotten == [("n1", (GPU, "Xid79"))]
    assert told.firings.nodes == {}
    told.firings.take("n1", sign(T + 200))
    assert told.found[-1].count == 1


def test_a_driver_s_word_ends_what_it_names_and_what_an_earlier_leader_told_of_it(told: Told) -> None:
    told.firings.take("n1", sign(reason="Xid95", fault_class=FaultClass.RESET))
    told.firings.take("n1", sign(reason="Xid79"))
    earlier = Fault(check="loki", component=GPU, reason="Xid48", occurrence=5, fault_class="reset")
    others = Fault(check="dmesg", component=GPU, reason="Xid64", occurrence=6, fault_class="reset")
    told.memory = NodeRecord(open=(earlier, others))
    told.firings.clear("n1", AllClear(component=GPU, at=T + 9, how="driver", classes=(FaultClass.RESET,)))
    assert [(over.reason, over.occurrence, over.how) for over in told.over] == [
        ("Xid95", int(T * 1000), "driver"),
        ("Xid48", 5, "driver"),
    ]


def test_a_failure_is_never_over_by_silence(told: Told) -> None:
    told.firings.take("n1", sign(), quiet_s=10.0)
    told.firings.clear("n1", AllClear(component=GPU, at=T + 9, how="quiet", reasons=("Xid79",)))
    told.firings.tick(T + 1e6)
    assert told.over == []


def test_a_warning_that_became_a_failure_is_not_over_by_silence(told: Told) -> None:
    told.firings.take("n1", sign(verdict=Verdict.WARN), quiet_s=10.0)
    told.firings.take("n1", sign(T + 1), quiet_s=10.0)
    told.firings.tick(T + 1e6)
    assert told.over == []


def test_a_crowd_of_findings_is_bounded_and_failures_come_before_warnings(told: Told) -> None:
    for i in range(FINDINGS_LIMIT + 5):
        told.firings.take("n1", sign(T + i, reason=f"Warn{i}", verdict=Verdict.WARN))
    told.firings.take("n1", sign(T + 100, reason="Fail"))
    opened = told.firings.nodes["n1"]
    assert len(opened) == FINDINGS_LIMIT
    assert (GPU, "Fail") in opened
    assert (GPU, "Warn0") not in opened
    assert [over.reason for over in told.over] == ["Warn0"]


def test_names_from_lines_are_cut_to_what_a_nodehealth_takes(told: Told) -> None:
    told.firings.take("n1", sign(component="gpu/" + "x" * 500, reason="R" * 500))
    assert len(told.found[0].component) == len(told.found[0].reason) == 128


def test_transitions_are_logged_in_the_form_of_the_agents_own(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "muster_tainter.findings"):
        told.firings.take("n1", sign())
        told.firings.take("n1", sign(T + 1))
        told.firings.clear("n1", AllClear(component=GPU, at=T + 9, how="driver"))
    events = [record.getMessage() for record in caplog.records if record.name == "muster_tainter.findings"]
    assert ['"event": "finding"' in events[0], '"event": "cleared"' in events[1], len(events)] == [True, True, 2]
