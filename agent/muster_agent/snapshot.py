"""A snapshot check: run when asked, the last result kept."""

import asyncio
import logging

from muster_agent.running import Running
from muster_checks.declaration import Parameters
from muster_checks.vocabulary import Finding, Result, Verdict, shorten, worst

log = logging.getLogger(__name__)


class SnapshotCheck(Running):
    last: Result | None = None

    async def refresh(self, parameters: Parameters) -> Result:
        """Run the probe once. Whatever goes wrong there is UNKNOWN, never a FAIL."""
        assert self.check.probe is not None  # noqa: S101 - a snapshot check has one
        started, clock = self.context.wall(), self.context.clock()
        reason, message = "", ""
        findings: tuple[Finding, ...] = ()
        try:
            async with asyncio.timeout(self.check.timeout_s):
                findings = tuple(await self.check.probe(self.context.view, parameters))
        except TimeoutError:
            reason, message = "Timeout", f"no result within {self.check.timeout_s:g} s"
        except Exception as error:
            log.warning("check %s has broken", self.name, exc_info=error)
            reason, message = "ProbeFailed", shorten(f"{type(error).__name__}: {error}")
        if reason:
            verdict = Verdict.UNKNOWN
        else:
            verdict = worst([finding.verdict for finding in findings])
            leading = next((f for f in findings if f.verdict is verdict and verdict is not Verdict.PASS), None)
            reason, message = (leading.reason, leading.message) if leading else ("", "")
        result = Result(
            check=self.name,
            verdict=verdict,
            reason=reason,
            message=message,
            findings=findings,
            started=started,
            duration_s=self.context.clock() - clock,
        )
        self.announce(self.ledger.take_run(result))
        self.last = result
        self.set_trouble((reason, message) if verdict is Verdict.UNKNOWN and not findings else None)
        return result
