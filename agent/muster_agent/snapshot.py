"""A snapshot check: run when asked, the last result kept."""

from muster_agent.running import Running
from muster_checks.declaration import Parameters
from muster_checks.running import run_probe
from muster_checks.vocabulary import Result, Verdict


class SnapshotCheck(Running):
    last: Result | None = None

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
