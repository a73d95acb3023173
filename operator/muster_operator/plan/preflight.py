"""Checks of the nodes that a job was given, before the launcher of an attempt is made: its workers only wait then.

``status.preFlight`` says how far they are before anything is done about it. The id of a request follows from it, so
whoever goes on asks for the same, and an agent runs what it was asked for once. A node that fails is left as bad
hardware is (:mod:`muster_operator.plan.move`), and the job's pods keep away from it for an hour: by then others may
have repaired it, and it is asked again.
"""

from collections.abc import Iterator, Mapping

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api import times
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job import checkpoint, names, pod_outcome, status
from muster_operator.job.snapshot import JobPlan, RecordEvent, RequestChecks
from muster_operator.job.types import IPUJob, IPUJobStatus, PreFlight, PreFlightStatus, RejectedNode, has_launcher
from muster_operator.plan import degradation
from muster_operator.plan.degradation import JobFault
from muster_operator.plan.job_state import JobState

PASSED, UNKNOWN = "PreFlightPassed", "PreFlightUnknown"  # reasons of Events, beside health.UNFIT
AVOIDED_S = 3600.0
SKEW_S = 60.0  # by which leaders' clocks may differ
LEFT_LIMIT = 128  # nodes that are remembered
_SHOWN = 3
_TOLD = 8  # Events at once


def policy_of(job: IPUJob) -> PreFlight | None:
    said = checkpoint.policy_of(job).pre_flight
    return said if isinstance(said, PreFlight) and has_launcher(job.spec) else None


def is_open(here: JobState) -> bool:
    """The launcher waits for it."""
    if policy_of(here.job) is None or here.launcher_name in here.pods:
        return False
    return _now(here.job).state != "Passed"


def avoided_nodes(job: IPUJob, now: float) -> tuple[str, ...]:
    """Nodes that its pods keep away from."""
    said = job.status.pre_flight
    return tuple(each.name for each in said.left if _is_fresh(each, now)) if said is not None else ()


def check_nodes(here: JobState) -> JobPlan | None:
    """What is to be in the status before anything else; None: nothing new."""
    policy = policy_of(here.job)
    if policy is None or not is_open(here) or not _all_wait(here):
        return None
    said = _now(here.job)
    if _failed(here):
        return None  # it leaves as soon as it may
    if said.state != "Checking":
        return _begun(here, policy)
    if _waits(here, policy) and _unanswered(here):
        return None
    return _decided(here, policy)


def request_checks(here: JobState) -> tuple[RequestChecks, ...]:
    """What is still to be asked. Until it is known what stands there, nothing is."""
    if here.seen.asked is None or not _is_checking(here):
        return ()
    request, asked = _request(here.job), here.seen.asked
    return tuple(RequestChecks(node, request) for node in _unanswered(here) if request.id not in asked.get(node, {}))


def describe_checks(here: JobState) -> str:
    """lastMessage while it is waited for; empty: it is not."""
    policy = policy_of(here.job)
    if policy is None or not _is_checking(here) or not (waiting := _unanswered(here)):
        return ""
    what = f"pre-flight: waits for {', '.join(policy.checks)}"
    if len(waiting) > _SHOWN:
        return f"{what} on more than {_SHOWN} of {len(_nodes(here))} nodes"
    said = [f"{node} ({why})" if (why := here.seen.unasked.get(node)) else node for node in waiting]
    return f"{what} on {', '.join(said)}"


def next_change_at(here: JobState) -> float | None:
    """When answers are waited for no longer, or a node is avoided no longer, in seconds since the epoch."""
    policy, said = policy_of(here.job), here.job.status.pre_flight
    if policy is None or said is None or not is_open(here):
        return None
    moments = [times.seconds(each.found_time) + AVOIDED_S for each in said.left if _is_fresh(each, here.seen.now)]
    if _is_checking(here):
        moments.append(_deadline(here.job, policy))
    return min(moments, default=None)


def find_failed_nodes(here: JobState) -> tuple[JobFault, ...]:
    """Nodes that have failed, under workers that wait."""
    if not is_open(here) or not (failed := _failed(here)):
        return ()
    return tuple(
        JobFault(
            degradation.UNFIT,
            f"{degradation.describe_pod(pod)} is on node {node}: {failed[node].message}",
            degradation.instance_of(pod),
            (node,),
        )
        for pod in here.workers
        if (node := pod.spec.node_name) in failed
    )


def request_ids(job: IPUJob) -> frozenset[str]:
    """Ids of requests whose answers are waited for."""
    return frozenset({_request_id(job)}) if _is_wanted(job) else frozenset()


def forget_checks(said: IPUJobStatus) -> IPUJobStatus:
    """Of a job that has given back what it was checked on; the nodes that failed are remembered."""
    if said.pre_flight is None:
        return said
    checked = PreFlightStatus(message="what was checked was given back", left=said.pre_flight.left)
    return msgspec.structs.replace(said, pre_flight=checked)


def _begun(here: JobState, policy: PreFlight) -> JobPlan:
    now, before = here.seen.now, here.job.status
    left = before.pre_flight.left if before.pre_flight is not None else ()
    checked = PreFlightStatus(
        state="Checking",
        attempt=here.attempt,
        start_time=times.rfc3339_whole(now),
        message=f"asks for {', '.join(policy.checks)}",
        left=tuple(each for each in left if _is_fresh(each, now)),
    )
    return JobPlan((), _written(here, checked))


