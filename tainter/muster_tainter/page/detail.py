"""The details of one node for its panel: what is wrong, what Muster did, what closes it, and its history. Pure."""

from collections.abc import Collection
from typing import Any, TypedDict

import msgspec

from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth, ReportedFinding
from muster_tainter.devices.device_states import DeviceState, device_states
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.faults.messages import format_taint
from muster_tainter.faults.node_report import NodeReport, UnusableHealth, read_report
from muster_tainter.faults.policy_match import FaultPolicy, confirmed_at, held_until, match_policy
from muster_tainter.faults.record.check_history import check_under_test
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    LOST_CHECK,
    Fault,
    NodeRecord,
    OurTaint,
    UnreadableRecord,
    as_our_taint,
    decode_record,
)
from muster_tainter.page.rows import held_taints, is_proving, silence_condition, state_of, what_was_done, with_devices
from muster_tainter.policy.recovery import SOURCE_CHECKS
from muster_tainter.policy.rules import SPARE_KEY, CloseOn, Policy
from muster_tainter.spares.facts import NodeRole, node_role
from muster_tainter.spares.plan import TaintSlot

_ENDS = {
    CloseOn.BOOT: "a reboot, after which the check no longer finds it",
    CloseOn.DRIVER: "the driver reporting that it is resolved",
    CloseOn.QUIET: "the check's quiet time passing without a new sign",
    CloseOn.SOURCE: "its source reporting that it is resolved",
}
_PERSON = "an operator: muster clear, or the button below"


class TaintDetail(TypedDict):
    text: str
    ours: bool


class CheckDetail(TypedDict):
    name: str
    verdict: str


class NodeDetail(TypedDict):
    """The details of one node. Times are RFC 3339 as in the objects, or empty.

    faults: from the node record, with rule, taint, evidence, and what closes each; findings: those without a fault
    closed: recently closed faults; attempts: repairs, by class; role: of a spare or a replacement, whatever its state
    devices: those that its ResourceSlices name, while the tainter watches them
    """

    node: str
    state: str
    done: str
    role: NodeRole | None
    pool: str
    pools: list[str]
    domain: str
    managed: bool
    unschedulable: bool
    errors: list[str]
    verdict: str
    boot: str
    observedAt: str
    idleSince: str
    testing: str
    proving: bool
    tainted: str
    taints: list[TaintDetail]
    faults: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    closed: list[dict[str, Any]]
    checks: list[CheckDetail]
    attempts: dict[str, dict[str, Any]]
    devices: tuple[DeviceState, ...]


def describe_node(
    node: Node,
    health: NodeHealth | UnusableHealth | None,
    policy: Policy,
    now: float,
    common: Collection[TaintSlot] = (),
    devices: NodeDevices = NO_DEVICES,
) -> NodeDetail:
    """The JSON of one node. common, devices: as in :func:`muster_tainter.page.rows.row`."""
    error = ""
    try:
        memory = decode_record(node.metadata.annotations.get(ANNOTATION))
    except UnreadableRecord as unreadable:
        memory, error = NodeRecord(), f"annotation {ANNOTATION} cannot be read: {unreadable}"
    report = read_report(health)
    states = device_states(node, memory, devices, policy, now)
    state = with_devices(state_of(node, health, memory, report, policy, now), states)
    pool = policy.pool_of(node.metadata.labels)
    status = health.status if isinstance(health, NodeHealth) else None
    silent = silence_condition(node)
    held = held_taints(node, memory)
    open_keys = {fault.key for fault in memory.open}
    role = node_role(node, health, policy, now, common)
    return {
        "node": node.metadata.name,
        "state": state.value,
        "done": what_was_done(state, node, health, memory, policy, now, role, states),
        "role": role,
        "pool": pool.name if pool else "",
        "pools": [each.name for each in policy.pools_of(node.metadata.labels)],
        "domain": pool.domain_of(node.metadata.labels) if pool else "",
        "managed": is_managed(node),
        "unschedulable": node.spec.unschedulable,
        "errors": [each for each in (error, report.error, silent.message if silent else "") if each],
        "verdict": report.verdict if report.known else "",
        "boot": report.boot,
        "observedAt": status.observed_at if status else "",
        "idleSince": status.idle_since if status else "",
        "testing": (check_under_test(health) or "") if isinstance(health, NodeHealth) else "",
        "proving": is_proving(health),
        "tainted": memory.tainted if memory.ours else "",
        "taints": [
            {"text": format_taint(taint), "ours": as_our_taint(taint) in memory.ours or taint.key == SPARE_KEY}
            for taint in node.spec.taints
        ],
        "faults": [_fault(fault, report, memory, policy, now, held) for fault in memory.open],
        "findings": [_finding(key, finding, policy) for key, finding in _ordered(report) if key not in open_keys],
        "closed": [msgspec.to_builtins(closed) for closed in memory.closed],
        "checks": [{"name": check.name, "verdict": check.verdict} for check in status.checks] if status else [],
        "attempts": {name: msgspec.to_builtins(attempt) for name, attempt in memory.attempts.items()},
        "devices": states,
    }


