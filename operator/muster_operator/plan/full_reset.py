"""What agents find of the IPUs after Poplar has asked for a FULL_RESET. Pure.

A pod's word takes no IPU from others: its author may write what they like. So the agents of the nodes that the job was
on are asked for the check ``ipu``, which is light and disturbs nobody. What fails there is a finding like any other:
the tainter quarantines that IPU within its budget, and lets it go by proof. Nothing waits for the answers.
"""

from collections.abc import Iterable

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api import times
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job import names, pod_outcome
from muster_operator.job.snapshot import JobPod, RecordEvent, RequestChecks, Snapshot
from muster_operator.job.types import FINALIZER, FullResetCheck, IPUJob, IPUJobStatus
from muster_operator.plan import poplar_recovery
from muster_operator.plan.job_state import JobState

CHECK = "ipu"
ASKED_S = 300.0  # a request stands so long, and for no longer; nor is one made anew before
NODES_LIMIT = 16  # of the largest jobs: agents look by themselves every two minutes
EVENT = "FullResetChecked"
_SHOWN = 4


def suspect_nodes(state: JobState, pods: Iterable[JobPod], said: IPUJobStatus) -> IPUJobStatus:
    """``said``, with whom to ask in it where one of ``pods``, which failed, says FULL_RESET."""
    failed = list(pods)
    if (
        not any(poplar_recovery.asks_for_full_reset(pod) for pod in failed)
        or _ends_at(state.job, state.snapshot.now) is not None
    ):
        return said
    # a launcher tells what its workers said
    nodes = dict.fromkeys(pod.spec.node_name for pod in (*failed, *state.workers) if pod.spec.node_name)
    if not nodes:
        return said
    at = times.rfc3339_whole(state.snapshot.now)
    return msgspec.structs.replace(said, suspected=FullResetCheck(start_time=at, nodes=tuple(nodes)[:NODES_LIMIT]))


def request_checks(job: IPUJob, snapshot: Snapshot) -> tuple[RequestChecks, ...]:
    said, until = job.status.suspected, _ends_at(job, snapshot.now)
    if said is None or until is None or snapshot.requests is None:
        return ()
    request = CheckRequest(
        id=_request_id(job),
        checks=(CHECK,),
        by=names.asked_by(job.metadata.namespace, job.metadata.name),
        expires=times.rfc3339_whole(until),
    )
    return tuple(
        RequestChecks(node, request) for node in said.nodes if request.id not in snapshot.requests.get(node, {})
    )


def request_ids(job: IPUJob, now: float) -> frozenset[str]:
    """Ids of requests that are to stand."""
    return frozenset({_request_id(job)}) if _ends_at(job, now) is not None else frozenset()


def time_left_s(job: IPUJob, now: float) -> float | None:
    """Until nothing of it is to stand any more; None: nothing does."""
    until = _ends_at(job, now)
    return until - now if until is not None else None


def report_answers(job: IPUJob, snapshot: Snapshot) -> tuple[RecordEvent, ...]:
    """Once all have answered."""
    said = job.status.suspected
    if said is None or _ends_at(job, snapshot.now) is None:
        return ()
    answers = {node: (snapshot.requests or {}).get(node, {}).get(_request_id(job)) for node in said.nodes}
    if not all(answers.values()):
        return ()
    bad = [
        f"node {node}: {_describe_answer(each)}"
        for node, each in answers.items()
        if each and each.verdict == Verdict.FAIL
    ]
    if bad:
        text = f"what Poplar says is confirmed: check {CHECK}: {'; '.join(bad[:_SHOWN])}"
        return (RecordEvent("Warning", EVENT, pod_outcome.shorten(text)),)
    words = sorted({f"{each.verdict}" for each in answers.values() if each})
    where = ", ".join(said.nodes[:_SHOWN]) + (", …" if len(said.nodes) > _SHOWN else "")
    text = f"check {CHECK} on {where}: {', '.join(words)}: no fault of an IPU is found, and none is quarantined"
    return (RecordEvent("Normal", EVENT, pod_outcome.shorten(text)),)


def _describe_answer(answer: RequestAnswer) -> str:
    return ": ".join(part for part in (answer.reason, answer.message) if part)


def _ends_at(job: IPUJob, now: float) -> float | None:
    """None: nothing is to stand now."""
    said = job.status.suspected
    if said is None or job.metadata.deletion_timestamp or FINALIZER not in job.metadata.finalizers or job.spec.suspend:
        return None
    until = times.seconds(said.start_time) + ASKED_S
    return until if 0 < until - now <= ASKED_S + 1 else None  # beyond that the clock was set back


def _request_id(job: IPUJob) -> str:
    said = job.status.suspected
    at = int(times.seconds(said.start_time)) if said is not None else 0
    return f"{names.request_prefix(job.metadata.uid)}reset-{at}"
