"""The pods and nodes of slow ranks, by the API server: the labels of a series only name the pod.

A pod that was created after its rank became slow is another one with the same name, maybe on another node.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Forbidden, Invalid, NotFound
from muster_kube.api.objects import Pod
from muster_kube.api.times import seconds
from muster_tainter.sources.loki.pod_nodes import is_pod_name
from muster_tainter.step_times.job_verdict import SlowRank

PODS_LIMIT = 64  # of a job, whose pods are read one by one


@dataclass(frozen=True)
class SlowPod:
    """ranks: the slow ones in this pod, at least one"""

    pod: Pod
    ranks: tuple[SlowRank, ...]

    @property
    def node(self) -> str:
        return self.pod.spec.node_name

    @property
    def since_at(self) -> float:
        return min(rank.since_at for rank in self.ranks)

    @property
    def until_at(self) -> float:
        return max(rank.until_at for rank in self.ranks)


async def read_slow_pods(client: KubeClient, namespace: str, ranks: Iterable[SlowRank]) -> list[SlowPod]:
    """Those that still exist, with a node. Raises ApiError: try again later."""
    by_pod: dict[str, list[SlowRank]] = {}
    for rank in ranks:
        if is_pod_name(namespace, rank.pod):
            by_pod.setdefault(rank.pod, []).append(rank)
    found = []
    for name, slow in list(by_pod.items())[:PODS_LIMIT]:
        try:
            pod = await client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", type=Pod)
        except (NotFound, Forbidden, Invalid):
            continue
        concerned = tuple(_of_this_pod(pod, slow))
        if pod.spec.node_name and concerned:
            found.append(SlowPod(pod, concerned))
    return found


def _of_this_pod(pod: Pod, ranks: Iterable[SlowRank]) -> Iterator[SlowRank]:
    created_at = seconds(pod.metadata.creation_timestamp)
    return (rank for rank in ranks if created_at <= rank.since_at)
