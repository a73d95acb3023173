"""Asks agents to check the IPUs after Poplar has requested a FULL_RESET. Pure.

A pod's log alone must not take an IPU from other jobs, because its author can write anything. So the agents of the
job's nodes run the check ``ipu``, which is cheap and disturbs nobody. A failure is a finding like any other: the
tainter quarantines that IPU within its budget, and releases it after verification. Nothing waits for the answers.
"""

from collections.abc import Iterable

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api import times
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job import names, pod_outcome
from muster_operator.job.snapshot import JobPod, RecordEvent, RequestChecks, Snapshot
from muster_operator.job.status_types import FullResetCheck, IPUJobStatus
from muster_operator.job.types import FINALIZER, IPUJob
from muster_operator.plan.hardware import poplar_recovery
from muster_operator.plan.job_state import JobState

CHECK = "ipu"
REQUEST_S = 300.0  # lifetime of a request; no new one is made before it ends
NODES_LIMIT = 16  # limit for the largest jobs: agents run the check every two minutes anyway
EVENT = "FullResetChecked"
_SHOWN = 4


def suspect_nodes(state: JobState, pods: Iterable[JobPod], before: IPUJobStatus) -> IPUJobStatus:
    """``before`` with the nodes to ask, if one of ``pods``, which failed, requests a FULL_RESET."""
    failed = list(pods)
    if (
        not any(poplar_recovery.asks_for_full_reset(pod) for pod in failed)
        or _ends_at(state.job, state.snapshot.now) is not None
    ):
        return before
    # a launcher's log contains the errors of its workers
    nodes = dict.fromkeys(pod.spec.node_name for pod in (*failed, *state.workers) if pod.spec.node_name)
    if not nodes:
        return before
    at = times.rfc3339_whole(state.snapshot.now)
    return msgspec.structs.replace(before, suspected=FullResetCheck(start_time=at, nodes=tuple(nodes)[:NODES_LIMIT]))


def request_checks(job: IPUJob, snapshot: Snapshot) -> tuple[RequestChecks, ...]:
    check, until = job.status.suspected, _ends_at(job, snapshot.now)
    if check is None or until is None or snapshot.requests is None:
        return ()
    request = CheckRequest(
        id=_request_id(job),
        checks=(CHECK,),
        by=names.requester(job.metadata.namespace, job.metadata.name),
        expires=times.rfc3339_whole(until),
    )
    return tuple(
        RequestChecks(node, request) for node in check.nodes if request.id not in snapshot.requests.get(node, {})
    )


def request_ids(job: IPUJob, now: float) -> frozenset[str]:
    """Ids of the requests that must exist."""
    return frozenset({_request_id(job)}) if _ends_at(job, now) is not None else frozenset()


def time_left_s(job: IPUJob, now: float) -> float | None:
    """Seconds until the request expires; None: there is none."""
    until = _ends_at(job, now)
    return until - now if until is not None else None


def report_answers(job: IPUJob, snapshot: Snapshot) -> tuple[RecordEvent, ...]:
    """Reports the answers once all have arrived."""
    check = job.status.suspected
    if check is None or _ends_at(job, snapshot.now) is None:
        return ()
    answers = {node: (snapshot.requests or {}).get(node, {}).get(_request_id(job)) for node in check.nodes}
    if not all(answers.values()):
        return ()
    bad = [
        f"node {node}: {_describe_answer(each)}"
        for node, each in answers.items()
        if each and each.verdict == Verdict.FAIL
    ]
    if bad:
        text = f"the FULL_RESET that Poplar requested is confirmed: check {CHECK}: {'; '.join(bad[:_SHOWN])}"
        return (RecordEvent("Warning", EVENT, pod_outcome.shorten(text)),)
    words = sorted({f"{each.verdict}" for each in answers.values() if each})
    where = ", ".join(check.nodes[:_SHOWN]) + (", …" if len(check.nodes) > _SHOWN else "")
    text = f"check {CHECK} on {where}: {', '.join(words)}: no faulty IPU was found, and none is quarantined"
    return (RecordEvent("Normal", EVENT, pod_outcome.shorten(text)),)


def _describe_answer(answer: RequestAnswer) -> str:
    return ": ".join(part for part in (answer.reason, answer.message) if part)


def _ends_at(job: IPUJob, now: float) -> float | None:
    """When the request expires; None: there is none now."""
    check = job.status.suspected
    if check is None or job.metadata.deletion_timestamp or FINALIZER not in job.metadata.finalizers or job.spec.suspend:
        return None
    until = times.seconds(check.start_time) + REQUEST_S
    return until if 0 < until - now <= REQUEST_S + 1 else None  # a longer time means that the clock was set back


def _request_id(job: IPUJob) -> str:
    check = job.status.suspected
    at = int(times.seconds(check.start_time)) if check is not None else 0
    return f"{names.request_prefix(job.metadata.uid)}reset-{at}"
