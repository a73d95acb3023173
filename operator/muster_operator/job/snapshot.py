"""The input of a decision about a job (Snapshot) and its output (JobPlan): values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from muster_kube.api.objects import Api, Metadata
from muster_kube.api.pods import PodPlacement, PodProgress
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.status_types import IPUJobStatus

# --- observed state


class JobPod(Api, frozen=True):
    """A launcher or worker pod that the operator created, recognized by its labels
    (:mod:`muster_operator.job.names`)."""

    metadata: Metadata
    spec: PodPlacement = PodPlacement()
    status: PodProgress = PodProgress()


class OwnedObject(Api, frozen=True):
    """A ConfigMap, ServiceAccount, Role or RoleBinding that the operator created. The annotation ``muster.dev/content``
    is a digest of the desired content, so that a change is detected without storing the content."""

    metadata: Metadata


@dataclass(frozen=True)
class NodeCapacity:
    """nodes: Ready and schedulable nodes that match the labels a worker of this job needs; healthy: those of them
    without our taints that this job does not avoid; avoided: nodes that this job avoids and that would be healthy;
    spares: matching nodes that are kept free, which no job may use; they count nowhere else. tainted: the first
    names of those of the nodes that have our taints."""

    nodes: int = 0
    healthy: int = 0
    avoided: int = 0
    spares: int = 0
    tainted: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeProblem:
    """Why a node is unfit for pods: it has one of our taints, is not Ready, or is gone. what: for people."""

    kind: Literal["Faulty", "NotReady", "Gone"]
    what: str


@dataclass(frozen=True)
class Snapshot:
    """now: seconds since the epoch. pods and objects: the operator's, by name and by (kind, name). foreign: owners of
    objects that have a name that this job needs, by (kind, name). refused: errors of objects that the API server
    rejected recently, likewise. entries: this job's entries of the tracker, by partition name; refusals: the proxy's
    last refusals, likewise. node_capacity: None while nodes are not watched.

    bad_nodes: by name, nodes of the job's pods; bad_ipus: by partition name, problems of its IPUs, for people; room:
    how many more partitions of its size fit, None if unknown.

    requests: the job's requests in NodeHealths, by node and id, with their final answers; None: not known yet.
    failed_requests: nodes that could not be asked recently, with the reason.
    """

    now: float
    pods: Mapping[str, JobPod] = field(default_factory=dict)
    objects: Mapping[tuple[str, str], OwnedObject] = field(default_factory=dict)
    foreign: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    entries: Mapping[str, PartitionEntry] = field(default_factory=dict)
    refusals: Mapping[str, PartitionRefusal] = field(default_factory=dict)
    node_capacity: NodeCapacity | None = None
    bad_nodes: Mapping[str, NodeProblem] = field(default_factory=dict)
    bad_ipus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    room: int | None = None
    requests: Mapping[str, Mapping[str, RequestAnswer | None]] | None = None
    failed_requests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSetup:
    """How this installation runs jobs. launcher_image: image of the init container that waits for workers and copies
    kubectl (kubectl_version, which scripts of the original set, has no effect). btl_tcp_if_include: for jobs with
    several workers that do not set it themselves; "": derived from the node's address. our_taints: keys that no job
    tolerates unless it sets tolerateFaulty. restart_delay_s: before the first restart; doubles with each restart up to
    restart_delay_limit_s, as for batch Jobs. free_partitions_at_end: when a job ends, stop its remaining pods and
    release its partitions, whatever its cleanPodPolicy. hold_timeout_s: how long a gang that cannot start keeps its
    partitions, 0: forever; hold_delay_s: before its first retry; doubles each time up to hold_delay_limit_s.
    moves_per_hour: limit of moves of one job away from bad hardware."""

    launcher_image: str = "launcher:latest"
    launcher_image_pull_policy: str = "Never"
    kubectl_version: str = ""
    host_network: bool = True
    privileged: bool = True
    dns_policy: str = ""  # "": ClusterFirstWithHostNet with host_network, otherwise ClusterFirst
    btl_tcp_if_include: str = ""
    our_taints: tuple[str, ...] = ("muster.dev/faulty",)
    max_ipus: int = 64
    restart_delay_s: float = 10.0
    restart_delay_limit_s: float = 360.0
    free_partitions_at_end: bool = False
    moves_per_hour: int = 3
    # the equivalents of Kueue's waitForPodsReady: timeout, backoffBaseSeconds, backoffMaxSeconds
    hold_timeout_s: float = 300.0
    hold_delay_s: float = 60.0
    hold_delay_limit_s: float = 3600.0


# --- actions


@dataclass(frozen=True)
class AddFinalizer:
    pass


@dataclass(frozen=True)
class RemoveFinalizer:
    pass


@dataclass(frozen=True)
class CreateObject:
    """Create ``body``. If another owner's object has that name, leave it alone and remember it as foreign."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class PatchObject:
    """Update an object of the operator with ``body`` (a merge patch), for example after a scale."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class DeletePod:
    """Delete by uid, so that a newer pod of that name is safe. grace_s: None uses the pod's own."""

    name: str
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True)
class TakePartitions:
    """Request partitions from the proxy, by instance; with ``together``, all or none (the capacity is queried first).
    attempt: see partition_api.PartitionRequest."""

    instances: tuple[int, ...]
    attempt: int
    size: int
    gcds: int
    together: bool


@dataclass(frozen=True)
class FreePartition:
    """name: of the partition. Releasing a partition that does not exist succeeds at once. unsuitable: its owner cannot
    use it; another one is requested after a back-off only."""

    name: str
    unsuitable: bool = False


@dataclass(frozen=True)
class QueryCapacity:
    """Ask how many more partitions of that size fit: the answer is Snapshot.room for a while."""

    size: int


@dataclass(frozen=True)
class RequestChecks:
    """Ask the node's agent to carry out ``request``. Repeating a request changes nothing."""

    node: str
    request: CheckRequest


@dataclass(frozen=True)
class WithdrawRequests:
    """Remove all requests of the job from the node's NodeHealth, except those with an id in ``keep``."""

    node: str
    keep: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DeleteJob:
    pass


@dataclass(frozen=True)
class RecordEvent:
    """Record an Event on the job. type: Normal or Warning."""

    type: str
    reason: str
    message: str


Action = (
    AddFinalizer
    | RemoveFinalizer
    | CreateObject
    | PatchObject
    | DeletePod
    | TakePartitions
    | FreePartition
    | QueryCapacity
    | RequestChecks
    | WithdrawRequests
    | DeleteJob
    | RecordEvent
)


@dataclass(frozen=True)
class JobPlan:
    """actions: in order; the first failure ends the turn, and the next turn plans again. status: None leaves it
    unchanged. again_s: seconds until the next look if nothing happens; None: only on an event. waits_for_room: look
    again when a partition is removed or nodes change."""

    actions: tuple[Action, ...] = ()
    status: IPUJobStatus | None = None
    again_s: float | None = None
    waits_for_room: bool = False


# --- results


class ActionResult(Enum):
    """DONE: there is news. REFUSED: there is news, and the rest of the plan is dropped. WAITS: nothing was tried,
    because a recent attempt was refused; the rest of the plan is dropped too."""

    NOTHING = auto()
    DONE = auto()
    REFUSED = auto()
    WAITS = auto()
