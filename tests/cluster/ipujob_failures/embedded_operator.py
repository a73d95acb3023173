"""Operator and V-IPU proxy inside the test's process, on the real API server: their own controllers, hands, clients and
HTTP, but ended in a millisecond instead of started in seconds, and exactly where a test wants it.

A :class:`ProcessFate` stands between each of them and the world. A process that it has ended gets nothing done any more
and hears nothing: what was on its way to the server has arrived, what was not never will. The process that follows
begins with nothing but what is in the cluster.
"""

import asyncio
import gc
import random
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_kube.api.reviews import Identity
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.admission.unadmitted import UnadmittedReview
from muster_operator.admission.validation import SpecLimits
from muster_operator.controller import JobPlanner, Operator, OperatorTiming, WriteAccess
from muster_operator.job.names import TRACKER
from muster_operator.job.snapshot import JobSetup
from muster_operator.metrics import OperatorMetrics
from muster_operator.observe.cluster import WatchScope
from muster_operator.plan.phase_table import plan
from muster_operator.proxy.controllers.list_source import ControllerListSource
from muster_operator.proxy.intervals import Intervals
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.routes import make_app
from muster_operator.proxy.tracker.config_map import TrackerConfigMap
from muster_operator.proxy.vipu_proxy import VipuProxy
from muster_operator.vipu.controller import Capacity, Ipu, VipuPartition
from muster_operator.vipu.simulator.fleet import SimulatedFleet
from muster_operator.vipu.simulator.in_process import InProcessController

