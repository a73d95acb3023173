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
from muster_operator.proxy.controllers.list_source import Listing
from muster_operator.proxy.core import Core
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.partitions.intents import Waits
from muster_operator.proxy.timing import Pace
from muster_operator.proxy.tracker.store import TrackerMap
from muster_operator.vipu.controller import Capacity, Ipu, VipuPartition
from muster_operator.vipu.simulator.fleet import Fleet, Held
from muster_operator.vipu.simulator.in_process import InProcess

TRACKER = "ipu-partitions-tracker"
FAR_S = 60.0  # far more than anything takes: what hangs fails, what is slow does not
FAST = Pace(poll_s=0.001, poll_cap_s=0.005, retry_s=0.001, retry_cap_s=0.01, count_s=0, late_s=0.02, answer_s=FAR_S)


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


class Api:
    """One ConfigMap. away: every call fails; lost_answers: so many writes happen and are not answered."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.map: TrackerMap | None = None
        self.version = 0
        self.writes = 0
        self.away = False
        self.lost_answers = 0
        self.held = asyncio.Event()
        self.held.set()
        self.watchers: list[Core] = []

    def put(self, data: dict[str, str] | None) -> None:
        """By somebody else; None: deleted."""
        self.version += 1
        self.map = None if data is None else TrackerMap(
            metadata=Metadata(name=TRACKER, resource_version=str(self.version)), data=data
        )  # fmt: skip
        for core in self.watchers:
            asyncio.get_running_loop().call_soon(core.store._watched, self.map)

    @property
    def data(self) -> dict[str, str]:
        return self.map.data if self.map is not None else {}

    async def get(self, path: str, *, type: type[TrackerMap]) -> TrackerMap:
        await asyncio.sleep(0)
        self._answerable(path)
        if self.map is None:
            raise NotFound(404, "NotFound", "none", path)
        return self.map

    async def create(self, path: str, body: Any, *, type: type[TrackerMap]) -> TrackerMap:
        await self._gate()
        self._answerable(path)
        if self.map is not None:
            raise Conflict(409, "AlreadyExists", "there is one", path)
        return await self._written(dict(body["data"]), path)

    async def patch(self, path: str, body: Any, *, type: type[TrackerMap], params: Any) -> TrackerMap:
        await self._gate()
        await self.held.wait()
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

    async def _written(self, data: dict[str, str], path: str) -> TrackerMap:
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

    def __init__(self, gate: Gate, fleet: Fleet, address: str, clock: Callable[[], float]) -> None:
        self._gate = gate
        self.inner = InProcess(fleet, clock, address)
        self.address = address
        self.calls: list[tuple[str, str]] = []
        self.asked = 0

    async def partitions(self) -> Sequence[VipuPartition]:
        await self._ask()
        return await self.inner.partitions()

    async def partition(self, name: str) -> VipuPartition | None:
        await self._ask()
        return await self.inner.partition(name)

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

    async def capacity(self) -> Capacity:
        await self._ask()
        return await self.inner.capacity()

    async def free_blocks(self, size: int) -> int:
        await self._ask()
        return await self.inner.free_blocks(size)

    @property
    def held(self) -> dict[str, Held]:
        return {each.name: each for each in self.inner.keeper.fleet.partitions}

    async def _ask(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)

    async def _change(self, call: str, name: str) -> None:
        await self._gate()
        self.calls.append((call, name))


class LayoutVipu(Vipu):
    """One that can name its IPUs."""

    async def ipus(self) -> Sequence[Ipu]:
        from muster_operator.vipu.simulator.fleet import ipu_at

        fleet = self.inner.keeper.fleet
        return [ipu_at(fleet, number) for number in range(fleet.ipus)]


class World:
    """fleets: by ``host:port``, in the order of the list. V-IPU's states take ``delay_s`` of a clock that goes on by
    itself, as often as somebody looks."""

    def __init__(self, *ipus: int, delay_s: float = 0.002, knows_ipus: bool = False) -> None:
        self.gate = Gate()
        self.api = Api(self.gate)
        kind = LayoutVipu if knows_ipus else Vipu
        self._now = 0.0
        fleets = [Fleet(ipus=number, delay_s=delay_s, first_rack=i + 1) for i, number in enumerate(ipus or (32,))]
        self.vipus = [kind(self.gate, fleet, f"v{i}:8090", self._clock) for i, fleet in enumerate(fleets)]
        self.core: Core = None  # type: ignore[assignment] # until it is started
        self._running: list[asyncio.Task[None]] = []

    def _clock(self) -> float:
        self._now += 0.001
        return self._now

    def another(self, places: str | None = None, **options: Any) -> Core:
        """A proxy that is not started yet."""
        by_address = {vipu.address: vipu for vipu in self.vipus}
        chosen: dict[str, Any] = {"pace": FAST, "waits": Waits(FAR_S, FAR_S)} | options
        core = Core(self.api, "muster", TRACKER, lambda h, p: by_address[f"{h}:{p}"], Metrics(), **chosen)
        listed = ",".join(f"{vipu.address}:rack={vipu.address[:2]}" for vipu in self.vipus)
        Listing(core.reaching).take(places or listed, "test")
        return core

    async def start(self, quarantined: dict[str, str] | None = None, places: str | None = None, **options: Any) -> Core:
        """A new proxy, in a world as the last one left it."""
        core = self.core = self.another(places, **options)
        core.quarantine(quarantined or {})
        self._running = [asyncio.create_task(core.store.run(None)), asyncio.create_task(self._first(core))]
        await self.until(lambda: core.store.loaded or self.gate.is_shut.is_set(), "the tracker is read")
        return core

    async def _first(self, core: Core) -> None:
        await core.store.wait_loaded()
        await core.settling.verify_all()

    async def kill(self) -> None:
        """Nothing of it happens any more."""
        self.gate.is_shut.set()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.core.stop()

    async def seen(self) -> None:
        """The watch brings what somebody else wrote."""
        self.core.store._watched(self.api.map)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(FAR_S):
                while True:
                    if holds():
                        return
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            raise AssertionError(f"not within {FAR_S} s: {what}; tracker: {self.api.data}; {self.held}") from error

    async def quiet(self) -> None:
        """Every entry is settled, and nobody is at work."""
        await self.core.store.wait_loaded()
        await self.until(lambda: not self.core.is_busy, "nobody is at work")

    @property
    def held(self) -> dict[str, dict[str, str]]:
        return {vipu.address: {name: held.state for name, held in vipu.held.items()} for vipu in self.vipus}

    def assert_they_agree(self) -> None:
        """Tracker and V-IPU say the same: no twin, none without an entry, none missing."""
        entries = self.core.store.entries
        there = [(name, vipu.address) for vipu in self.vipus for name in vipu.held]
        expected = [(name, entry.controller) for name, entry in entries.items()]
        assert sorted(there) == sorted(expected), self.api.data
        assert {entry.state for entry in entries.values()} <= {"active"}, self.api.data
        for vipu in self.vipus:
            for name, held in vipu.held.items():
                assert (held.state, held.size) == ("ACTIVE", entries[name].size)


def wish(job: str = "uid-1", *, name: str = "train", instance: int = 0, attempt: int = 0, size: int = 4, gcds: int = 1,
         namespace: str = "default") -> PartitionRequest:  # fmt: skip
    return PartitionRequest(
        job=job, namespace=namespace, name=name, instance=instance, attempt=attempt, size=size, gcds=gcds
    )


def called(asked: PartitionRequest) -> str:
    return partition(asked.namespace, asked.name, asked.instance)


def quarantined(*ipus: Ipu) -> dict[str, str]:
    """A ConfigMap's data as the tainter writes it."""
    return {
        f"{ipu.machine}_{ipu.index}": msgspec.json.encode(
            {"ipu": f"ipu/{ipu.machine}/{ipu.index}", "machine": ipu.machine, "index": ipu.index, "faults": []}
        ).decode()
        for ipu in ipus
    }
