"""Pre-flight checks: checks of the job's nodes before the launcher of an attempt is created, while its workers only
wait.

``status.preFlight`` records the progress before any action. The id of a request derives from it, so a new leader makes
the same request, and an agent carries it out once. A node that fails is treated as bad hardware
(:mod:`muster_operator.plan.move`), and the job's pods avoid it for an hour; after that it may have been repaired and is
checked again.
"""

from collections.abc import Iterator, Mapping

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api import times
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job import checkpoint, names, pod_outcome, status
from muster_operator.job.snapshot import JobPlan, RecordEvent, RequestChecks
from muster_operator.job.status_types import IPUJobStatus, PreFlightStatus, RejectedNode
from muster_operator.job.types import IPUJob, PreFlight, has_launcher
from muster_operator.plan.hardware import degradation
from muster_operator.plan.hardware.degradation import JobFault
from muster_operator.plan.job_state import JobState

PASSED, UNKNOWN = "PreFlightPassed", "PreFlightUnknown"  # reasons of Events, in addition to degradation.UNFIT
AVOIDED_S = 3600.0
SKEW_S = 60.0  # allowed difference between the clocks of leaders
LEFT_LIMIT = 128  # rejected nodes that are remembered
_SHOWN = 3
_EVENTS_LIMIT = 8  # Events at once


def policy_of(job: IPUJob) -> PreFlight | None:
    found = checkpoint.policy_of(job).pre_flight
    return found if isinstance(found, PreFlight) and has_launcher(job.spec) else None


def is_open(state: JobState) -> bool:
    """The launcher still waits for the checks."""
    if policy_of(state.job) is None or state.launcher_name in state.pods:
        return False
    return _current_checks(state.job).state != "Passed"


def avoided_nodes(job: IPUJob, now: float) -> tuple[str, ...]:
    """Nodes that the job's pods avoid."""
    checked = job.status.pre_flight
    return tuple(each.name for each in checked.left if _is_fresh(each, now)) if checked is not None else ()


def check_nodes(state: JobState) -> JobPlan | None:
    """The status to write before any other action; None: nothing to change."""
    policy = policy_of(state.job)
    if policy is None or not is_open(state) or not _all_wait(state):
        return None
    checked = _current_checks(state.job)
    if _failed_nodes(state):
        return None  # the pod leaves as soon as possible
    if checked.state != "Checking":
        return _begin_checks(state, policy)
    if _has_time_left(state, policy) and _unanswered(state):
        return None
    return _write_result(state, policy)


def request_checks(state: JobState) -> tuple[RequestChecks, ...]:
    """Requests that are still to be made. None until the existing requests are known."""
    if state.snapshot.requests is None or not _is_checking(state):
        return ()
    request, asked = _request(state.job), state.snapshot.requests
    return tuple(RequestChecks(node, request) for node in _unanswered(state) if request.id not in asked.get(node, {}))


def describe_checks(state: JobState) -> str:
    """lastMessage while the checks run; empty if none do."""
    policy = policy_of(state.job)
    if policy is None or not _is_checking(state) or not (waiting := _unanswered(state)):
        return ""
    what = f"pre-flight: waiting for {', '.join(policy.checks)}"
    if len(waiting) > _SHOWN:
        return f"{what} on more than {_SHOWN} of {len(_nodes(state))} nodes"
    nodes = [f"{node} ({why})" if (why := state.snapshot.failed_requests.get(node)) else node for node in waiting]
    return f"{what} on {', '.join(nodes)}"


def next_change_at(state: JobState) -> float | None:
    """When the checks time out, or a node is no longer avoided, in seconds since the epoch."""
    policy, checked = policy_of(state.job), state.job.status.pre_flight
    if policy is None or checked is None or not is_open(state):
        return None
    moments = [
        times.seconds(each.found_time) + AVOIDED_S for each in checked.left if _is_fresh(each, state.snapshot.now)
    ]
    if _is_checking(state):
        moments.append(_deadline(state.job, policy))
    return min(moments, default=None)


def find_failed_nodes(state: JobState) -> tuple[JobFault, ...]:
    """Failed nodes under workers that wait."""
    if not is_open(state) or not (failed := _failed_nodes(state)):
        return ()
    return tuple(
        JobFault(
            degradation.UNFIT,
            f"{degradation.describe_pod(pod)} is on node {node}: {failed[node].message}",
            degradation.instance_of(pod),
            (node,),
        )
        for pod in state.workers
        if (node := pod.spec.node_name) in failed
    )


def request_ids(job: IPUJob) -> frozenset[str]:
    """Ids of requests whose answers are awaited."""
    return frozenset({_request_id(job)}) if _is_requested(job) else frozenset()


def forget_checks(before: IPUJobStatus) -> IPUJobStatus:
    """The status of a job that has released the partitions that were checked; failed nodes are remembered."""
    if before.pre_flight is None:
        return before
    checked = PreFlightStatus(message="the checked partitions were released", left=before.pre_flight.left)
    return msgspec.structs.replace(before, pre_flight=checked)


def _begin_checks(state: JobState, policy: PreFlight) -> JobPlan:
    now, before = state.snapshot.now, state.job.status
    left = before.pre_flight.left if before.pre_flight is not None else ()
    checked = PreFlightStatus(
        state="Checking",
        attempt=state.attempt,
        start_time=times.rfc3339_whole(now),
        message=f"checks requested: {', '.join(policy.checks)}",
        left=tuple(each for each in left if _is_fresh(each, now)),
    )
    return JobPlan((), _with_checks(state, checked))