def _decided(here: JobState, policy: PreFlight) -> JobPlan:
    said, at = _now(here.job), times.rfc3339_whole(here.seen.now)
    bad, unknown = {}, {}
    for node in _nodes(here):
        answer = _answer(here, node)
        if answer is None:
            why = here.seen.unasked.get(node) or f"no answer within {policy.timeout_seconds} s"
            if here.seen.asked is None:
                why = "NodeHealths cannot be read"
            unknown[node] = f"pre-flight of {', '.join(policy.checks)}: {why}"
        elif answer.verdict == Verdict.FAIL:
            bad[node] = _in_words(policy, answer)
        elif answer.verdict == Verdict.UNKNOWN:
            unknown[node] = _in_words(policy, answer)
    if policy.must_pass:
        bad |= unknown
    left = tuple(RejectedNode(name=node, found_time=at, message=text) for node, text in bad.items())
    older = tuple(each for each in said.left if each.name not in bad)
    found = bad or unknown
    text = "; ".join(f"node {node}: {why}" for node, why in list(found.items())[:_SHOWN])
    text += f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    passed = f"pre-flight of {', '.join(policy.checks)}: no node failed"
    checked = msgspec.structs.replace(
        said,
        state="Failed" if bad else "Passed",
        end_time=at,
        message=pod_outcome.shorten(text or passed),
        left=(*older, *left)[-LEFT_LIMIT:],
    )
    return JobPlan(tuple(_tells(bad, unknown, passed)), _written(here, checked))


def _tells(bad: Mapping[str, str], unknown: Mapping[str, str], passed: str) -> Iterator[RecordEvent]:
    for node, why in list(bad.items())[:_TOLD]:
        yield RecordEvent("Warning", degradation.UNFIT, pod_outcome.shorten(f"node {node}: {why}"))
    starts = "" if bad else "; the job starts all the same"
    for node, why in [each for each in unknown.items() if each[0] not in bad][:_TOLD]:
        yield RecordEvent("Warning", UNKNOWN, pod_outcome.shorten(f"node {node}: {why}{starts}"))
    if not bad and not unknown:
        yield RecordEvent("Normal", PASSED, pod_outcome.shorten(passed))


def _in_words(policy: PreFlight, answer: RequestAnswer) -> str:
    """The agent's message names the check where there are several."""
    why = ": ".join(part for part in (answer.reason, answer.message) if part)
    return pod_outcome.shorten(f"pre-flight of {', '.join(policy.checks)}: {answer.verdict}: {why}", 400)


def _written(here: JobState, checked: PreFlightStatus) -> IPUJobStatus:
    at = times.rfc3339_whole(here.seen.now)
    return msgspec.structs.replace(here.job.status, pre_flight=checked, last_reconcile_time=at)


def _request(job: IPUJob) -> CheckRequest:
    policy, meta = policy_of(job), job.metadata
    assert policy is not None  # noqa: S101 - it is being checked
    first = names.worker_pod(meta.name, 0).removesuffix("0")
    return CheckRequest(
        id=_request_id(job),
        checks=policy.checks,
        # its own workers may hold the devices and wait; anybody else's work is not disturbed
        params={"beside": f"{meta.namespace}/{first}"},
        by=names.asked_by(meta.namespace, meta.name),
        expires=times.rfc3339_whole(_deadline(job, policy)),
    )


def _request_id(job: IPUJob) -> str:
    said = _now(job)
    return f"{names.request_prefix(job.metadata.uid)}{said.attempt}-{int(times.seconds(said.start_time or ''))}"


def _is_wanted(job: IPUJob) -> bool:
    if job.metadata.deletion_timestamp or job.spec.suspend or status.is_finished(job.status):
        return False
    return policy_of(job) is not None and _now(job).state == "Checking"


def _now(job: IPUJob) -> PreFlightStatus:
    """Of the present attempt."""
    said = job.status.pre_flight
    return said if said is not None and said.attempt == job.status.attempt else PreFlightStatus()


def _is_checking(here: JobState) -> bool:
    return is_open(here) and _now(here.job).state == "Checking" and _all_wait(here)


def _deadline(job: IPUJob, policy: PreFlight) -> float:
    return times.seconds(_now(job).start_time or "") + policy.timeout_seconds


def _waits(here: JobState, policy: PreFlight) -> bool:
    """Longer than that only if the clock was set back."""
    left_s = _deadline(here.job, policy) - here.seen.now
    return 0 < left_s <= policy.timeout_seconds + SKEW_S


def _all_wait(here: JobState) -> bool:
    if not here.instances or len(here.made) < here.instances:
        return False
    return all(pod.spec.node_name and pod.status.phase == "Running" for pod in here.workers)


def _nodes(here: JobState) -> tuple[str, ...]:
    return degradation.nodes_of(here.workers)


def _unanswered(here: JobState) -> tuple[str, ...]:
    return tuple(node for node in _nodes(here) if _answer(here, node) is None)


def _answer(here: JobState, node: str) -> RequestAnswer | None:
    return (here.seen.asked or {}).get(node, {}).get(_request_id(here.job))


def _failed(here: JobState) -> dict[str, RejectedNode]:
    """Under its workers, found by the checks of this attempt within the last hour."""
    said = _now(here.job)
    if said.state != "Failed":
        return {}
    under = set(_nodes(here))
    return {each.name: each for each in said.left if each.name in under and _is_fresh(each, here.seen.now)}


def _is_fresh(left: RejectedNode, now: float) -> bool:
    return -SKEW_S <= now - times.seconds(left.found_time) < AVOIDED_S
