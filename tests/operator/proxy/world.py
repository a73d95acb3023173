"""A world for the proxy in one process: an API server that has one ConfigMap, and simulated V-IPU controllers.

Every effect (a write, a call that changes V-IPU) passes a gate before and after it happens. A gate that is shut at a
number lets nobody through from there on: to the proxy it is as if it had died just there, and nothing of it happens any
more until another proxy is started.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from muster_kube.api.errors import Conflict, NotFound, Unreachable
from muster_kube.api.objects import Metadata
from muster_operator.job.names import partition
from muster_operator.job.partition_api import PartitionRequest
from muster_operator.proxy.controllers.list_source import ControllerListSource
from muster_operator.proxy.intervals import Intervals, RequestTimeouts
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.tracker.config_map import TrackerConfigMap, TrackerObject
from muster_operator.proxy.vipu_proxy import VipuProxy
from muster_operator.vipu.controller import Capacity, Ipu, VipuPartition
from muster_operator.vipu.simulator.fleet import SimulatedFleet, SimulatedPartition
from muster_operator.vipu.simulator.in_process import InProcessController

TRACKER = "ipu-partitions-tracker"
FAR_S = 60.0  # far more than anything takes: what hangs fails, what is slow does not
FAST = Intervals(
    poll_s=0.001, poll_cap_s=0.005, retry_s=0.001, retry_cap_s=0.01, count_s=0, late_s=0.02, answer_s=FAR_S
)


class Gate:
    """passed: effects' edges that were passed; shut_at: the first that nobody passes any more."""

    def __init__(self) -> None:
        self.passed = 0
        self.shut_at: int | None = None
        self.is_shut = asyncio.Event()

    async def __call__(self) -> None:
        if self.is_shut.is_set() or self.passed == self.shut_at:
            self.is_shut.set()
            await asyncio.Event().wait()
        self.passed += 1

    def open(self) -> None:
        self.passed, self.shut_at = 0, None
        self.is_shut.clear()


