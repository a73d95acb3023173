"""A pod's containers and what became of them: the types of whoever has to say why a pod does not run.

For a job's own pods, or a single one. A cache of a whole fleet's pods keeps types of its own with fewer fields
(``muster_tainter.agents.pods``): each field named here costs memory for each pod that is held.
"""

from muster_kube.api.objects import Api, NodeCondition


class ContainerWaiting(Api, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerRunning(Api, frozen=True):
    """That it runs is all that is read."""


class ContainerTerminated(Api, frozen=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(Api, frozen=True):
    """At most one of them."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Api, frozen=True):
    name: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodPlacement(Api, frozen=True):
    """A pod's spec, as far as it says where it runs; empty: on no node yet."""

    node_name: str = ""


class PodProgress(Api, frozen=True):
    """A pod's status, with its containers."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
