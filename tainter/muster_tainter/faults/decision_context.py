"""The inputs of a decision about a node besides the node and its NodeHealth."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.node_report import FaultKey
from muster_tainter.faults.record.node_record import FlapPenalty
from muster_tainter.policy.spares import SpareRole


@dataclass(frozen=True)
class AssignedRole:
    """The node's role among its pool's spares. why: in a few words; ready: False if it is released without a recent
    full test; replaces: of a replacement, the node with a fault."""

    role: SpareRole
    why: str
    ready: bool = True
    replaces: str = ""


@dataclass(frozen=True)
class KnownDevice:
    """A device that ResourceSlices of the node name.

    driver:   which publishes it; siblings: how many devices the driver has on the node, with this one; 0: unknown,
              while no slice names them
    ruled:    all its DeviceTaintRules are there; problem: why it cannot have any
    board:    its UUID; empty if the driver publishes none
    history:  by check: flap penalties of this board on nodes that it has left
    """

    driver: str
    siblings: int
    ruled: bool = False
    problem: str = ""
    board: str = ""
    history: Mapping[str, FlapPenalty] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceContext:
    """unavailable: why no device can be quarantined; empty if they can
    unread:   nothing is known of the node's devices yet: what the record says stays
    known:    by :func:`muster_tainter.faults.device_isolation.device_key`
    withhold: why no further device may be quarantined now; empty if one may
    released: by component: who deleted or edited its rule
    """

    unavailable: str = ""
    unread: bool = False
    known: Mapping[str, KnownDevice] = field(default_factory=dict)
    withhold: str = ""
    released: Mapping[str, str] = field(default_factory=dict)


UNREAD_DEVICES = DeviceContext(unread=True)


@dataclass(frozen=True)
class DecisionContext:
    """withhold: why no new taint may be set now; empty if it may. Its first word is the kind: budget, paused
    others:   number of other nodes with the same check and reason at the same time; incident: its id
    external: findings of sources other than the agent, such as a Node condition
    spare:    the node's role among its pool's spares; None: not known, so nothing of it changes
    over:     findings that such a source reports as resolved (how: ``source``)
    devices:  the node's devices that can be quarantined
    fence:    what :data:`muster_tainter.faults.desired_state.FENCE_ANNOTATION` must be; empty if nothing needs it
    """

    withhold: str = ""
    others: Mapping[FaultKey, int] = field(default_factory=dict)
    incident: Mapping[FaultKey, str] = field(default_factory=dict)
    external: Mapping[FaultKey, ReportedFinding] = field(default_factory=dict)
    over: Mapping[FaultKey, tuple[ClearedFault, ...]] = field(default_factory=dict)
    spare: AssignedRole | None = None
    devices: DeviceContext = UNREAD_DEVICES
    fence: str = ""


EMPTY_CONTEXT = DecisionContext()
