"""Decides how simulated kubelets run a pod: pure functions from a projected pod to its status."""

from dataclasses import dataclass
from typing import Any

import msgspec

from muster_kube.api.objects import Api, Container, Metadata, PodStatus

SCRIPT = "testbed.muster.dev/script"  # annotation: a Script as JSON
READY_URL = "testbed.muster.dev/readyz"  # annotation: URL that returns the readiness
ADDRESS = "testbed.muster.dev/address"  # annotation: the pod's IP, else one of 127.64.0.0/10

LAST_PHASES = ("Succeeded", "Failed")

Object = dict[str, Any]


class PodScript(msgspec.Struct, frozen=True):
    """What a pod does on its simulated node.

    start_after_s: time in Pending after it was bound
    ready_after_s: running time until it is ready; None: never, unless a probe reports it
    run_s:         running time until its containers end; None: unlimited
    exit_code:     of every container; 0 makes the pod Succeeded, else Failed
    stop_after_s:  time from its deletion request until it is deleted
    """

    start_after_s: float = 0.0
    ready_after_s: float | None = 0.0
    run_s: float | None = None
    exit_code: int = 0
    stop_after_s: float = 0.0


class SimulatedContainer(Container, frozen=True):
    image: str = ""


class SimulatedPodSpec(Api, frozen=True):
    node_name: str = ""
    containers: tuple[SimulatedContainer, ...] = ()


class SimulatedPodStatus(PodStatus, frozen=True):
    start_time: str = ""


class SimulatedPod(Api, frozen=True):
    """A pod, projected."""

    metadata: Metadata
    spec: SimulatedPodSpec = SimulatedPodSpec()
    status: SimulatedPodStatus = SimulatedPodStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.metadata.namespace}/pods/{self.metadata.name}"


class BadScript(ValueError):
    """The script annotation of a pod is invalid."""


def read_script(pod: SimulatedPod) -> PodScript:
    """The script in the annotation; by default the pod starts at once, is ready, and never ends. Raises BadScript."""
    text = pod.metadata.annotations.get(SCRIPT)
    if text is None:
        return PodScript()
    try:
        return msgspec.json.decode(text, type=PodScript)
    except msgspec.MsgspecError as error:
        raise BadScript(f"{pod.key}: annotation {SCRIPT}: {error}") from error


@dataclass(frozen=True)
class DesiredPodState:
    """phase: Pending, Running, Succeeded or Failed. again_s: when something changes by time alone; None: never."""

    phase: str
    ready: bool
    again_s: float | None
    gone: bool = False


def desired_state(
    script: PodScript,
    age_s: float,
    *,
    deleted_since_s: float | None = None,
    ready: bool | None = None,
    exit_code: int | None = None,
    phase: str = "",
) -> DesiredPodState:
    """The desired status of the pod ``age_s`` seconds after its kubelet first saw it.

    deleted_since_s: seconds since its deletion was requested; None: it was not
    ready: readiness from a probe or a test, which takes precedence over the script
    exit_code: exit code with which a test ended its containers
    phase: the current phase; a final one does not change
    """
    if deleted_since_s is not None:
        left_s = script.stop_after_s - deleted_since_s
        if left_s <= 0:
            return DesiredPodState(phase, False, None, gone=True)
        return DesiredPodState(phase, False, left_s)
    if phase in LAST_PHASES:
        return DesiredPodState(phase, False, None)
    if exit_code is not None:
        return DesiredPodState(_last_phase(exit_code), False, None)
    if age_s < script.start_after_s:
        return DesiredPodState("Pending", False, script.start_after_s - age_s)
    ran_s = age_s - script.start_after_s
    if script.run_s is not None and ran_s >= script.run_s:
        return DesiredPodState(_last_phase(script.exit_code), False, None)
    moments = [moment - ran_s for moment in (script.run_s, script.ready_after_s) if moment is not None]
    coming = [moment for moment in moments if moment > 0]
    by_script = script.ready_after_s is not None and ran_s >= script.ready_after_s
    return DesiredPodState("Running", by_script if ready is None else ready, min(coming, default=None))


def _last_phase(exit_code: int) -> str:
    return "Succeeded" if exit_code == 0 else "Failed"


def status_patch(pod: SimulatedPod, want: DesiredPodState, *, exit_code: int, address: str, now: str) -> Object | None:
    """A strategic merge patch of pods/status, or None if the status is already correct. ``now``: RFC 3339."""
    if want.phase not in ("Running", *LAST_PHASES):
        return None  # the API server made it Pending
    if pod.status.phase == want.phase and pod.status.ready == want.ready:
        return None
    reason = {} if want.ready else {"reason": "PodCompleted" if want.phase == "Succeeded" else "ContainersNotReady"}
    ready = {"status": "True" if want.ready else "False", "lastTransitionTime": now, **reason}
    # strategic: conditions merge by type, so the scheduler's PodScheduled stays
    return {
        "metadata": {"uid": pod.metadata.uid},
        "status": {
            "phase": want.phase,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "hostIP": "127.0.0.1",
            "startTime": pod.status.start_time or now,
            "conditions": [
                {"type": "Initialized", "status": "True", "lastTransitionTime": pod.status.start_time or now},
                {"type": "Ready", **ready},
                {"type": "ContainersReady", **ready},
            ],
            "containerStatuses": [
                _container(each, pod, want, exit_code=exit_code, now=now) for each in pod.spec.containers
            ],
        },
    }


def _container(
    container: SimulatedContainer, pod: SimulatedPod, want: DesiredPodState, *, exit_code: int, now: str
) -> Object:
    started = pod.status.start_time or now
    identity = f"simulated://{pod.metadata.uid}/{container.name}"
    if want.phase == "Running":
        state: Object = {"running": {"startedAt": started}}
    else:
        state = {
            "terminated": {
                "exitCode": exit_code,
                "reason": "Completed" if exit_code == 0 else "Error",
                "startedAt": started,
                "finishedAt": now,
                "containerID": identity,
            }
        }
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "containerID": identity,
        "ready": want.ready,
        "started": want.phase == "Running",
        "restartCount": 0,
        "state": state,
    }
