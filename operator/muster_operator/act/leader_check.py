"""A new leader's first create for a job comes after a look at the API server itself.

Its watch of jobs may hang while that of pods does not: a job that has finished, and whose pods were cleaned away, would
be made again. What a write of this term has answered about the job is as good as that look, so that a new job, whose
first write is its finaliser, costs none.
"""

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_operator.job.snapshot import AddFinalizer, CreateObject, JobPlan, RequestChecks, TakePartitions
from muster_operator.job.types import IPUJob, jobs_path
from muster_operator.observe.cluster import ClusterCache


class LeaderCheck:
    """One term of leadership is from :meth:`clear` to the next."""

    def __init__(self, client: KubeClient, cluster: ClusterCache) -> None:
        self._client = client
        self._cluster = cluster
        self._known: set[str] = set()  # uids

    def clear(self) -> None:
        self._known.clear()

    def forget(self, uid: str) -> None:
        self._known.discard(uid)

    def note(self, uid: str) -> None:
        """The API server took a write that was decided on the job as it is."""
        self._known.add(uid)

    async def is_stale(self, job: IPUJob, plan: JobPlan) -> bool:
        """Whether ``plan`` makes something for a job that is another one by now; it is decided about again then.
        Raises NotFound where it is gone, and only the watch can tell."""
        uid = job.metadata.uid
        if uid in self._known or not any(
            isinstance(each, CreateObject | TakePartitions | RequestChecks) for each in plan.actions
        ):
            return False
        if isinstance(plan.actions[0], AddFinalizer):  # which is such a write itself
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
