"""One node as a row of the fleet page: what is wrong, since when, and what Muster did about it. Pure functions.

A passing node, which most of ten thousand are, is only its name.
"""

from collections.abc import Collection
from enum import StrEnum

from muster_checks.base.vocabulary import Verdict, shorten
from muster_kube.api.objects import Node, NodeCondition
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.devices.device_states import DeviceMark, DeviceState, device_states, marks
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices
from muster_tainter.faults.desired_state import HEALTH_LABEL, is_managed
from muster_tainter.faults.messages import CONDITION, withheld_reason
from muster_tainter.faults.node_report import NodeReport, UnusableHealth, read_report
from muster_tainter.faults.policy_match import confirmed_at, held_until, match_policy
from muster_tainter.faults.record.check_history import check_under_test, final_answer
from muster_tainter.faults.record.node_record import ANNOTATION, Fault, NodeRecord, OurTaint, as_our_taint, read_record
from muster_tainter.faults.role_record import ROLE_KEY
from muster_tainter.policy.recovery import read_proof_request
from muster_tainter.policy.rules import SILENT, STARTUP_KEY, Policy
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.facts import NodeRole, node_role, role_of
from muster_tainter.spares.plan import TaintSlot

MESSAGE_LIMIT = 200  # bytes of evidence in a row; the node's panel shows all

Row = tuple[str | int, ...]
_QUIET: Row = (".",)
What = tuple[int, str, str, str, str, str]  # since, check, component, reason, class, message


class RowState(StrEnum):
    """The states of a node on the page, worst first. The browser receives the letters (page/model.js)."""

    WAITING = "W"  # a fault requires a taint, but a budget or a pause withholds it
    TAINTED = "T"
    FAILING = "F"  # FAIL, and no taint required, or not yet
    PROVING = "P"  # still tainted; the fault is being verified as resolved, or is resolved and held
    DEVICE_OUT = "Q"  # works, but Muster or a driver keeps single devices out
    UNKNOWN = "U"
    WARNING = "N"
    NEW = "S"  # has the startup taint: it has not passed yet
    UNMANAGED = "M"  # labelled muster.dev/managed=false
    SPARE = "R"  # kept free, and nothing is wrong; it may run a heavy check
    REPLACEMENT = "L"  # released for a node that is still tainted
    TESTING = "H"
    PASSING = "."


_WORKS = (RowState.PASSING, RowState.TESTING)
_ROLES = {SpareRole.SPARE: RowState.SPARE, SpareRole.REPLACEMENT: RowState.REPLACEMENT}


def row(
    node: Node,
    health: NodeHealth | UnusableHealth | None,
    policy: Policy,
    now: float,
    common: Collection[TaintSlot] = (),
    devices: NodeDevices = NO_DEVICES,
) -> Row:
    """(state, faults, since, check, component, reason, class, message, done, testing, devices); only the state if it
    passes.

    faults: number of open ones, or of findings as bad as the verdict. since: seconds since the epoch, 0 if unknown.
    done: what Muster did about it. now: seconds since the epoch. common: taints of others that most nodes of a spare's
    pool have. devices: as in devices.device_states.marks; as input, those of the node's ResourceSlices
    """
    if not devices.any_tainted and _is_quiet(node, health):
        return _QUIET
    memory, report = read_record(node), read_report(health)
    states = device_states(node, memory, devices, policy, now)
    state = with_devices(state_of(node, health, memory, report, policy, now), states)
    if state is RowState.PASSING:
        return _QUIET
    testing = (check_under_test(health) or "") if isinstance(health, NodeHealth) else ""
    if memory.open:
        count = sum(fault.rest or 1 for fault in memory.open)
        what = _of_fault(worst_fault(memory, policy, now))
    else:
        silent = silence_condition(node)
        count, what = _of_report(report, health) if silent is None else (0, _of_silence(silent))
    role = node_role(node, health, policy, now, common) if state in _ROLES.values() else None
    if role is not None:
        count, what = 0, (int(seconds(role.since)) if role.since else 0, "", "", "", "", "")
    if state is RowState.DEVICE_OUT and not memory.open:
        count, what = _of_drivers(states)
    done = what_was_done(state, node, health, memory, policy, now, role, states)
    return (state.value, count, *what, done, testing, marks(states))


