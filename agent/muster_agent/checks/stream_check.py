"""Stream checks: read continuously, restart after failures, and report their progress."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.reporter import NO_REPORTER, Reporter
from muster_agent.checks.state_file import StoredCheck
from muster_agent.findings.ledger import Ledger
from muster_checks.base.declaration import AllClear, Check, CheckStream, Parameters, Sign, StepTotals
from muster_checks.base.vocabulary import Finding, Result, Verdict, severity
from muster_kube.controller.backoff import Backoff

log = logging.getLogger(__name__)

POLL_S = 5.0  # interval at which health and position of a stream are checked
HEALTHY_S = 60.0  # a stream that ran this long restarts without a long delay
STARTING = ("Starting", "the check is still reading the log of before its start")


class StreamCheck(NodeCheck):
    def __init__(
        self,
        check: Check,
        parameters: Parameters,
        local: LocalNode,
        stored: StoredCheck | None,
        reporter: Reporter = NO_REPORTER,
        *,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(check, parameters, local, stored, reporter)
        self.trouble = STARTING
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = Backoff(base_s=1.0, cap_s=60.0)
        self._stream: CheckStream | None = None
        self._caught_up = False
        self._restart_wanted = asyncio.Event()  # set to restart the stream
        self._revision = -1
        self._reported_position: bytes | None = None
        self._to_forget: list[Finding] = []  # closed while no stream was open

    @property
    def caught_up(self) -> bool:
        return self._caught_up

    def unready(self) -> str:
        return "" if self._caught_up and self.trouble is None else ": ".join((self.name, *(self.trouble or STARTING)))

    def counts(self) -> Mapping[str, int]:
        return self._stream.counts() if self._stream is not None else {}

    def step_times(self) -> Sequence[StepTotals]:
        return self._stream.step_times() if self._stream is not None else ()

    def current_position(self) -> bytes | None:
        return self._stream.position() if self._stream is not None else self.position

    def forget(self, finding: Finding) -> None:
        if self._stream is None:
            self._to_forget.append(finding)
        else:
            self._stream.forget(finding.component, (finding.reason,))

    def start_over(self, ledger: Ledger) -> None:
        super().start_over(ledger)
        self._stream = None
        self._caught_up = False
        self.trouble = STARTING
        self._restart_wanted.set()

    async def run(self) -> None:
        failures = 0
        while True:
            started = self.local.clock.monotonic()
            self._restart_wanted.clear()
            reading = asyncio.create_task(self._read())
            over = asyncio.create_task(self._restart_wanted.wait())
            try:
                await asyncio.wait([reading, over], return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    continue
                error = reading.exception()
            finally:
                for task in (reading, over):
                    task.cancel()
                await asyncio.gather(reading, over, return_exceptions=True)
            if self._stream is not None:
                self.position, self._stream = self._stream.position(), None
            text = f"{type(error).__name__}: {error}" if error else "the stream ended"
            log.error("check %s failed and will restart: %s", self.name, text, exc_info=error)
            self.reporter.report_stream_failure(self.name)
            self.set_trouble(("StreamFailed", text))
            if self.local.clock.monotonic() - started > HEALTHY_S:
                failures = 0
            await self.local.clock.sleep(self._backoff.delay_s(failures, self._rng))
            failures += 1

    async def _read(self) -> None:
        assert self.check.stream is not None  # noqa: S101 - a stream check has one
        stream = self.check.stream(self.local.view, self.parameters, self.position)
        self._stream = stream
        while self._to_forget:
            self.forget(self._to_forget.pop())
        watching = asyncio.create_task(self._watch_health(stream))
        try:
            async with aclosing(cast("Any", stream.events())) as batches:
                # No await in this loop's body: other tasks save ledger and position together, and so run only between
                # two batches, when the two match.
                async for batch in batches:
                    self.publish_transitions(self.ledger.take(batch))
                    if self._caught_up:  # older lines would distort the latency
                        self._report_detections(batch)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _report_detections(self, batch: Sequence[Sign | AllClear]) -> None:
        now = self.local.clock.wall()
        for sign in batch:
            if isinstance(sign, Sign):
                self.reporter.report_detection(self.name, now - sign.at)

    async def _watch_health(self, stream: CheckStream) -> None:
        try:
            await stream.drain()
        except RuntimeError:
            return  # it has ended; _read reports why
        self._check_health(stream)
        while True:
            await self.local.clock.sleep(POLL_S)
            self._check_health(stream)

    def _check_health(self, stream: CheckStream) -> None:
        """Update trouble, progress and the end of the first pass."""
        if stream is not self._stream:
            return
        unreadable = stream.health()
        if unreadable:
            self.set_trouble(("SourceUnreadable", unreadable))
        elif stream.caught_up:
            if not self._caught_up:
                self._caught_up = True
                self.ledger.end_replay()
                self.reporter.report_change()
            self.set_trouble(None)
        else:
            self.set_trouble(STARTING)
        position = stream.position()
        if self._revision != self.ledger.revision or position != self._reported_position:
            self._revision, self._reported_position = self.ledger.revision, position
            self.reporter.report_progress()

    async def refresh(self, parameters: Parameters) -> Result:  # noqa: ARG002 - a stream has its own
        """Read and judge the log up to now. If that fails, the result is UNKNOWN instead of PASS."""
        started = self.local.clock.wall()
        clock = self.local.clock.monotonic()
        stream = self._stream
        unread: tuple[str, str] | None = None
        if stream is not None:
            try:
                async with asyncio.timeout(self.check.timeout_s):
                    await stream.drain()
                await asyncio.sleep(0)  # lets the last batch be processed
            except TimeoutError:
                unread = "Timeout", f"could not read the whole log within {self.check.timeout_s:g} s"
                log.warning("check %s: %s", self.name, unread[1])
            except RuntimeError as error:
                unread = "StreamFailed", str(error)
                log.info("check %s: %s", self.name, error)
            self._check_health(stream)
        result = self.result(started=started, duration_s=self.local.clock.monotonic() - clock)
        if unread is None or severity(result.verdict) >= severity(Verdict.UNKNOWN):
            return result
        reason, message = unread
        return msgspec.structs.replace(result, verdict=Verdict.UNKNOWN, reason=reason, message=message)
