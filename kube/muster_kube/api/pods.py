"""Types for a pod's containers and their states, to report why a pod does not run.

Use them for the pods of a job or for a single pod. A cache of all pods of a fleet uses types with fewer fields
(``muster_tainter.agents.pods``), because each field costs memory for each pod.
"""

from muster_kube.api.objects import Api, NodeCondition


class ContainerWaiting(Api, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerRunning(Api, frozen=True):
    """A running container; no field of it is read."""


class ContainerTerminated(Api, frozen=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(Api, frozen=True):
    """At most one field is set."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Api, frozen=True):
    name: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodPlacement(Api, frozen=True):
    """The part of a pod's spec that names its node; empty until the pod is scheduled."""

    node_name: str = ""


class PodProgress(Api, frozen=True):
    """A pod's status with its container statuses."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
