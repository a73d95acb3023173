"""What a decision about a job goes by, and what it may ask for: values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from muster_kube.api.objects import Api, Metadata
from muster_kube.api.pods import PodPlacement, PodProgress
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.types import IPUJobStatus

# --- what is there


class JobPod(Api, frozen=True):
    """A launcher or worker of ours, by its labels (:mod:`muster_operator.job.names`)."""

    metadata: Metadata
    spec: PodPlacement = PodPlacement()
    status: PodProgress = PodProgress()


class OwnedObject(Api, frozen=True):
    """A ConfigMap, ServiceAccount, Role or RoleBinding of ours. The annotation ``muster.dev/content`` is the digest of
    what was written, so a change of what is wanted shows without the content being kept."""

    metadata: Metadata


@dataclass(frozen=True)
class NodeCapacity:
    """nodes: that a worker of this job could go to by labels (its own and the controllers'), Ready and schedulable;
    healthy: those of them that carry no taint of ours, and that this job does not avoid; avoided: those that it does
    and that would be healthy."""

    nodes: int = 0
    healthy: int = 0
    avoided: int = 0


@dataclass(frozen=True)
class NodeProblem:
    """A node that is no place for a pod: it carries a taint of ours, is not Ready, or is gone. what: for people."""

    kind: Literal["Faulty", "NotReady", "Gone"]
    what: str


@dataclass(frozen=True)
class Snapshot:
    """now: seconds since the epoch. pods and objects: ours, by name and by (kind, name). foreign: what stands in the
    way under a name of ours and belongs to others, by (kind, name): whose it is. refused: what the API server did
    not take of late, likewise: why. entries: the tracker's of this job, by partition name; refusals: the proxy's last
    ones, likewise. node_capacity: None while nodes are not watched.

    bad_nodes: by name, of those under its pods; bad_ipus: by partition name, what is wrong with IPUs of it, for people;
    room: how many partitions more of its size there is room for, None: nobody has asked of late.

    requests: its own in NodeHealths, by node and id, with their answers once they are final; None: not known yet.
    failed_requests: nodes that could not be asked of late, and why."""

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
    """How this installation runs jobs. launcher_image: of the init container that waits for workers and brings kubectl
    (kubectl_version, which scripts of the original set, has no effect).
    btl_tcp_if_include: for jobs of several workers, unless they say it themselves; "": by the node's address.
    our_taints: keys that no job tolerates unless it says so. restart_delay_s: before the first restart; each later one
    waits twice as long, to restart_delay_limit_s, as batch Jobs do. free_partitions_at_end: of a job that has ended,
    what still runs is ended and its partitions are freed, whatever cleanPodPolicy says. hold_timeout_s: how long
    partitions are held by what cannot start as a whole, 0: for ever; hold_delay_s: until it first tries again, twice as
    long each time, to hold_delay_limit_s. moves_per_hour: of one job, off bad
    hardware."""

    launcher_image: str = "launcher:latest"
    launcher_image_pull_policy: str = "Never"
    kubectl_version: str = ""
    host_network: bool = True
    privileged: bool = True
    dns_policy: str = ""  # "": ClusterFirstWithHostNet with host_network, else ClusterFirst
    btl_tcp_if_include: str = ""
    our_taints: tuple[str, ...] = ("muster.dev/faulty",)
    max_ipus: int = 64
    restart_delay_s: float = 10.0
    restart_delay_limit_s: float = 360.0
    free_partitions_at_end: bool = False
    moves_per_hour: int = 3
    # as Kueue's waitForPodsReady: timeout, backoffBaseSeconds, backoffMaxSeconds
    hold_timeout_s: float = 300.0
    hold_delay_s: float = 60.0
    hold_delay_limit_s: float = 3600.0


# --- what is asked for


@dataclass(frozen=True)
class AddFinalizer:
    pass


@dataclass(frozen=True)
class RemoveFinalizer:
    pass


@dataclass(frozen=True)
class CreateObject:
    """Create ``body``; where something of that name is there and not ours, leave it and remember it as foreign."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class PatchObject:
    """Bring an object of ours to ``body`` (a merge patch), after a scale for example."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class DeletePod:
    """By uid, so that a younger one of that name is safe. grace_s: None leaves it to the pod."""

    name: str
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True)
class TakePartitions:
    """Ask the proxy for these, by instance: all at once or none where ``together`` is true (the proxy is asked for room
    first). attempt: see partition_api.PartitionRequest."""

    instances: tuple[int, ...]
    attempt: int
    size: int
    gcds: int
    together: bool


@dataclass(frozen=True)
class FreePartition:
    """name: of the partition. Freeing what is not there is done at once."""

    name: str


@dataclass(frozen=True)
class QueryCapacity:
    """How many partitions more of that size there is room for: the answer is Snapshot.room for a while."""

    size: int


@dataclass(frozen=True)
class RequestChecks:
    """Let the node's agent carry out ``request``. Asking for what stands there changes nothing."""

    node: str
    request: CheckRequest


@dataclass(frozen=True)
class WithdrawRequests:
    """All of the job's in the NodeHealth of that node, but for those with an id of ``keep``."""

    node: str
    keep: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DeleteJob:
    pass


@dataclass(frozen=True)
class RecordEvent:
    """An Event on the job. type: Normal or Warning."""

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
    """actions: in order; the first that fails ends the turn, and the next turn decides anew. status: None leaves it as
    it is. again_s: look again after so long even if nothing happens; None: only when something happens. waits_for_room:
    look again when any partition goes, or nodes change."""

    actions: tuple[Action, ...] = ()
    status: IPUJobStatus | None = None
    again_s: float | None = None
    waits_for_room: bool = False


# --- what comes of it


class ActionResult(Enum):
    """What came of an action. DONE: there is news. REFUSED: there is news, and it ends what was decided with it. WAITS:
    nothing was tried, as it was refused a moment ago; it ends what was decided, too."""

    NOTHING = auto()
    DONE = auto()
    REFUSED = auto()
    WAITS = auto()
