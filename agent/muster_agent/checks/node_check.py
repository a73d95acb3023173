"""One check as it runs on this node: its ledger, what stands in its way, and what is published of it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.reporter import NO_REPORTER, Reporter
from muster_agent.checks.state_file import StoredCheck
from muster_agent.findings import finding_log
from muster_agent.findings.health_status import CheckView
from muster_agent.findings.ledger import Ledger, Transition
from muster_agent.findings.ledger_seed import highest_reported, reported_check, reports_more_than, seed_ledger
from muster_agent.findings.verdict_history import VerdictHistory
from muster_agent.metrics.agent_metrics import CheckReading
from muster_checks.base.declaration import Check, Parameters
from muster_checks.base.vocabulary import Finding, Result, Verdict, worst
from muster_kube.api.times import seconds
from muster_kube.nodehealth import ClearEntry, NodeHealth, ReportedCheck

log = logging.getLogger(__name__)


class NodeCheck:
    """Base of stream and snapshot checks.

    last, ran_at: the last run and when it began (seconds since the epoch; 0: it has not run in this boot)
    tallies:      runs since this process started, by what became of them; see metrics.CheckReading

    ``stored``: from the state file. Without it the ledger is provisional: it gives way to what the NodeHealth tells.
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
        """Why nothing is known now: reason and message."""
        self._provisional = stored is None
        self._reconciled = False
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
        """Forever; cancel to stop. What runs only when it is asked just waits."""
        await asyncio.get_running_loop().create_future()

    async def refresh(self, parameters: Parameters) -> Result:
        """The result as of now, for somebody who waits for it."""
        raise NotImplementedError

    @property
    def caught_up(self) -> bool:
        """The first full pass of this process is done."""
        return True

    @property
    def known(self) -> bool:
        """There is a verdict to tell. A check that has not run says nothing of its node, PASS least of all."""
        return True

    def unready(self) -> str:
        """Why the published verdict may be stale; empty while it is not."""
        return ""

    def counts(self) -> Mapping[str, int]:
        return {}

    def start_over(self, ledger: Ledger) -> None:
        """Go on with ``ledger``, all of the past read again."""
        self.ledger = ledger
        self.position = None

    def current_position(self) -> bytes | None:
        return self.position

    def reconcile(self, health: NodeHealth) -> None:
        """At the first sight of the own NodeHealth: it knows more than we do when the state file was lost, or could
        not be written before the last end."""
        if self._reconciled:
            return
        self._reconciled = True
        told = reported_check(health, self.name)
        if told is None:
            return
        self._adopt_reported_verdict(told)
        if not (told.findings or told.cleared or told.last_occurrence):
            return
        if self._provisional or reports_more_than(health, self.name, self.ledger):
            log.info(
                "check %s goes on from its NodeHealth (occurrence %d)", self.name, highest_reported(health, self.name)
            )
            self.start_over(seed_ledger(self.name, self.local.boot_id, health))

    def _adopt_reported_verdict(self, told: ReportedCheck) -> None:
        """What was told, and not saved before the end, is no less a change of the verdict."""
        at = seconds(told.last_change)
        if told.verdict not in list(Verdict) or not 0 < at <= self.local.clock.wall():
            return
        verdict = Verdict(told.verdict)
        if self.history.insert_reported(at, verdict, told.reason, told.message):
            self.reporter.report_change()
        if at > self._last_change:
            self._verdict, self._last_change = verdict, at
            self.restore_trouble(
                (told.reason, told.message) if verdict is Verdict.UNKNOWN and not told.findings else None
            )

    def restore_trouble(self, why: tuple[str, str] | None) -> None:
        """The last word of an agent before this one, which is newer than what it saved: why nothing was known."""

    def apply_clears(self, clears: Sequence[ClearEntry]) -> None:
        before = self.ledger.revision
        closed = self.ledger.apply_clears(clears, self.local.clock.wall())
        for transition in closed:
            self.forget(transition.finding)
        self.publish_transitions(closed)
        if self.ledger.revision != before:
            self.reporter.report_progress()

    def forget(self, finding: Finding) -> None:
        """``finding`` was closed by a person's word; what fires next is new."""

    def publish_transitions(self, transitions: Sequence[Transition]) -> None:
        """Tell log and publisher. Synchronous on purpose: see StreamCheck.run."""
        for transition in transitions:
            finding_log.log_transition(self.local.name, self.name, transition)
        if transitions:
            self.reporter.report_change()

    def set_trouble(self, trouble: tuple[str, str] | None) -> None:
        if trouble == self.trouble:
            return
        if (trouble and trouble[0]) != (self.trouble and self.trouble[0]):
            if trouble and trouble[0] != "Starting":
                log.warning("check %s is UNKNOWN: %s: %s", self.name, *trouble)
            elif self.trouble and self.trouble[0] != "Starting":
                log.info("check %s can be judged again", self.name)
        self.trouble = trouble
        self.reporter.report_change()

    def view(self) -> CheckView:
        """What is published of it."""
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
            message = "has not run since this agent started"
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
        """For the state file. Ledger and position are of one moment: see StreamCheck.run."""
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
        )
