"""The agent as an explored process: a kernel log check with its ledger, the publisher, the claim, and the watch.

The kernel log is outside: a line is a step of its own, reading it another. So is the state on disk: the agent shows
what it would save, and the world saves it when it likes.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from typing import Any

import msgspec
from tests.explore.memory import MemoryReader
from tests.explore.process import Middle, Process
from tests.explore.tainter.leader import NOON

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.run_admission import CpuShare, RunQueue
from muster_agent.checks.state_file import StoredState
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.clock import AgentClock
from muster_agent.idle.occupancy import AlwaysIdle
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent, RunPlan
from muster_agent.publish.change_signal import Delivery
from muster_agent.publish.node_claim import NodeClaim
from muster_agent.publish.publisher import OwnNodeHealth, Publisher
from muster_checks.base.declaration import AllClear, Check, CheckStream, Cost, NodeView, Parameters, Sign
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_kube.api.client import KubeClient
from muster_kube.controller.clock import Clock
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import PATH, AgentIdentity, NodeHealth

COMPONENT = "gpu/0000:3b:00.0"
WALL = NOON + 1000.0  # later than everything that happens


class KernelLog(CheckStream):
    """Reads what the world feeds it. exists: lines that were there at the start."""

    def __init__(self, position: int, exists: int) -> None:
        self._position = position
        self._exists = exists
        self._lines: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self._read = asyncio.Event()
        self._note()

    def _note(self) -> None:
        if self._position >= self._exists:
            self.caught_up = True
            self._read.set()

    def feed(self, line: tuple[int, float]) -> None:
        self._lines.put_nowait(line)

    async def events(self) -> AsyncIterator[list[Sign | AllClear]]:
        while True:
            number, at = await self._lines.get()
            sign = Sign(
                component=COMPONENT, reason="Xid79", verdict=Verdict.FAIL, message="off the bus", at=at,
                fault_class=FaultClass.RESET,
            )  # fmt: skip
            self._position = number
            yield [sign]
            self._note()

    def position(self) -> bytes:
        return str(self._position).encode()

    async def drain(self) -> None:
        await self._read.wait()


class ExploredAgent(Process):
    """Inputs of its own: ``boot`` (the first one; value: what is on its disk, and the number of lines in the log),
    ``line`` (value: number and time of the next line)."""

    reader = MemoryReader(
        KubeClient,
        Process,
        AgentMetrics,
        NodeView,
        Check,
        dead=("KernelLog.events.sign", "KernelLog.events.at", "StreamCheck._read.batch", "Publisher.run.wait_s"),
        fields=("Event._waiters",),
    )

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._log: KernelLog | None = None

    def start(self) -> None:
        pass

    def do(self, name: str, value: Any) -> None:
        if name == "line":
            assert self._log is not None
            self._log.feed(value)
        elif name == "boot":
            self._boot(*value)
        else:
            super().do(name, value)

    def _boot(self, disk: bytes, lines: int) -> None:
        clock = AgentClock(monotonic=lambda: 0.0, wall=lambda: WALL)
        local = LocalNode(name=self._node, view=NodeView(), boot_id="boot", clock=clock)
        stored = msgspec.json.decode(disk, type=StoredState) if disk else None

        def stream(_view: object, _parameters: object, position: bytes | None) -> CheckStream:
            self._log = KernelLog(int(position or 0), lines)
            return self._log

        check = Check(
            name="dmesg", description="", cost=Cost.LIGHT, parameters=Parameters, timeout_s=1.0, devices=(),
            stream=stream,
        )  # fmt: skip
        metrics = AgentMetrics(self._node, "1")
        delivery = Delivery(self._node, metrics, in_cluster=True, clock=clock)
        known = stored.checks["dmesg"] if stored is not None else None
        running = StreamCheck(check, Parameters(), local, known, delivery, rng=Middle())
        queue = RunQueue(AlwaysIdle(), light_at_once=1, cpu=CpuShare(1.0))
        identity = AgentIdentity(pod_uid="pod", version="1")
        self.agent = Agent(local, [running], identity, queue=queue, plan=RunPlan(local=False), reporter=delivery)
        self.agent.disowns = True
        if stored is not None:
            self.agent.requests.restore(stored.requests)
        own = OwnNodeHealth(self.client, self._node)
        self.publisher = Publisher(own, NodeClaim("pod"), self.agent, metrics, clock=clock, rng=Middle())
        reflector: Reflector[NodeHealth] = Reflector(
            self.client,
            PATH,
            NodeHealth,
            on_change=self.publisher.observe,
            on_undecodable=self.publisher.observe_undecodable,
            params={"fieldSelector": f"metadata.name={self._node}"},
            newest=True,
            clock=Clock(monotonic=lambda: 0.0, wall=lambda: WALL, rng=Middle()),
        )
        delivery.bind_publisher(self.publisher, reflector)
        for each in (running, reflector, self.publisher, self.agent.requests):
            self.spawn(each.run())

    def roots(self) -> tuple[object, ...]:
        return () if self._log is None else (self.agent, self.publisher, self._log)

    def shown(self) -> Hashable:
        """How many lines it has read, and what it would save now."""
        if self._log is None:
            return None
        return int(self._log.position()), msgspec.json.encode(self.agent.stored())
