"""What Poplar asks for in the last words of a pod that failed: its recovery actions (poplar-api, "Exceptions").

Where the words are is ours: a container's termination message, which is the end of its log where it wrote none
(``terminationMessagePolicy``). IPU_RESET, LINK_RESET and PARTITION_RESET are done by every new attempt, as that begins
with a reset of the partition. FULL_RESET is for people, and a reason to ask agents
(:mod:`muster_operator.plan.full_reset`): a pod's word alone takes no IPU-Machine from others.
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
    """Of a pod that failed; none where nothing is said."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    said = [each.state.terminated.message for each in statuses if each.state.terminated is not None]
    return tuple(dict.fromkeys(error for text in said for error in parse(text.encode("utf-8", "replace"))))


def can_recover(pods: Iterable[JobPod]) -> bool:
    """Another attempt recovers from what Poplar says."""
    actions = {error.action for pod in pods for error in read_errors(pod)}
    return bool(actions & RECOVERED) and FULL not in actions


def asks_for_full_reset(pod: JobPod) -> bool:
    return any(error.action == FULL for error in read_errors(pod))


def describe_errors(pod: JobPod) -> str:
    said = []
    for error in read_errors(pod):
        which = f" (CIUERRVR.{error.first_error} on IPU {error.device_id})" if error.first_error else ""
        said.append(f"{error.action}{which}")
    return ", ".join(said)


def report_full_reset(state: JobState, pods: Iterable[JobPod]) -> tuple[RecordEvent, ...]:
    """Of a FULL_RESET: which IPU-Machines it may be."""
    asking = [pod for pod in pods if asks_for_full_reset(pod)]
    if not asking:
        return ()
    machines = sorted({machine for entry in state.entries.values() for machine, _ in ipus_of(entry)})
    where = ", ".join(machines[:_SHOWN]) if machines else "not known"
    asked = describe_errors(asking[0])
    text = f"pod {asking[0].metadata.name}: Poplar asks for {asked}: power-cycle the IPU-Machine ({where})"
    return (RecordEvent("Warning", "PoplarFullReset", pod_outcome.shorten(text)),)
