"""The texts of decisions: Events on the Node, the Node's condition, one-line faults and taints. Pure functions."""

from collections.abc import Iterable
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten
from muster_kube.api.objects import Node, NodeCondition, Taint
from muster_kube.nodehealth import ClearEntry
from muster_tainter.faults.decision_context import AssignedRole
from muster_tainter.faults.lifecycle import FaultChange, FaultStep
from muster_tainter.faults.node_report import DISOWNED, NodeReport
from muster_tainter.faults.occurrence import is_jump
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import Fault, NodeRecord, OurTaint, as_our_taint
from muster_tainter.policy.rules import SILENT, SPARE_KEY, Policy

CONDITION = "muster.dev/Healthy"
MESSAGE_LIMIT = 800  # bytes of an Event's or condition's message; the API accepts 1024 for an Event


@dataclass(frozen=True)
class Notice:
    """An Event on the Node. ``about``: the fault or taint; repeats about the same one are counted in one Event.
    per_finding: a node has as many of these as findings, so their number is limited."""

    reason: str
    message: str
    about: str
    warning: bool = True
    per_finding: bool = False


@dataclass(frozen=True)
class TaintChange:
    """One log line. rule: the rules that want or wanted the taint; first: the node had no taint of ours before."""

    taint: Taint
    added: bool
    rule: str
    why: str
    first: bool = False


