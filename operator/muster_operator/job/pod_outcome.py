"""How pods end, in words: which pod, which container, with what code or signal, and why."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from muster_kube.api.pods import ContainerStatus, ContainerTerminated
from muster_operator.job.snapshot import JobPod

LIMIT = 1024  # characters of a message, as mpi-operator cuts its own
FAILED = "Failed"
SUCCEEDED = "Succeeded"
KILLED = 137  # what a pod that was evicted or lost counts as, where no container of it left a code
_LAST_WORDS = 400  # characters of a container's message: of a log the end says why


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended. why: empty of a success. pods: those that failed."""

    success: bool
    why: str = ""
    pods: tuple[JobPod, ...] = ()


def shorten(text: str, limit: int = LIMIT) -> str:
    """On one line."""
    found = " ".join(text.split())
    return found if len(found) <= limit else found[: limit - 1] + "…"


def has_ended(pod: JobPod) -> bool:
    return pod.status.phase in (FAILED, SUCCEEDED)


def failed_pods(pods: Iterable[JobPod]) -> list[JobPod]:
    return [pod for pod in pods if pod.status.phase == FAILED]


def exit_codes(pod: JobPod) -> tuple[int, ...]:
    """Exit codes of a pod that failed, its init containers' first; a signal without one as a shell would say it."""
    status = pod.status
    found = [
        ended.exit_code or 128 + ended.signal
        for each in (*status.init_container_statuses, *status.container_statuses)
        if (ended := each.state.terminated) is not None and _has_failed(each)
    ]
    return tuple(found) or (KILLED,)


def describe_failure(pod: JobPod) -> str:
    """Of a pod that failed. What ended the pod as a whole (an eviction) comes before what its containers said of it."""
    status = pod.status
    said = []
    if status.reason:
        said.append(f"{status.reason}: {status.message}" if status.message else status.reason)
    for what, statuses in (
        ("init container", status.init_container_statuses),
        ("container", status.container_statuses),
    ):
        said += [_describe_container(what, each) for each in statuses if _has_failed(each)]
    if not said:
        said.append(status.message or "its phase is Failed, and nothing says why")
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    return shorten(f"pod {pod.metadata.name}{where} failed: {'; '.join(said)}")


def _has_failed(status: ContainerStatus) -> bool:
    ended = status.state.terminated
    return ended is not None and (ended.exit_code != 0 or ended.signal != 0)


def _describe_container(what: str, status: ContainerStatus) -> str:
    ended = status.state.terminated or ContainerTerminated()
    text = f"{what} {status.name} ended with exit code {ended.exit_code}"
    number = ended.signal or (ended.exit_code - 128 if ended.exit_code > 128 else 0)
    if number:
        text += f" ({_signal_name(number)})"
    # Error is what every other exit code is called
    if ended.reason and ended.reason != "Error":
        text += f", {ended.reason}"
    said = " ".join(ended.message.split())
    if len(said) > _LAST_WORDS:
        said = "…" + said[1 - _LAST_WORDS :]
    return f"{text}: {said}" if said else text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