class FakeApi:
    """One ConfigMap. away: every call fails; lost_answers: so many writes happen and are not answered."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.map: TrackerObject | None = None
        self.version = 0
        self.writes = 0
        self.away = False
        self.lost_answers = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.watchers: list[VipuProxy] = []

    def put(self, data: dict[str, str] | None) -> None:
        """By somebody else; None: deleted."""
        self.version += 1
        self.map = None if data is None else TrackerObject(
            metadata=Metadata(name=TRACKER, resource_version=str(self.version)), data=data
        )  # fmt: skip
        for proxy in self.watchers:
            asyncio.get_running_loop().call_soon(proxy.store._receive, self.map)

    @property
    def data(self) -> dict[str, str]:
        return self.map.data if self.map is not None else {}

    async def get(self, path: str, *, type: type[TrackerObject]) -> TrackerObject:
        await asyncio.sleep(0)
        self._answerable(path)
        if self.map is None:
            raise NotFound(404, "NotFound", "none", path)
        return self.map

    async def create(self, path: str, body: Any, *, type: type[TrackerObject]) -> TrackerObject:
        await self._gate()
        self._answerable(path)
        if self.map is not None:
            raise Conflict(409, "AlreadyExists", "there is one", path)
        return await self._written(dict(body["data"]), path)

    async def patch(self, path: str, body: Any, *, type: type[TrackerObject], params: Any) -> TrackerObject:
        await self._gate()
        await self.writable.wait()
        self._answerable(path)
        if self.map is None:
            raise NotFound(404, "NotFound", "none", path)
        if body["metadata"]["resourceVersion"] != self.map.metadata.resource_version:
            raise Conflict(409, "Conflict", "moved", path)
        data = dict(self.map.data)
        for key, text in body["data"].items():
            data.pop(key, None)
            if text is not None:
                data[key] = text
        return await self._written(data, path)

    async def _written(self, data: dict[str, str], path: str) -> TrackerObject:
        self.put(data)
        self.writes += 1
        assert self.map is not None
        answer = self.map
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unreachable("the answer was lost", path)
        await self._gate()
        return answer

    def _answerable(self, path: str) -> None:
        if self.away:
            raise Unreachable("away", path)


class Vipu:
    """A simulated controller behind the gate. calls: what changed it, in order."""

    def __init__(self, gate: Gate, fleet: SimulatedFleet, address: str, clock: Callable[[], float]) -> None:
        self._gate = gate
        self.inner = InProcessController(fleet, clock, address)
        self.address = address
        self.calls: list[tuple[str, str]] = []
        self.reads = 0

    async def list_partitions(self) -> Sequence[VipuPartition]:
        await self._read()
        return await self.inner.list_partitions()

    async def find_partition(self, name: str) -> VipuPartition | None:
        await self._read()
        return await self.inner.find_partition(name)

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._change("create", name)
        await self.inner.create(name, size, gcds)
        await self._gate()

    async def reset(self, name: str) -> None:
        await self._change("reset", name)
        await self.inner.reset(name)
        await self._gate()

    async def remove(self, name: str) -> None:
        await self._change("remove", name)
        await self.inner.remove(name)
        await self._gate()

    async def read_capacity(self) -> Capacity:
        await self._read()
        return await self.inner.read_capacity()

    async def count_free_blocks(self, size: int) -> int:
        await self._read()
        return await self.inner.count_free_blocks(size)

    @property
    def held(self) -> dict[str, SimulatedPartition]:
        return {each.name: each for each in self.inner.clocked_fleet.fleet.partitions}

    async def _read(self) -> None:
        self.reads += 1
        await asyncio.sleep(0)

    async def _change(self, call: str, name: str) -> None:
        await self._gate()
        self.calls.append((call, name))


class LayoutVipu(Vipu):
    """One that can name its IPUs."""

    async def list_ipus(self) -> Sequence[Ipu]:
        from muster_operator.vipu.simulator.fleet import locate_ipu

        fleet = self.inner.clocked_fleet.fleet
        return [locate_ipu(fleet, number) for number in range(fleet.ipus)]


class World:
    """fleets: by ``host:port``, in the order of the list. V-IPU's states take ``delay_s`` of a clock that goes on by
    itself, as often as somebody looks."""

    def __init__(self, *ipus: int, delay_s: float = 0.002, knows_ipus: bool = False) -> None:
        self.gate = Gate()
        self.api = FakeApi(self.gate)
        kind = LayoutVipu if knows_ipus else Vipu
        self._now = 0.0
        fleets = [
            SimulatedFleet(ipus=number, delay_s=delay_s, first_rack=i + 1) for i, number in enumerate(ipus or (32,))
        ]
        self.vipus = [kind(self.gate, fleet, f"v{i}:8090", self._clock) for i, fleet in enumerate(fleets)]
        self.proxy: VipuProxy = None  # type: ignore[assignment] # until it is started
        self._running: list[asyncio.Task[None]] = []

    def _clock(self) -> float:
        self._now += 0.001
        return self._now

    def create_proxy(self, endpoints: str | None = None, **options: Any) -> VipuProxy:
        """A proxy that is not started yet."""
        by_address = {vipu.address: vipu for vipu in self.vipus}
        chosen: dict[str, Any] = {"intervals": FAST, "timeouts": RequestTimeouts(FAR_S, FAR_S)} | options
        tracker = TrackerConfigMap(self.api, "muster", TRACKER)
        proxy = VipuProxy(tracker, lambda h, p: by_address[f"{h}:{p}"], ProxyMetrics(), **chosen)
        listed = ",".join(f"{vipu.address}:rack={vipu.address[:2]}" for vipu in self.vipus)
        ControllerListSource(proxy.controllers).apply(endpoints or listed, "test")
        return proxy

    async def start(
        self, quarantined: dict[str, str] | None = None, endpoints: str | None = None, **options: Any
    ) -> VipuProxy:
        """A new proxy, in a world as the last one left it."""
        proxy = self.proxy = self.create_proxy(endpoints, **options)
        proxy.update_quarantine(quarantined or {})
        self._running = [asyncio.create_task(proxy.store.run(None)), asyncio.create_task(self._first(proxy))]
        await self.until(lambda: proxy.store.is_loaded or self.gate.is_shut.is_set(), "the tracker is read")
        return proxy

    async def _first(self, proxy: VipuProxy) -> None:
        await proxy.store.wait_loaded()
        await proxy.reconciler.verify_all()

    async def kill(self) -> None:
        """Nothing of it happens any more."""
        self.gate.is_shut.set()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.proxy.stop()

    async def deliver_watch(self) -> None:
        """The watch brings what somebody else wrote."""
        self.proxy.store._receive(self.api.map)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(FAR_S):
                while True:
                    if holds():
                        return
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            raise AssertionError(f"not within {FAR_S} s: {what}; tracker: {self.api.data}; {self.held}") from error

    async def wait_idle(self) -> None:
        """Every entry is settled, and nobody is at work."""
        await self.proxy.store.wait_loaded()
        await self.until(lambda: not self.proxy.is_busy, "nobody is at work")

    @property
    def held(self) -> dict[str, dict[str, str]]:
        return {vipu.address: {name: held.state for name, held in vipu.held.items()} for vipu in self.vipus}

    def held_anywhere(self, name: str) -> bool:
        return any(name in vipu.held for vipu in self.vipus)

    def assert_they_agree(self) -> None:
        """Tracker and V-IPU say the same: no twin, none without an entry, none missing."""
        entries = self.proxy.store.entries
        there = [(name, vipu.address) for vipu in self.vipus for name in vipu.held]
        expected = [(name, entry.controller) for name, entry in entries.items()]
        assert sorted(there) == sorted(expected), self.api.data
        assert {entry.state for entry in entries.values()} <= {"active"}, self.api.data
        for vipu in self.vipus:
            for name, held in vipu.held.items():
                assert (held.state, held.size) == ("ACTIVE", entries[name].size)


def build_request(
    job: str = "uid-1",
    *,
    name: str = "train",
    instance: int = 0,
    attempt: int = 0,
    size: int = 4,
    gcds: int = 1,
    namespace: str = "default",
) -> PartitionRequest:
    return PartitionRequest(
        job=job, namespace=namespace, name=name, instance=instance, attempt=attempt, size=size, gcds=gcds
    )


def partition_name(asked: PartitionRequest) -> str:
    return partition(asked.namespace, asked.name, asked.instance)


def quarantined(*ipus: Ipu) -> dict[str, str]:
    """A ConfigMap's data as the tainter writes it."""
    return {
        f"{ipu.machine}_{ipu.index}": msgspec.json.encode(
            {"ipu": f"ipu/{ipu.machine}/{ipu.index}", "machine": ipu.machine, "index": ipu.index, "faults": []}
        ).decode()
        for ipu in ipus
    }
