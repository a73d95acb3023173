"""A node whose checks find what a test says, whose clock a test moves, and what is asked of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.agent.recording_reporter import RecordingReporter

from muster_agent.checks.check_outcome import CheckOutcome, refused_outcome
from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.request_runner import RequestRunner
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.state_file import StoredRequest
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.clock import AgentClock
from muster_agent.idle.occupancy import RunScope
from muster_checks.base.declaration import Check, CheckStream, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Result, Verdict
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CheckRequest, RequestAnswer

NOON = 1_700_000_000.0


class Limits(Parameters):
    limit: float = 4.0
    table: Path | None = None
    depth: int = 1
    only: str = ""


class Clock:
    """Wall and steady time; sleeping passes it at once."""

    def __init__(self) -> None:
        self.now = NOON
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class ScriptedNode:
    """A node whose checks find what a test says. ``busy``: whose work refuses heavy checks; ``finds``: by check, what
    its next runs come to (then PASS); ``hold``: set while runs may end."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.busy = ""
        self.finds: dict[str, list[Verdict | Result]] = {}
        self.asked: list[tuple[str, Parameters, bool]] = []
        self.scopes: list[RunScope] = []
        self.ran: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.cancelled = 0
        self.reporter = RecordingReporter()
        local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
        self.checks: dict[str, NodeCheck] = {
            name: SnapshotCheck(self._check(name, cost), Limits(depth=3), local, None)
            for name, cost in (("link", Cost.LIGHT), ("heavy", Cost.HEAVY), ("other", Cost.HEAVY))
        }
        stream = Check(
            name="dmesg",
            description="",
            cost=Cost.LIGHT,
            parameters=Limits,
            timeout_s=1.0,
            devices=(),
            stream=lambda *_: CheckStream(),
        )
        self.checks["dmesg"] = StreamCheck(stream, Limits(), local, None)

    def _check(self, name: str, cost: Cost) -> Check:
        async def probe(_node: NodeView, _parameters: Limits) -> Sequence[Finding]:
            return ()

        return Check(
            name=name,
            description="",
            cost=cost,
            parameters=Limits,
            timeout_s=1.0,
            devices=(),
            period_s=60.0,
            probe=probe,
            one_device="only" if name == "heavy" else "",
        )

    async def run_check(self, running: NodeCheck, parameters: Parameters, force: bool, scope: RunScope) -> CheckOutcome:
        self.asked.append((running.name, parameters, force))
        self.scopes.append(scope)
        await asyncio.sleep(0)
        if running.check.cost is Cost.HEAVY and self.busy and not force:
            return refused_outcome(running.name, self.busy, None, self.clock())
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        script = self.finds.get(running.name)
        found = script.pop(0) if script else Verdict.PASS
        if isinstance(found, Result):
            return CheckOutcome(found)
        self.ran.append(running.name)
        reason = "" if found is Verdict.PASS else f"{found.capitalize()}ed"
        return CheckOutcome(
            Result(check=running.name, verdict=found, reason=reason, message=f"{running.name} is {found}")
        )

    def requests(self, stored: Sequence[StoredRequest] = ()) -> RequestRunner:
        clock = AgentClock(monotonic=self.clock, wall=self.clock, sleep=self.clock.sleep)
        runner = RequestRunner(self.run_check, self.checks, self.reporter, clock)
        runner.restore(stored)
        return runner

    @asynccontextmanager
    async def at_work(self, *asked: CheckRequest, stored: Sequence[StoredRequest] = ()) -> AsyncIterator[RequestRunner]:
        requests = self.requests(stored)
        requests.apply_requests(asked)
        task = asyncio.create_task(requests.run())
        try:
            yield requests
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def answer(self, request: CheckRequest, stored: Sequence[StoredRequest] = ()) -> RequestAnswer:
        async with self.at_work(request, stored=stored) as requests:
            await until(requests.answers)
            [answer] = requests.answers()
            return answer


async def until(look) -> None:
    """Turns of the loop, of which there are plenty: nothing here waits for the world."""
    for _ in range(100_000):
        if look():
            return
        await asyncio.sleep(0)
    raise AssertionError("never")


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def request(*checks: str, name: str = "r1", force: bool = False, expires: float = 0.0, **params: str) -> CheckRequest:
    return CheckRequest(id=name, checks=checks, params=params, by="ann", force=force, expires=rfc3339(expires))
