"""The history of an IPUJob, oldest first, from its Events, status and conditions. Pure.

Events have the most detail, but most clusters delete them after an hour; status and conditions stay with the job. What
both contain is shown once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UnsetType

from muster_checks.base.vocabulary import shorten
from muster_cli.report.quantities import age
from muster_kube.api.objects import Event, Pod
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import NodeHealth
from muster_operator.job.names import INSTANCE, ROLE
from muster_operator.job.types import IPUJob, has_launcher, instances, ipus_per_instance, workers_per_instance

_SAME_S = 5.0  # an Event and a condition of the same reason within this time are the same change
_WORDS = {
    "IPUJobSuspended": "suspended",
    "IPUJobResumed": "resumed",
    "IPUJobRestarting": "restart",
    "InstanceRestarting": "restart",
    "NoHealthyNode": "queued",
    "NodeSelectorConflict": "queued",
    "FailedCreate": "blocked",
    "ErrResourceExists": "blocked",
    "ValidationError": "rejected",
    "HealthDegraded": "fault",
    "NodeFaulty": "fault",  # of the tainter and of the operator
    "NodeNotReady": "fault",
    "NodeGone": "fault",
    "IPUQuarantined": "fault",
    "PoplarRecovery": "fault",
    "PreFlightPassed": "checked",
    "FullResetChecked": "checked",
    "PreFlightFailed": "fault",
    "PreFlightUnknown": "unchecked",
    "IPUJobFailed": "failed",
    "BackoffLimitExceeded": "failed",
    "PermanentExitCode": "failed",
    "DeadlineExceeded": "failed",
    "IPUJobMoving": "moving",
    "IPUJobMoved": "moved",
    "HealthRestored": "healthy",
    "SessionEnds": "ends soon",
    "Suspended": "suspended",
    "Restarting": "restart",
    "Running": "running",
    "Complete": "complete",
    "Failed": "failed",
    "Pending": "queued",
}
_CODES = {"Failed": 2, "HealthDegraded": 1, "Restarting": 1}
_STATES = ("Failed", "Complete", "Suspended", "Restarting", "Running")


class JobChange(msgspec.Struct, frozen=True):
    """A change of the job. at: RFC 3339, empty if not known; word: submitted, queued, running, moved …"""

    at: str
    word: str
    text: str


class JobHistory(msgspec.Struct, frozen=True, rename="camel"):
    """job: ``namespace/name``. state: Pending, Running, Restarting, Suspended, Complete or Failed; why: one line.

    places: the nodes of its pods, with the problems of those nodes. code: exit code of the command.
    """

    job: str
    state: str
    why: str
    chapters: tuple[JobChange, ...] = ()
    places: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    code: int = 0


@dataclass(frozen=True)
class JobFacts:
    """The objects of one job. healths: by node. blind: what could not be read."""

    job: IPUJob
    events: Sequence[Event] = ()
    pods: Sequence[Pod] = ()
    healths: Mapping[str, NodeHealth] = field(default_factory=dict)
    blind: tuple[str, ...] = ()


def job_history(known: JobFacts, now: float) -> JobHistory:
    """now: seconds since the epoch."""
    job, status = known.job, known.job.status
    true = {each.type: each for each in status.conditions if each.status == "True"}
    state = next((each for each in _STATES if each in true), "Pending")
    # the condition Pending has no reason; the last message says what the job waits for
    message = true[state].message if state in true and state != "Pending" else ""
    message = message or status.last_message
    if "HealthDegraded" in true and state in ("Running", "Pending"):
        degraded = true["HealthDegraded"].message
        message = f"{message}; {degraded}" if message else degraded
    events = list(_of_events(known.events))
    chapters = sorted([*events, *_without_repeats(events, _of_status(job))], key=lambda chapter: seconds(chapter.at))
    return JobHistory(
        job=f"{job.metadata.namespace}/{job.metadata.name}",
        state=state,
        why=f"{_counts(job)}{f': {message}' if message else ''}",
        chapters=tuple(chapters),
        places=tuple(_list_placements(known)),
        notes=(*known.blind, *_notes(known, now)),
        code=max((_CODES.get(each, 0) for each in true), default=0) if state != "Complete" else 0,
    )


def _counts(job: IPUJob) -> str:
    status, policy = job.status, job.spec.restart_policy
    limit = "" if isinstance(policy, UnsetType) else f" of {policy.back_off_limit}"
    moved = f", moved {_times(status.moves)}" if status.moves else ""
    return f"attempt {status.attempt + 1}, {status.restart_count}{limit} restarts{moved}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _of_events(events: Iterable[Event]) -> Iterator[JobChange]:
    for event in events:
        at = event.first_timestamp or event.last_timestamp or ""
        word = _WORDS.get(event.reason, "warning" if event.type == "Warning" else event.reason.lower())
        times = f" ({event.count} times)" if event.count > 1 else ""
        name = "" if event.reason in _WORDS else f"{event.reason}: "
        yield JobChange(at, word, f"{name}{event.message}{times}")


def _of_status(job: IPUJob) -> Iterator[JobChange]:
    status, spec = job.status, job.spec
    pods = f"{workers_per_instance(spec)} workers" if workers_per_instance(spec) != 1 else "1 worker"
    launcher = ", with a launcher" if has_launcher(spec) else ""
    wants = f"{instances(spec)} x {ipus_per_instance(spec)} IPUs, {pods} each{launcher}"
    policy = "" if isinstance(spec.health_policy, UnsetType) else f"; onFault: {spec.health_policy.on_fault}"
    yield JobChange(job.metadata.creation_timestamp, "submitted", f"{wants}{policy}")
    if status.start_time:
        yield JobChange(status.start_time, "accepted", "the operator has started to process the job")
    if status.first_running_time:
        yield JobChange(status.first_running_time, "running", "the job runs for the first time")
    if status.last_move is not None and status.last_move.start_time:
        move = status.last_move
        away = f" from {', '.join(move.nodes)}" if move.nodes else ""
        which = f", instances {', '.join(map(str, move.instances))}" if move.instances else ""
        yield JobChange(move.start_time, "moving", f"moving{away}{which}: {move.message}")
    for condition in status.conditions:
        if condition.status != "True" or not condition.last_transition_time:
            continue
        word = "fault" if condition.type == "HealthDegraded" else _WORDS.get(condition.type, condition.type.lower())
        message = status.last_message if condition.type == "Pending" else condition.message
        text = f"{condition.reason}: {message}" if message else condition.reason
        yield JobChange(condition.last_transition_time, word, text)
    if status.next_attempt_time:
        yield JobChange(status.next_attempt_time, "next", "start of the next attempt")
    if status.completion_time and not any(each.type in ("Complete", "Failed") for each in status.conditions):
        yield JobChange(status.completion_time, "ended", status.last_message)


def _without_repeats(events: Sequence[JobChange], chapters: Iterable[JobChange]) -> Iterator[JobChange]:
    """Leave out a status change if an Event has the same word at the same time: Events have more detail."""
    for chapter in chapters:
        beside = (each for each in events if each.word == chapter.word)
        if not any(abs(seconds(each.at) - seconds(chapter.at)) <= _SAME_S for each in beside):
            yield chapter


def _list_placements(known: JobFacts) -> Iterator[str]:
    by_node: dict[str, list[str]] = {}
    for pod in sorted(known.pods, key=lambda pod: (pod.metadata.labels.get(ROLE, ""), len(pod.metadata.name))):
        name = pod.metadata.name.removeprefix(f"{known.job.metadata.name}-")
        instance = pod.metadata.labels.get(INSTANCE, "")
        many = instances(known.job.spec) > 1 and instance
        word = f"{name}{f' (instance {instance})' if many else ''} {pod.status.phase}"
        by_node.setdefault(pod.spec.node_name or "no node yet", []).append(word)
    for node, words in sorted(by_node.items()):
        health = known.healths.get(node)
        verdict = health.status.verdict if health is not None else ""
        bad = health is not None and verdict in ("FAIL", "WARN")
        trouble = f"; the node is {verdict}: {health.status.message}" if health is not None and bad else ""
        yield f"{node}: {', '.join(words)}{trouble}"


def _notes(known: JobFacts, now: float) -> Iterator[str]:
    job = known.job
    if not known.events and seconds(job.metadata.creation_timestamp) < now - 3600:
        yield "The Events of this job have expired. Its status, shown here, has only the last move and restart."
    if job.metadata.deletion_timestamp:
        yield f"The job is being deleted, since {age(now - seconds(job.metadata.deletion_timestamp))}"


def format_history(history: JobHistory) -> Iterator[str]:
    """The lines of `muster explain ipujob`."""
    yield f"{history.job} {history.state.upper()}  {shorten(history.why, 400)}"
    width = max((len(chapter.word) for chapter in history.chapters), default=0)
    for chapter in history.chapters:
        at = rfc3339_whole(seconds(chapter.at)) if seconds(chapter.at) else "(time not known)"
        yield f"  {at:<20}  {chapter.word:<{width}}  {shorten(chapter.text, 1024)}"
    if history.places:
        yield ""
        yield "pods:"
    yield from (f"  {place}" for place in history.places)
    if history.notes:
        yield ""
    yield from history.notes


def list_jobs_on_node(node: str, jobs: Iterable[IPUJob], pods: Iterable[Pod]) -> list[str]:
    """A line for each IPUJob with a pod on the node, and for each whose last move left the node."""
    here: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        owner = next((each.name for each in pod.metadata.owner_references if each.kind == "IPUJob"), "")
        if owner:
            word = f"{pod.metadata.name.removeprefix(f'{owner}-')} {pod.status.phase}"
            here.setdefault((pod.metadata.namespace, owner), []).append(word)
    found = [f"IPUJob {namespace}/{name}: {', '.join(sorted(words))}" for (namespace, name), words in here.items()]
    for job in jobs:
        move = job.status.last_move
        if move is not None and node in move.nodes:
            name = f"{job.metadata.namespace}/{job.metadata.name}"
            found.append(f"IPUJob {name} moved away from this node at {move.start_time}: {move.message}")
    return [f"{shorten(line, 512)}" for line in sorted(found)]
