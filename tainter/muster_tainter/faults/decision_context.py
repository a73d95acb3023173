"""What a decision about a node has to know beyond that node and its NodeHealth."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.node_report import FaultKey


@dataclass(frozen=True)
class DecisionContext:
    """withhold: why no new taint may be set now; empty: it may. Its first word is the kind: budget, paused
    others:   on how many other nodes the same check and reason opened at the same time; incident: what that is called
    external: findings of sources other than the agent, such as a Node's condition
    over:     such a source's word that one is over (how: ``source``)
    """

    withhold: str = ""
    others: Mapping[FaultKey, int] = field(default_factory=dict)
    incident: Mapping[FaultKey, str] = field(default_factory=dict)
    external: Mapping[FaultKey, ReportedFinding] = field(default_factory=dict)
    over: Mapping[FaultKey, tuple[ClearedFault, ...]] = field(default_factory=dict)


EMPTY_CONTEXT = DecisionContext()