def format_taint(taint: Taint | OurTaint) -> str:
    """In kubectl's format: ``key=value:effect``."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def describe_fault(fault: Fault) -> str:
    """One line: the fault and its evidence."""
    if fault.rest:
        return f"{fault.rest} more faults of {fault.check}"
    text = f"{fault.check} {fault.component} {fault.reason}"
    return f"{text}: {fault.message}" if fault.message else text


def fault_notices(change: FaultChange, policy: Policy) -> list[Notice]:
    """The Events for one change of a fault."""
    fault = change.fault
    about = "/".join(fault.key)
    if change.step is FaultStep.CLOSED:
        text = shorten(f"closed ({change.how}, {change.by}): {describe_fault(fault)}", MESSAGE_LIMIT)
        notices = [Notice("FaultClosed", text, about, warning=False, per_finding=True)]
        if change.how == DISOWNED:
            forged = (
                f"the agent never made this finding, so somebody else wrote the NodeHealth: {describe_fault(fault)}"
            )
            notices.append(Notice("FindingDisowned", shorten(forged, MESSAGE_LIMIT), about, per_finding=True))
        return notices
    if change.step is FaultStep.OVER:
        text = shorten(
            f"resolved ({change.how}, {change.by}), held because it is flapping: {describe_fault(fault)}",
            MESSAGE_LIMIT,
        )
        return [Notice("FaultHeld", text, about, warning=False, per_finding=True)]
    if fault.key == SILENT:
        text = f"{fault.message} [rule {match_policy(fault, policy).rule}]"
        return [Notice(fault.reason, shorten(text, MESSAGE_LIMIT), about)]
    again = " again" if change.step is FaultStep.RAISED else ""
    asks = f" [{fault.fault_class}, rule {match_policy(fault, policy).rule}]"
    text = shorten(describe_fault(fault), MESSAGE_LIMIT - len(asks) - 8) + again + asks
    return [Notice("NodeFaultOpened", text, about, per_finding=True)]


def jump_notices(changes: Iterable[FaultChange], before: NodeRecord, clears: Iterable[ClearEntry]) -> list[Notice]:
    """The Events for occurrences far above the last one, as only a forged or edited report has them."""
    known = [(each.check, each.occurrence) for each in before.open]
    known += [(each.check, each.occurrence) for each in before.closed]
    known += [(each.check, each.occurrence) for each in clears]
    notices = []
    for change in changes:
        fault = change.fault
        if change.step not in (FaultStep.OPENED, FaultStep.RAISED):
            continue
        last = max((number for check, number in known if check == fault.check), default=0)
        if is_jump(fault.check, fault.occurrence, last):
            text = (
                f"occurrence {fault.occurrence} is far above the last one, {last}: somebody may have forged the report;"
                f" it closes and hides no other occurrence: {describe_fault(fault)}"
            )
            about = "/".join(fault.key)
            notices.append(Notice("OccurrenceRefused", shorten(text, MESSAGE_LIMIT), about, per_finding=True))
    return notices


def taint_notices(
    changes: tuple[TaintChange, ...], before: NodeRecord, policy: Policy | None, spare: AssignedRole | None = None
) -> list[Notice]:
    """The Events for taints that are set and removed. before: the previous record; policy: None if unmanaged."""
    notices = []
    for change in changes:
        text = format_taint(change.taint)
        if change.taint.key == SPARE_KEY:
            reason = "SpareTaken" if change.added else "SpareReleased"
            notices.append(Notice(reason, change.why, text, warning=spare is not None and not spare.ready))
        elif not change.added:
            message = shorten(f"{text}: {change.why}", MESSAGE_LIMIT)
            notices.append(Notice("NodeUntainted", message, text, warning=False))
        elif as_our_taint(change.taint) in before.ours and policy is not None and change.why == "put back":
            message = f"{text} was removed while its fault is open, so it is set again; to release: muster clear NODE"
            notices.append(Notice("TaintPutBack", message, text))
        else:
            notices.append(Notice("NodeTainted", shorten(f"{text}: {change.why}", MESSAGE_LIMIT), text))
    return notices


_WITHHELD = "; no taint: "
_UNREADABLE = "ReportUnreadable"


def withheld_reason(node: Node) -> str:
    """Why a wanted taint is not set, read from the condition; empty if none is wanted or all are set."""
    return next((c.message.partition(_WITHHELD)[2] for c in node.status.conditions if c.type == CONDITION), "")


def was_unknown_otherwise(node: Node, condition: NodeCondition) -> bool:
    """Whether the node's health was unknown for another reason than an invalid report, until ``condition`` is written:
    its label does not change then."""
    current = next((each for each in node.status.conditions if each.type == CONDITION), None)
    return current is not None and current.status == "Unknown" and current.reason not in (_UNREADABLE, condition.reason)


def _first(faults: Iterable[Fault]) -> Fault:
    """The fault to show: unresolved ones first."""
    return min(faults, key=lambda fault: bool(fault.over))


def node_condition(
    memory: NodeRecord, report: NodeReport, policy: Policy, withheld: str, silence: str
) -> NodeCondition:
    """``muster.dev/Healthy``. withheld: why a wanted taint is not set; silence: description of the agent's silence."""
    faults = [fault for fault in memory.open if fault.key != SILENT]
    if silence and not faults:
        tail = f"{_WITHHELD}{withheld}" if withheld else ""
        return NodeCondition(
            type=CONDITION, status="Unknown", reason=SILENT[2], message=shorten(silence, MESSAGE_LIMIT) + tail
        )
    if memory.open:
        fault = _first(faults or memory.open)
        want = match_policy(fault, policy)
        more = f"; {len(memory.open) - 1} more" if len(memory.open) > 1 else ""
        over = f"; resolved {fault.over} ({fault.how}), held" if fault.over else ""
        tail = f" (class {fault.fault_class or 'none'}, rule {want.rule or 'none'}, since {fault.since}{over}{more})"
        tail += f"{_WITHHELD}{withheld}" if withheld else ""
        return NodeCondition(
            type=CONDITION,
            status="False",
            reason="Faults" if fault.rest else fault.reason,
            message=shorten(describe_fault(fault), MESSAGE_LIMIT) + tail,
        )
    if not report.known:
        reason = _UNREADABLE if report.error else "NoReport"
        return NodeCondition(
            type=CONDITION,
            status="Unknown",
            reason=reason,
            message=shorten(report.error or "no agent has reported yet"),
        )
    match report.verdict:
        case Verdict.UNKNOWN:
            return NodeCondition(
                type=CONDITION, status="Unknown", reason="NotMeasured", message="at least one check returned UNKNOWN"
            )
        case Verdict.FAIL | Verdict.WARN:
            failing = sorted(
                (f for f in (report.findings or {}).items() if f[1].verdict == report.verdict), key=lambda item: item[0]
            )
            key, finding = failing[0] if failing else (("", "", ""), None)
            message = f"{key[0]} {key[1]} {key[2]}: {finding.message}" if finding else f"verdict {report.verdict}"
            reason = "Failures" if report.verdict == Verdict.FAIL else "Warnings"
            status = "False" if report.verdict == Verdict.FAIL else "True"
            return NodeCondition(type=CONDITION, status=status, reason=reason, message=shorten(message, MESSAGE_LIMIT))
        case _:
            return NodeCondition(type=CONDITION, status="True", reason="Passed", message="every check passed")
