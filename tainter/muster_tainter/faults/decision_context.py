"""The inputs of a decision about a node besides the node and its NodeHealth."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.node_report import FaultKey
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
class DecisionContext:
    """withhold: why no new taint may be set now; empty if it may. Its first word is the kind: budget, paused
    others:   number of other nodes with the same check and reason at the same time; incident: its id
    external: findings of sources other than the agent, such as a Node condition
    spare:    the node's role among its pool's spares; None: not known, so nothing of it changes
    over:     findings that such a source reports as resolved (how: ``source``)
    """

    withhold: str = ""
    others: Mapping[FaultKey, int] = field(default_factory=dict)
    incident: Mapping[FaultKey, str] = field(default_factory=dict)
    external: Mapping[FaultKey, ReportedFinding] = field(default_factory=dict)
    over: Mapping[FaultKey, tuple[ClearedFault, ...]] = field(default_factory=dict)
    spare: AssignedRole | None = None


EMPTY_CONTEXT = DecisionContext()
