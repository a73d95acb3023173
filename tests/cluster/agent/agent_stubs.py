"""Stand-ins for the agents of simulated nodes: they answer what NodeHealths ask, as a test says.

As a real one does, each answers an id once, keeps its answer while the request stands, and takes it back afterwards.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.times import rfc3339
from muster_kube.controller.reflector import Reflector
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_kube.nodehealth import NodeHealth, RequestAnswer


class AnsweringAgents:
    """says: by node, what its checks come to; PASS where nothing stands, and nothing while it is empty. ran: how often
    an id was run, by node and id."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self.says: dict[str, str] = {}
        self.ran: Counter[tuple[str, str]] = Counter()
        self._queue: WorkQueue[str] = WorkQueue()
        self._nodes: set[str] = set()
        self._kept: dict[tuple[str, str], RequestAnswer] = {}
        self._healths = Reflector(api, nodehealth.PATH, NodeHealth, on_change=lambda node, *_: self._queue.add(node))

    def say(self, node: str, verdict: str) -> None:
        self.says[node] = verdict
        self._queue.add(node)

    def of_jobs(self, node: str) -> list[str]:
        """Ids of what jobs ask there now."""
        health = self._healths.store.get(node)
        return [each.id for each in health.spec.requests if each.id.startswith("ipujob-")] if health else []

    @asynccontextmanager
    async def at_work(self, nodes: Sequence[str]) -> AsyncIterator[None]:
        """On nodes whose NodeHealths are made, and go at the end."""
        for name in nodes:
            body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}}
            await self._api.create(nodehealth.PATH, body)
        self._nodes = set(nodes)
        tasks = [
            asyncio.create_task(self._healths.run()),
            asyncio.create_task(run_workers(self._queue, self._answer, workers=1)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for name in nodes:
                with suppress(NotFound):
                    await self._api.delete(f"{nodehealth.PATH}/{name}")

    async def _answer(self, node: str) -> None:
        health = self._healths.store.get(node)
        verdict = self.says.get(node, "PASS")
        if health is None or node not in self._nodes:
            return
        for request in health.spec.requests:
            if verdict and (node, request.id) not in self._kept:
                self.ran[node, request.id] += 1
                why = "" if verdict == "PASS" else "LowBandwidth"
                self._kept[node, request.id] = RequestAnswer(
                    id=request.id, verdict=verdict, finished=rfc3339(time.time()), reason=why, message=why and "3 GB/s"
                )
        given = [self._kept[node, each.id] for each in health.spec.requests if (node, each.id) in self._kept]
        if tuple(given) != health.status.answers:
            answers = msgspec.to_builtins(given)
            await self._api.patch(f"{nodehealth.PATH}/{node}/status", {"status": {"answers": answers}})