def _write_result(state: JobState, policy: PreFlight) -> JobPlan:
    checked, at = _current_checks(state.job), times.rfc3339_whole(state.snapshot.now)
    bad, unknown = {}, {}
    for node in _nodes(state):
        answer = _answer(state, node)
        if answer is None:
            why = state.snapshot.failed_requests.get(node) or f"no answer within {policy.timeout_seconds} s"
            if state.snapshot.requests is None:
                why = "NodeHealths cannot be read"
            unknown[node] = f"pre-flight of {', '.join(policy.checks)}: {why}"
        elif answer.verdict == Verdict.FAIL:
            bad[node] = _describe_answer(policy, answer)
        elif answer.verdict == Verdict.UNKNOWN:
            unknown[node] = _describe_answer(policy, answer)
    if policy.must_pass:
        bad |= unknown
    left = tuple(RejectedNode(name=node, found_time=at, message=text) for node, text in bad.items())
    older = tuple(each for each in checked.left if each.name not in bad)
    found = bad or unknown
    text = "; ".join(f"node {node}: {why}" for node, why in list(found.items())[:_SHOWN])
    text += f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    passed = f"pre-flight of {', '.join(policy.checks)}: no node failed"
    checked = msgspec.structs.replace(
        checked,
        state="Failed" if bad else "Passed",
        end_time=at,
        message=pod_outcome.shorten(text or passed),
        left=(*older, *left)[-LEFT_LIMIT:],
    )
    return JobPlan(tuple(_result_events(bad, unknown, passed)), _with_checks(state, checked))


def _result_events(bad: Mapping[str, str], unknown: Mapping[str, str], passed: str) -> Iterator[RecordEvent]:
    for node, why in list(bad.items())[:_EVENTS_LIMIT]:
        yield RecordEvent("Warning", degradation.UNFIT, pod_outcome.shorten(f"node {node}: {why}"))
    starts = "" if bad else "; the job starts anyway"
    for node, why in [each for each in unknown.items() if each[0] not in bad][:_EVENTS_LIMIT]:
        yield RecordEvent("Warning", UNKNOWN, pod_outcome.shorten(f"node {node}: {why}{starts}"))
    if not bad and not unknown:
        yield RecordEvent("Normal", PASSED, pod_outcome.shorten(passed))


def _describe_answer(policy: PreFlight, answer: RequestAnswer) -> str:
    """The agent's message names the check if there are several."""
    why = ": ".join(part for part in (answer.reason, answer.message) if part)
    return pod_outcome.shorten(f"pre-flight of {', '.join(policy.checks)}: {answer.verdict}: {why}", 400)


def _with_checks(state: JobState, checked: PreFlightStatus) -> IPUJobStatus:
    at = times.rfc3339_whole(state.snapshot.now)
    return msgspec.structs.replace(state.job.status, pre_flight=checked, last_reconcile_time=at)


def _request(job: IPUJob) -> CheckRequest:
    policy, meta = policy_of(job), job.metadata
    assert policy is not None  # noqa: S101 - it is being checked
    first = names.worker_pod(meta.name, 0).removesuffix("0")
    return CheckRequest(
        id=_request_id(job),
        checks=policy.checks,
        # the job's own workers may hold the devices while they wait; the work of others is not disturbed
        params={"beside": f"{meta.namespace}/{first}"},
        by=names.requester(meta.namespace, meta.name),
        expires=times.rfc3339_whole(_deadline(job, policy)),
    )


def _request_id(job: IPUJob) -> str:
    checked = _current_checks(job)
    return f"{names.request_prefix(job.metadata.uid)}{checked.attempt}-{int(times.seconds(checked.start_time or ''))}"


def _is_requested(job: IPUJob) -> bool:
    if job.metadata.deletion_timestamp or job.spec.suspend or status.is_finished(job.status):
        return False
    return policy_of(job) is not None and _current_checks(job).state == "Checking"


def _current_checks(job: IPUJob) -> PreFlightStatus:
    """The checks of the current attempt."""
    checked = job.status.pre_flight
    return checked if checked is not None and checked.attempt == job.status.attempt else PreFlightStatus()


def _is_checking(state: JobState) -> bool:
    return is_open(state) and _current_checks(state.job).state == "Checking" and _all_wait(state)


def _deadline(job: IPUJob, policy: PreFlight) -> float:
    return times.seconds(_current_checks(job).start_time or "") + policy.timeout_seconds


def _has_time_left(state: JobState, policy: PreFlight) -> bool:
    """A longer time is only possible if the clock was set back."""
    left_s = _deadline(state.job, policy) - state.snapshot.now
    return 0 < left_s <= policy.timeout_seconds + SKEW_S


def _all_wait(state: JobState) -> bool:
    if not state.instances or len(state.complete_instances) < state.instances:
        return False
    return all(pod.spec.node_name and pod.status.phase == "Running" for pod in state.workers)


def _nodes(state: JobState) -> tuple[str, ...]:
    return degradation.nodes_of(state.workers)


def _unanswered(state: JobState) -> tuple[str, ...]:
    return tuple(node for node in _nodes(state) if _answer(state, node) is None)


def _answer(state: JobState, node: str) -> RequestAnswer | None:
    return (state.snapshot.requests or {}).get(node, {}).get(_request_id(state.job))


def _failed_nodes(state: JobState) -> dict[str, RejectedNode]:
    """Nodes under the job's workers that the checks of this attempt rejected within the last hour."""
    checked = _current_checks(state.job)
    if checked.state != "Failed":
        return {}
    under = set(_nodes(state))
    return {each.name: each for each in checked.left if each.name in under and _is_fresh(each, state.snapshot.now)}


def _is_fresh(left: RejectedNode, now: float) -> bool:
    return -SKEW_S <= now - times.seconds(left.found_time) < AVOIDED_S
