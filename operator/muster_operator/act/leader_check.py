"""A new leader reads a job from the API server before it first makes, changes or deletes something for that job.

Its watch of jobs may be behind its watch of pods: it would then create the pods of a finished job again after their
cleanup, or delete those of a job that runs again. The response to any write of this leader's term is as good as that
read, so a new job, whose first write adds the finalizer, needs no extra read.
"""

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_operator.job.snapshot import (
    AddFinalizer,
    CreateObject,
    DeletePod,
    FreePartition,
    JobPlan,
    PatchObject,
    RequestChecks,
    TakePartitions,
    WithdrawRequests,
)
from muster_operator.job.types import IPUJob, jobs_path
from muster_operator.observe.cluster import ClusterCache

# what is not itself bound to the version of the job that was planned with
_UNBOUND = CreateObject | PatchObject | DeletePod | TakePartitions | FreePartition | RequestChecks | WithdrawRequests


class LeaderCheck:
    """A term of leadership lasts from one :meth:`clear` to the next."""

    def __init__(self, client: KubeClient, cluster: ClusterCache) -> None:
        self._client = client
        self._cluster = cluster
        self._known: set[str] = set()  # uids

    def clear(self) -> None:
        self._known.clear()

    def forget(self, uid: str) -> None:
        self._known.discard(uid)

    def note(self, uid: str) -> None:
        """The API server accepted a write that was based on the current version of the job."""
        self._known.add(uid)

    async def is_stale(self, job: IPUJob, plan: JobPlan) -> bool:
        """Whether ``plan`` does something although the job has changed; the caller then plans again. Raises NotFound if
        the job is gone, which only the watch can show."""
        uid = job.metadata.uid
        if uid in self._known or not any(isinstance(each, _UNBOUND) for each in plan.actions):
            return False
        if isinstance(plan.actions[0], AddFinalizer):  # this is such a write
            return False
        path = f"{jobs_path(job.metadata.namespace)}/{job.metadata.name}"
        found = await self._client.get(path, type=IPUJob)
        if found.metadata.uid != uid:
            raise NotFound(404, "NotFound", f"no job with uid {uid}", path)
        self._known.add(uid)
        if found.metadata.resource_version == job.metadata.resource_version:
            return False
        self._cluster.observe_job(found)
        return True
