"""The faults that Nodes and NodeHealths remember: open ones, and the last eight that were closed within a day.

Events add nothing to that: the API server keeps them for an hour.
"""

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.record.node_record import ANNOTATION, UnreadableRecord, decode_record
from muster_tainter.simulation.history.fleet_groups import PastNode
from muster_tainter.simulation.history.past_faults import PastFault, PastFaults
from muster_tainter.simulation.history.prometheus_history import NO_CLASS
from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED


def remember_node(node: PastNode, faults: PastFaults) -> bool:
    """Add the faults of the tainter's record, and since when the node is not Ready. False: the record is unreadable."""
    name = node.metadata.name
    for condition in node.status.conditions:
        since = seconds(condition.last_transition_time or "")
        if condition.type == "Ready" and condition.status != "True" and since and not node.spec.unschedulable:
            faults.add_not_ready(name, since, UNTIL_REPAIRED)
    try:
        record = decode_record(node.metadata.annotations.get(ANNOTATION))
    except UnreadableRecord:
        return False
    for fault in record.open:
        if not fault.rest:
            end = seconds(fault.over) or UNTIL_REPAIRED
            start = seconds(fault.first_seen) or seconds(fault.since)
            faults.add(
                PastFault(
                    name, fault.component, fault.check, fault.reason, fault.fault_class or NO_CLASS, start or end, end
                )
            )
    for closed in record.closed:
        end = seconds(closed.closed_at)
        start = seconds(closed.since)
        if start and end:
            # the record of a closed fault has no class
            faults.add(PastFault(name, closed.component, closed.check, closed.reason, "", start, end))
    return True


def remember_health(health: NodeHealth, faults: PastFaults) -> None:
    """Add the findings that are FAIL now."""
    for check in health.status.checks:
        for finding in check.findings:
            start = seconds(finding.first_seen)
            if finding.verdict == Verdict.FAIL and start:
                faults.add(
                    PastFault(
                        health.metadata.name, finding.component, check.name, finding.reason,
                        finding.fault_class or NO_CLASS, start, UNTIL_REPAIRED,
                    )
                )  # fmt: skip
