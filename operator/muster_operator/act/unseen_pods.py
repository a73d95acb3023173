"""Looks for pods that exist although the decision did not know them, before their partition is released or reset.

Their creation got no answer, or a former leader created them, and the watch of pods lags.
"""

from collections.abc import Mapping

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Conflict
from muster_operator.job import names
from muster_operator.job.snapshot import JobPod
from muster_operator.observe.cluster import ClusterCache, objects_path, owner_of


class UnseenPods:
    """For one decision. key: of the job (``namespace/name``, or ``namespace/pod/NAME``); uid: its uid. known: the pods
    that the decision was based on, by name; what the watch has delivered since does not count."""

    def __init__(
        self, client: KubeClient, cluster: ClusterCache, key: str, uid: str, known: Mapping[str, JobPod]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._namespace, _, self._name = key.partition("/")
        self._uid = uid
        self._known = frozenset((name, pod.metadata.uid) for name, pod in known.items())
        self._unknown: list[JobPod] | None = None  # not listed yet

    async def look_for(self, partition: str) -> None:
        """Raises Conflict if the partition has pods that the decision did not know; they are in the cache from then on:
        decide again. The first call lists the job's pods."""
        if names.is_pod(self._name):
            return  # the operator creates no pods for a pod with IPUs
        path = objects_path("Pod", self._namespace)
        if self._unknown is None:
            self._unknown = await self._list(path)
        if found := [pod for pod in self._unknown if self._partition_of(pod) == partition]:
            for pod in found:
                self._cluster.observe_pod(pod)
            listed = ", ".join(pod.metadata.name for pod in found)
            raise Conflict(409, "Conflict", f"{partition} has pods that the decision did not know: {listed}", path)

    async def _list(self, path: str) -> list[JobPod]:
        """From etcd, as no resourceVersion is given: the API server's cache may lag, too. The watch of pods selects by
        the same label, so a pod that has lost it counts for neither."""
        params = {"labelSelector": f"{names.OWNED_SELECTOR},{names.JOB_UID}={self._uid}"}
        pods = [pod async for page in self._client.list_pages(path, JobPod, params=params) for pod in page.items]
        return [pod for pod in pods if (pod.metadata.name, pod.metadata.uid) not in self._known]

    def _partition_of(self, pod: JobPod) -> str | None:
        instance = pod.metadata.labels.get(names.INSTANCE, "")
        if owner_of(pod.metadata) != (f"{self._namespace}/{self._name}", self._uid) or not instance.isdecimal():
            return None
        return names.partition(self._namespace, self._name, int(instance))
