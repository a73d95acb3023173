"""Texts about slow ranks: of the finding on the node, and of the Events on the job's pods and owners."""

import hashlib

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import ObjectReference
from muster_tainter.step_times.job_queries import JobKey
from muster_tainter.step_times.job_verdict import STAGE_SHOWN, JobVerdict, SlowRank
from muster_tainter.step_times.slow_pods import SlowPod

REASON = "SlowRank"  # of findings and of Events
STALL_REASON = "StalledRank"  # of Events
STAGE_REASON = "SlowStage"  # of Events
DATA_REASON = "SkewedData"  # of Events
EVENT_LIMIT = 1000  # bytes; the API takes 1024 characters
_NAME_LIMIT = 253 - 17
_SHOWN = 4


def describe_finding(key: JobKey, verdict: JobVerdict, slow: SlowPod) -> str:
    return f"{_cost(key, verdict)}: {_ranks(slow)}; by the job's own times"


def describe_event(key: JobKey, verdict: JobVerdict, slow: SlowPod, outlook: str) -> str:
    """outlook: what happens next."""
    text = (
        f"{_ranks(slow)} (node {slow.node}) than the median of the job's {verdict.ranks} ranks; {_cost(key, verdict)}. "
        f"At most {verdict.false_blame:.0%} of jobs without a slow rank get such an Event in a day. {outlook}"
    )
    return shorten(text, EVENT_LIMIT)


def describe_stage(key: JobKey, verdict: JobVerdict, slow: SlowPod) -> str:
    first = slow.ranks[0]
    until = "" if first.until is None else f" until step {first.until}"
    text = (
        f"stage {shorten(first.stage, STAGE_SHOWN)} of job {key} is {first.excess:.0%} slower than the others "
        f"since step {first.since}{until}; steps take {verdict.slowdown:.0%} longer than with even stages. At most "
        f"{verdict.false_blame:.0%} of jobs without a cause get such an Event in a day. No node is suspected: move "
        "layers to other stages"
    )
    return shorten(text, EVENT_LIMIT)


def describe_data(key: JobKey, verdict: JobVerdict, slow: SlowPod) -> str:
    most = slow.ranks[0]
    text = (
        f"the ranks of job {key} have uneven work: steps take {verdict.slowdown:.0%} longer than with even work. Since "
        f"step {most.since}, rank {_rank(most)} in pod {slow.pod.metadata.name} had the most, {most.excess:.0%} more "
        f"than the mean. At most {verdict.false_blame:.0%} of jobs without a cause get such an Event in a day. No node "
        "is suspected: balance the data"
    )
    return shorten(text, EVENT_LIMIT)


def describe_stall(key: JobKey, verdict: JobVerdict, slow: SlowPod) -> str:
    shown = ", ".join(map(_rank, slow.ranks[:_SHOWN]))
    more = f" and {len(slow.ranks) - _SHOWN} more" if len(slow.ranks) > _SHOWN else ""
    text = (
        f"job {key} has stalled: {verdict.message}. Rank{'' if len(slow.ranks) == 1 else 's'} {shown}{more} in pod "
        f"{slow.pod.metadata.name} (node {slow.node}) completed step {slow.ranks[0].since}; most of the job's "
        f"{verdict.ranks} ranks have completed the next one and wait"
    )
    return shorten(text, EVENT_LIMIT)


def _cost(key: JobKey, verdict: JobVerdict) -> str:
    return f"steps of job {key} take {verdict.slowdown:.0%} longer"


def _ranks(slow: SlowPod) -> str:
    shown = [_rank(rank) for rank in slow.ranks[:_SHOWN]]
    more = f" and {len(slow.ranks) - _SHOWN} more" if len(slow.ranks) > _SHOWN else ""
    first = slow.ranks[0]
    until = "" if first.until is None else f" until step {first.until}"
    return (
        f"rank{'' if len(slow.ranks) == 1 else 's'} {', '.join(shown)}{more} in pod {slow.pod.metadata.name} "
        f"{'is' if len(slow.ranks) == 1 else 'are'} {max(rank.excess for rank in slow.ranks):.0%} slower since step "
        f"{first.since}{until}"
    )


def _rank(rank: SlowRank) -> str:
    return f"{rank.rank} (GPU {shorten(rank.gpu, 40)})" if rank.gpu else str(rank.rank)


def event_name(about: ObjectReference, key: JobKey, slow: SlowPod, reason: str) -> str:
    """Deterministic, so that two leaders do not create the same Event."""
    text = "\0".join((about.uid, str(key), slow.pod.metadata.uid, reason))
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{about.name[:_NAME_LIMIT].rstrip('-.')}.{digest}"
