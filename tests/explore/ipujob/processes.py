"""Operator and V-IPU proxy as explored processes: all of their code but HTTP, the lease's own calls and Events.

The operator's calls of the proxy, and the proxy's of V-IPU, are requests like those to the API server. Wall clocks
stand still; monotonic time goes on with each process's timers.
"""

import asyncio
import hashlib
import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import httpx2
import msgspec
from tests.explore.api_server import Answer, Request
from tests.explore.ipujob.cluster import MUSTER
from tests.explore.memory import MemoryReader, _Reading
from tests.explore.process import Input, Middle, Process, _Pending

from muster_kube.api.client import KubeClient
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.clock import Clock
from muster_kube.controller.reflector import Reflector
from muster_kube.controller.workqueue import WorkQueue
from muster_operator.act.executor import ActionExecutor
from muster_operator.act.gang_reservations import GangReservations
from muster_operator.act.leader_check import LeaderCheck
from muster_operator.act.orphans import OrphanCollector
from muster_operator.act.partition_requests import PartitionRequester
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.refusal_cache import RefusalCache
from muster_operator.act.status_writer import StatusWriter
from muster_operator.admission.unadmitted import UnadmittedReview
from muster_operator.admission.validation import SpecLimits
from muster_operator.controller import JobPlanner, Operator, OperatorTiming, WriteAccess
from muster_operator.job.partition_api import PartitionRequest
from muster_operator.job.snapshot import JobSetup, Snapshot
from muster_operator.metrics import OperatorMetrics
from muster_operator.observe.check_requests import NodeCheckRequests
from muster_operator.observe.cluster import ClusterCache, WatchScope
from muster_operator.observe.node_capacity import CapacityIndex
from muster_operator.observe.node_health import HardwareHealth
from muster_operator.observe.tracker_reader import TrackerReader
from muster_operator.plan.phase_table import plan
from muster_operator.proxy.controllers.capacity import CapacityCounter
from muster_operator.proxy.controllers.list_source import ControllerListSource
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.controllers.registry import ControllerRegistry
from muster_operator.proxy.intervals import Intervals, RequestTimeouts
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partitions.intents import PartitionIntents
from muster_operator.proxy.partitions.outcomes import PartitionOutcomes
from muster_operator.proxy.partitions.park_resize import ParkResizer
from muster_operator.proxy.partitions.parks import ParkKeeper
from muster_operator.proxy.partitions.reconciler import PartitionReconciler
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus
from muster_operator.proxy.routes import _respond_to_delete, _respond_to_put
from muster_operator.proxy.tracker.config_map import TrackerConfigMap
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.proxy.vipu_proxy import VipuProxy
from muster_operator.snapshot_reader import SnapshotReader
from muster_operator.vipu.controller import Capacity, Ipu, NoRoom, PartitionExists, VipuPartition, VipuUnreachable

NOW = 1_800_000_000.0  # NOON
BASE_S = 1e6  # of every monotonic clock: what is near it in a memory is a moment
FORMER_S = -20.0  # what is longer ago makes no difference
TRACKER = "ipu-partitions-tracker"
VIPUS = ("v0:8090", "v1:8090")
INTERVALS = Intervals(poll_s=1.0, poll_cap_s=1.0, retry_s=1.0, retry_cap_s=1.0, late_s=6.5, count_s=30.0)
SETUP = JobSetup(restart_delay_s=0.0, hold_timeout_s=0.0)


# what never changes, or is read by ``roots``
_PARTS = (
    KubeClient, httpx2.AsyncClient, httpx2.Request, httpx2.Response, Process, asyncio.Queue, OperatorMetrics,
    ProxyMetrics, Clock, Operator, ClusterCache, Reflector, TrackerReader, RefusalCache, SnapshotReader,
    ActionExecutor, LeaderCheck, PartitionRequester, StatusWriter, OrphanCollector, ProxyClient, WorkQueue,
    GangReservations, NodeCheckRequests, HardwareHealth, CapacityIndex, Snapshot, JobPlanner, WriteAccess, JobSetup,
    UnadmittedReview, VipuProxy, TrackerStore, TrackerConfigMap, CapacityCounter, ControllerRegistry,
    MeasuredController, PartitionReconciler, PartitionIntents, PartitionOutcomes, ParkKeeper, ParkResizer,
    QuarantinedIpus, Intervals, RequestTimeouts, Backoff,
)  # fmt: skip


class _Moments(_Reading):
    """Monotonic times relative to now."""

    now = 0.0
    plain = (type(None), bool, int, str, bytes)

    def of(self, obj: Any) -> Hashable:
        kind = type(obj)
        if kind in self.plain:
            return obj  # type: ignore[no-any-return] # the shorter way for most objects
        if kind is tuple:
            return tuple(map(self.of, obj))
        if kind is float and BASE_S / 2 < obj < NOW / 2:
            return "at", max(FORMER_S, round(obj - self.now, 1))
        return super().of(obj)