_ORDER = ("FAIL", "WARN", "UNKNOWN")


def _ordered(report: NodeReport) -> list[tuple[tuple[str, str, str], ReportedFinding]]:
    """Findings, worst first."""

    def rank(item: tuple[tuple[str, str, str], ReportedFinding]) -> tuple[int, tuple[str, str, str]]:
        key, finding = item
        return _ORDER.index(finding.verdict) if finding.verdict in _ORDER else len(_ORDER), key

    return sorted((report.findings or {}).items(), key=rank)


def _fault(
    fault: Fault, report: NodeReport, memory: NodeRecord, policy: Policy, now: float, there: list[OurTaint]
) -> dict[str, Any]:
    want = match_policy(fault, policy)
    finding = report.finding(fault.key)
    held = held_until(fault, want, memory, policy) if fault.over else 0.0
    confirmed = confirmed_at(fault, want, now)
    return {
        **msgspec.to_builtins(fault),
        "message": finding.message if finding else fault.message,
        "reported": finding is not None,
        "rule": want.rule,
        "taint": format_taint(want.taint) if want.taint else "",
        "isSet": want.taint in there,
        "quarantine": want.quarantine or want.device is not None,
        "confirmedAt": int(confirmed) if confirmed > now else 0,
        "heldUntil": int(held),
        "ends": _ends(fault, want),
        **(_evidence(finding) if finding else {}),
    }


def _ends(fault: Fault, want: FaultPolicy) -> list[str]:
    """What would close the fault, one text for each way."""
    if fault.over:
        return ["the hold-down: the fault is resolved, but the node is flapping", _PERSON]
    if fault.check == LOST_CHECK:
        return ["a boot in which every check passes", _PERSON]
    ways = [way for way in want.close_on if way is not CloseOn.SOURCE or fault.check in SOURCE_CHECKS]
    ends = [_ENDS[way] for way in ways if way in _ENDS]
    if want.proof is not None:
        times = f"{want.proof.proof.passes} times" if want.proof.proof.passes > 1 else "once"
        after = ", after a reboot" if want.proof.new_boot else ""
        ends.insert(0, f"verification: {' and '.join(want.proof.names)} passes {times}{after}")
    return [*ends, _PERSON]


def _finding(key: tuple[str, str, str], finding: ReportedFinding, policy: Policy) -> dict[str, Any]:
    rule = policy.rule_for(key[0], finding.component, finding.reason, finding.verdict, finding.fault_class)
    return {
        "check": key[0],
        "component": finding.component,
        "reason": finding.reason,
        "verdict": finding.verdict,
        "class": finding.fault_class,
        "message": finding.message,
        "rule": rule.name if rule else "",
        "occurrence": finding.occurrence,
        **_evidence(finding),
    }


def _evidence(finding: ReportedFinding) -> dict[str, Any]:
    return {
        "firstSeen": finding.first_seen,
        "lastSeen": finding.last_seen if seconds(finding.last_seen) > seconds(finding.first_seen) else "",
        "count": finding.count,
        "origin": finding.origin,
        "measurements": [
            {"name": each.name, "value": each.value, "unit": each.unit, "threshold": each.threshold}
            for each in finding.measurements
        ],
    }
