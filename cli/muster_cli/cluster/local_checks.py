"""Runs checks on this machine: light ones concurrently, heavy ones one after another. Reports slow ones on stderr."""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence

from muster_agent.findings.ledger import Ledger
from muster_checks.base.declaration import Check, CheckStream, Cost, NodeView, Parameters
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Finding, Result, Verdict, shorten, worst

ANNOUNCED_AFTER_S = 2.0  # a check that runs longer is reported as running


async def run_checks(checks: Sequence[Check], node: NodeView, parameters: Mapping[str, Parameters]) -> list[Result]:
    """The results, in the order of ``checks``. Heavy checks measure performance, so nothing else runs meanwhile."""
    light = [check for check in checks if check.cost is Cost.LIGHT]
    results: dict[str, Result] = {}
    running = CheckProgress(sys.stderr.isatty())

    async def one(check: Check) -> None:
        with running.track(check):
            results[check.name] = await run_check(check, node, parameters[check.name])

    watcher = asyncio.create_task(running.show())
    try:
        async with asyncio.TaskGroup() as group:
            for check in light:
                group.create_task(one(check))
        for check in checks:
            if check.cost is Cost.HEAVY:
                await one(check)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        running.clear()
    return [results[check.name] for check in checks]


async def run_check(check: Check, node: NodeView, parameters: Parameters) -> Result:
    """The result of a check. A stream check judges everything that its source holds now."""
    if check.stream is None:
        return await run_probe(check, node, parameters)
    started, clock = time.time(), time.monotonic()
    findings: tuple[Finding, ...] = ()
    try:
        async with asyncio.timeout(check.timeout_s):
            findings, trouble = await _drain(check.stream(node, parameters, None), check.name)
    except TimeoutError:
        trouble = f"timed out after {check.timeout_s:g} s"
    return Result(
        check=check.name,
        verdict=Verdict.UNKNOWN if trouble else worst([finding.verdict for finding in findings]),
        reason="SourceUnreadable" if trouble else findings[0].reason if findings else "",
        message=shorten(trouble or (findings[0].message if findings else "")),
        findings=findings,
        started=started,
        duration_s=time.monotonic() - clock,
    )


async def _drain(stream: CheckStream, name: str) -> tuple[tuple[Finding, ...], str]:
    """Read a stream to its current end. Returns (findings, why it could not be read or "")."""
    ledger = Ledger(name, boot_id="")

    async def take() -> None:
        async for batch in stream.events():
            ledger.take(batch)

    reader = asyncio.create_task(take())
    try:
        await stream.drain()
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return ledger.published()[0], stream.health()


class CheckProgress:
    """Reports on stderr which checks still run: one line, repainted, on a terminal; otherwise a line per check."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._since: dict[str, tuple[float, Check]] = {}
        self._announced: set[str] = set()

    def track(self, check: Check) -> "_RunningCheck":
        return _RunningCheck(self._since, check)

    async def show(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            long = {n: at for n, (at, _) in self._since.items() if time.monotonic() - at >= ANNOUNCED_AFTER_S}
            if self._terminal:
                text = ", ".join(f"{name} {time.monotonic() - at:.0f} s" for name, at in long.items())
                print(f"\r\x1b[2K{f'running: {text}' if text else ''}"[:160], end="", file=sys.stderr, flush=True)
                continue
            for name in long.keys() - self._announced:
                self._announced.add(name)
                limit = self._since[name][1].timeout_s
                print(f"{name}: still running (timeout {limit:g} s)", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


class _RunningCheck:
    def __init__(self, since: dict[str, tuple[float, Check]], check: Check) -> None:
        self._since, self._check = since, check

    def __enter__(self) -> None:
        self._since[self._check.name] = (time.monotonic(), self._check)

    def __exit__(self, *_: object) -> None:
        self._since.pop(self._check.name, None)
