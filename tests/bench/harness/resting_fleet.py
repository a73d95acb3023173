"""A fleet at rest: Nodes whose agents have said PASS, carrying what the tainter makes of that; and faults in it."""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.bench_agent import health_object
from latency import PASSED

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.cluster.tainter.fleet_findings import FATAL, HEALTHS, NODES, recording, status

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import for_each, node_object

LIMIT_S = 300.0  # far more than anything takes


class RestingFleet:
    """Nodes ``PREFIX-0`` and on. The sample of nodes that get a fault is the same in each run."""

    def __init__(self, api: KubeClient, prefix: str, *, nodes: int = 0, seed: int = 7) -> None:
        """nodes: how many are there already."""
        self._api = api
        self._prefix = prefix
        self._rng = random.Random(seed)
        self.nodes = nodes

    def name(self, index: int) -> str:
        return f"{self._prefix}-{index}"

    async def grow_to(self, nodes: int) -> None:
        await for_each(range(self.nodes, nodes), self._make)
        self.nodes = nodes

    async def _make(self, index: int) -> None:
        name = self.name(index)
        node = node_object(name, index)
        node["metadata"]["labels"]["muster.dev/health"] = "pass"
        node["status"]["conditions"].append(PASSED)
        await self._api.create(NODES, node)
        await self._api.create(HEALTHS, health_object(name))
        await self._api.patch(f"{HEALTHS}/{name}/status", status())

    def sample(self, number: int) -> list[str]:
        return [self.name(index) for index in self._rng.sample(range(self.nodes), number)]

    async def fault_one_by_one(self, names: Sequence[str], pause_s: float) -> list[float]:
        """Milliseconds of each, from before its finding is written until the watch here shows the taint."""
        taken: list[float] = []
        if not names:
            return taken
        async with recording(self._api, names) as seen:
            for number, name in enumerate(names):
                began = time.monotonic()
                await self._api.patch(f"{HEALTHS}/{name}/status", status(FATAL[number % len(FATAL)]))
                await seen.until(partial(seen.tainted.__contains__, name), f"{name} is tainted", LIMIT_S)
                taken.append((seen.first_tainted[name] - began) * 1000)
                await asyncio.sleep(pause_s)
        return taken

    async def renew(self, names: Sequence[str]) -> None:
        """Replace these Nodes by healthy ones, while no tainter runs."""

        async def replace(name: str) -> None:
            for path in (NODES, HEALTHS):
                await self._api.delete(f"{path}/{name}")
            await self._make(int(name.rpartition("-")[2]))

        await for_each(names, replace)
