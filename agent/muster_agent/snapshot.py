"""A snapshot check: run when asked, the last result kept."""

from muster_agent.ledger import Ledger
from muster_agent.running import Context, Running
from muster_agent.state import StoredCheck
from muster_checks.declaration import Check, Parameters
from muster_checks.running import run_probe
from muster_checks.vocabulary import Result, Verdict


class SnapshotCheck(Running):
    last: Result | None = None

    def __init__(self, check: Check, parameters: Parameters, context: Context, stored: StoredCheck | None) -> None:
        super().__init__(check, parameters, context, stored)
        self._resume()

    def start_over(self, ledger: Ledger) -> None:
        super().start_over(ledger)
        self._resume()

    def _resume(self) -> None:
        """A device that is still gone must not be over because the first run of this process never saw it."""
        if self.check.resume is not None:
            self.check.resume(self.context.view, self.ledger.open_findings())

    @property
    def known(self) -> bool:
        return self.last is not None or bool(self.ledger.open_findings())

    async def refresh(self, parameters: Parameters) -> Result:
        """Run the probe once. Whatever goes wrong there is UNKNOWN, never a FAIL."""
        result = await run_probe(
            self.check, self.context.view, parameters, wall=self.context.wall, clock=self.context.clock
        )
        if parameters != self.parameters:
            # asked with other limits or another depth: it answers whoever asked. The node's own verdict it must not
            # change: anybody could have a node tainted by a stricter limit, or a fault closed by a shallower test
            return result
        self.announce(self.ledger.take_run(result))
        self.last = result
        blind = result.verdict is Verdict.UNKNOWN and not result.findings
        self.set_trouble((result.reason, result.message) if blind else None)
        return result
