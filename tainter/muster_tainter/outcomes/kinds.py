"""The kinds of failed attempts, with the reasons that Kubernetes writes, and whether a tenant may cause them.

A kind is in the first half of the table only if no pod that a tenant can write causes it on a node that works. For each
other reason, ``how`` says what a tenant does to get it. docs/in-flight.md shows the table; a test compares the two.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from muster_tainter.policy.sections.in_flight import KindName


class Stage(IntEnum):
    """How far an attempt came. A failure in a stage is a success of the earlier ones, and says nothing about later."""

    ADMISSION = 0
    START = 1
    RUN = 2


class Place(StrEnum):
    """Where a reason stands in a pod's status.

    POD: status.reason. ENDED, WAITING: of a container's state.
    """

    POD = "pod"
    ENDED = "terminated"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Reason:
    """name: as Kubernetes writes it; ``*`` at its end: a prefix. source: a file of kubernetes/kubernetes, or another
    project's."""

    place: Place
    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Kind:
    """tenant: whether a pod that a tenant writes may fail like this on a node that works; how: what such a pod does
    (after "it"), or why none does."""

    name: KindName
    stage: Stage
    tenant: bool
    how: str
    reasons: tuple[Reason, ...]


_LIFECYCLE = "pkg/kubelet/lifecycle/predicate.go"
_SYNC = "pkg/kubelet/container/sync_result.go"
_IMAGES = "pkg/kubelet/images/types.go"
_CONTAINER = "pkg/kubelet/kuberuntime/kuberuntime_container.go"
_CONTAINERD = "containerd: internal/cri/server/helpers.go"

DEVICE_ALLOCATION: Final = "DeviceAllocation"
KUBELET_ADMISSION: Final = "KubeletAdmission"
ADMISSION: Final = "Admission"
POD_START: Final = "PodStart"
IMAGE_PULL: Final = "ImagePull"
CONTAINER_START: Final = "ContainerStart"
APPLICATION_EXIT: Final = "ApplicationExit"
OUT_OF_MEMORY: Final = "OutOfMemory"
EVICTED: Final = "Evicted"

UNEXPECTED = "UnexpectedAdmissionError"