class _Remembers(Process):
    reader = MemoryReader(
        *_PARTS,
        idle=("WorkQueue.get", "Reflector._watch", "ClusterCache.watch", "run_workers"),
        dead=("Operator.lead.job", "Operator.lead.key", "AsyncClient._send_single_request.start"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.loop._now = BASE_S

    def begin(self) -> None:
        with self._clocked():
            super().begin()

    def feed(self, each: Input) -> tuple[int, ...]:
        with self._clocked():
            return super().feed(each)

    @contextmanager
    def _clocked(self) -> Iterator[None]:
        """Parts to which nobody passes a clock get this process's."""
        clock = Clock(monotonic=self.loop.time, rng=Middle())
        with _defaults(Reflector, clock=clock), _defaults(MeasuredController, clock=self.loop.time):
            yield

    def memory(self) -> Hashable:
        """A digest, of which there may be millions."""
        reading = _Moments(self.reader)
        reading.now = now = self.loop.time()
        busy = self._busy()
        timers = tuple((round(each.when() - now, 1), _whose(each, busy)) for each in self.loop.timers())
        stores = [
            (one._path, one._version, one._listed, one._list_newest, one._early_ends, one._failures, one._gone,
             sorted(one._objects.items()))
            for one in _reflectors(self.loop.tasks)
        ]  # fmt: skip
        found = self.view(), reading.of((self.roots(), stores, tuple(busy), timers))
        return hashlib.blake2b(repr(found).encode(), digest_size=16).digest()


def _reflectors(tasks: "Iterable[asyncio.Task[Any]]") -> "Iterator[Reflector[Any]]":
    """Those that run, in the order in which they began."""
    for task in tasks:
        inner: Any = task.get_coro()
        while (frame := getattr(inner, "cr_frame", None)) is not None:
            if isinstance(found := frame.f_locals.get("self"), Reflector):
                yield found
                break
            inner = inner.cr_await


def _whose(timer: Any, tasks: "list[asyncio.Task[Any]]") -> object:
    """The task that the timer wakes, by its number, or the function that it calls."""
    owner, first = getattr(timer._callback, "__self__", None), timer._args[0] if timer._args else None
    for number, task in enumerate(tasks):
        waiter: Any = task
        if getattr(owner, "_task", None) is task or (first is not None and waiter._fut_waiter is first):
            return number
    return getattr(timer._callback, "__qualname__", ""), first if isinstance(first, str) else None


def _defaults(kind: type, **values: object) -> Any:
    """Of the parameters of its objects."""
    return patch.dict(kind.__init__.__kwdefaults__, **values)  # type: ignore[misc]


class _Metrics(OperatorMetrics):
    """Of all operators: nobody reads them."""

    def watch(self, *_: object) -> None:
        pass


class _NoEvents:
    """Events are told, and nothing depends on them."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def run(self) -> None:
        pass

    def record(self, *_: object) -> None:
        pass


_METRICS, _PROXY_METRICS = _Metrics(), ProxyMetrics()


class _Line(httpx2.AsyncBaseTransport):
    """From the operator to the proxy."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.decode()
        answer = await ask(self._process, Request(request.method, path, await request.aread(), by="proxy"))
        if answer is None:
            raise httpx2.ReadError("connection reset by peer")
        return httpx2.Response(answer.status, content=answer.body)


async def ask(process: Process, request: Request) -> Answer | None:
    """Whatever its status; None: no answer."""
    pending = _Pending(request, process.loop.create_future())
    process.pending.append(pending)
    try:
        return await pending.answer
    finally:
        if pending in process.pending:
            process.pending.remove(pending)


class _Token:
    async def header(self) -> str | None:
        return None

    def refused(self, header: str | None) -> bool:
        return False


class OperatorProcess(_Remembers):
    """One replica. Inputs of its own: ``elected``; ``deposed``: it may not write any more, and its turns are broken
    off."""

    def __init__(self) -> None:
        super().__init__()
        self._leads = False
        self._leading: Any = None

    def start(self) -> None:
        clock = self.loop.time
        proxy = ProxyClient("http://proxy", _Token(), may_write=lambda: self._leads, transport=_Line(self))
        self.operator = Operator(
            WriteAccess(self.client, proxy, lambda: self._leads),
            JobPlanner(plan, SETUP, UnadmittedReview(SpecLimits())),
            WatchScope(tracker=(MUSTER, TRACKER), quarantine=("quarantine", "muster-ipu-quarantine")),
            _METRICS,
            OperatorTiming(lambda: NOW, clock, random.Random()),
        )
        self.spawn(self.operator.watch())

    def do(self, name: str, value: Any) -> None:
        match name:
            case "elected":
                self._leads = True
                with patch("muster_operator.controller.JobEventRecorder", _NoEvents):
                    self._leading = self.spawn(self.operator.lead())
                    self.loop.settle()
            case "deposed":
                self._leads = False
                self._leading.cancel()
                self.tasks.remove(self._leading)
                self._leading = None
            case _:
                super().do(name, value)

    def roots(self) -> tuple[object, ...]:
        each, cluster, queue = self.operator, self.operator.cluster, self.operator._queue
        lines = () if queue is None else (
            queue._ahead, queue._line, queue._in_a_row, sorted(queue._first), sorted(queue._wanted),
            sorted(queue._in_hand), queue._failures,
        )  # fmt: skip
        return (
            self._leads, lines, cluster.tracker._answers, each._refusals._by_job, each._refusals._rooms,
            each._leader_check._known, each._status._written_at, each._status._lines._buckets, each._waiting,
            each._wake is None, each._woken_at, each._executor.partitions._reservations._by_job,
            cluster.hardware._gone, cluster.hardware._unknown,
        )  # fmt: skip

    def shown(self) -> Hashable:
        return self._leads


class _Vipu:
    """A V-IPU controller, as the proxy's back end."""

    def __init__(self, process: Process, address: str) -> None:
        self._process = process
        self.address = address

    async def list_partitions(self) -> Sequence[VipuPartition]:
        return msgspec.json.decode(await self._call("list"), type=tuple[VipuPartition, ...])

    async def find_partition(self, name: str) -> VipuPartition | None:
        return next((each for each in await self.list_partitions() if each.name == name), None)

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._call("create", name, size, gcds)

    async def reset(self, name: str) -> None:
        await self._call("reset", name)

    async def remove(self, name: str) -> None:
        await self._call("remove", name)

    async def read_capacity(self) -> Capacity:
        return msgspec.json.decode(await self._call("capacity"), type=Capacity)

    async def count_free_blocks(self, size: int) -> int:
        return int(await self._call("blocks", size))

    async def list_ipus(self) -> Sequence[Ipu]:
        return ()

    async def _call(self, call: str, *values: object) -> bytes:
        answer = await ask(self._process, Request(call, self.address, msgspec.json.encode(values), by="vipu"))
        if answer is None:
            raise VipuUnreachable(f"{self.address}: no answer")
        if answer.status == 200:
            return answer.body
        raise {"NoRoom": NoRoom, "Exists": PartitionExists}[answer.body.decode()](self.address)


class ProxyProcess(_Remembers):
    """The proxy. Inputs of its own: ``request`` (at: a number; value: a Request) and ``taken`` (at: the number of a
    request whose answer has left). It shows the answers, by number."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[int, Answer] = {}

    def start(self) -> None:
        tracker = TrackerConfigMap(self.client, MUSTER, TRACKER)
        self.proxy = VipuProxy(
            tracker, lambda host, port: _Vipu(self, f"{host}:{port}"), _PROXY_METRICS, intervals=INTERVALS
        )
        self.proxy.store._wall = lambda: NOW
        listed = ",".join(f"{address}:rack=one" for address in VIPUS)
        ControllerListSource(self.proxy.controllers).apply(listed, "the explorer")
        self.proxy.update_quarantine({})
        self.spawn(self.proxy.store.run(self.client))
        self.spawn(self._first())

    async def _first(self) -> None:
        await self.proxy.store.wait_loaded()
        await self.proxy.reconciler.verify_all()

    def do(self, name: str, value: Any) -> None:
        match name:
            case "request":
                number, request = value
                self.loop.create_task(self._serve(number, request))
            case "taken":
                del self._answers[value]
            case _:
                super().do(name, value)

    async def _serve(self, number: int, request: Request) -> None:
        """As the routes do."""
        intents, path = self.proxy.intents, request.path
        name, _, query = path.removeprefix("/partitions/").partition("?job=")
        match request.method:
            case "PUT":
                body = msgspec.json.decode(request.body, type=PartitionRequest)
                response = _respond_to_put(await intents.request(name, body))
            case "DELETE":
                response = _respond_to_delete(await intents.release(name, query))
            case _:
                size = msgspec.json.decode(request.body, type=Mapping[str, int])["size"]
                counted = msgspec.json.encode(await self.proxy.capacity.count_partitions(size))
                self._answers[number] = Answer(200, counted)
                return
        self._answers[number] = Answer(response.status_code, bytes(response.body))

    def roots(self) -> tuple[object, ...]:
        store, capacity, reconciler = self.proxy.store, self.proxy.capacity, self.proxy.reconciler
        held = store._snapshot
        return (
            (held.version, sorted(held.data.items())) if held is not None else (), store._lost, sorted(store._readable),
            [(change.name, change.decide, change.done.done()) for change in store._pending], store._wake.is_set(),
            sorted(reconciler._progress.items()), sorted(reconciler._late_until.items()), sorted(reconciler._tasks),
            sorted((name, wake.is_set()) for name, wake in reconciler._wakes.items()), reconciler.is_ready,
            sorted(reconciler.outcomes._refusals.items()), sorted(reconciler.outcomes._waiting),
            capacity._reserved, capacity._released.is_set(), capacity._has_changed, capacity.is_busy,
            sorted(map(str, capacity._running)), self._answers,
        )  # fmt: skip

    def shown(self) -> Hashable:
        """The answers, and the seconds until the next timer."""
        timers = self.loop.timers()
        return tuple(sorted(self._answers.items())), round(timers[0].when() - self.loop.time(), 1) if timers else None
