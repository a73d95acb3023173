"""Describes how pods end: which pod, which container, with which code or signal, and why."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from muster_kube.api.pods import ContainerStatus, ContainerTerminated
from muster_operator.job.snapshot import JobPod

LIMIT = 1024  # characters of a message, the limit of mpi-operator
FAILED = "Failed"
SUCCEEDED = "Succeeded"
KILLED = 137  # exit code of an evicted or lost pod whose containers report none
_LOG_SHOWN = 400  # characters of a container's message: the end of a log explains the failure


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended. why: empty for a success. pods: those that failed."""

    success: bool
    why: str = ""
    pods: tuple[JobPod, ...] = ()


def shorten(text: str, limit: int = LIMIT) -> str:
    """``text`` on one line, shortened."""
    found = " ".join(text.split())
    return found if len(found) <= limit else found[: limit - 1] + "…"


def has_ended(pod: JobPod) -> bool:
    return pod.status.phase in (FAILED, SUCCEEDED)


def failed_pods(pods: Iterable[JobPod]) -> list[JobPod]:
    return [pod for pod in pods if pod.status.phase == FAILED]


def exit_codes(pod: JobPod) -> tuple[int, ...]:
    """Exit codes of a failed pod, init containers first; a signal without an exit code counts as 128 + signal."""
    status = pod.status
    found = [
        ended.exit_code or 128 + ended.signal
        for each in (*status.init_container_statuses, *status.container_statuses)
        if (ended := each.state.terminated) is not None and _has_failed(each)
    ]
    return tuple(found) or (KILLED,)


def describe_failure(pod: JobPod) -> str:
    """Describe a failed pod. The reason for the whole pod (such as an eviction) precedes those of its containers."""
    status = pod.status
    details = []
    if status.reason:
        details.append(f"{status.reason}: {status.message}" if status.message else status.reason)
    for what, statuses in (
        ("init container", status.init_container_statuses),
        ("container", status.container_statuses),
    ):
        details += [_describe_container(what, each) for each in statuses if _has_failed(each)]
    if not details:
        details.append(status.message or "no reason is given")
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    return shorten(f"pod {pod.metadata.name}{where} failed: {'; '.join(details)}")


def _has_failed(status: ContainerStatus) -> bool:
    ended = status.state.terminated
    return ended is not None and (ended.exit_code != 0 or ended.signal != 0)


def _describe_container(what: str, status: ContainerStatus) -> str:
    ended = status.state.terminated or ContainerTerminated()
    text = f"{what} {status.name} ended with exit code {ended.exit_code}"
    number = ended.signal or (ended.exit_code - 128 if ended.exit_code > 128 else 0)
    if number:
        text += f" ({_signal_name(number)})"
    # Error is the reason of every other exit code
    if ended.reason and ended.reason != "Error":
        text += f", {ended.reason}"
    details = " ".join(ended.message.split())
    if len(details) > _LOG_SHOWN:
        details = "…" + details[1 - _LOG_SHOWN :]
    return f"{text}: {details}" if details else text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
