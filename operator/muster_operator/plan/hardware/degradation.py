"""Hardware problems under a running job: the condition ``HealthDegraded``, and one Event per fault.

Faults come from existing state: our taints, the Ready condition, removed Nodes and the quarantine of IPUs. The
condition keeps the state: a job that has left bad hardware and has not run since has the reason ``IPUJobMoving``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from muster_kube.api.times import rfc3339_whole, seconds
from muster_operator.job import names, pod_outcome
from muster_operator.job.snapshot import JobPod, RecordEvent
from muster_operator.job.status import is_finished
from muster_operator.job.status_types import IPUJobCondition, IPUJobStatus
from muster_operator.plan.job_state import JobState
from muster_operator.resources import placement

DEGRADED = "HealthDegraded"
MOVING = "IPUJobMoving"
MOVED = "IPUJobMoved"
RESTORED = "HealthRestored"
ENDED = "IPUJobEnded"
_SHOWN = 4
_EVENTS_LIMIT = 8  # Events at once: a rack failure is one incident
# earliest end of a fault after it was reported (whole seconds, so up to one second less): a flapping fault costs two
# writes per period
OVER_S = 10.0
_REASONS = {"Faulty": "NodeFaulty", "NotReady": "NodeNotReady", "Gone": "NodeGone"}
QUARANTINED = "IPUQuarantined"
UNFIT = "PreFlightFailed"


@dataclass(frozen=True)
class JobFault:
    """reason: NodeFaulty, NodeNotReady, NodeGone, PreFlightFailed, IPUQuarantined or PoplarRecovery. instance: None for
    the launcher. nodes: of the affected pods."""

    reason: str
    text: str
    instance: int | None
    nodes: tuple[str, ...]

    @property
    def is_of_node(self) -> bool:
        return self.reason in (*_REASONS.values(), UNFIT)


def find_faults(state: JobState) -> tuple[JobFault, ...]:
    """Faults under current pods that have not succeeded; the launcher's first, then by rank."""
    if not state.snapshot.bad_nodes and not state.snapshot.bad_ipus:
        return ()
    found = []
    tolerates = placement.tolerates_faulty(state.job)
    concerned = [pod for pod in _pods_in_order(state) if pod.status.phase != pod_outcome.SUCCEEDED]
    for pod in concerned:
        bad = state.snapshot.bad_nodes.get(pod.spec.node_name)
        if bad is None or (bad.kind == "Faulty" and tolerates):
            continue
        text = f"{describe_pod(pod)} is on node {pod.spec.node_name}: {bad.what}"
        found.append(JobFault(_REASONS[bad.kind], text, instance_of(pod), (pod.spec.node_name,)))
    for instance in range(state.instances) if state.snapshot.bad_ipus else ():
        ipus = state.snapshot.bad_ipus.get(state.partition(instance), ())
        pods = [pod for pod in concerned if instance_of(pod) == instance]
        if ipus and pods:
            nodes = tuple(dict.fromkeys(pod.spec.node_name for pod in pods if pod.spec.node_name))
            where = f", node {', '.join(nodes)}" if nodes else ""
            text = f"{_describe_pods(pods)}{where}: partition {state.partition(instance)}: {'; '.join(ipus[:_SHOWN])}"
            found.append(JobFault(QUARANTINED, text, instance, nodes))
    return tuple(found)


def describe_pod(pod: JobPod) -> str:
    """``rank 3 (pod train-worker-3)``: the indices of the workers are the ranks of the hostfile."""
    if pod.metadata.labels.get(names.ROLE) == names.LAUNCHER:
        return f"the launcher (pod {pod.metadata.name})"
    return f"rank {pod.metadata.name.rpartition('-')[2]} (pod {pod.metadata.name})"


def describe_faults(found: Sequence[JobFault]) -> str:
    text = "; ".join(fault.text for fault in found[:_SHOWN])
    return f"{text}; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else text


