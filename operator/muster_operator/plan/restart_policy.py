"""Whether and when another attempt of a job or instance follows one that has ended, according to restartPolicy and
backOffLimit.

Behaviours 38 to 41.

| type | another attempt after |
|---|---|
| Never | nothing; the same for every type with cleanPodPolicy All |
| OnFailure | a failure |
| ExitCode | a failure with one of its exit codes in any failed pod, or one that Poplar can recover from (60) |
| Always | a failure or a success |

The status keeps the number of restarts and the start of the next attempt.
"""

import math
from dataclasses import dataclass

from msgspec import UnsetType

from muster_kube.api import times
from muster_operator.job import pod_outcome
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob, RestartPolicy, RestartType
from muster_operator.plan.hardware import poplar_recovery

RETRYABLE = "128-255"  # ended by a signal: more often a fault of the machine than of the program
_DOUBLINGS = 30  # more would overflow


@dataclass(frozen=True)
class RestartDecision:
    """again: another attempt follows. reason and note: for a final failure, in addition to what the pods report."""

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
            cause = ", ".join(map(str, found))
            return RestartDecision(
                False, "PermanentExitCode", f"exit code {cause} does not restart the job (exitCodes: {wanted})"
            )
    if job.status.restart_count >= policy.back_off_limit:
        note = "is reached" if policy.back_off_limit else "allows no restart"
        return RestartDecision(False, "BackoffLimitExceeded", f"backOffLimit {policy.back_off_limit} {note}")
    return RestartDecision(True)


def next_attempt_time(job: IPUJob, end: AttemptEnd, now: float, setup: JobSetup) -> str:
    """Start of the next attempt of the job, RFC 3339. The delay does not grow after a success, nor with restarts of
    single instances, which have their own."""
    alone = sum(restart.count for restart in job.status.instance_restarts.values())
    doublings = 0 if end.success else min(max(0, job.status.restart_count - alone), _DOUBLINGS)
    delay_s = min(setup.restart_delay_limit_s, setup.restart_delay_s * 2**doublings)
    return times.rfc3339_whole(math.ceil(now + delay_s))


def instance_start_time(in_a_row: int, now: float, setup: JobSetup) -> str:
    """Start of the attempt of a single instance, RFC 3339. in_a_row: restarts in a row, with this one, which has no
    delay if it is the first."""
    if in_a_row == 1:
        return times.rfc3339_whole(now)
    delay_s = min(setup.restart_delay_limit_s, setup.restart_delay_s * 2 ** min(in_a_row - 2, _DOUBLINGS))
    return times.rfc3339_whole(math.ceil(now + delay_s))


def delay_left_s(job: IPUJob, now: float, setup: JobSetup) -> float:
    """Seconds until the next attempt begins; 0 if longer than any delay, which means that the clock was set back."""
    if job.status.next_attempt_time is None:
        return 0.0
    left_s = times.seconds(job.status.next_attempt_time) - now
    return left_s if 0 < left_s <= setup.restart_delay_limit_s + 1 else 0.0


def describe_restart(job: IPUJob, end: AttemptEnd, at: str) -> str:
    """Message of the condition Restarting while the attempt is awaited."""
    cause = end.why or "the job succeeded, and restartPolicy is Always"
    number = job.status.restart_count + 1
    return pod_outcome.shorten(f"restart {number} of {policy_of(job).back_off_limit} at {at}: {cause}")


def _is_among(code: int, wanted: str) -> bool:
    """wanted: such as ``1,3,128-255``, checked by admission."""
    for part in wanted.split(","):
        low, _, high = part.partition("-")
        if int(low) <= code <= int(high or low):
            return True
    return False