CALL_S = 120.0  # far more than any call takes: on a slow machine none is given up
VIPU = "vipu.test:8090"
ACCOUNT = ("muster", "muster-operator")
INTERVALS = Intervals(
    poll_s=0.02, poll_cap_s=0.5, retry_s=0.05, retry_cap_s=1.0, count_s=5.0, late_s=1.0, answer_s=60.0
)
_READS = ("GET", "HEAD")

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class ProcessFate:
    """Of one process. dies_at: the write after which it is no more, counted from one; 0: none. unanswered: the answers
    to all its writes are lost on their way, while it lives on. written: so far, as ``METHOD path``."""

    def __init__(self, *, dies_at: int = 0, unanswered: bool = False) -> None:
        self.written: list[str] = []
        self.dead = asyncio.Event()
        self._dies_at = dies_at
        self._unanswered = unanswered

    async def pass_on(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """To the API server."""
        await self.alive()
        if request.method in _READS:
            return await send(request)
        response = await send(request)
        if self.count(f"{request.method} {request.url.path}"):
            await response.aclose()
            raise httpx2.ReadError("the answer is lost")
        if self.dead.is_set():
            await response.aclose()
        await self.alive()
        return response

    def count(self, what: str) -> bool:
        """A write that has happened; whether its answer is lost."""
        if self.dead.is_set():
            return False
        self.written.append(what)
        if len(self.written) == self._dies_at:
            self.dead.set()
        return self._unanswered

    async def alive(self) -> None:
        """Returns to the living only."""
        if self.dead.is_set():
            await asyncio.Event().wait()


class GatedTransport(httpx2.AsyncBaseTransport):
    """A transport whose requests a function lets through, or not."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, pass_on: Callable[[httpx2.Request, Send], Awaitable[httpx2.Response]]
    ) -> None:
        self._inner = inner
        self._pass_on = pass_on

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._pass_on(request, self._inner.handle_async_request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Vipu:
    """What the proxy reaches of a simulated controller: as long as it lives. Changes are writes."""

    def __init__(self, inner: InProcessController, fate: ProcessFate) -> None:
        self.address = inner.address
        self._inner = inner
        self._fate = fate

    async def list_partitions(self) -> tuple[VipuPartition, ...]:
        await self._fate.alive()
        return tuple(await self._inner.list_partitions())

    async def find_partition(self, name: str) -> VipuPartition | None:
        await self._fate.alive()
        return await self._inner.find_partition(name)

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._change(f"create {name}", lambda: self._inner.create(name, size, gcds))

    async def reset(self, name: str) -> None:
        await self._change(f"reset {name}", lambda: self._inner.reset(name))

    async def remove(self, name: str) -> None:
        await self._change(f"remove {name}", lambda: self._inner.remove(name))

    async def read_capacity(self) -> Capacity:
        await self._fate.alive()
        return await self._inner.read_capacity()

    async def count_free_blocks(self, size: int) -> int:
        await self._fate.alive()
        return await self._inner.count_free_blocks(size)

    async def list_ipus(self) -> tuple[Ipu, ...]:
        await self._fate.alive()
        return tuple(await self._inner.list_ipus())

    async def _change(self, what: str, change: Callable[[], Awaitable[None]]) -> None:
        await self._fate.alive()
        await change()
        self._fate.count(what)
        await self._fate.alive()


class _Knows:
    """Everybody is the operator: who may ask is tested with real tokens elsewhere."""

    async def who(self, token: str, audience: str = "") -> Identity | None:
        return Identity(user=f"system:serviceaccount:{ACCOUNT[0]}:{ACCOUNT[1]}")


class EmbeddedProxy:
    """One proxy process. namespace: of its tracker."""

    def __init__(
        self,
        config: ClusterConfig,
        namespace: str,
        vipu: InProcessController,
        fate: ProcessFate,
        *,
        intervals: Intervals = INTERVALS,
        timeout_s: float = CALL_S,
    ) -> None:
        self.fate = fate
        around, agent = _around(fate.pass_on), "embedded-proxy"
        self._client = KubeClient(config, user_agent=agent, timeout_s=timeout_s, max_connections=4, around=around)
        self._watching = KubeClient(config, user_agent=agent, timeout_s=timeout_s, around=around)
        tracker = TrackerConfigMap(self._client, namespace, TRACKER)
        self.proxy = VipuProxy(tracker, lambda _h, _p: Vipu(vipu, fate), ProxyMetrics(), intervals=intervals)
        ControllerListSource(self.proxy.controllers).apply(f"{VIPU}:ipunode=rack1", "the test")
        app = make_app(self.proxy, _Knows(), allowed=frozenset({ACCOUNT}))
        self.http = httpx2.ASGITransport(app)
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> list[asyncio.Task[None]]:
        """Its parts, of which none ends by itself."""
        await self._stack.enter_async_context(self._client)
        await self._stack.enter_async_context(self._watching)
        self.proxy.update_quarantine({})
        self._tasks = [asyncio.create_task(self.proxy.store.run(self._watching)), asyncio.create_task(self._first())]
        return self._tasks

    async def _first(self) -> None:
        await self.proxy.store.wait_loaded()
        await self.proxy.reconciler.verify_all()
        await asyncio.Event().wait()

    async def end(self) -> None:
        """Without a word: what it was about to do is not done."""
        self.fate.dead.set()
        await self.proxy.stop()
        await _cancelled(self._tasks)
        await self._stack.aclose()


class ProxyTransport(httpx2.AsyncBaseTransport):
    """From the operator to whichever proxy runs now; calls to one that ends break off."""

    def __init__(self) -> None:
        self.proxy: EmbeddedProxy | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        proxy = self.proxy
        if proxy is None or proxy.fate.dead.is_set():
            raise httpx2.ConnectError("nothing listens there")
        asking: asyncio.Task[Any] = asyncio.create_task(proxy.http.handle_async_request(request))
        ended = asyncio.create_task(proxy.fate.dead.wait())
        try:
            await asyncio.wait({asking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise httpx2.ReadError("connection reset by peer")
            answer: httpx2.Response = await asking
            return answer
        finally:
            await _cancelled([asking, ended])


class EmbeddedOperator:
    """One operator process, which leads from its first moment on. The tracker is in the first of its namespaces."""

    def __init__(
        self,
        config: ClusterConfig,
        scope: tuple[str, ...],
        line: ProxyTransport,
        fate: ProcessFate,
        *,
        setup: JobSetup,
        ipu_pods: bool = False,
        timeout_s: float = CALL_S,
    ) -> None:
        self.fate = fate
        self.metrics = OperatorMetrics()
        self._client = KubeClient(
            config,
            user_agent="embedded-operator",
            timeout_s=timeout_s,
            max_connections=64,
            around=_around(fate.pass_on),
        )
        self._proxy = ProxyClient("http://proxy", StaticToken("the operator"), may_write=self._lives, transport=line)
        self.operator = Operator(
            WriteAccess(self._client, self._proxy, self._lives),
            JobPlanner(plan, setup, UnadmittedReview(SpecLimits(max_ipus=setup.max_ipus))),
            WatchScope((scope[0], TRACKER), namespaces=scope, ipu_pods=ipu_pods),
            self.metrics,
            # restarts begin at whole seconds: rounded down, none has to wait for the next one
            OperatorTiming(now=lambda: float(int(time.time())), rng=random.Random(1)),
        )
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    def _lives(self) -> bool:
        return not self.fate.dead.is_set()

    async def start(self) -> list[asyncio.Task[None]]:
        """Its parts, of which none ends by itself."""
        await self._stack.enter_async_context(self._client)
        await self._stack.enter_async_context(self._proxy)
        self._tasks = [asyncio.create_task(self.operator.watch()), asyncio.create_task(self.operator.lead())]
        return self._tasks

    async def end(self) -> None:
        """Without a word."""
        self.fate.dead.set()
        await _cancelled(self._tasks)
        await self._stack.aclose()


class Installation:
    """An operator, a proxy and their V-IPU in one namespace. Who has ended is followed by another at once.

    operator_fate, proxy_fate: of the first of each; fate: makes those of their successors. operators: so many at once,
    of which each believes that it leads. ends: how many there were.
    timeout_s: of the operator's and the proxy's calls of the API server
    """

    def __init__(
        self,
        config: ClusterConfig,
        namespace: str,
        vipu: InProcessController,
        *,
        setup: JobSetup,
        operator_fate: ProcessFate,
        proxy_fate: ProcessFate,
        fate: Callable[[], ProcessFate] = ProcessFate,
        operators: int = 1,
        ipu_pods: bool = False,
        timeout_s: float = CALL_S,
    ) -> None:
        self.vipu = vipu
        self.operator_fate = operator_fate
        self.proxy_fate = proxy_fate
        self.ends = 0
        self._config = config
        self._namespace = namespace
        self._setup = setup
        self._fate = fate
        self._operators = operators
        self._ipu_pods = ipu_pods
        self._timeout_s = timeout_s
        self._line = ProxyTransport()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises what ended a part of either by itself."""
        keepers = [asyncio.create_task(self._keep_operator(first=not i)) for i in range(self._operators)]
        keepers.append(asyncio.create_task(self._keep_proxy()))
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            for end in await asyncio.gather(*keepers, return_exceptions=True):
                if end is not None and not isinstance(end, asyncio.CancelledError):
                    raise end

    async def _keep_operator(self, *, first: bool) -> None:
        fate = self.operator_fate if first else self._fate()
        while True:
            operator = EmbeddedOperator(
                self._config,
                (self._namespace,),
                self._line,
                fate,
                setup=self._setup,
                ipu_pods=self._ipu_pods,
                timeout_s=self._timeout_s,
            )
            try:
                await _ended(fate, await operator.start())
            finally:
                await operator.end()
                _leave_to_the_kernel()
            self.ends += 1
            fate = self._fate()
            if first:
                self.operator_fate = fate

    async def _keep_proxy(self) -> None:
        while True:
            proxy = EmbeddedProxy(self._config, self._namespace, self.vipu, self.proxy_fate, timeout_s=self._timeout_s)
            try:
                parts = await proxy.start()
                self._line.proxy = proxy
                await _ended(proxy.fate, parts)
            finally:
                await proxy.end()
                _leave_to_the_kernel()
            self.ends += 1
            self.proxy_fate = self._fate()


def _leave_to_the_kernel() -> None:
    """What ends while it connects has an open socket: a process leaves it to its kernel, this to the collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def _ended(fate: ProcessFate, parts: list[asyncio.Task[None]]) -> None:
    """Raises what ended one of its parts."""
    dead = asyncio.create_task(fate.dead.wait())
    try:
        await asyncio.wait([dead, *parts], return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            if part.done():
                part.result()
                raise AssertionError(f"{part.get_coro()} has ended by itself")
    finally:
        await _cancelled([dead])


def make_vipu(ipus: int = 32, delay_s: float = 0.0) -> InProcessController:
    return InProcessController(SimulatedFleet(ipus=ipus, delay_s=delay_s), time.monotonic, VIPU)


def _around(
    pass_on: Callable[[httpx2.Request, Send], Awaitable[httpx2.Response]],
) -> Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]:
    return lambda inner: GatedTransport(inner, pass_on)


async def _cancelled(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
