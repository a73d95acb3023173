"""Snapshot checks: run periodically or on request, and keep the last result."""

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.reporter import NO_REPORTER, Reporter
from muster_agent.checks.state_file import StoredCheck
from muster_agent.findings.ledger import Ledger
from muster_checks.base.declaration import Check, Cost, Parameters
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Result, Verdict

STALE_TURNS = 3  # missed runs after which the verdict counts as out of date
STALE_SLACK_S = 60.0


class SnapshotCheck(NodeCheck):
    def __init__(
        self,
        check: Check,
        parameters: Parameters,
        local: LocalNode,
        stored: StoredCheck | None,
        reporter: Reporter = NO_REPORTER,
    ) -> None:
        super().__init__(check, parameters, local, stored, reporter)
        self._watched_since = local.clock.monotonic()
        self._found: Result | None = None  # of this process
        self._resume()
        self.trouble = self._blindness()

    def start_over(self, ledger: Ledger) -> None:
        super().start_over(ledger)
        self._resume()
        if self._found is not None:
            # the check has run before the NodeHealth was received; its result still applies
            self.publish_transitions(self.ledger.take_run(self._found))

    def restore_trouble(self, why: tuple[str, str] | None) -> None:
        if self._found is None and self.last is not None:
            self.trouble = why

    def _resume(self) -> None:
        """Pass the open findings to the probe, so that a device that is missing stays FAIL after a restart."""
        if self.check.resume is not None:
            self.check.resume(self.local.view, self.ledger.open_findings())

    @property
    def known(self) -> bool:
        return self.last is not None or bool(self.ledger.open_findings())

    @property
    def caught_up(self) -> bool:
        """Whether a periodic light check has run in this boot."""
        return not self.period_s or self.check.cost is Cost.HEAVY or self.last is not None

    def unready(self) -> str:
        """Reports missed runs of light checks; a heavy check may wait for days until the node is idle."""
        if not self.period_s or self.check.cost is Cost.HEAVY:
            return ""
        silent_s = self.local.clock.monotonic() - self._watched_since
        if silent_s <= STALE_TURNS * self.period_s + self.check.timeout_s + STALE_SLACK_S:
            return ""
        return f"{self.name}: no result for {silent_s:.0f} s (it runs every {self.period_s:g} s)"

    async def refresh(self, parameters: Parameters) -> Result:
        """Run the probe once. Errors in it are UNKNOWN, never FAIL."""
        result = await run_probe(
            self.check, self.local.view, parameters, wall=self.local.clock.wall, clock=self.local.clock.monotonic
        )
        self.tallies["run"] += 1
        if result.reason == "Timeout":
            self.tallies["timeout"] += 1
        if parameters != self.parameters:
            # a run with other parameters must not change the node's verdict: otherwise callers could taint a node with
            # a stricter limit, or clear a fault with a shallower test
            return result
        first, before, revision = self.last is None, self._verdict, self.ledger.revision
        self.last = self._found = result
        self.ran_at, self._watched_since = result.started, self.local.clock.monotonic()
        self.due_since = None
        self.publish_transitions(self.ledger.take_run(result))
        self.set_trouble(self._blindness())
        verdict = self.view().verdict
        if first or verdict is not before:
            self.reporter.report_change()
        elif self.ledger.revision != revision or self.check.cost is Cost.HEAVY:
            self.reporter.report_progress()
        else:
            self.reporter.report_rerun()
        return result

    def _blindness(self) -> tuple[str, str] | None:
        last = self.last
        blind = last is not None and last.verdict is Verdict.UNKNOWN and not last.findings
        return (last.reason, last.message) if last is not None and blind else None
