"""The models of budgets and incidents in policy.yaml. :mod:`muster_tainter.budgets.allocator` and
:mod:`muster_tainter.budgets.incidents` apply them.
"""

from typing import Annotated

from pydantic import Field

from muster_tainter.policy.sections.heavy_checks import DevicesIfAny, Duration, Nodes, NodesIfAny
from muster_tainter.policy.strict_model import StrictModel


class TaintRate(StrictModel):
    """At most ``nodes`` of the pool are newly tainted in any ``within`` seconds."""

    nodes: Nodes
    within: Duration


class Budget(StrictModel):
    """How many nodes of a pool may be tainted; a missing limit does not apply. Percentages are of the nodes of the pool
    (or of its part in the domain), rounded up.

    tainted:            maximum number of nodes of the pool with taints of ours; 0: none
    per_domain:         maximum number in one failure domain
    healthy_per_domain: minimum number of healthy nodes in each failure domain: Ready, schedulable, without a
                        NoSchedule or NoExecute taint from any source
    rate:               maximum number of newly tainted nodes within a time
    devices:            maximum number of quarantined devices (``devices.quarantine``), or a share of those that
                        ResourceSlices name on the pool's nodes; devices_per_domain: in one failure domain
    """

    tainted: NodesIfAny = None
    per_domain: NodesIfAny = None
    healthy_per_domain: NodesIfAny = None
    rate: TaintRate | None = None
    devices: DevicesIfAny = None
    devices_per_domain: DevicesIfAny = None


class Incidents(StrictModel):
    """The same reason of a check on ``nodes`` nodes, each within ``within`` seconds of the next, is one incident."""

    nodes: Annotated[int, Field(ge=2, le=100_000)] = 3
    within: Duration = 60.0