def _is_quiet(node: Node, health: NodeHealth | UnusableHealth | None) -> bool:
    """Whether it passes and there is nothing else to show; a quick test that holds for most nodes.

    The leader sets the label after it has read the NodeHealth: the report is valid and the agent is not silent.
    """
    return (
        node.metadata.labels.get(HEALTH_LABEL) == "pass"
        and isinstance(health, NodeHealth)
        and health.status.verdict == Verdict.PASS
        and not health.spec.requests
        and not node.spec.taints
        and ANNOTATION not in node.metadata.annotations
        and ROLE_KEY not in node.metadata.labels
        and is_managed(node)
    )


def state_of(
    node: Node,
    health: NodeHealth | UnusableHealth | None,
    memory: NodeRecord,
    report: NodeReport,
    policy: Policy,
    now: float,
) -> RowState:
    if not is_managed(node):
        return RowState.UNMANAGED
    faults = [fault for fault in memory.open if _asks(fault, policy, now)]
    if held_taints(node, memory):
        return RowState.PROVING if is_proving(health) or all(fault.over for fault in faults) else RowState.TAINTED
    if any(not fault.over for fault in faults):
        return RowState.WAITING
    if any(match_policy(fault, policy).device is not None for fault in memory.open):
        return RowState.DEVICE_OUT
    if memory.open:
        return RowState.FAILING
    if any(taint.key == STARTUP_KEY for taint in node.spec.taints):
        return RowState.NEW
    if not report.known or silence_condition(node) is not None:
        return RowState.UNKNOWN
    match report.verdict:
        case Verdict.FAIL:
            return RowState.FAILING
        case Verdict.UNKNOWN:
            return RowState.UNKNOWN
        case Verdict.WARN:
            return RowState.WARNING
    if (role := role_of(node)) in _ROLES:
        return _ROLES[role]
    return RowState.TESTING if isinstance(health, NodeHealth) and check_under_test(health) else RowState.PASSING


def with_devices(state: RowState, states: Collection[DeviceState]) -> RowState:
    """The state of a node that works, but for devices that its drivers keep out."""
    by_driver = any(each.mark is DeviceMark.BY_DRIVER for each in states)
    return RowState.DEVICE_OUT if by_driver and state in _WORKS else state


def _asks(fault: Fault, policy: Policy, now: float) -> bool:
    """The active policy sets a taint for it, and it has been open long enough."""
    want = match_policy(fault, policy)
    return want.taint is not None and confirmed_at(fault, want, now) <= now


def held_taints(node: Node, memory: NodeRecord) -> list[OurTaint]:
    """Muster's taints on the node."""
    return [taint for taint in map(as_our_taint, node.spec.taints) if taint in memory.ours]


def is_proving(health: NodeHealth | UnusableHealth | None) -> bool:
    """A verification request has no final answer yet."""
    if not isinstance(health, NodeHealth):
        return False
    return any(
        read_proof_request(request) and final_answer(health, request) is None for request in health.spec.requests
    )


def worst_fault(memory: NodeRecord, policy: Policy, now: float) -> Fault:
    """The open fault to show: unresolved ones first, then those that require a taint, then those whose device is kept
    out alone."""

    def rank(fault: Fault) -> tuple[bool, bool, bool]:
        return bool(fault.over), not _asks(fault, policy, now), match_policy(fault, policy).device is None

    return min(memory.open, key=rank)


def silence_condition(node: Node) -> NodeCondition | None:
    """The condition that reports a silent agent; the node's last report is outdated then."""
    return next((c for c in node.status.conditions if c.type == CONDITION and c.reason == SILENT[2]), None)


def _of_silence(condition: NodeCondition) -> What:
    since = int(seconds(condition.last_transition_time or ""))
    return since, *SILENT, "", shorten(condition.message, MESSAGE_LIMIT)


def _of_fault(fault: Fault) -> What:
    message = shorten(fault.message, MESSAGE_LIMIT)
    return int(seconds(fault.since)), fault.check, fault.component, fault.reason, fault.fault_class, message


