"""A check on this node: its ledger, its trouble, and its published state."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.reporter import NO_REPORTER, Reporter
from muster_agent.checks.state_file import StoredCheck
from muster_agent.findings import finding_log
from muster_agent.findings.health_status import CheckView
from muster_agent.findings.ledger import Ledger, Transition, TransitionKind
from muster_agent.findings.ledger_seed import reported_check, reported_numbers, reports_more_than, seed_ledger
from muster_agent.findings.verdict_history import VerdictHistory
from muster_agent.metrics.agent_metrics import CheckReading
from muster_checks.base.declaration import Check, Parameters, StepTotals
from muster_checks.base.vocabulary import Finding, Result, Verdict, worst
from muster_kube.api.times import seconds
from muster_kube.nodehealth import ClearEntry, NodeHealth, ReportedCheck

log = logging.getLogger(__name__)


class NodeCheck:
    """Base of stream and snapshot checks.

    last, ran_at: the last run and its start (seconds since the epoch; 0: it has not run in this boot)
    tallies:      runs since this process started, by outcome; see metrics.CheckReading

    stored: from the state file. Without it, the NodeHealth replaces the ledger when it is first observed.
    """

    def __init__(
        self,
        check: Check,
        parameters: Parameters,
        local: LocalNode,
        stored: StoredCheck | None,
        reporter: Reporter = NO_REPORTER,
    ) -> None:
        self.check = check
        self.parameters = parameters
        self.local = local
        self.reporter = reporter
        self.ledger = Ledger(check.name, local.boot_id, stored.ledger if stored else None)
        self.position = stored.position if stored else None
        self.trouble: tuple[str, str] | None = None
        """Why the state is unknown: reason and message; None if it is known."""
        self._provisional = stored is None
        self._reconciled = False
        self._refused: set[int] = set()  # numbers of spec.clear that were logged as refused
        self._verdict = Verdict(stored.verdict) if stored and stored.verdict in list(Verdict) else None
        self._last_change = stored.last_change if stored else 0.0
        same_boot = stored is not None and stored.ledger.boot_id == local.boot_id
        self.last: Result | None = stored.last if stored is not None and same_boot else None
        self.ran_at = stored.ran_at if stored is not None and same_boot else 0.0
        self.history = VerdictHistory(stored.changes if stored else ())
        self.tallies: Counter[str] = Counter()
        self.period_s = 0.0
        self.due_since: float | None = None

    @property
    def name(self) -> str:
        return self.check.name

    async def run(self) -> None:
        """Run until cancelled. Snapshot checks only wait."""
        await asyncio.get_running_loop().create_future()

    async def refresh(self, parameters: Parameters) -> Result:
        """Run the check now and return the result."""
        raise NotImplementedError

    @property
    def caught_up(self) -> bool:
        """Whether the first complete pass of this process has ended."""
        return True

    @property
    def known(self) -> bool:
        """Whether there is a verdict. A check that has not run yet is UNKNOWN, never PASS."""
        return True

    def unready(self) -> str:
        """Why the published verdict may be out of date; empty if it is not."""
        return ""

    def counts(self) -> Mapping[str, int]:
        return {}

    def step_times(self) -> Sequence[StepTotals]:
        return ()

    def start_over(self, ledger: Ledger) -> None:
        """Continue with ``ledger``, and read the whole log again."""
        self.ledger = ledger
        self.position = None

    def current_position(self) -> bytes | None:
        return self.position

    def reconcile(self, health: NodeHealth) -> None:
        """Compare with the NodeHealth when it is first observed. It is newer than the state file if that was lost or
        could not be written before the last end."""
        if self._reconciled:
            return
        self._reconciled = True
        reported = reported_check(health, self.name)
        if reported is None:
            return
        self._adopt_reported_verdict(reported)
        if not (reported.findings or reported.cleared or reported.last_occurrence):
            return
        if self._provisional or reports_more_than(health, self.name, self.ledger):
            self.start_over(seed_ledger(self.name, self.local.boot_id, health))
            log.info("check %s continues from its NodeHealth (occurrence %d)", self.name, self.ledger.counter)
            if max(reported_numbers(reported)) > self.ledger.counter:
                log.warning("check %s: the NodeHealth has occurrences far above the last one: refused", self.name)

    def _adopt_reported_verdict(self, reported: ReportedCheck) -> None:
        """Add a verdict to the history that was published but not saved."""
        at = seconds(reported.last_change)
        if reported.verdict not in list(Verdict) or not 0 < at <= self.local.clock.wall():
            return
        verdict = Verdict(reported.verdict)
        if self.history.insert_reported(at, verdict, reported.reason, reported.message):
            self.reporter.report_change()
        if at > self._last_change:
            self._verdict, self._last_change = verdict, at
            self.restore_trouble(
                (reported.reason, reported.message) if verdict is Verdict.UNKNOWN and not reported.findings else None
            )

    def restore_trouble(self, why: tuple[str, str] | None) -> None:
        """Restore the trouble that an earlier agent published but did not save."""

    def apply_clears(self, health: NodeHealth) -> None:
        """Apply the entries of spec.clear in ``health``."""
        clears = [clear for clear in health.spec.clear if clear.check == self.name]
        if not clears:
            return
        before = self.ledger.revision
        reported = reported_check(health, self.name)
        findings = reported.findings if reported is not None else ()
        seen = {(f.component, f.reason, f.occurrence): seconds(f.last_seen) for f in findings}
        closed = self.ledger.apply_clears(clears, self.local.clock.wall(), seen)
        for transition in closed:
            if transition.step is TransitionKind.CLEARED:
                self.forget(transition.finding)
        self._log_refused(clears)
        self.publish_transitions(closed)
        if self.ledger.revision != before:
            self.reporter.report_progress()

    def disown(self, reported: ReportedCheck, *, published: bool) -> bool:
        """Close findings of the NodeHealth that this agent never made. True if there are any."""
        foreign = self.ledger.disown(reported.findings, self.local.clock.wall(), published=published)
        if foreign:
            finding_log.log_disowned(self.name, foreign)
            self.reporter.report_change()
        return bool(foreign)

    def _log_refused(self, clears: Sequence[ClearEntry]) -> None:
        """Log each entry that is refused once."""
        last = self.ledger.counter
        refused = {clear.occurrence for clear in clears if clear.occurrence > last}  # others have raised the counter
        for number in sorted(refused - self._refused):
            log.warning("check %s: clear up to occurrence %d refused: the last one is %d", self.name, number, last)
        self._refused = refused

    def forget(self, finding: Finding) -> None:
        """A user has cleared ``finding``, so its next occurrence is new."""

    def publish_transitions(self, transitions: Sequence[Transition]) -> None:
        """Report the changes now, and log them in the next turn of the event loop. Synchronous, as StreamCheck._read
        requires."""
        if transitions:
            self.reporter.report_change()
            # behind the publisher's turn, in which it sends its PATCH
            asyncio.get_running_loop().call_soon(self._log_transitions, transitions)

    def _log_transitions(self, transitions: Sequence[Transition]) -> None:
        for transition in transitions:
            try:
                finding_log.log_transition(self.local.name, self.name, transition)
            except Exception:
                log.exception("check %s: cannot log a change of a finding", self.name)

    def set_trouble(self, trouble: tuple[str, str] | None) -> None:
        if trouble == self.trouble:
            return
        if (trouble and trouble[0]) != (self.trouble and self.trouble[0]):
            if trouble and trouble[0] != "Starting":
                log.warning("check %s is UNKNOWN: %s: %s", self.name, *trouble)
            elif self.trouble and self.trouble[0] != "Starting":
                log.info("check %s is no longer UNKNOWN", self.name)
        self.trouble = trouble
        self.reporter.report_change()

    def view(self) -> CheckView:
        """The published state."""
        findings, more = self.ledger.published()
        verdict = worst([*(finding.verdict for finding in findings), *([Verdict.UNKNOWN] if self.trouble else [])])
        reason, message = self.trouble or ("", "")
        if findings and findings[0].verdict in (Verdict.FAIL, Verdict.WARN):
            reason, message = findings[0].reason, findings[0].message
        elif self.last is not None and self.last.verdict is Verdict.SKIP and verdict is Verdict.PASS:
            verdict, reason, message = Verdict.SKIP, self.last.reason, self.last.message
        if verdict is not self._verdict:
            self._last_change = self.local.clock.wall()
            self.history.record(self._last_change, self._verdict, verdict, reason, message)
            self._verdict = verdict
        return CheckView(
            name=self.name,
            verdict=verdict,
            reason=reason,
            message=message,
            last_change=self._last_change,
            findings=findings,
            more_findings=more,
            over=self.ledger.over(),
            last_occurrence=self.ledger.counter,
        )

    def result(self, *, started: float = 0.0, duration_s: float = 0.0) -> Result:
        if not self.known:
            message = "the check has not run since the agent started"
            return Result(check=self.name, verdict=Verdict.UNKNOWN, reason="NotRun", message=message)
        view = self.view()
        return Result(
            check=self.name,
            verdict=view.verdict,
            reason=view.reason,
            message=view.message,
            findings=view.findings,
            started=started or self.ran_at or self.local.clock.wall(),
            duration_s=duration_s or (self.last.duration_s if self.last is not None else 0.0),
        )

    def stored(self) -> StoredCheck:
        """For the state file. Ledger and position match; see StreamCheck._read."""
        return StoredCheck(
            ledger=self.ledger.memory(),
            position=self.current_position(),
            verdict=self._verdict.value if self._verdict is not None else "",
            last_change=self._last_change,
            last=self.last,
            ran_at=self.ran_at,
            changes=self.history.entries,
        )

    def reading(self) -> CheckReading:
        return CheckReading(
            name=self.name,
            verdict=self.view().verdict if self.known else Verdict.UNKNOWN,
            known=self.known,
            findings=self.ledger.open_findings(),
            counts=self.counts(),
            number_given=self.ledger.counter,
            measured=self.last.findings if self.last is not None else (),
            ran_at=self.ran_at,
            duration_s=self.last.duration_s if self.last is not None else 0.0,
            period_s=self.period_s,
            tallies=self.tallies,
            due_since=self.due_since,
            step_times=self.step_times(),
        )
