"""How pods end, in words: which pod, which container, with what code or signal, and why."""

import signal
from collections.abc import Iterable

from muster_operator.seen import ContainerStatus, JobPod, Terminated

LIMIT = 1024  # characters of a message, as mpi-operator cuts its own
FAILED = "Failed"
SUCCEEDED = "Succeeded"


def bounded(text: str, limit: int = LIMIT) -> str:
    """On one line."""
    found = " ".join(text.split())
    return found if len(found) <= limit else found[: limit - 1] + "…"


def has_ended(pod: JobPod) -> bool:
    return pod.status.phase in (FAILED, SUCCEEDED)


def failed(pods: Iterable[JobPod]) -> list[JobPod]:
    return [pod for pod in pods if pod.status.phase == FAILED]


def why(pod: JobPod) -> str:
    """Of a pod that failed. What ended the pod as a whole (an eviction) comes before what its containers said of it."""
    status = pod.status
    said = []
    if status.reason:
        said.append(f"{status.reason}: {status.message}" if status.message else status.reason)
    for what, statuses in (
        ("init container", status.init_container_statuses),
        ("container", status.container_statuses),
    ):
        said += [_container(what, each) for each in statuses if _has_failed(each)]
    if not said:
        said.append(status.message or "its phase is Failed, and nothing says why")
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    return bounded(f"pod {pod.metadata.name}{where} failed: {'; '.join(said)}")


def _has_failed(status: ContainerStatus) -> bool:
    ended = status.state.terminated
    return ended is not None and (ended.exit_code != 0 or ended.signal != 0)


def _container(what: str, status: ContainerStatus) -> str:
    ended = status.state.terminated or Terminated()
    text = f"{what} {status.name} ended with exit code {ended.exit_code}"
    number = ended.signal or (ended.exit_code - 128 if ended.exit_code > 128 else 0)
    if number:
        text += f" ({_signal(number)})"
    # Error is what every other exit code is called
    if ended.reason and ended.reason != "Error":
        text += f", {ended.reason}"
    return f"{text}: {ended.message.strip()}" if ended.message.strip() else text


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
