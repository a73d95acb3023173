"""Looks for pods that exist although no watch has shown them, before their partition is released or reset.

Their creation got no answer, or a former leader created them, and the watch of pods lags.
"""

import contextlib

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Conflict, NotFound
from muster_operator.job import names
from muster_operator.job.snapshot import OwnedObject
from muster_operator.observe.cluster import ClusterCache, objects_path, owner_of


class UnseenPods:
    def __init__(self, client: KubeClient, cluster: ClusterCache) -> None:
        self._client = client
        self._cluster = cluster

    async def look_for(self, uid: str, partition: str) -> None:
        """Raises Conflict if the partition of the job ``uid`` has pods that are not in the cache, which has them from
        then on: decide again."""
        entry = self._cluster.tracker.of_job(uid).get(partition)
        if entry is None or names.is_pod(entry.name):  # nobody creates pods for a pod
            return
        path, found = objects_path("Pod", entry.namespace), list[str]()
        for index in range(entry.instance * entry.gcds, (entry.instance + 1) * entry.gcds):
            name = names.worker_pod(entry.name, index)
            if name in self._cluster.pods.of_job(uid):
                continue
            with contextlib.suppress(NotFound):
                raw = await self._client.get(f"{path}/{name}", type=msgspec.Raw)
                owner = owner_of(msgspec.json.decode(raw, type=OwnedObject).metadata)
                if owner is not None and owner[1] == uid:
                    self._cluster.observe("Pod", raw)
                    found.append(name)
        if found:
            raise Conflict(409, "Conflict", f"{partition} has pods that no watch has shown: {', '.join(found)}", path)