KINDS: tuple[Kind, ...] = (
    Kind(
        DEVICE_ALLOCATION,
        Stage.ADMISSION,
        tenant=False,
        how="the node offers such devices, and its kubelet has none, or its device plug-in fails before it is asked "
        "about a pod",
        reasons=(Reason(Place.POD, UNEXPECTED, "pkg/kubelet/cm/devicemanager/manager.go"),),
    ),
    Kind(
        KUBELET_ADMISSION,
        Stage.ADMISSION,
        tenant=False,
        how="the kubelet cannot read its own Node, or cannot update the resources of its plug-ins",
        reasons=(
            Reason(Place.POD, "InvalidNodeInfo", _LIFECYCLE),
            Reason(Place.POD, UNEXPECTED, _LIFECYCLE),
        ),
    ),
    Kind(
        ADMISSION,
        Stage.ADMISSION,
        tenant=True,
        how="sets spec.nodeName and asks for more than is free, for NUMA alignment, or for what a device plug-in "
        "does not grant",
        reasons=(
            Reason(Place.POD, UNEXPECTED, "pkg/kubelet/cm/admission/errors.go"),
            Reason(Place.POD, "OutOf*", _LIFECYCLE),
            Reason(Place.POD, "UnexpectedPredicateFailureType", _LIFECYCLE),
            Reason(Place.POD, "UnknownReason", _LIFECYCLE),
            Reason(Place.POD, "TopologyAffinityError", "pkg/kubelet/cm/topologymanager/topology_manager.go"),
            Reason(Place.POD, "SMTAlignmentError", "pkg/kubelet/cm/cpumanager/policy_static.go"),
        ),
    ),
    Kind(
        POD_START,
        Stage.START,
        tenant=True,
        how="mounts a Secret that does not exist, names a network that does not exist, or has a memory limit in which "
        "not even the sandbox starts",
        reasons=(
            Reason(Place.WAITING, "ContainerCreating", "pkg/kubelet/kubelet_pods.go"),
            Reason(Place.WAITING, "PodInitializing", "pkg/kubelet/kubelet_pods.go"),
        ),
    ),
    Kind(
        IMAGE_PULL,
        Stage.START,
        tenant=True,
        how="names an image that does not exist, or that it may not read",
        reasons=(
            Reason(Place.WAITING, "ErrImagePull", _IMAGES),
            Reason(Place.WAITING, "ImagePullBackOff", _IMAGES),
            Reason(Place.WAITING, "ErrImageNeverPull", _IMAGES),
            Reason(Place.WAITING, "ImageInspectError", _IMAGES),
            Reason(Place.WAITING, "InvalidImageName", _IMAGES),
            Reason(Place.WAITING, "RegistryUnavailable", _IMAGES),
            Reason(Place.WAITING, "SignatureValidationFailed", _IMAGES),
        ),
    ),
    Kind(
        CONTAINER_START,
        Stage.START,
        tenant=True,
        how="has a command that is not in its image, or asks a container runtime's hook for what it cannot give",
        reasons=(
            Reason(Place.WAITING, "CreateContainerConfigError", _CONTAINER),
            Reason(Place.WAITING, "CreateContainerError", _CONTAINER),
            Reason(Place.WAITING, "RunContainerError", _SYNC),
            Reason(Place.WAITING, "PreCreateHookError", _CONTAINER),
            Reason(Place.WAITING, "PreStartHookError", _CONTAINER),
            Reason(Place.WAITING, "PostStartHookError", _CONTAINER),
            Reason(Place.WAITING, "CrashLoopBackOff", _SYNC),
            Reason(Place.ENDED, "StartError", _CONTAINERD),
            Reason(Place.ENDED, "ContainerCannotRun", "cri-dockerd: core/container_status.go"),
        ),
    ),
    Kind(
        APPLICATION_EXIT,
        Stage.RUN,
        tenant=True,
        how="exits with an error, or runs longer than activeDeadlineSeconds",
        reasons=(
            Reason(Place.ENDED, "Error", _CONTAINERD),
            Reason(Place.ENDED, "ContainerStatusUnknown", "pkg/kubelet/container/runtime.go"),
            Reason(Place.POD, "DeadlineExceeded", "pkg/kubelet/active_deadline.go"),
        ),
    ),
    Kind(
        OUT_OF_MEMORY,
        Stage.RUN,
        tenant=True,
        how="uses more memory than its limit",
        reasons=(Reason(Place.ENDED, "OOMKilled", _CONTAINERD),),
    ),
    Kind(
        EVICTED,
        Stage.RUN,
        tenant=True,
        how="fills the node's disk or memory",
        reasons=(Reason(Place.POD, "Evicted", "pkg/kubelet/eviction/eviction_manager.go"),),
    ),
)

KIND_OF: dict[str, Kind] = {kind.name: kind for kind in KINDS}

# ends that other programs and people decide: neither a success nor a failure of the node
ADMINISTRATIVE: tuple[Reason, ...] = (
    Reason(Place.POD, "Terminated", "pkg/kubelet/nodeshutdown/nodeshutdown_manager.go"),
    Reason(Place.POD, "NodeShutdown", "pkg/kubelet/nodeshutdown/nodeshutdown_manager.go"),
    Reason(Place.POD, "Preempting", "pkg/kubelet/preemption/preemption.go"),
    # the Node itself is NotReady, which its condition and the agent's silence report earlier
    Reason(Place.POD, "NodeLost", "pkg/util/node/node.go"),
    # labels and taints of the Node, changed between scheduling and admission
    Reason(Place.POD, "NodeAffinity", _LIFECYCLE),
    Reason(Place.POD, "Taint*", _LIFECYCLE),
)
