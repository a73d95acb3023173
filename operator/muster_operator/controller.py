"""Looks at jobs and makes what is, what should be. Every job is handled under one key and by one worker at a time.

A turn decides, acts, and decides again until nothing is left to be done; only then is the status written, if it says
anything else: so a job costs the writes of what it needs and of what can be seen of it. What must not be lost between
two writes (that the job has ended, that an attempt has begun) is in the status before anything is done about it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict
from muster_kube.controller.fencing import NotLeading
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_operator.act.event_recorder import JobEventRecorder
from muster_operator.act.executor import ActionExecutor
from muster_operator.act.leader_check import LeaderCheck
from muster_operator.act.orphans import OrphanCollector
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.rate_limit import JobRateLimit
from muster_operator.act.refusal_cache import FREEING, TAKING, RefusalCache
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.pod_outcome import shorten
from muster_operator.job.snapshot import (
    ActionResult,
    AddFinalizer,
    CreateObject,
    FreePartition,
    JobPlan,
    JobSetup,
    NodeCapacity,
    RecordEvent,
    Snapshot,
    TakePartitions,
)
from muster_operator.job.status import compose_message, is_finished, is_written_first
from muster_operator.job.types import IPUJob, IPUJobStatus, WorkersStatus, jobs_path
from muster_operator.metrics import OperatorMetrics
from muster_operator.observe.cluster import ClusterCache
from muster_operator.observe.tracker_reader import job_key
from muster_operator.plan.preflight import avoided_nodes

log = logging.getLogger(__name__)

WORKERS = 8
ROUNDS = 32  # decisions of one turn; each comes after something was done, and a job's life has fewer steps
COUNTS_S = 1.0  # between two writes of a status of which only the numbers of workers are new
# writes of one job's status of which only the line is new, at once, and then one in a while: what is waited for may
# come and go with a node that flaps, many times a second
LINES = 6
LINE_S = 10.0
ROOM_S = 1.0  # jobs that wait for room are woken together, and not more often
CONFLICT_S = 1.0  # the watch brings the new version sooner

REFUSED_LINE = "the spec is refused: "  # what such a job's lastMessage begins with

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


class Operator:
    """One replica. may_write: are we the leader at this moment?

    decide: :func:`muster_operator.plan.phases.plan`. look: at jobs that no webhook has seen. tracker: namespace and
    name of its ConfigMap; quarantine: those of the quarantined IPUs, None: beside it. now: seconds since the epoch;
    clock: monotonic seconds
    """

    def __init__(
        self,
        client: KubeClient,
        proxy: ProxyClient,
        metrics: OperatorMetrics,
        setup: JobSetup,
        *,
        decide: Decide,
        look: SpecReviewer | None = None,
        may_write: Callable[[], bool],
        scope: tuple[str, ...] = (),
        tracker: tuple[str, str],
        quarantine: tuple[str, str] | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._setup = setup
        self._decide = decide
        self._look_at = look or _NoReview()
        self._may_write = may_write
        self._now = now
        self._clock = clock
        self.world = ClusterCache(
            client,
            scope=scope,
            tracker=tracker,
            quarantine=quarantine,
            our_taints=setup.our_taints,
            on_change=self._look,
            on_gone=self._forget,
            on_room=self._room_came,
            clock=clock,
        )
        self._memory = RefusalCache(clock, rng or random.Random())  # noqa: S311 - spreads load, guards nothing
        self._hands = ActionExecutor(client, proxy, self.world, self._memory, wrote=metrics.wrote)
        self._confirming = LeaderCheck(client, self.world)
        self._orphans = OrphanCollector(client, self.world, self._hands)
        self._queue: WorkQueue[str] | None = None  # there while leading
        self._telling: JobEventRecorder | None = None
        self._waiting: dict[str, str] = {}  # jobs that wait for room, and when they were made
        self._wake: asyncio.TimerHandle | None = None
        self._woken_at = float("-inf")
        self._status_at: dict[str, float] = {}  # by job uid, while only its numbers may be held back
        self._lines = JobRateLimit(LINES, LINE_S, clock)
        metrics.watch(self.world.jobs, self._entries, lambda: len(self._queue) if self._queue is not None else 0, now)

    async def watch(self) -> None:
        """Keep the caches warm, leading or not; for ever."""
        await self.world.watch()

    async def lead(self) -> None:
        """Decide and write, until cancelled."""
        await self.world.wait_synced()
        queue: WorkQueue[str] = WorkQueue()
        telling = JobEventRecorder(
            self._client, clock=self._clock, now=self._now, note=lambda how: self._metrics.events.labels(how).inc()
        )
        self._memory.clear()
        self._confirming.clear()
        self.world.tracker.forget_heard()
        self._waiting.clear()
        self._status_at.clear()
        self._lines.clear()
        self._queue, self._telling = queue, telling
        self._metrics.leads(self._now())
        try:
            for job in sorted(self.world.jobs(), key=lambda each: each.metadata.creation_timestamp):
                self._look(_key(job))
            for key in (*self.world.tracker.job_keys(), *(key for key, _ in self.world.requests.jobs())):
                self._look(key)
            async with asyncio.TaskGroup() as group:
                group.create_task(run_workers(queue, self._handle, workers=WORKERS))
                group.create_task(telling.run())
        finally:
            self._metrics.leads(None)
            if self._wake is not None:
                self._wake.cancel()
                self._wake = None
            self._queue = self._telling = None

    def not_ready(self) -> list[str]:
        """Why this replica could not take over now; empty when it could."""
        reasons = []
        for what, reflector in self.world.reflectors().items():
            if not reflector.synced:
                reasons.append(f"{what}: not listed yet {reflector.error}".strip())
            elif not reflector.connected:
                reasons.append(f"{what}: the watch is down {reflector.error}".strip())
        return reasons

    # what the watches bring

    def _look(self, key: str) -> None:
        if self._queue is not None and self.world.concerns(key):
            self._queue.add(key, first=self.world.has_begun(key))  # see there

    def _forget(self, uid: str) -> None:
        self._memory.forget_job(uid)
        self._confirming.forget(uid)
        self._status_at.pop(uid, None)

    def _room_came(self) -> None:
        """A partition has gone, or nodes have changed: at once, and after that not more often than once in a while."""
        if self._queue is None or not self._waiting or self._wake is not None:
            return
        rest_s = self._woken_at + ROOM_S - self._clock()
        self._wake = asyncio.get_running_loop().call_later(max(0.0, rest_s), self._wake_waiting)

    def _wake_waiting(self) -> None:
        self._wake = None
        self._woken_at = self._clock()
        # who has waited longest asks first
        for key in sorted(self._waiting, key=lambda each: self._waiting[each]):
            job = self.world.job(key)
            if job is not None:
                self._memory.room_came(job.metadata.uid)
            self._look(key)

    # a turn

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
        if (delay_s := await self._orphans.give_back(key)) is not None:
            self._again(key, delay_s)
        for _ in range(ROUNDS):
            job = self.world.job(key)
            if job is None:
                self._waiting.pop(key, None)
                return
            if not await self._round(key, self._look_at.complete(job)):
                return
        log.warning("IPUJob %s: not at rest after %d decisions in a row", key, ROUNDS)
        self._again(key, CONFLICT_S)

    async def _round(self, key: str, job: IPUJob) -> bool:
        """One decision and what it asks for; whether there is news to decide by."""
        seen = self.seen(job)
        if wrong := self._wrong(job, seen):
            await self._refuse(job, wrong)
            return False
        plan = self._decide(job, seen, self._setup)
        log.debug("IPUJob %s: %s", key, plan)
        if plan.waits_for_room:
            self._waiting[key] = job.metadata.creation_timestamp
        else:
            self._waiting.pop(key, None)
        if plan.status is not None and is_written_first(job.status, plan.status):
            await self._write_status(job, plan.status)
            self._tell(job, plan)
            return True
        if await self._confirming.is_stale(job, plan):
            return True
        news = await self._act(job, plan)
        self._tell(job, plan)
        if news:
            return True
        if (status := self._explained(job, plan)) is not None:
            await self._write_if_new(key, job, status)
        unknown_s = self.world.beneath.again_s(seen.pods.values())
        for delay_s in (plan.again_s, self._memory.again_s(job.metadata.uid), unknown_s):
            if delay_s is not None:
                self._again(key, delay_s)
        return False

    async def _act(self, job: IPUJob, plan: JobPlan) -> bool:
        """Whether there is news; all that was decided after it was decided without."""
        news = held_up = False
        for action in plan.actions:
            if isinstance(action, RecordEvent) or (held_up and isinstance(action, FreePartition | TakePartitions)):
                continue
            did = await self._hands.act(job, action)
            news |= did in (ActionResult.DONE, ActionResult.REFUSED)
            if isinstance(action, AddFinalizer) and did is ActionResult.DONE:
                self._confirming.note(job.metadata.uid)
                if not job.status.conditions:  # else it was taken on before, and somebody took the finaliser off
                    self._metrics.created.inc()
                break  # the job itself is another one now
            # pods are none of the proxy's business
            if did in (ActionResult.REFUSED, ActionResult.WAITS) and not (held_up := isinstance(action, FreePartition)):
                break
        return news

    def _tell(self, job: IPUJob, plan: JobPlan) -> None:
        assert self._telling is not None  # noqa: S101 - a turn is only had while leading
        for action in plan.actions:
            if isinstance(action, RecordEvent):
                self._telling.tell(job, action)
        for (kind, name), owner in self._memory.foreign(job.metadata.uid).items():
            text = f"{kind} {name} already exists and is not managed by this IPUJob ({owner})"
            self._telling.tell(job, RecordEvent("Warning", "ErrResourceExists", text))
        for text in self._memory.refused(job.metadata.uid).values():
            self._telling.tell(job, RecordEvent("Warning", "FailedCreate", text))

    def _wrong(self, job: IPUJob, seen: Snapshot) -> Sequence[str]:
        """What the spec breaks of the rules of admission. A rule that came later ends no job that runs: it is judged
        while it has nothing, when it is another one than the status is about, and until that is put right."""
        if job.metadata.deletion_timestamp or is_finished(job.status):
            return ()
        judged = job.status.observed_generation == job.metadata.generation
        refused = job.status.last_message.startswith(REFUSED_LINE)
        if judged and not refused and (seen.pods or seen.entries):
            return ()
        return self._look_at.wrong(job)

    async def _refuse(self, job: IPUJob, wrong: Sequence[str]) -> None:
        """What runs goes on; nothing is made from a spec that means nothing."""
        assert self._telling is not None  # noqa: S101 - a turn is only had while leading
        status = compose_message(job, REFUSED_LINE + "; ".join(wrong), self._now())
        if status is not None:
            await self._write_status(job, status)
        self._telling.tell(job, RecordEvent("Warning", "ValidationError", shorten("; ".join(wrong))))

    def seen(self, job: IPUJob) -> Snapshot:
        """What a decision about ``job`` goes by now."""
        uid = job.metadata.uid
        entries, going = self.world.tracker.of_job(uid), bool(job.metadata.deletion_timestamp)
        pods = self.world.pods.of_job(uid)
        return Snapshot(
            now=self._now(),
            pods=pods,
            objects=self.world.objects_of(uid),
            foreign=self._memory.foreign(uid),
            refused=self._memory.refused(uid),
            entries=entries,
            refusals=self._held_up(uid, entries) if going else self._memory.refusals(uid, TAKING),
            node_capacity=self._node_capacity(job, list(entries.values())),
            bad_nodes=self.world.beneath.bad_nodes(pods.values()),
            bad_ipus=self.world.beneath.bad_ipus(entries),
            room=self._memory.room(uid),
            requests=self.world.requests.of_job(uid),
            failed_requests=self._memory.failed_requests(uid),
        )

    def _held_up(self, uid: str, entries: Mapping[str, PartitionEntry]) -> dict[str, PartitionRefusal]:
        """Why partitions are not given back: in the proxy's answers, or, of what it has taken on, in the tracker."""
        told = {
            name: PartitionRefusal(why="Unreachable", message=entry.message)
            for name, entry in entries.items()
            if entry.state == "deleting" and entry.message
        }
        return told | self._memory.refusals(uid, FREEING)

    def _node_capacity(self, job: IPUJob, entries: list[PartitionEntry]) -> NodeCapacity | None:
        if not self.world.nodes.synced:
            return None
        spec = job.spec.workers.template.get("spec")
        wanted = spec.get("nodeSelector") if isinstance(spec, dict) else None
        selector = {str(key): str(value) for key, value in wanted.items()} if isinstance(wanted, dict) else {}
        controllers = {entry.selector for entry in entries if entry.selector}
        if len(controllers) == 1:
            key, equals, value = controllers.pop().partition("=")
            if equals:
                selector.setdefault(key, value)
        return self.world.places.count(selector, avoided_nodes(job, self._now()))

    def _explained(self, job: IPUJob, plan: JobPlan) -> IPUJobStatus | None:
        """What the API server does not take is what the job waits for, as long as it is asked for."""
        refused = self._memory.refused(job.metadata.uid)
        made = [(each.kind, each.name) for each in plan.actions if isinstance(each, CreateObject)] if refused else []
        if not (lines := [refused[key] for key in made if key in refused]):
            return plan.status
        line = shorten("; ".join(dict.fromkeys(lines)))
        return msgspec.structs.replace(plan.status or job.status, last_message=line)

    async def _write_if_new(self, key: str, job: IPUJob, status: IPUJobStatus) -> None:
        if _essence(status) == _essence(job.status):
            return
        uid, now = job.metadata.uid, self._clock()
        if _essence(status, counts=False) == _essence(job.status, counts=False):
            # pods of one job come up one after the other: what nobody waits for need not be written for each
            rest_s = self._status_at.get(uid, float("-inf")) + COUNTS_S - now
            if rest_s > 0:
                self._again(key, rest_s)
                return
        elif _essence(status, line=False) == _essence(job.status, line=False) and (rest_s := self._lines.take(uid)):
            self._again(key, rest_s)
            return
        await self._write_status(job, status)

    async def _write_status(self, job: IPUJob, status: IPUJobStatus) -> None:
        meta = job.metadata
        body = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": _as_patch(status),
        }
        answer = await self._client.patch(f"{_path(job)}/status", body, type=IPUJob)
        self._metrics.wrote("patch", "IPUJob/status")
        self._metrics.status_written(job, status, self.world.pods.of_job(meta.uid).values(), self._now())
        self._status_at[meta.uid] = self._clock()
        self._confirming.note(meta.uid)
        self.world.observe_job(answer)

    def _entries(self) -> list[tuple[str, PartitionEntry]]:
        return [(name, entry) for name, entry in self.world.tracker.all() if self.world.concerns(job_key(entry))]

    def _again(self, key: str, delay_s: float) -> None:
        if self._queue is not None:
            self._queue.add_after(key, delay_s)


def _key(job: IPUJob) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"


def _path(job: IPUJob) -> str:
    return f"{jobs_path(job.metadata.namespace)}/{job.metadata.name}"


def _essence(status: IPUJobStatus, *, counts: bool = True, line: bool = True) -> IPUJobStatus:
    """Without what moves only along with other things."""
    workers = status.workers_status if counts and line else WorkersStatus()
    said = status.last_message if line else ""
    return msgspec.structs.replace(status, last_reconcile_time=None, workers_status=workers, last_message=said)


def _as_patch(status: IPUJobStatus) -> dict[str, object]:
    """For a merge: null takes away what is no longer so."""
    workers = status.workers_status
    counts = {"active": workers.active, "succeeded": workers.succeeded, "failed": workers.failed}
    patch: dict[str, object] = msgspec.to_builtins(status)
    # the API server takes no empty text where the scale's selector is
    return patch | {
        "selector": status.selector or None,
        # kubectl describe breaks its columns at what is empty
        "adoptedTemplate": status.adopted_template or None,
        "instanceMoves": status.instance_moves or None,
        "moveStarts": status.move_starts or None,
        "workersStatus": {name: number or None for name, number in counts.items()},
    }
