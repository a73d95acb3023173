"""Reconciles IPUJobs. Each job has one key, and one worker at a time handles it.

A turn plans and acts until nothing is left to do. Only then is the status written, and only if it differs, so a job
costs few writes. Facts that must survive a crash between two writes (the job has ended, an attempt has begun) are
written to the status before the operator acts on them.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict
from muster_kube.controller.leader_client import NotLeading
from muster_kube.controller.reflector import Reflector
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_operator.act.event_recorder import JobEventRecorder
from muster_operator.act.executor import ActionExecutor
from muster_operator.act.leader_check import LeaderCheck
from muster_operator.act.orphans import OrphanCollector
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.refusal_cache import RefusalCache
from muster_operator.act.status_writer import StatusWriter
from muster_operator.act.unseen_pods import UnseenPods
from muster_operator.job.ipu_pod import IpuPod, as_job
from muster_operator.job.names import is_pod
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.pod_outcome import shorten
from muster_operator.job.snapshot import (
    ActionResult,
    AddFinalizer,
    CreateObject,
    FreePartition,
    JobPlan,
    JobSetup,
    RecordEvent,
    Snapshot,
    TakePartitions,
)
from muster_operator.job.status import (
    INVALID,
    compose_acceptance,
    compose_refusal,
    has_condition,
    is_accepted,
    is_finished,
    is_written_first,
)
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.job.types import KIND, IPUJob
from muster_operator.metrics import OperatorMetrics
from muster_operator.observe.cluster import ChangeListener, ClusterCache, WatchScope
from muster_operator.observe.tracker_reader import job_key
from muster_operator.plan.ipu_pod import plan_ipu_pod
from muster_operator.snapshot_reader import SnapshotReader

log = logging.getLogger(__name__)

WORKERS = 8
ROUNDS = 32  # decisions per turn; each follows a completed action, and a job's life has fewer steps
ROOM_S = 1.0  # jobs that wait for capacity are woken together, at most this often
CONFLICT_S = 1.0  # the watch usually delivers the new version sooner

REFUSED_LINE = "invalid spec: "  # prefix of lastMessage
OLD_REFUSED_LINE = "the spec is refused: "  # the prefix in status that an older operator has written

Decide = Callable[[IPUJob, Snapshot, JobSetup], JobPlan]


class SpecReviewer(Protocol):
    """See :mod:`muster_operator.admission.unadmitted`."""

    def complete(self, job: IPUJob) -> IPUJob: ...

    def wrong(self, job: IPUJob) -> Sequence[str]: ...


class _NoReview:
    def complete(self, job: IPUJob) -> IPUJob:
        return job

    def wrong(self, _job: IPUJob) -> Sequence[str]:
        return ()


@dataclass(frozen=True)
class WriteAccess:
    """The API server and the V-IPU proxy, which only the leader may write to. may_write: whether this replica leads
    now."""

    client: KubeClient
    proxy: ProxyClient
    may_write: Callable[[], bool]


@dataclass(frozen=True)
class JobPlanner:
    """How this installation plans jobs. decide: :func:`muster_operator.plan.phase_table.plan`. reviewer: for jobs that
    no webhook has seen."""

    decide: Decide
    setup: JobSetup
    reviewer: SpecReviewer = field(default_factory=_NoReview)


@dataclass(frozen=True)
class OperatorTiming:
    """now: seconds since the epoch; clock: monotonic seconds; rng: spreads retries."""

    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)  # spreads load; not security-relevant


class Operator:
    """One replica, leader or not."""

    def __init__(
        self,
        access: WriteAccess,
        planner: JobPlanner,
        scope: WatchScope,
        metrics: OperatorMetrics,
        timing: OperatorTiming | None = None,
    ) -> None:
        timing = timing or OperatorTiming()
        client, clock = access.client, timing.clock
        self._client = client
        self._may_write = access.may_write
        self._planner = planner
        self._metrics = metrics
        self._now = timing.now
        self._clock = clock
        listener = ChangeListener(self._enqueue, self._forget, self._wake_for_room, self._enqueue_all)
        self.cluster = ClusterCache(client, scope, planner.setup.our_taints, listener, clock)
        self._refusals = RefusalCache(clock, timing.rng)
        self._snapshots = SnapshotReader(self.cluster, self._refusals, timing.now)
        self._executor = ActionExecutor(client, access.proxy, self.cluster, self._refusals, wrote=metrics.wrote)
        self._leader_check = LeaderCheck(client, self.cluster)
        self._status = StatusWriter(client, self.cluster, self._leader_check, clock, self._status_written)
        self._orphans = OrphanCollector(client, self.cluster, self._executor)
        self._queue: WorkQueue[str] | None = None  # set while leading
        self._events: JobEventRecorder | None = None
        self._waiting: dict[str, str] = {}  # jobs that wait for capacity, and when they were created
        self._wake: asyncio.TimerHandle | None = None
        self._woken_at = float("-inf")
        metrics.watch(
            self.cluster.jobs, self._entries, lambda: len(self._queue) if self._queue is not None else 0, timing.now
        )

    async def watch(self) -> None:
        """Keep the caches up to date, leader or not; runs until cancelled."""
        await self.cluster.watch()

    async def lead(self) -> None:
        """Plan and act until cancelled."""
        await self.cluster.wait_synced()
        queue: WorkQueue[str] = WorkQueue()
        events = JobEventRecorder(
            self._client, clock=self._clock, now=self._now, note=lambda how: self._metrics.events.labels(how).inc()
        )
        self._refusals.clear()
        self._leader_check.clear()
        self.cluster.tracker.forget_answers()
        self._waiting.clear()
        self._status.clear()
        self._queue, self._events = queue, events
        self._metrics.leads(self._now())
        try:
            self._enqueue_all()
            async with asyncio.TaskGroup() as group:
                group.create_task(run_workers(queue, self._handle, workers=WORKERS))
                group.create_task(events.run())
        finally:
            self._metrics.leads(None)
            if self._wake is not None:
                self._wake.cancel()
                self._wake = None
            self._queue = self._events = None

    def not_ready(self) -> list[str]:
        """Why this replica could not take over now; empty if it could, for at least one namespace."""
        cluster = self.cluster
        missing = [_find_disconnected(cluster.reflectors_in(each)) for each in cluster.namespaces or ("",)]
        in_namespaces = itertools.chain.from_iterable(missing) if all(missing) else ()
        return [*in_namespaces, *_find_disconnected(cluster.shared_reflectors())]

    def disconnected(self) -> list[str]:
        """All lists and watches that fail now. Jobs of a namespace wait until everything there was listed once."""
        return _find_disconnected(self.cluster.reflectors())

    # callbacks of the watches

    def _enqueue(self, key: str) -> None:
        if self._queue is not None and self.cluster.has_listed(key):
            self._queue.add(key, first=self.cluster.has_begun(key))  # see has_begun

    def _enqueue_all(self, namespace: str = "") -> None:
        """Everything that may need a decision, the oldest job first. namespace: only there; empty: everywhere."""
        jobs = sorted(self.cluster.jobs(), key=lambda each: each.metadata.creation_timestamp)
        requesters = (key for key, _ in self.cluster.requests.jobs())
        for key in (*map(_key, jobs), *self.cluster.tracker.job_keys(), *requesters, *self.cluster.ipu_pod_keys()):
            if not namespace or key.startswith(f"{namespace}/"):
                self._enqueue(key)

    def _forget(self, uid: str) -> None:
        self._refusals.forget_job(uid)
        self._leader_check.forget(uid)
        self._status.forget_job(uid)

    def _wake_for_room(self) -> None:
        """A partition was removed or nodes changed: wake waiting jobs at once, then at most once per ROOM_S."""
        if self._queue is None or not self._waiting or self._wake is not None:
            return
        rest_s = self._woken_at + ROOM_S - self._clock()
        self._wake = asyncio.get_running_loop().call_later(max(0.0, rest_s), self._wake_waiting)

    def _wake_waiting(self) -> None:
        self._wake = None
        self._woken_at = self._clock()
        # the job that has waited longest asks first
        for key in sorted(self._waiting, key=lambda each: self._waiting[each]):
            if (owner := self.cluster.owner(key)) is not None:
                self._refusals.room_came(owner.metadata.uid)
            self._enqueue(key)

    # one turn

    async def _handle(self, key: str) -> None:
        if not self._may_write():
            return
        with self._metrics.reconcile.time():
            try:
                await self._turn(key)
            except NotLeading:
                return
            except Conflict:
                self._metrics.conflicts.inc()
                self._again(key, CONFLICT_S)
            except ApiError as error:
                self._metrics.reconcile_errors.labels(error.reason).inc()
                raise
            except Exception:
                self._metrics.reconcile_errors.labels("Internal").inc()
                raise

    async def _turn(self, key: str) -> None:
        if (delay_s := await self._orphans.collect(key)) is not None:
            self._again(key, delay_s)
        for _ in range(ROUNDS):
            if (pod := self.cluster.ipu_pod(key)) is not None:
                news = await self._pod_round(key, pod)
            elif (job := self.cluster.job(key)) is not None:
                news = await self._round(key, self._planner.reviewer.complete(job))
            else:
                self._waiting.pop(key, None)
                return
            if not news:
                return
        log.warning("IPUJob %s: still not settled after %d decisions in a row", key, ROUNDS)
        self._again(key, CONFLICT_S)

    async def _round(self, key: str, job: IPUJob) -> bool:
        """Make one decision and carry it out. Returns whether there is news to plan with."""
        self._status.report_made(job)
        snapshot = self._snapshots.read(job)
        if wrong := self._find_errors(job, snapshot):
            await self._refuse(job, wrong)
            return False
        if not job.metadata.deletion_timestamp and (accepted := compose_acceptance(job, self._now())) is not None:
            await self._status.write(job, accepted)
            return True
        plan = self._planner.decide(job, snapshot, self._planner.setup)
        self._note_plan(key, job, plan)
        if plan.status is not None and is_written_first(job.status, plan.status):
            await self._status.write(job, plan.status, lambda: self._record_events(job, plan))
            return True
        if await self._leader_check.is_stale(job, plan):
            return True
        news = await self._act(key, job, plan, snapshot)
        self._record_events(job, plan)
        if news:
            return True
        if (status := self._explained(job, plan)) is not None:
            rest_s = await self._status.write_if_new(job, status)
            if rest_s:
                self._again(key, rest_s)
        self._look_again(key, job, snapshot, plan)
        return False

    async def _pod_round(self, key: str, pod: IpuPod) -> bool:
        """As :meth:`_round`, for a pod that has IPUs by its annotation. It has no status of the operator's."""
        if (job := as_job(pod)) is None:
            return False  # it has only the label
        snapshot = self._snapshots.read_pod(job, pod)
        plan = plan_ipu_pod(pod, job, snapshot, self.cluster.node_labels(pod), self._planner.setup.our_taints)
        self._note_plan(key, job, plan)
        news = await self._act(key, job, plan, snapshot)
        self._record_events(job, plan)
        if not news:
            self._look_again(key, job, snapshot, plan)
        return news

    def _note_plan(self, key: str, job: IPUJob, plan: JobPlan) -> None:
        log.debug("IPUJob %s: %s", key, plan)
        if plan.waits_for_room:
            self._waiting[key] = job.metadata.creation_timestamp
        else:
            self._waiting.pop(key, None)

    def _look_again(self, key: str, job: IPUJob, snapshot: Snapshot, plan: JobPlan) -> None:
        unknown_s = self.cluster.hardware.again_s(snapshot.pods.values())
        unconfirmed_s = self.cluster.tracker.again_s(job.metadata.uid)
        for delay_s in (plan.again_s, self._refusals.again_s(job.metadata.uid), unknown_s, unconfirmed_s):
            if delay_s is not None:
                self._again(key, delay_s)

    async def _act(self, key: str, job: IPUJob, plan: JobPlan, snapshot: Snapshot) -> bool:
        """Carry out the actions. Returns whether there is news that later decisions should take into account."""
        unseen = UnseenPods(self._client, self.cluster, key, job.metadata.uid, snapshot.pods)
        news = held_up = False
        for action in plan.actions:
            if isinstance(action, RecordEvent) or (held_up and isinstance(action, FreePartition | TakePartitions)):
                continue
            did = await self._executor.execute(job, action, unseen)
            news |= did in (ActionResult.DONE, ActionResult.REFUSED)
            if isinstance(action, AddFinalizer) and did is ActionResult.DONE:
                self._leader_check.note(job.metadata.uid)
                if not is_accepted(job.status):  # otherwise a user removed the finalizer of an accepted job
                    self._metrics.created.inc()
                break  # the job object has changed
            # pods do not depend on the proxy
            if did in (ActionResult.REFUSED, ActionResult.WAITS) and not (held_up := isinstance(action, FreePartition)):
                break
        return news

    def _record_events(self, job: IPUJob, plan: JobPlan) -> None:
        assert self._events is not None  # noqa: S101 - a turn is only had while leading
        for action in plan.actions:
            if isinstance(action, RecordEvent):
                self._events.record(job, action)
        for (kind, name), owner in self._refusals.foreign(job.metadata.uid).items():
            text = f"{kind} {name} already exists and is not managed by this {_kind_of(job)} ({owner})"
            self._events.record(job, RecordEvent("Warning", "ErrResourceExists", text))
        for text in self._refusals.refused(job.metadata.uid).values():
            self._events.record(job, RecordEvent("Warning", "FailedCreate", text))

    def _find_errors(self, job: IPUJob, snapshot: Snapshot) -> Sequence[str]:
        """Validation errors of the spec. New rules do not end a running job: a job is validated while it has no pods
        and partitions, after each edit, and until its errors are fixed."""
        if job.metadata.deletion_timestamp or is_finished(job.status):
            return ()
        judged = job.status.observed_generation == job.metadata.generation
        refused = has_condition(job.status, INVALID)
        refused = refused or job.status.last_message.startswith((REFUSED_LINE, OLD_REFUSED_LINE))  # an older operator
        if judged and not refused and (snapshot.pods or snapshot.entries):
            return ()
        return self._planner.reviewer.wrong(job)

    async def _refuse(self, job: IPUJob, wrong: Sequence[str]) -> None:
        """Report the errors. Existing pods continue; nothing is created from an invalid spec."""
        assert self._events is not None  # noqa: S101 - a turn is only had while leading
        status = compose_refusal(job, REFUSED_LINE + "; ".join(wrong), self._now())
        if status is not None:
            await self._status.write(job, status)
        self._events.record(job, RecordEvent("Warning", "ValidationError", shorten("; ".join(wrong))))

    def _explained(self, job: IPUJob, plan: JobPlan) -> IPUJobStatus | None:
        """While the API server rejects an object that the plan needs, its message is the lastMessage."""
        refused = self._refusals.refused(job.metadata.uid)
        made = [(each.kind, each.name) for each in plan.actions if isinstance(each, CreateObject)] if refused else []
        if not (lines := [refused[key] for key in made if key in refused]):
            return plan.status
        line = shorten("; ".join(dict.fromkeys(lines)))
        return msgspec.structs.replace(plan.status or job.status, last_message=line)

    def _status_written(self, job: IPUJob, status: IPUJobStatus) -> None:
        self._metrics.wrote("patch", "IPUJob/status")
        pods = self.cluster.pods.of_job(_key(job), job.metadata.uid).values()
        self._metrics.status_written(job, status, pods, self._now())

    def _entries(self) -> list[tuple[str, PartitionEntry]]:
        return [(name, entry) for name, entry in self.cluster.tracker.all() if self.cluster.concerns(job_key(entry))]

    def _again(self, key: str, delay_s: float) -> None:
        if self._queue is not None:
            self._queue.add_after(key, delay_s)


def _find_disconnected(reflectors: Mapping[str, Reflector[Any]]) -> list[str]:
    reasons = []
    for what, reflector in reflectors.items():
        if not reflector.synced:
            reasons.append(f"{what}: not listed yet {reflector.error}".strip())
        elif not reflector.connected:
            reasons.append(f"{what}: the watch is disconnected {reflector.error}".strip())
    return reasons


def _kind_of(job: IPUJob) -> str:
    return "pod" if is_pod(job.metadata.name) else KIND


def _key(job: IPUJob) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"
