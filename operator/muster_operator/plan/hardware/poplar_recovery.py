"""The recovery actions that Poplar requests in the log of a failed pod (poplar-api, "Exceptions").

The text is read from the container's termination message, which is the end of its log if it wrote none
(``terminationMessagePolicy``). Every new attempt performs IPU_RESET, LINK_RESET and PARTITION_RESET, because it begins
with a reset of the partition. FULL_RESET needs a person, and the operator asks agents to check
(:mod:`muster_operator.plan.hardware.full_reset`): a pod's log alone must not take an IPU-Machine from other jobs.
"""

from collections.abc import Iterable

from muster_checks.graphcore.tools.poplar import PoplarError, parse
from muster_operator.job import pod_outcome
from muster_operator.job.partition_api import ipus_of
from muster_operator.job.snapshot import JobPod, RecordEvent
from muster_operator.plan.job_state import JobState

RECOVERED = frozenset({"IPU_RESET", "LINK_RESET", "PARTITION_RESET"})
FULL = "FULL_RESET"
_SHOWN = 16  # IPU-Machines


def read_errors(pod: JobPod) -> tuple[PoplarError, ...]:
    """Errors of a failed pod; empty if it reports none."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    texts = [each.state.terminated.message for each in statuses if each.state.terminated is not None]
    return tuple(dict.fromkeys(error for text in texts for error in parse(text.encode("utf-8", "replace"))))


def can_recover(pods: Iterable[JobPod]) -> bool:
    """Whether another attempt can recover from the errors."""
    actions = {error.action for pod in pods for error in read_errors(pod)}
    return bool(actions & RECOVERED) and FULL not in actions


def asks_for_full_reset(pod: JobPod) -> bool:
    return any(error.action == FULL for error in read_errors(pod))


def describe_errors(pod: JobPod) -> str:
    texts = []
    for error in read_errors(pod):
        which = f" (CIUERRVR.{error.first_error} on IPU {error.device_id})" if error.first_error else ""
        texts.append(f"{error.action}{which}")
    return ", ".join(texts)


def report_full_reset(state: JobState, pods: Iterable[JobPod]) -> tuple[RecordEvent, ...]:
    """Reports a FULL_RESET, with the IPU-Machines concerned."""
    asking = [pod for pod in pods if asks_for_full_reset(pod)]
    if not asking:
        return ()
    machines = sorted({machine for entry in state.entries.values() for machine, _ in ipus_of(entry)})
    where = ", ".join(machines[:_SHOWN]) if machines else "not known"
    errors = describe_errors(asking[0])
    text = f"pod {asking[0].metadata.name}: Poplar requests {errors}: power-cycle the IPU-Machine ({where})"
    return (RecordEvent("Warning", "PoplarFullReset", pod_outcome.shorten(text)),)
