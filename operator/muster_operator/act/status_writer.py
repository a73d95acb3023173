"""Writes the status of jobs, but only if it differs, and not for each pod that changes."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, is_outcome_unknown
from muster_kube.controller.token_bucket import TokenBuckets
from muster_kube.controller.unanswered_writes import UnansweredWrites
from muster_operator.act.leader_check import LeaderCheck
from muster_operator.job.status_types import IPUJobStatus, WorkersStatus
from muster_operator.job.types import IPUJob, jobs_path
from muster_operator.observe.cluster import ClusterCache

COUNTS_S = 1.0  # between two writes if only the numbers of workers differ
# burst and interval of writes of one job if only lastMessage differs: it may change many times a second with a flapping
# node
LINES = 6
LINE_S = 10.0

Written = Callable[[IPUJob, IPUJobStatus], None]


class _Write(NamedTuple):
    job: IPUJob
    status: IPUJobStatus
    then: Callable[[], None]


class StatusWriter:
    """clock: monotonic seconds. written: called with the old job and its new status once the write is known to be
    made."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        leader_check: LeaderCheck,
        clock: Callable[[], float],
        written: Written,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._leader_check = leader_check
        self._clock = clock
        self._written = written
        self._written_at: dict[str, float] = {}  # by job uid, while only its counts may be delayed
        self._lines = TokenBuckets(LINES, LINE_S, clock)
        self._unanswered: UnansweredWrites[_Write] = UnansweredWrites()

    def clear(self) -> None:
        self._written_at.clear()
        self._lines.clear()
        self._unanswered.clear()

    def forget_job(self, uid: str) -> None:
        self._written_at.pop(uid, None)
        self._unanswered.forget(uid)

    def report_made(self, job: IPUJob) -> None:
        """Count and tell a write that was not answered, if ``job`` shows it."""
        made = self._unanswered.take_made(
            job.metadata.uid,
            job.metadata.resource_version,
            lambda each: _as_patch(each.status) == _as_patch(job.status),
        )
        if made is not None:
            self._note(made)

    async def write_if_new(self, job: IPUJob, status: IPUJobStatus) -> float:
        """Returns the seconds to wait if it is too early to write; 0 if there is nothing left to write."""
        if _essence(status) == _essence(job.status):
            return 0.0
        uid, now = job.metadata.uid, self._clock()
        if _essence(status, counts=False) == _essence(job.status, counts=False):
            # pods of one job start one after the other, and nobody waits for each single count
            rest_s = self._written_at.get(uid, float("-inf")) + COUNTS_S - now
            if rest_s > 0:
                return rest_s
        elif _essence(status, line=False) == _essence(job.status, line=False) and (rest_s := self._lines.take(uid)):
            return rest_s
        await self.write(job, status)
        return 0.0

    async def write(self, job: IPUJob, status: IPUJobStatus, then: Callable[[], None] = lambda: None) -> None:
        """then: called once the write is known to be made. Raises ApiError; Conflict if ``job`` is outdated."""
        meta, write = job.metadata, _Write(job, status, then)
        body = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": _as_patch(status),
        }
        path = f"{jobs_path(meta.namespace)}/{meta.name}/status"
        try:
            answer = await self._client.patch(path, body, type=IPUJob)
        except ApiError as error:
            if is_outcome_unknown(error) and self._cluster.job(f"{meta.namespace}/{meta.name}") is not None:
                self._unanswered.note(meta.uid, meta.resource_version, write)
            raise
        self._unanswered.forget(meta.uid)  # none of them was made
        self._note(write)
        self._leader_check.note(meta.uid)
        self._cluster.observe_job(answer)

    def _note(self, write: _Write) -> None:
        uid = write.job.metadata.uid
        self._written(write.job, write.status)
        self._written_at[uid] = self._clock()
        write.then()


def _essence(status: IPUJobStatus, *, counts: bool = True, line: bool = True) -> IPUJobStatus:
    """The status without fields that change only together with others."""
    workers = status.workers_status if counts and line else WorkersStatus()
    message = status.last_message if line else ""
    return msgspec.structs.replace(status, last_reconcile_time=None, workers_status=workers, last_message=message)


def _as_patch(status: IPUJobStatus) -> dict[str, object]:
    """The body of a merge patch; null removes fields that no longer apply."""
    workers = status.workers_status
    counts = {"active": workers.active, "succeeded": workers.succeeded, "failed": workers.failed}
    patch: dict[str, object] = msgspec.to_builtins(status)
    # the API server rejects an empty selector of the scale subresource
    return patch | {
        "selector": status.selector or None,
        # kubectl describe misaligns its columns if a value is empty
        "adoptedTemplate": status.adopted_template or None,
        "instanceMoves": status.instance_moves or None,
        "instanceRestarts": patch["instanceRestarts"] or None,
        "moveStarts": status.move_starts or None,
        "workersStatus": {name: number or None for name, number in counts.items()},
    }