def _of_report(report: NodeReport, health: NodeHealth | UnusableHealth | None) -> tuple[int, What]:
    """Number of findings as bad as the verdict, and the first of them."""
    if not report.known:
        seen = int(seconds(health.status.observed_at)) if isinstance(health, NodeHealth) else 0
        if report.error:
            return 0, (seen, "", "", "ReportUnreadable", "", f"invalid NodeHealth: {report.error}")
        return 0, (seen, "", "", "NoReport", "", "no agent has reported yet")
    found = [(key, each) for key, each in (report.findings or {}).items() if each.verdict == report.verdict]
    if not found:
        return 0, (0, "", "", "", "", "")
    key, first = min(found, key=lambda item: (item[1].first_seen, item[0]))
    since = int(seconds(first.first_seen))
    message = shorten(first.message, MESSAGE_LIMIT)
    return len(found), (since, key[0], first.component, first.reason, first.fault_class, message)


def _of_drivers(states: Collection[DeviceState]) -> tuple[int, What]:
    """Number of devices that drivers keep out, and the first of them."""
    out = [each for each in states if each.mark is DeviceMark.BY_DRIVER]
    taint = next(taint for taint in out[0].taints if taint.keeps_out)
    return len(out), (int(seconds(taint.since)), "", out[0].device, "TaintedByDriver", "", taint.text)


def what_was_done(
    state: RowState,
    node: Node,
    health: NodeHealth | UnusableHealth | None,
    memory: NodeRecord,
    policy: Policy,
    now: float,
    role: NodeRole | None = None,
    devices: Collection[DeviceState] = (),
) -> str:
    """The line below a node's fault. Times are formatted by the browser: ``{1700000000}`` is one."""
    match state:
        case RowState.WAITING:
            return f"not tainted: {withheld_reason(node) or 'not processed yet'}"
        case RowState.TAINTED:
            return f"tainted by rule {match_policy(worst_fault(memory, policy, now), policy).rule or 'none'}"
        case RowState.PROVING if is_proving(health):
            return "still tainted, verification is running"
        case RowState.PROVING:
            until = max(
                (held_until(f, match_policy(f, policy), memory, policy) for f in memory.open if f.over), default=0.0
            )
            return f"resolved, held until {{{int(until)}}}" if until else "still tainted"
        case RowState.DEVICE_OUT if not memory.open:
            return _by_driver(devices)
        case RowState.FAILING | RowState.DEVICE_OUT if memory.open:
            return _not_tainted(worst_fault(memory, policy, now), policy, now)
        case RowState.FAILING | RowState.WARNING:
            return "reported as an Event, no taint"
        case RowState.UNKNOWN:
            return "not measured, no taint"
        case RowState.NEW:
            return "startup taint until its first full pass"
        case RowState.SPARE | RowState.REPLACEMENT if role is not None:
            return str(role)
        case RowState.UNMANAGED:
            return "not managed: muster.dev/managed=false"
    return ""


def _not_tainted(fault: Fault, policy: Policy, now: float) -> str:
    want = match_policy(fault, policy)
    if want.quarantine:
        return f"{fault.component} is quarantined by rule {want.rule}"
    if want.device is not None:
        return f"{fault.component} is quarantined alone by rule {want.rule}, the node is not tainted"
    if want.taint is None:
        return f"no taint by rule {want.rule or 'none'}"
    if fault.over:
        return "resolved, was never tainted"
    return f"waits for confirmation until {{{int(confirmed_at(fault, want, now))}}}, rule {want.rule}"


def _by_driver(devices: Collection[DeviceState]) -> str:
    out = [each for each in devices if each.mark is DeviceMark.BY_DRIVER]
    taints = dict.fromkeys(taint.text for each in out for taint in each.taints if taint.keeps_out)
    what = out[0].device if len(out) == 1 else f"{len(out)} devices"
    more = f" and {len(taints) - 1} more" if len(taints) > 1 else ""
    return f"{what} kept out by the driver ({next(iter(taints), '')}{more}), not by Muster"
