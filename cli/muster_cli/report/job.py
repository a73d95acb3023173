"""The story of an IPUJob in the order in which it happened, from what the cluster still knows of it. Pure.

Events say the most and are forgotten (by most clusters within the hour); status and conditions stay with the job. What
both tell is told once.
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

_SAME_S = 5.0  # an Event and a condition so near to each other, of the same reason, are one thing
_WORDS = {
    "IPUJobSuspended": "suspended",
    "IPUJobResumed": "resumed",
    "IPUJobRestarting": "restart",
    "NoHealthyNode": "queued",
    "NodeSelectorConflict": "queued",
    "FailedCreate": "hindered",
    "ErrResourceExists": "hindered",
    "ValidationError": "refused",
    "HealthDegraded": "fault",
    "NodeFaulty": "fault",  # the tainter's word, and the operator's
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


class JobChapter(msgspec.Struct, frozen=True):
    """One thing that happened. at: RFC 3339, empty where nobody knows; word: submitted, queued, running, moved …"""

    at: str
    word: str
    text: str


class JobStory(msgspec.Struct, frozen=True, rename="camel"):
    """job: ``namespace/name``. state: Pending, Running, Restarting, Suspended, Complete or Failed; why: in one line.

    places: where its pods are now, with what ails those nodes. code: of the command's exit.
    """

    job: str
    state: str
    why: str
    chapters: tuple[JobChapter, ...] = ()
    places: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    code: int = 0


@dataclass(frozen=True)
class JobFacts:
    """What there is of one job. healths: by node. blind: what could not be read."""

    job: IPUJob
    events: Sequence[Event] = ()
    pods: Sequence[Pod] = ()
    healths: Mapping[str, NodeHealth] = field(default_factory=dict)
    blind: tuple[str, ...] = ()


def tell_story(known: JobFacts, now: float) -> JobStory:
    """now: seconds since the epoch."""
    job, status = known.job, known.job.status
    true = {each.type: each for each in status.conditions if each.status == "True"}
    state = next((each for each in _STATES if each in true), "Pending")
    # what a pending job waits for stands in its last message; the condition only says that it waits
    said = true[state].message if state in true and state != "Pending" else ""
    said = said or status.last_message
    if "HealthDegraded" in true and state in ("Running", "Pending"):
        said = f"{said}; {true['HealthDegraded'].message}" if said else true["HealthDegraded"].message
    events = list(_of_events(known.events))
    chapters = sorted([*events, *_without_repeats(events, _of_status(job))], key=lambda chapter: seconds(chapter.at))
    return JobStory(
        job=f"{job.metadata.namespace}/{job.metadata.name}",
        state=state,
        why=f"{_counts(job)}{f': {said}' if said else ''}",
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


def _of_events(events: Iterable[Event]) -> Iterator[JobChapter]:
    for event in events:
        at = event.first_timestamp or event.last_timestamp or ""
        word = _WORDS.get(event.reason, "warning" if event.type == "Warning" else event.reason.lower())
        times = f" ({event.count} times)" if event.count > 1 else ""
        name = "" if event.reason in _WORDS else f"{event.reason}: "
        yield JobChapter(at, word, f"{name}{event.message}{times}")


def _of_status(job: IPUJob) -> Iterator[JobChapter]:
    status, spec = job.status, job.spec
    pods = f"{workers_per_instance(spec)} workers" if workers_per_instance(spec) != 1 else "1 worker"
    launcher = ", with a launcher" if has_launcher(spec) else ""
    wants = f"{instances(spec)} x {ipus_per_instance(spec)} IPUs, {pods} each{launcher}"
    policy = "" if isinstance(spec.health_policy, UnsetType) else f"; onFault: {spec.health_policy.on_fault}"
    yield JobChapter(job.metadata.creation_timestamp, "submitted", f"{wants}{policy}")
    if status.start_time:
        yield JobChapter(status.start_time, "taken up", "the operator has begun with it")
    if status.first_running_time:
        yield JobChapter(status.first_running_time, "running", "it first ran")
    if status.last_move is not None and status.last_move.start_time:
        move = status.last_move
        away = f" from {', '.join(move.nodes)}" if move.nodes else ""
        which = f", instances {', '.join(map(str, move.instances))}" if move.instances else ""
        yield JobChapter(move.start_time, "moving", f"away{away}{which}: {move.message}")
    for condition in status.conditions:
        if condition.status != "True" or not condition.last_transition_time:
            continue
        word = "fault" if condition.type == "HealthDegraded" else _WORDS.get(condition.type, condition.type.lower())
        message = status.last_message if condition.type == "Pending" else condition.message
        text = f"{condition.reason}: {message}" if message else condition.reason
        yield JobChapter(condition.last_transition_time, word, text)
    if status.next_attempt_time:
        yield JobChapter(status.next_attempt_time, "next", "the next attempt begins")
    if status.completion_time and not any(each.type in ("Complete", "Failed") for each in status.conditions):
        yield JobChapter(status.completion_time, "ended", status.last_message)


def _without_repeats(events: Sequence[JobChapter], chapters: Iterable[JobChapter]) -> Iterator[JobChapter]:
    """Events say more: what the status says of the same moment adds nothing."""
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
        ails = f"; the node is {verdict}: {health.status.message}" if health is not None and bad else ""
        yield f"{node}: {', '.join(words)}{ails}"


def _notes(known: JobFacts, now: float) -> Iterator[str]:
    job = known.job
    if not known.events and seconds(job.metadata.creation_timestamp) < now - 3600:
        yield "no Event is left of it: what stands here is from its status, which knows the last move and restart only"
    if job.metadata.deletion_timestamp:
        yield f"it is being deleted, for {age(now - seconds(job.metadata.deletion_timestamp))}"


def format_story(told: JobStory) -> Iterator[str]:
    """For people."""
    yield f"{told.job} {told.state.upper()}  {shorten(told.why, 400)}"
    width = max((len(chapter.word) for chapter in told.chapters), default=0)
    for chapter in told.chapters:
        at = rfc3339_whole(seconds(chapter.at)) if seconds(chapter.at) else "at some time"
        yield f"  {at:<20}  {chapter.word:<{width}}  {shorten(chapter.text, 1024)}"
    if told.places:
        yield ""
        yield "its pods:"
    yield from (f"  {place}" for place in told.places)
    if told.notes:
        yield ""
    yield from told.notes


def list_jobs_on_node(node: str, jobs: Iterable[IPUJob], pods: Iterable[Pod]) -> list[str]:
    """A line for each IPUJob that runs, or ran, on a node, and for each that left it."""
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
            found.append(f"IPUJob {name} moved away from here at {move.start_time}: {move.message}")
    return [f"{shorten(line, 512)}" for line in sorted(found)]