def report_health(
    state: JobState, status: IPUJobStatus | None, found: Sequence[JobFault], outlook: str, now: float
) -> tuple[IPUJobStatus | None, tuple[RecordEvent, ...]]:
    """The status with the condition; None: there is nothing to write. outlook: what is being done about it."""
    base = status or state.job.status
    known = next((each for each in base.conditions if each.type == DEGRADED), None)
    is_bad = known is not None and known.status == "True"
    events: tuple[RecordEvent, ...] = ()
    if is_finished(base):
        # together with the end: the hardware of a finished job is not watched
        events = tuple(
            RecordEvent("Warning", DEGRADED, pod_outcome.shorten(fault.text)) for fault in found[:_EVENTS_LIMIT]
        )
        if known is None or not is_bad:
            return status, events
        wanted = ("False", ENDED, pod_outcome.shorten(f"the job has ended; until then: {known.message}"))
    elif has_moved(state.job.status, base):
        assert base.last_move is not None  # noqa: S101 - it has just been written there
        wanted = ("True", MOVING, base.last_move.message)
    elif found:
        text = f"{describe_faults(found)}; {outlook}" if outlook else describe_faults(found)
        wanted = ("True", found[0].reason, pod_outcome.shorten(text))
        events = tuple(
            RecordEvent("Warning", DEGRADED, pod_outcome.shorten(fault.text)) for fault in found[:_EVENTS_LIMIT]
        )
    elif (
        known is None or not is_bad or (known.reason == MOVING and not (_has_arrived(state) or state.job.spec.suspend))
    ):
        return status, ()
    elif known.reason == MOVING and not state.job.spec.suspend:
        text = _describe_move(state)
        wanted, events = ("False", MOVED, text), (RecordEvent("Normal", MOVED, text),)
    elif recovery_delay_s(state, found):
        return status, ()
    else:
        wanted = (
            "False",
            RESTORED,
            pod_outcome.shorten(f"the hardware has recovered, or the job has left it: {known.message}"),
        )
        events = (RecordEvent("Normal", RESTORED, wanted[2]),)
    if known is not None and wanted == (known.status, known.reason, known.message):
        return status, events
    at = rfc3339_whole(now)
    condition = IPUJobCondition(
        type=DEGRADED,
        status=wanted[0],
        reason=wanted[1],
        message=wanted[2],
        observed_generation=state.job.metadata.generation,
        last_update_time=at,
        last_transition_time=known.last_transition_time if known is not None and known.status == wanted[0] else at,
    )
    others = tuple(each for each in base.conditions if each.type != DEGRADED)
    return msgspec.structs.replace(base, conditions=(*others, condition), last_reconcile_time=at), events


def recovery_delay_s(state: JobState, found: Sequence[JobFault]) -> float | None:
    """Seconds until the job may be reported as healthy again; None: nothing to wait for."""
    known = next((each for each in state.job.status.conditions if each.type == DEGRADED), None)
    if found or known is None or known.status != "True":
        return None
    rest_s = seconds(known.last_update_time) + OVER_S - state.snapshot.now
    return rest_s if 0 < rest_s <= OVER_S else None  # a longer time means that the clock was set back


def has_moved(before: IPUJobStatus, after: IPUJobStatus) -> bool:
    """Whether a move was decided in between."""
    return (before.moves, before.instance_moves) != (after.moves, after.instance_moves)


def nodes_of(pods: Sequence[JobPod]) -> tuple[str, ...]:
    return tuple(sorted({pod.spec.node_name for pod in pods if pod.spec.node_name}))


def _has_arrived(state: JobState) -> bool:
    """With all of its wanted pods: a job counts as running while some instances are missing, but has not
    arrived then."""
    move = state.job.status.last_move
    moved = range(state.instances) if move is None or not move.instances else move.instances
    wanted = [name for each in moved if each < state.instances for name in state.workers_of(each).values()]
    return state.is_running and all(
        state.is_present(name) and state.pods[name].status.phase != "Pending" for name in wanted
    )


def _moved_pods(state: JobState) -> list[JobPod]:
    move = state.job.status.last_move
    return [
        pod for pod in _pods_in_order(state) if move is None or not move.instances or instance_of(pod) in move.instances
    ]


def _describe_move(state: JobState) -> str:
    move = state.job.status.last_move
    old = ", ".join(move.nodes) if move is not None and move.nodes else "unknown nodes"
    new = ", ".join(nodes_of(_moved_pods(state))) or "no node"
    why = f": {move.message}" if move is not None and move.message else ""
    return pod_outcome.shorten(f"moved from {old} to {new}{why}")


def _pods_in_order(state: JobState) -> list[JobPod]:
    launcher = state.pods.get(state.launcher_name) if state.with_launcher else None
    found = [launcher] if launcher is not None else []
    found += [
        state.pods[name]
        for instance in (*range(state.instances), *sorted(state.rollout.extras))
        for name in state.workers_of(instance).values()
        if name in state.pods
    ]
    return [pod for pod in found if state.is_of_current_attempt(pod) and not state.is_leaving(pod)]


def instance_of(pod: JobPod) -> int | None:
    text = pod.metadata.labels.get(names.INSTANCE, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _describe_pods(pods: Sequence[JobPod]) -> str:
    if len(pods) == 1:
        return describe_pod(pods[0])
    first, last = (pod.metadata.name.rpartition("-")[2] for pod in (pods[0], pods[-1]))
    return f"ranks {first} to {last} (pods {pods[0].metadata.name} to {pods[-1].metadata.name})"
