"""Releases partitions and check requests of jobs that no longer exist, because a user removed the finalizer or the
job was deleted while there was no leader; and partitions of pods that no longer exist, which have no finalizer."""

import logging

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Metadata
from muster_operator.act.executor import ActionExecutor, require_gone
from muster_operator.act.unseen_pods import UnseenPods
from muster_operator.job import names
from muster_operator.job.pod_outcome import FAILED, SUCCEEDED
from muster_operator.job.types import jobs_path
from muster_operator.observe.cluster import ClusterCache, objects_path

log = logging.getLogger(__name__)

AGAIN_S = 5.0
AGAIN_LIMIT_S = 60.0  # doubles up to this while the owner exists: nothing watches a pod if ipu_pods is off


class _OwnerStatus(msgspec.Struct, frozen=True):
    """phase: of a pod."""

    phase: str = ""


class _Owner(msgspec.Struct, frozen=True):
    """A job or a pod."""

    metadata: Metadata
    status: _OwnerStatus = _OwnerStatus()


class OrphanCollector:
    def __init__(self, client: KubeClient, cluster: ClusterCache, executor: ActionExecutor) -> None:
        self._client = client
        self._cluster = cluster
        self._executor = executor
        self._found: dict[str, int] = {}  # how often in a row an owner was found, by key

    async def collect(self, key: str) -> float | None:
        """Release what is left of deleted jobs of the name ``key`` (namespace/name), or of pods (namespace/pod/NAME).
        Returns the seconds until the next check, or None if nothing is left to do. Raises ApiError."""
        if key in self._cluster.unreadable:
            return None
        await self._withdraw(key)
        owner, again_s, exists = self._cluster.owner(key), None, False
        for uid in self._cluster.tracker.uids_at(key):
            if owner is not None and owner.metadata.uid == uid:
                continue
            entries = self._cluster.tracker.of_job(uid)
            if all(entry.state == "deleting" for entry in entries.values()):
                continue
            if not self._cluster.pods.of_job(key, uid) and await self._exists(key, uid):
                exists = True  # the cache of jobs is behind that of partitions, or nothing watches the pod
                continue
            again_s = AGAIN_S
            if self._cluster.pods.of_job(key, uid):
                continue  # its pods are still being garbage-collected
            # a pod has no finalizer, so this is how its partition is released
            level = logging.INFO if names.is_pod(key.partition("/")[2]) else logging.WARNING
            unseen = UnseenPods(self._client, self._cluster, key, uid, known={})
            for name in entries:
                log.log(level, "partition %s: releasing it, because its owner %s (%s) is gone", name, key, uid)
                await self._executor.partitions.free(uid, name, unseen)
        if not exists:
            self._found.pop(key, None)
            return again_s
        found = self._found[key] = self._found.get(key, 0) + 1
        return again_s or min(AGAIN_LIMIT_S, AGAIN_S * 2 ** min(found - 1, 4))

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
        """A pod that has ended counts as gone: nothing else looks at it if the setting ipu_pods is off."""
        namespace, _, name = key.partition("/")
        path = f"{jobs_path(namespace)}/{name}"
        if names.is_pod(name):
            path = f"{objects_path('Pod', namespace)}/{name.removeprefix(names.POD_PREFIX)}"
        try:
            found = await self._client.get(path, type=_Owner)
        except NotFound as error:
            require_gone(error)
            return False
        ended = names.is_pod(name) and found.status.phase in (FAILED, SUCCEEDED)
        return found.metadata.uid == uid and not ended
