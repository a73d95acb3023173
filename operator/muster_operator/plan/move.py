"""What a job does about bad hardware: it stays, fails, or moves to healthy nodes and IPUs.

A move is a new attempt that does not count towards ``backOffLimit``. The status records it first, so a new leader
continues the same move. The launcher ends first, while the workers still run, so that it can save its state. Our
affinity and the taints keep the new pods off the bad node; the proxy resets the partition or, if an IPU is quarantined,
creates it elsewhere. In a job without a launcher only the affected instances move. While the launcher waits for
pre-flight checks the job has nothing to lose, so it moves whatever its policy is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from muster_kube.api import times
from muster_operator.job import checkpoint, lost_pods, names, pod_outcome, status
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import Action, DeletePod, JobPlan, JobPod, QueryCapacity, RecordEvent
from muster_operator.job.status import RESTARTING, StatusUpdate
from muster_operator.job.status_types import JobMove
from muster_operator.job.types import ipus_per_instance
from muster_operator.plan import attempt_end
from muster_operator.plan.hardware import degradation, poplar_recovery, preflight
from muster_operator.plan.hardware.degradation import JobFault
from muster_operator.plan.job_state import JobState
from muster_operator.plan.restart_policy import RestartDecision

POPLAR = "PoplarRecovery"
HOUR_S = 3600.0
JOINED_S = 60.0  # faults so soon after a move of other instances are the same incident: a rack fails within seconds
ROOM_S = 30.0  # between two capacity queries


@dataclass(frozen=True)
class FailsByPolicy:
    why: str


@dataclass(frozen=True)
class StaysInPlace:
    """why: for people, appended to the fault; actions, again_s: to find out whether it may move now. waits: it moves as
    soon as it may."""

    why: str
    actions: tuple[Action, ...] = ()
    again_s: float | None = None
    waits: bool = True


def leave_bad_hardware(state: JobState) -> JobPlan | None:
    """The plan of a job that moves, or that fails because of its policy; None: it continues where it is."""
    decided = decide_move(state)
    if isinstance(decided, FailsByPolicy):
        return attempt_end.end_job(state, AttemptEnd(False, decided.why), RestartDecision(False, degradation.DEGRADED))
    return decided if isinstance(decided, JobPlan) else None


def decide_move(state: JobState) -> JobPlan | FailsByPolicy | StaysInPlace | None:
    """None: there is no fault, or the job has succeeded."""
    found = _find_all_faults(state)
    if not found or (state.end is not None and state.end.success):
        return None
    policy = "Move" if preflight.is_open(state) else checkpoint.policy_of(state.job).on_fault
    if policy == "Fail":
        return FailsByPolicy(f"{degradation.describe_faults(found)}; healthPolicy.onFault is Fail")
    if policy == "Keep":
        if alone := _find_lost_instances(state, found):
            return _find_reason_to_stay(state, alone) or _begin_move(state, alone)
        return StaysInPlace("the job stays there (healthPolicy.onFault Keep)", waits=False)
    return _find_reason_to_stay(state, found) or _begin_move(state, found)


def _find_lost_instances(state: JobState, found: Sequence[JobFault]) -> tuple[JobFault, ...]:
    """Faults of instances that are lost with their nodes while others continue: their pods cannot stay, and their
    kubelets may never report an end. With a launcher, or for the last instance, the loss ends the attempt."""
    if state.with_launcher or not state.pods_lost_with_node or state.end is not None:
        return ()
    lost = {degradation.instance_of(pod) for pod in state.pods_lost_with_node}
    return tuple(fault for fault in found if fault.is_of_node and fault.instance in lost)


def report_hardware(state: JobState, decided: JobPlan) -> JobPlan:
    """``decided`` with the condition, Events and queries about the hardware under the job."""
    if not state.goes_on:
        return decided
    found = _find_all_faults(state)
    stays = decide_move(state) if found else None
    if not isinstance(stays, StaysInPlace):
        stays = StaysInPlace("", waits=False)
    written, events = degradation.report_health(state, decided.status, found, stays.why, state.snapshot.now)
    moments = (decided.again_s, stays.again_s, degradation.recovery_delay_s(state, found))
    again_s = min((each for each in moments if each is not None), default=None)
    return JobPlan(
        (*stays.actions, *decided.actions, *events),  # a refused action drops those after it
        written,
        again_s=again_s,
        waits_for_room=decided.waits_for_room or stays.waits,
    )


def _find_all_faults(state: JobState) -> tuple[JobFault, ...]:
    """Faults of the hardware and, for a job that moves, the errors that Poplar can recover from (behaviour 60)."""
    found = degradation.find_faults(state)
    reported = {node for fault in found for node in fault.nodes}
    found += tuple(fault for fault in preflight.find_failed_nodes(state) if reported.isdisjoint(fault.nodes))
    if checkpoint.policy_of(state.job).on_fault != "Move":
        return found
    failed = pod_outcome.failed_pods(state.workers) + pod_outcome.failed_pods(
        [state.launcher] if state.launcher is not None else []
    )
    if not poplar_recovery.can_recover(failed):
        return found
    return (
        *found,
        *(
            JobFault(
                POPLAR,
                f"{degradation.describe_pod(pod)}{f' on node {pod.spec.node_name}' if pod.spec.node_name else ''}: "
                f"Poplar requests {poplar_recovery.describe_errors(pod)}",
                degradation.instance_of(pod),
                degradation.nodes_of([pod]),
            )
            for pod in failed
            if poplar_recovery.read_errors(pod)
        ),
    )


def _find_reason_to_stay(state: JobState, found: Sequence[JobFault]) -> StaysInPlace | None:
    """Why the job does not move now; it keeps its place instead of waiting without one."""
    now = state.snapshot.now
    if not _joins_last_move(state, found):
        recent = _recent_moves(state)
        if len(recent) >= state.setup.moves_per_hour:
            if not state.setup.moves_per_hour:
                return StaysInPlace("the job does not move: moves_per_hour is 0", waits=False)
            until = times.seconds(recent[-state.setup.moves_per_hour]) + HOUR_S
            times_moved = f"{len(recent)} time{'' if len(recent) == 1 else 's'}"
            when = f"before {times.rfc3339_whole(until)}"
            return StaysInPlace(
                f"the job does not move {when}: it has moved {times_moved} within an hour", again_s=until - now
            )
    if any(lost_pods.is_lost(pod, state.snapshot) for pod in state.pods.values() if state.is_of_current_attempt(pod)):
        return None  # the pods cannot stay
    places = state.snapshot.node_capacity
    if places is not None and any(fault.is_of_node for fault in found):
        needed = len(degradation.nodes_of([pod for pod in state.workers if not pod_outcome.has_ended(pod)])) or 1
        if places.healthy < needed:
            return StaysInPlace(
                f"the job does not move yet: it needs {needed} healthy nodes, and there are {places.healthy}"
            )
    partitions = {fault.instance for fault in found if fault.reason == degradation.QUARANTINED}
    if partitions:
        ask = QueryCapacity(ipus_per_instance(state.job.spec))
        if state.snapshot.room is None:
            return StaysInPlace("waiting for the proxy's answer whether there is room elsewhere", (ask,), ROOM_S)
        if state.snapshot.room < len(partitions):
            room = f"room for {state.snapshot.room} of {len(partitions)} other partitions of {ask.size} IPUs"
            return StaysInPlace(f"the job does not move yet: {room}", (ask,), ROOM_S)
    return None


def _begin_move(state: JobState, found: Sequence[JobFault]) -> JobPlan:
    job, now, before = state.job, state.snapshot.now, state.job.status
    at = times.rfc3339_whole(now)
    joined = before.last_move if _joins_last_move(state, found) else None
    concerned = _moving_instances(state, found)
    why = pod_outcome.shorten(degradation.describe_faults(found))
    old_nodes = {node for fault in found for node in fault.nodes} | set(joined.nodes if joined is not None else ())
    attempt = before.attempt + (1 if state.with_launcher else 0)
    move = JobMove(
        start_time=joined.start_time if joined is not None else at,
        attempt=attempt,
        nodes=tuple(sorted(old_nodes)),
        instances=tuple(sorted({*concerned, *(joined.instances if joined is not None else ())})),
        reason=found[0].reason,
        message=why,
    )
    counts = {str(each): before.instance_moves.get(str(each), 0) + 1 for each in concerned}
    changed = msgspec.structs.replace(
        before,
        attempt=attempt,
        moves=before.moves + (0 if joined is not None else 1),
        move_starts=before.move_starts
        if joined is not None
        else (*_recent_moves(state), at)[-max(1, state.setup.moves_per_hour) :],
        last_move=move,
        instance_moves={**before.instance_moves, **counts},
    )
    what = f"instance {', '.join(map(str, move.instances))} moves" if concerned else "the job moves"
    message = pod_outcome.shorten(f"{what} away from bad hardware: {why}")
    event = RecordEvent("Warning", degradation.MOVING, message)
    if not state.with_launcher:
        return JobPlan((event,), msgspec.structs.replace(changed, last_message=message, last_reconcile_time=at))
    stand = StatusUpdate(RESTARTING, message, desired=state.instances, reason=degradation.MOVING, message=message)
    return JobPlan((event,), status.compose_status(msgspec.structs.replace(job, status=changed), stand, (), now))


def delete_pods(state: JobState, doomed: Iterable[JobPod]) -> tuple[DeletePod, ...]:
    """Delete pods of earlier attempts and superfluous pods. In a move the launcher ends first, and every pod gets the
    grace period of the policy."""
    pods, now = list(doomed), state.snapshot.now
    leaving = [pod for pod in pods if _leaves(state, pod)]
    waits = any(_is_launcher(pod) and not pod_outcome.has_ended(pod) for pod in leaving)
    found = []
    for pod in pods:
        forced_at = lost_pods.force_delete_at(pod, state.snapshot)
        if forced_at is not None and now >= forced_at:
            if _is_launcher(pod) and pod in leaving:
                waits = False
            found.append(DeletePod(pod.metadata.name, pod.metadata.uid, 0))
        elif not pod.metadata.deletion_timestamp and (_is_launcher(pod) or pod not in leaving or not waits):
            grace_s = checkpoint.grace_s(state.job) if pod in leaving else None
            found.append(DeletePod(pod.metadata.name, pod.metadata.uid, grace_s))
    return tuple(found)


def _leaves(state: JobState, pod: JobPod) -> bool:
    """Whether the pod goes because of the last move."""
    move = state.job.status.last_move
    if move is None or move.attempt != state.job.status.attempt:
        return False
    return not move.instances or pod.metadata.labels.get(names.INSTANCE) in {str(each) for each in move.instances}


def _is_launcher(pod: JobPod) -> bool:
    return pod.metadata.labels.get(names.ROLE) == names.LAUNCHER


def _moving_instances(state: JobState, found: Sequence[JobFault]) -> tuple[int, ...]:
    """Instances that move alone; empty: the whole job moves."""
    if state.with_launcher:
        return ()
    return tuple(sorted({fault.instance for fault in found if fault.instance is not None}))


def _joins_last_move(state: JobState, found: Sequence[JobFault]) -> bool:
    """Whether other instances were hit a moment before."""
    move = state.job.status.last_move
    if state.with_launcher or move is None or not move.instances or move.attempt != state.job.status.attempt:
        return False
    is_fresh = 0 <= state.snapshot.now - times.seconds(move.start_time) < JOINED_S
    return is_fresh and not set(move.instances) & set(_moving_instances(state, found))


def _recent_moves(state: JobState) -> tuple[str, ...]:
    """Starts of moves within the last hour. A start in the future was written by a clock that has been set
    back since."""
    now = state.snapshot.now
    return tuple(at for at in state.job.status.move_starts if 0 <= now - times.seconds(at) < HOUR_S)
