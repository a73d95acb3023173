"""Everything that IPUJobs are made of, followed by one who stands by: waiting on it costs the API server nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Api, Metadata
from muster_kube.controller.reflector import Reflector
from muster_operator.job import names
from muster_operator.job.names import TRACKER
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobPod, OwnedObject
from muster_operator.job.types import API_VERSION, PLURAL, IPUJob
from muster_operator.observe.cluster import PLURALS, SMALL_KINDS

FAR_S = 240.0  # far more than anything takes: what hangs fails, what is slow does not


class _Map(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class IPUJobWatcher:
    """made: pods by (namespace, name, attempt, job's uid): how many of each there ever were. last: every job by its
    uid, as it was last seen. succeeded: pods that ended well, as (job's uid, name)."""

    def __init__(self, client: KubeClient) -> None:
        self.made: Counter[tuple[str, str, str, str]] = Counter()
        self.last: dict[str, IPUJob] = {}
        self.succeeded: set[tuple[str, str]] = set()
        self._moved = asyncio.Event()
        self._jobs = Reflector(client, f"/apis/{API_VERSION}/{PLURAL}", IPUJob, on_change=self._job)
        self._pods = Reflector(
            client, "/api/v1/pods", JobPod, on_change=self._pod, params={"labelSelector": names.OWNED_SELECTOR}
        )
        self._maps = Reflector(
            client,
            "/api/v1/configmaps",
            _Map,
            on_change=self._note,
            params={"fieldSelector": f"metadata.name={TRACKER}"},
        )
        self._small = {
            kind: Reflector(
                client,
                "/".join(PLURALS[kind]),
                OwnedObject,
                on_change=self._note,
                params={"labelSelector": names.OWNED_SELECTOR},
            )
            for kind in SMALL_KINDS
        }

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors():
                group.create_task(reflector.run())

    async def wait_synced(self) -> None:
        for reflector in self._reflectors():
            await reflector.wait_synced()

    def job(self, namespace: str, name: str) -> IPUJob | None:
        return self._jobs.store.get(f"{namespace}/{name}")

    def jobs(self, namespace: str) -> list[IPUJob]:
        return [each for each in self._jobs.store.values() if each.metadata.namespace == namespace]

    def pods(self, namespace: str) -> dict[str, JobPod]:
        return {p.metadata.name: p for p in self._pods.store.values() if p.metadata.namespace == namespace}

    def small(self, namespace: str) -> list[str]:
        """As ``Kind/name``."""
        return sorted(
            f"{kind}/{each.metadata.name}"
            for kind, reflector in self._small.items()
            for each in reflector.store.values()
            if each.metadata.namespace == namespace
        )

    def tracker(self, namespace: str) -> dict[str, PartitionEntry]:
        found = self._maps.store.get(f"{namespace}/{TRACKER}")
        return {} if found is None else {k: msgspec.json.decode(v, type=PartitionEntry) for k, v in found.data.items()}

    async def until(self, holds: Callable[[], Any], what: Callable[[], str], timeout_s: float = FAR_S) -> None:
        """Raises AssertionError with ``what()``. Looked at whenever something has moved, and now and then."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what()}"
            self._moved.clear()
            try:
                async with asyncio.timeout(0.2):
                    await self._moved.wait()
            except TimeoutError:
                continue

    def _reflectors(self) -> list[Reflector[Any]]:
        return [self._jobs, self._pods, self._maps, *self._small.values()]

    def _note(self, _key: str, _old: object, _new: object) -> None:
        self._moved.set()

    def _job(self, _key: str, _old: IPUJob | None, new: IPUJob | None) -> None:
        self._moved.set()
        if new is not None:
            self.last[new.metadata.uid] = new

    def _pod(self, _key: str, old: JobPod | None, new: JobPod | None) -> None:
        self._moved.set()
        if new is not None and new.status.phase == "Succeeded":
            self.succeeded.add((new.metadata.labels[names.JOB_UID], new.metadata.name))
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
            labels = new.metadata.labels
            found = (new.metadata.namespace, new.metadata.name, labels[names.ATTEMPT], labels[names.JOB_UID])
            self.made[found] += 1


@asynccontextmanager
async def watch_ipujobs(client: KubeClient) -> AsyncIterator[IPUJobWatcher]:
    watcher = IPUJobWatcher(client)
    running = asyncio.create_task(watcher.run())
    try:
        await watcher.wait_synced()
        yield watcher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
