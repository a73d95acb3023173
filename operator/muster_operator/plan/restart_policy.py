"""Whether another attempt follows one that has ended, and when: by restartPolicy and backOffLimit.

Behaviours 38 to 41.

| type | another attempt after |
|---|---|
| Never | nothing; so does every type with cleanPodPolicy All |
| OnFailure | a failure |
| ExitCode | a failure with one of its exit codes, of any pod that failed, or one that Poplar recovers from (60) |
| Always | a failure or a success |

What is to be known of it is in the status: how many restarts there were, and when the next attempt begins.
"""

import math
from dataclasses import dataclass

from msgspec import UnsetType

from muster_kube.api import times
from muster_operator.job import pod_outcome
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob, RestartPolicy, RestartType
from muster_operator.plan import poplar_recovery

RETRYABLE = "128-255"  # ended by a signal: the machine's doing more often than the program's
_DOUBLINGS = 30  # more overflow


@dataclass(frozen=True)
class RestartDecision:
    """again: another attempt follows. reason and note: of a failure that stays one, beyond what the pods say."""

    again: bool
    reason: str = ""
    note: str = ""


def policy_of(job: IPUJob) -> RestartPolicy:
    return RestartPolicy() if isinstance(job.spec.restart_policy, UnsetType) else job.spec.restart_policy


def decide_restart(job: IPUJob, end: AttemptEnd) -> RestartDecision:
    policy = policy_of(job)
    kind: RestartType = "Never" if job.spec.clean_pod_policy == "All" else policy.type
    if kind == "Never" or (end.success and kind != "Always"):
        return RestartDecision(False)
    if kind == "ExitCode":
        wanted = RETRYABLE if isinstance(policy.exit_codes, UnsetType) else policy.exit_codes
        found = sorted({code for pod in end.pods for code in pod_outcome.exit_codes(pod)})
        if not any(_is_among(code, wanted) for code in found) and not poplar_recovery.can_recover(end.pods):
            said = ", ".join(map(str, found))
            return RestartDecision(False, "PermanentExitCode", f"exit code {said} does not restart it ({wanted} would)")
    if job.status.restart_count >= policy.back_off_limit:
        used = "1 restart is" if policy.back_off_limit == 1 else f"{policy.back_off_limit} restarts are"
        note = f"all its {used} used up" if policy.back_off_limit else "backOffLimit 0 allows no restart"
        return RestartDecision(False, "BackoffLimitExceeded", note)
    return RestartDecision(True)


def next_attempt_time(job: IPUJob, end: AttemptEnd, now: float, setup: JobSetup) -> str:
    """The next attempt, RFC 3339. A success is no reason to wait ever longer."""
    doublings = 0 if end.success else min(job.status.restart_count, _DOUBLINGS)
    delay_s = min(setup.restart_delay_limit_s, setup.restart_delay_s * 2**doublings)
    return times.rfc3339_whole(math.ceil(now + delay_s))


def delay_left_s(job: IPUJob, now: float, setup: JobSetup) -> float:
    """Until the next attempt begins. Longer than any delay only if the clock was set back: then it begins at once."""
    if job.status.next_attempt_time is None:
        return 0.0
    left_s = times.seconds(job.status.next_attempt_time) - now
    return left_s if 0 < left_s <= setup.restart_delay_limit_s + 1 else 0.0


def describe_restart(job: IPUJob, end: AttemptEnd, at: str) -> str:
    """Of the condition Restarting, while that attempt is waited for."""
    said = end.why or "it has succeeded, and restartPolicy is Always"
    number = job.status.restart_count + 1
    return pod_outcome.shorten(f"restart {number} of {policy_of(job).back_off_limit} at {at}: {said}")


def _is_among(code: int, wanted: str) -> bool:
    """wanted: as ``1,3,128-255``, which admission has seen."""
    for part in wanted.split(","):
        low, _, high = part.partition("-")
        if int(low) <= code <= int(high or low):
            return True
    return False
