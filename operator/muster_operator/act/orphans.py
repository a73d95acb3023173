"""Releases partitions and check requests of jobs that no longer exist, because a user removed the finalizer or the
job was deleted while there was no leader."""

import logging

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Metadata
from muster_operator.act.executor import ActionExecutor
from muster_operator.job.types import jobs_path
from muster_operator.observe.cluster import ClusterCache

log = logging.getLogger(__name__)

AGAIN_S = 5.0


class _JobIdentity(msgspec.Struct, frozen=True):
    metadata: Metadata


class OrphanCollector:
    def __init__(self, client: KubeClient, cluster: ClusterCache, executor: ActionExecutor) -> None:
        self._client = client
        self._cluster = cluster
        self._executor = executor

    async def collect(self, key: str) -> float | None:
        """Release what is left of deleted jobs of the name ``key`` (namespace/name). Returns the seconds until the next
        check, or None if nothing is left to do. Raises ApiError."""
        if key in self._cluster.unreadable:
            return None
        await self._withdraw(key)
        job, again_s = self._cluster.job(key), None
        for uid in self._cluster.tracker.uids_at(key):
            if job is not None and job.metadata.uid == uid:
                continue
            entries = self._cluster.tracker.of_job(uid)
            if all(entry.state == "deleting" for entry in entries.values()):
                continue
            again_s = AGAIN_S
            # its pods are still being garbage-collected, or the cache of jobs is behind that of partitions
            if self._cluster.pods.of_job(uid) or await self._exists(key, uid):
                continue
            for name in entries:
                log.warning("partition %s: releasing it, because its IPUJob %s (%s) no longer exists", name, key, uid)
                await self._executor.partitions.free(uid, name)
        return again_s

    async def _withdraw(self, key: str) -> None:
        job, requests = self._cluster.job(key), self._cluster.requests
        for uid in sorted({uid for name, uid in requests.jobs() if name == key}):
            if (job is not None and job.metadata.uid == uid) or await self._exists(key, uid):
                continue
            for node in requests.of_job(uid) or ():
                log.warning(
                    "node %s: withdrawing a check request, because its IPUJob %s (%s) no longer exists", node, key, uid
                )
                await self._executor.withdraw(uid, node)

    async def _exists(self, key: str, uid: str) -> bool:
        namespace, _, name = key.partition("/")
        try:
            found = await self._client.get(f"{jobs_path(namespace)}/{name}", type=_JobIdentity)
        except NotFound:
            return False
        return found.metadata.uid == uid
