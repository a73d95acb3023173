"""Wraps a V-IPU controller: measures its calls and limits their concurrency."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.controller import (
    Capacity,
    Ipu,
    IpuLister,
    VipuController,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)

log = logging.getLogger(__name__)

AT_ONCE = 8  # each call may be a process
WHOLE_S = 120.0  # protects against a hang; the limits of a back end are far lower
T = TypeVar("T")


class MeasuredController:
    """A VipuController that wraps another one."""

    def __init__(
        self, inner: VipuController, metrics: ProxyMetrics, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = inner.address
        self._inner = inner
        self._metrics = metrics
        self._clock = clock
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def list_partitions(self) -> Sequence[VipuPartition]:
        return await self._call("partitions", self._inner.list_partitions)

    async def find_partition(self, name: str) -> VipuPartition | None:
        return await self._call("partition", lambda: self._inner.find_partition(name), name)

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._call("create", lambda: self._inner.create(name, size, gcds), name)

    async def reset(self, name: str) -> None:
        await self._call("reset", lambda: self._inner.reset(name), name)

    async def remove(self, name: str) -> None:
        await self._call("remove", lambda: self._inner.remove(name), name)

    async def read_capacity(self) -> Capacity:
        return await self._call("capacity", self._inner.read_capacity)

    async def count_free_blocks(self, size: int) -> int:
        return await self._call("free_blocks", lambda: self._inner.count_free_blocks(size))

    async def list_ipus(self) -> Sequence[Ipu]:
        """Empty if the back end does not report IPUs."""
        inner = self._inner
        return await self._call("ipus", inner.list_ipus) if isinstance(inner, IpuLister) else ()

    async def _call(self, call: str, ask: Callable[[], Awaitable[T]], name: str = "") -> T:
        async with self._slots:
            begun = self._clock()
            try:
                async with asyncio.timeout(WHOLE_S):
                    answer = await ask()
            except TimeoutError as error:
                self._metrics.errors.labels(call, "unreachable").inc()
                raise VipuUnreachable(f"{self.address}: no answer to {call} within {WHOLE_S:g} s") from error
            except VipuError as error:
                kind = "unreachable" if isinstance(error, VipuUnreachable) else "refused"
                self._metrics.errors.labels(call, kind).inc()
                log.debug("%s: %s %s: %s", self.address, call, name, error)
                raise
            finally:
                self._metrics.latency.labels(call).observe(self._clock() - begun)
            log.debug("%s: %s %s: answered", self.address, call, name)
            return answer
