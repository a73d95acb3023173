"""Describes what a job waits for, in the lastMessage that `kubectl get` shows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster_operator.job import names, pod_outcome
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobPod, NodeCapacity, Snapshot
from muster_operator.job.status import NOT_READY, RECONCILED
from muster_operator.plan import instance_restart
from muster_operator.plan.job_state import JobState
from muster_operator.resources import placement

_REPEATED = 8  # the original repeats its text once per instance; beyond this number the instances are counted instead
_SHOWN = 3
_FAILURE_LIMIT = 300  # characters of each failed pod


@dataclass(frozen=True)
class Obstacle:
    """blocks: no partition is requested while the obstacle exists. event: reason of its Event; empty if another module
    records it."""

    text: str
    blocks: bool
    event: str


def taken_names(state: JobState) -> dict[tuple[str, str], str]:
    """Names that this job needs but others use, by (kind, name), with their owners (behaviour 26)."""
    job = state.job.metadata.name
    needed = {("Pod", name) for name in state.desired_workers}
    if state.with_launcher:
        account = names.launcher_account(job)
        needed |= {("Pod", state.launcher_name), ("ConfigMap", names.config_map(job))}
        needed |= {(kind, account) for kind in ("ServiceAccount", "Role", "RoleBinding")}
    return {
        (kind, name): owner
        for (kind, name), owner in sorted(state.snapshot.foreign.items())
        if (kind, name) in needed
        and not (name in state.pods if kind == "Pod" else (kind, name) in state.snapshot.objects)
    }


def find_obstacle(state: JobState) -> Obstacle | None:
    """What keeps the job from starting, apart from V-IPU."""
    if taken := taken_names(state):
        found = [
            f"{kind} {name} already exists and is not managed by this IPUJob ({owner})"
            for (kind, name), owner in taken.items()
        ]
        return Obstacle(_join(found), state.with_launcher, "")
    if found := [text for instance in state.ready_instances if (text := state.conflict(instance))]:
        return Obstacle(_join(sorted(set(found))), state.with_launcher, "NodeSelectorConflict")
    tolerate = placement.tolerates_faulty(state.job)
    if state.instances_to_take and (
        text := describe_no_node(state.snapshot.node_capacity, state.setup.our_taints, tolerate=tolerate)
    ):
        return Obstacle(text, True, "NoHealthyNode")
    return None


def describe_wait(state: JobState, obstacle: Obstacle | None) -> str:
    """lastMessage of a job that continues."""
    if not state.instances:
        return "waiting for jobInstances to be more than 0"
    if obstacle is not None:
        return obstacle.text
    if state.unready_instances:
        return _describe_restarts(state) or _describe_unready(state)
    if not state.is_running and (text := describe_pending_pods(state)):
        return text
    if text := _describe_failed_workers(state):
        return text
    return RECONCILED


def describe_release_wait(entries: Mapping[str, PartitionEntry], snapshot: Snapshot) -> str:
    """lastMessage of a job whose deletion waits for the release of its partitions; empty if no release was refused."""
    reasons = [f"{name}: {refusal.message}" for name, refusal in sorted(snapshot.refusals.items()) if name in entries]
    return f"waiting for its partitions to be released: {_join(reasons)}" if reasons else ""


def _describe_unready(state: JobState) -> str:
    count = len(state.unready_instances)
    text = NOT_READY * count if count <= _REPEATED else f"{NOT_READY} ({count} of {state.instances} instances)"
    reasons: list[str] = []
    for instance in state.unready_instances:
        name, entry = state.partition(instance), state.entry(instance)
        refusal = state.snapshot.refusals.get(name)
        if refusal is not None:
            reasons.append(refusal.message)
        elif entry is not None and entry.message:
            reasons.append(f"{name}: {entry.message}")
    return f"{text} {_join(list(dict.fromkeys(reasons)))}" if reasons else text


def _describe_restarts(state: JobState) -> str:
    """Instances that restart alone, later."""
    restarts = state.job.status.instance_restarts
    return _join(
        [
            f"instance {instance} restarts at {restarts[str(instance)].start_time}: {_describe_failures(failed)}"
            for instance in state.restart_delays_s
            if (failed := [state.pods[name] for name in state.workers_of(instance).values() if name in state.pods])
        ]
    )


def describe_no_node(places: NodeCapacity | None, our_taints: tuple[str, ...], *, tolerate: bool = False) -> str:
    """Without a healthy node for its pods, a partition would only be withheld from others. Empty if there is one, or if
    nodes are not watched. tolerate: the pods may run on faulty nodes."""
    if places is None:
        return ""
    spares = f"; matching nodes that are kept free as spares: {places.spares}" if places.spares else ""
    if not places.nodes:
        return f"waiting for a node: no matching node is Ready and schedulable{spares}"
    if places.healthy or (tolerate and places.nodes > places.avoided):
        return ""
    match = "1 node matches" if places.nodes == 1 else f"{places.nodes} nodes match"
    tainted = f"{places.nodes - places.avoided} tainted by {', '.join(our_taints)}"
    failed = f", {places.avoided} failed the pre-flight checks" if places.avoided else ""
    return f"waiting for a healthy node: {match}, {tainted}{failed}{spares}"


def _describe_failed_workers(state: JobState) -> str:
    """Without a launcher, a job continues while at least one of its instances does."""
    failed = pod_outcome.failed_pods(state.workers)
    if not failed:
        return ""
    finals = instance_restart.final_failures(state).values()
    notes = dict.fromkeys(decision.note for _, decision in finals if decision.note)
    return "; ".join([_describe_failures(failed), *notes, "other instances continue"])


def _describe_failures(pods: Iterable[JobPod]) -> str:
    failed = pod_outcome.failed_pods(pods)
    return _join([pod_outcome.shorten(pod_outcome.describe_failure(pod), _FAILURE_LIMIT) for pod in failed])


def describe_pending_pods(state: JobState) -> str:
    found = [
        text
        for pod in (*state.workers, *([state.launcher] if state.launcher else []))
        if (text := describe_pending_pod(pod))
    ]
    unscheduled = any(_unscheduled(pod) for pod in (*state.workers, *([state.launcher] if state.launcher else [])))
    return _join(found) + (_describe_tainted(state) if unscheduled else "")


def _describe_tainted(state: JobState) -> str:
    """Schedulers of newer Kubernetes versions count the nodes with taints, but do not name the taint."""
    places = state.snapshot.node_capacity
    if places is None or not places.tainted or placement.tolerates_faulty(state.job):
        return ""
    count = places.nodes - places.healthy - places.avoided
    more = f" and {count - len(places.tainted)} more" if count > len(places.tainted) else ""
    which = f"{', '.join(places.tainted)}{more}"
    return f"; of {places.nodes} matching nodes, {count} tainted by {', '.join(state.setup.our_taints)}: {which}"


def describe_pending_pod(pod: JobPod) -> str:
    """Only problems that do not pass on their own: scheduling, images, configuration."""
    if (why := _unscheduled(pod)) is not None:
        return f"pod {pod.metadata.name} cannot be scheduled: {why}"
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waits = status.state.waiting
        if waits is None:
            continue
        where = f"pod {pod.metadata.name}, container {status.name}"
        # these two alternate
        if waits.reason in ("ErrImagePull", "ImagePullBackOff"):
            return f"{where}: cannot pull its image"
        if waits.reason.endswith("Error") or waits.reason in ("InvalidImageName", "ErrImageNeverPull"):
            return f"{where}: {waits.reason}: {waits.message}"
    return ""


def _unscheduled(pod: JobPod) -> str | None:
    """Why the scheduler has found no node; None if it has, or has not tried yet."""
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return each.message
    return None


def _join(found: list[str]) -> str:
    rest = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
