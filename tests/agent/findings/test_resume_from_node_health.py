"""What an agent told and could not save before its end: its successor takes it from the NodeHealth, once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.agent.recording_reporter import RecordingReporter

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.state_file import StoredCheck
from muster_agent.clock import AgentClock
from muster_agent.findings.stored_ledger import StoredLedger
from muster_agent.findings.verdict_history import VerdictChange
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Result, Verdict
from muster_kube import nodehealth
from muster_kube.api.times import rfc3339

NOON = 1_700_000_000.0
SLOW = Finding(component="gpu/0", reason="Slow", verdict=Verdict.FAIL, message="3 GB/s", occurrence=1)
TOLD_SLOW = nodehealth.ReportedFinding(component="gpu/0", reason="Slow", verdict="FAIL", occurrence=1)
TOLD_OVER = nodehealth.ClearedFault(component="gpu/0", reason="Slow", occurrence=1, how="run", at=rfc3339(NOON + 60))


def telling(verdict: str, after_s: float = 60.0, **more: Any) -> nodehealth.ReportedCheck:
    more = {"last_occurrence": 1} | more
    return nodehealth.ReportedCheck(name="link", verdict=verdict, last_change=rfc3339(NOON + after_s), **more)


class Bench:
    """One check that finds ``found``. saved: what the state file has; reported: in the NodeHealth, a minute later."""

    def __init__(self, saved: Verdict, findings: tuple[Finding, ...], reported: nodehealth.ReportedCheck) -> None:
        async def probe(_node: NodeView, _parameters: Parameters) -> Sequence[Finding]:
            return self.found

        self.found: Sequence[Finding] = ()
        self.reporter = RecordingReporter()
        check = Check(
            name="link",
            description="",
            cost=Cost.LIGHT,
            parameters=Parameters,
            timeout_s=600.0,
            devices=(),
            probe=probe,
        )
        clock = AgentClock(wall=lambda: NOON + 120.0)
        local = LocalNode(name="n1", view=NodeView(), boot_id="boot", clock=clock)
        blind = saved is Verdict.UNKNOWN
        reason = "Timeout" if blind else ""
        stored = StoredCheck(
            ledger=StoredLedger(boot_id="boot", counter=1, findings=findings),
            verdict=saved.value,
            last_change=NOON,
            last=Result(check="link", verdict=saved, reason=reason, findings=findings, started=NOON),
            ran_at=NOON,
            changes=(VerdictChange(at=NOON, to=saved.value),),
        )
        self.running = SnapshotCheck(check, Parameters(), local, stored, self.reporter)
        self.health = nodehealth.NodeHealth(
            metadata=nodehealth.Metadata(name="n1"),
            status=nodehealth.NodeHealthStatus(checks=(reported,), boot_id="boot"),
        )

    async def runs(self, *found: Finding) -> None:
        self.found = found
        await self.running.refresh(self.running.parameters)

    def sees(self) -> None:
        self.running.reconcile(self.health)

    @property
    def verdicts(self) -> list[tuple[float, str]]:
        self.running.view()
        return [(change.at - NOON, change.to) for change in self.running.history.entries]

    @property
    def open(self) -> list[tuple[Verdict, int]]:
        return [(finding.verdict, finding.occurrence) for finding in self.running.ledger.open_findings()]


@pytest.mark.parametrize("order", ["runs first", "sees first"])
async def test_a_fault_that_was_over_and_is_back_is_a_firing_of_its_own(order: str):
    bench = Bench(Verdict.FAIL, (SLOW,), telling("PASS", cleared=(TOLD_OVER,)))
    if order == "runs first":
        await bench.runs(SLOW)
    bench.sees()
    if order == "sees first":
        await bench.runs(SLOW)
    assert bench.open == [(Verdict.FAIL, 2)], "the number 1 is over: a fault of that number is never opened again"
    assert bench.verdicts == [(0, "FAIL"), (60, "PASS"), (120, "FAIL")]
    assert bench.reporter.changes


async def test_a_published_fault_that_is_mended_is_cleared_by_the_first_run():
    again = msgspec.structs.replace(TOLD_SLOW, occurrence=2)
    bench = Bench(Verdict.PASS, (), telling("FAIL", findings=(again,), last_occurrence=2))
    await bench.runs()
    bench.sees()
    assert bench.open == []
    assert [over.occurrence for over in bench.running.ledger.over()] == [2]
    assert bench.verdicts == [(0, "PASS"), (60, "FAIL"), (120, "PASS")]


async def test_a_fault_that_was_published_as_worse_stays_as_bad():
    mild = Finding(component="gpu/0", reason="Slow", verdict=Verdict.WARN, message="", occurrence=1)
    bench = Bench(Verdict.WARN, (mild,), telling("FAIL", findings=(TOLD_SLOW,)))
    bench.sees()
    assert bench.open == [(Verdict.FAIL, 1)]
    assert bench.verdicts == [(0, "WARN"), (60, "FAIL")]


@pytest.mark.parametrize(("saved", "reported"), [("PASS", "UNKNOWN"), ("UNKNOWN", "PASS")])
async def test_blindness_that_came_or_went_is_a_change_once(saved: str, reported: str):
    bench = Bench(Verdict(saved), (), telling(reported, reason="Timeout" if reported == "UNKNOWN" else ""))
    bench.sees()
    assert bench.verdicts == [(0, saved), (60, reported)]
    assert bench.reporter.changes, "to be saved"


async def test_what_was_saved_and_not_published_is_not_taken_back():
    bench = Bench(Verdict.FAIL, (SLOW,), telling("PASS", -60.0, last_occurrence=0))
    bench.sees()
    assert bench.open == [(Verdict.FAIL, 1)]
    assert bench.verdicts == [(0, "FAIL")]


async def test_a_time_that_has_not_come_is_not_believed():
    bench = Bench(Verdict.PASS, (), telling("FAIL", 1e6))
    bench.sees()
    assert bench.verdicts == [(0, "PASS")]
