"""Reads the snapshot for a decision about a job from the caches of the cluster and of refusals."""

from collections.abc import Callable, Mapping

from muster_operator.act.refusal_cache import FREEING, TAKING, RefusalCache
from muster_operator.job.ipu_pod import IpuPod
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.snapshot import JobPod, NodeCapacity, Snapshot
from muster_operator.job.types import IPUJob
from muster_operator.observe.cluster import ClusterCache
from muster_operator.plan.hardware.preflight import avoided_nodes


class SnapshotReader:
    """now: seconds since the epoch."""

    def __init__(self, cluster: ClusterCache, refusals: RefusalCache, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._now = now

    def read_pod(self, job: IPUJob, pod: IpuPod) -> Snapshot:
        """For a pod that has IPUs by its annotation. ``job``: what stands for it."""
        return self._read(job, {pod.metadata.name: pod})

    def read(self, job: IPUJob) -> Snapshot:
        return self._read(job, self._cluster.pods.of_job(_key(job), job.metadata.uid))

    def _read(self, job: IPUJob, pods: Mapping[str, JobPod]) -> Snapshot:
        uid, cluster, refusals = job.metadata.uid, self._cluster, self._refusals
        entries = cluster.tracker.of_job(uid)
        is_going = bool(job.metadata.deletion_timestamp)
        return Snapshot(
            now=self._now(),
            pods=dict(pods),  # the cache goes on while the decision is carried out
            objects=cluster.objects_of(_key(job), uid),
            foreign=refusals.foreign(uid),
            refused=refusals.refused(uid),
            entries=entries,
            refusals=self._unreleased(uid, entries) if is_going else refusals.refusals(uid, TAKING),
            node_capacity=self._node_capacity(job, entries),
            bad_nodes=cluster.hardware.bad_nodes(pods.values()),
            bad_ipus=cluster.hardware.bad_ipus(entries),
            room=refusals.room(uid),
            requests=cluster.requests.of_job(uid),
            failed_requests=refusals.failed_requests(uid),
        )

    def _unreleased(self, uid: str, entries: Mapping[str, PartitionEntry]) -> dict[str, PartitionRefusal]:
        """Why partitions are not released: from the proxy's responses or, for accepted releases, from the tracker."""
        pending = {
            name: PartitionRefusal(why="Unreachable", message=entry.message)
            for name, entry in entries.items()
            if entry.state == "deleting" and entry.message
        }
        return pending | self._refusals.refusals(uid, FREEING)

    def _node_capacity(self, job: IPUJob, entries: Mapping[str, PartitionEntry]) -> NodeCapacity | None:
        if not self._cluster.nodes.synced:
            return None
        spec = job.spec.workers.template.get("spec")
        wanted = spec.get("nodeSelector") if isinstance(spec, dict) else None
        selector = {str(key): str(value) for key, value in wanted.items()} if isinstance(wanted, dict) else {}
        controllers = {entry.selector for entry in entries.values() if entry.selector}
        if len(controllers) == 1:
            key, equals, value = controllers.pop().partition("=")
            if equals:
                selector.setdefault(key, value)
        return self._cluster.capacity.count(selector, avoided_nodes(job, self._now()))


def _key(job: IPUJob) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"
