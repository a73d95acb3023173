"""One node in one row of the fleet page: what is wrong, since when, and what was done about it. Pure.

Of a node that passes there is nothing to say but its name: of ten thousand nodes that is most.
"""

from enum import StrEnum

from muster_checks.base.vocabulary import Verdict, shorten
from muster_kube.api.objects import Node, NodeCondition
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.check_history import check_under_test, final_answer
from muster_tainter.faults.desired_state import HEALTH_LABEL, is_managed
from muster_tainter.faults.messages import CONDITION, withheld_reason
from muster_tainter.faults.node_record import ANNOTATION, Fault, NodeRecord, OurTaint, as_our_taint, read_record
from muster_tainter.faults.node_report import NodeReport, UnusableHealth, read_report
from muster_tainter.faults.policy_match import confirmed_at, held_until, match_policy
from muster_tainter.policy.recovery import read_proof_request
from muster_tainter.policy.rules import SILENT, STARTUP_KEY, Policy

MESSAGE_LIMIT = 200  # bytes of evidence in a row; a node's own page has all

Row = tuple[str | int, ...]
_QUIET: Row = (".",)
What = tuple[int, str, str, str, str, str]  # since, check, component, reason, class, message


class RowState(StrEnum):
    """What a node is shown as, the worst first. The letters are what the browser gets (page/model.js)."""

    WAITING = "W"  # a fault asks for a taint, and there is no room for it, or none may be set now
    TAINTED = "T"
    FAILING = "F"  # FAIL, and no taint asked for, or not yet
    PROVING = "P"  # tainted still; what was wrong is being proven over, or was, and the node is held for a while
    UNKNOWN = "U"
    WARNING = "N"
    NEW = "S"  # has the taint of nodes that have not passed yet
    UNMANAGED = "M"  # a person has said hands off
    TESTING = "H"
    PASSING = "."


def row(node: Node, health: NodeHealth | UnusableHealth | None, policy: Policy, now: float) -> Row:
    """(state, faults, since, check, component, reason, class, message, done, testing); of one that passes its state.

    faults: open ones, or findings as bad as the verdict. since: seconds since the epoch, 0 where that is not known.
    done: what was done about it, in words. now: seconds since the epoch
    """
    if _is_quiet(node, health):
        return _QUIET
    memory, report = read_record(node), read_report(health)
    state = state_of(node, health, memory, report, policy, now)
    if state is RowState.PASSING:
        return _QUIET
    testing = (check_under_test(health) or "") if isinstance(health, NodeHealth) else ""
    if memory.open:
        count = sum(fault.rest or 1 for fault in memory.open)
        what = _of_fault(worst_fault(memory, policy, now))
    else:
        silent = silence_condition(node)
        count, what = _of_report(report, health) if silent is None else (0, _of_silence(silent))
    done = what_was_done(state, node, health, memory, policy, now)
    return (state.value, count, *what, done, testing)


def _is_quiet(node: Node, health: NodeHealth | UnusableHealth | None) -> bool:
    """It passes, and nothing else is to be said of it; most nodes of a fleet are found so without reading them through.

    The label is the leader's word after it has read the NodeHealth: it makes sense, and its agent is not silent.
    """
    return (
        node.metadata.labels.get(HEALTH_LABEL) == "pass"
        and isinstance(health, NodeHealth)
        and health.status.verdict == Verdict.PASS
        and not health.spec.requests
        and not node.spec.taints
        and ANNOTATION not in node.metadata.annotations
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
    return RowState.TESTING if isinstance(health, NodeHealth) and check_under_test(health) else RowState.PASSING


def _asks(fault: Fault, policy: Policy, now: float) -> bool:
    """The policy in force has a taint for it, and it has been open for long enough."""
    want = match_policy(fault, policy)
    return want.taint is not None and confirmed_at(fault, want, now) <= now


def held_taints(node: Node, memory: NodeRecord) -> list[OurTaint]:
    """Taints of ours that are on the node."""
    return [taint for taint in map(as_our_taint, node.spec.taints) if taint in memory.ours]


def is_proving(health: NodeHealth | UnusableHealth | None) -> bool:
    """A request for proof stands there without its answer."""
    if not isinstance(health, NodeHealth):
        return False
    return any(
        read_proof_request(request) and final_answer(health, request) is None for request in health.spec.requests
    )


def worst_fault(memory: NodeRecord, policy: Policy, now: float) -> Fault:
    """The open fault to show: one that asks for a taint before the others, and what is not over first of all."""
    return min(memory.open, key=lambda fault: (bool(fault.over), not _asks(fault, policy, now)))


def silence_condition(node: Node) -> NodeCondition | None:
    """The condition that says that the node's agent is silent: what it has reported is of the past."""
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
            return 0, (seen, "", "", "ReportUnreadable", "", f"its NodeHealth makes no sense: {report.error}")
        return 0, (seen, "", "", "NoReport", "", "no agent has reported yet")
    found = [(key, each) for key, each in (report.findings or {}).items() if each.verdict == report.verdict]
    if not found:
        return 0, (0, "", "", "", "", "")
    key, first = min(found, key=lambda item: (item[1].first_seen, item[0]))
    since = int(seconds(first.first_seen))
    message = shorten(first.message, MESSAGE_LIMIT)
    return len(found), (since, key[0], first.component, first.reason, first.fault_class, message)


def what_was_done(
    state: RowState,
    node: Node,
    health: NodeHealth | UnusableHealth | None,
    memory: NodeRecord,
    policy: Policy,
    now: float,
) -> str:
    """In words, for the line below a node's fault. Times are left to the browser: ``{1700000000}`` is one."""
    match state:
        case RowState.WAITING:
            return f"no taint: {withheld_reason(node) or 'it is being decided'}"
        case RowState.TAINTED:
            return f"tainted by rule {match_policy(worst_fault(memory, policy, now), policy).rule or 'none'}"
        case RowState.PROVING if is_proving(health):
            return "still tainted, proof is under way"
        case RowState.PROVING:
            until = max(
                (held_until(f, match_policy(f, policy), memory, policy) for f in memory.open if f.over), default=0.0
            )
            return f"over, held until {{{int(until)}}}" if until else "still tainted"
        case RowState.FAILING if memory.open:
            return _not_tainted(worst_fault(memory, policy, now), policy, now)
        case RowState.FAILING | RowState.WARNING:
            return "told by an Event, no taint"
        case RowState.UNKNOWN:
            return "not measured, no taint"
        case RowState.NEW:
            return "takes no jobs before its first full pass"
        case RowState.UNMANAGED:
            return "left alone: muster.dev/managed=false"
    return ""


def _not_tainted(fault: Fault, policy: Policy, now: float) -> str:
    want = match_policy(fault, policy)
    if want.quarantine:
        return f"{fault.component} is kept out of use, rule {want.rule}"
    if want.taint is None:
        return f"no taint by rule {want.rule or 'none'}"
    if fault.over:
        return "over, never tainted"
    return f"to be confirmed at {{{int(confirmed_at(fault, want, now))}}}, rule {want.rule}"
