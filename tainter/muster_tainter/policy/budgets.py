"""What policy.yaml says of budgets and of incidents. Values only; they are kept by
:mod:`muster_tainter.budgets.allocator` and :mod:`muster_tainter.budgets.incidents`.
"""

from typing import Annotated

from pydantic import Field

from muster_tainter.policy.heavy_checks import Duration, Nodes, NodesIfAny
from muster_tainter.policy.strict_model import StrictModel


class TaintRate(StrictModel):
    """At most ``nodes`` of the pool are newly tainted in any ``within`` seconds."""

    nodes: Nodes
    within: Duration


class Budget(StrictModel):
    """How many nodes of a pool the tainter may take away; what is left out is not limited. Shares are of the nodes that
    the pool (or its part in the domain) has, and are rounded up.

    tainted:            so many nodes of the pool carry taints of ours at most; 0: none ever does
    per_domain:         so many of one failure domain at most
    healthy_per_domain: so many of each failure domain stay healthy: Ready, schedulable, without a NoSchedule or
                        NoExecute taint of anybody
    rate:               so many are newly tainted within a time
    """

    tainted: NodesIfAny = None
    per_domain: NodesIfAny = None
    healthy_per_domain: NodesIfAny = None
    rate: TaintRate | None = None


class Incidents(StrictModel):
    """One check's reason that opens on so many nodes, each within so many seconds of the next, is one incident."""

    nodes: Annotated[int, Field(ge=2, le=100_000)] = 3
    within: Duration = 60.0
