"""Which faults are open: findings open them, evidence closes them. Pure functions.

The states of a fault: open; confirmed, when it has been open for its rule's wait; over and held, when it is resolved
but the node is flapping (hold-down); closed. A missing finding does not close a confirmed fault (the agent may have
lost its state). UNKNOWN neither opens nor closes. A closed fault opens again only with a higher occurrence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import ReportedFinding
from muster_tainter.faults.decision_context import EMPTY_CONTEXT, DecisionContext
from muster_tainter.faults.node_report import DISOWNED, FaultKey, NodeReport
from muster_tainter.faults.occurrence import closes, is_later_firing
from muster_tainter.faults.policy_match import (
    FaultPolicy,
    confirmed_at,
    held_until,
    match_policy,
    penalty_key,
    penalty_now,
)
from muster_tainter.faults.record.node_record import (
    LOST_CHECK,
    LOST_REASON,
    PENALTY_LEAST,
    PENALTY_LIMIT,
    REST,
    ClosedFault,
    Fault,
    FlapPenalty,
    NodeRecord,
    OurTaint,
    prune_closed,
)
from muster_tainter.policy.recovery import FOREIGN_CHECKS, ProofCheck, ProofRequest
from muster_tainter.policy.rules import CloseOn, Policy, Rule

PERSON = "person"
PASSING = "passing"
BY_ABSENCE = (PASSING, CloseOn.BOOT, DISOWNED)  # may close because a report does not show the fault
_AT_ONCE = (PERSON, PASSING, DISOWNED)  # closes without hold-down, and is no flap
_REQUEST = "request"  # NodeHealth's value for a clear that the agent carried out
_ADDRESS_LIMIT = 32  # characters, as in NodeHealth's schema; only a PCI address is used


class FaultStep(StrEnum):
    OPENED = "opened"
    RAISED = "raised"  # occurred again while open
    OVER = "over"  # resolved and held
    CLOSED = "closed"


@dataclass(frozen=True)
class FaultChange:
    """A change of one fault. how, by: what closed or resolved it (see :class:`ClosedFault`)."""

    step: FaultStep
    fault: Fault
    how: str = ""
    by: str = ""


def lost_fault(taint: OurTaint, boot: str, now: float) -> Fault:
    """The unknown reason of a taint whose record is lost: only a person or a good boot closes it."""
    return Fault(
        check=LOST_CHECK,
        component=f"taint/{taint.key}:{taint.effect}",
        reason=LOST_REASON,
        occurrence=max(1, int(now)),  # clearing an earlier loss does not clear this one
        fault_class="contact",
        since=rfc3339_whole(now),
        boot=boot,
        message=taint.value,
    )


def advance_faults(
    memory: NodeRecord,
    report: NodeReport,
    policy: Policy,
    now: float,
    released: Mapping[OurTaint, str],
    context: DecisionContext = EMPTY_CONTEXT,
) -> tuple[NodeRecord, tuple[FaultChange, ...]]:
    """The record after ``report``, and the changes. ``released``: taints that a person removed, and who."""
    if context.external:
        report = replace(report, findings={**(report.findings or {}), **context.external})
    changes: list[FaultChange] = []
    still_open: list[Fault] = []
    closed: list[ClosedFault] = []
    flapped: set[str] = set()
    penalty = memory.penalty
    # later than every pending proof, even if the clock was set back: none of them was requested for this fault
    signed = max(now, report.asked)
    for fault in memory.open:
        want = match_policy(fault, policy)
        refreshed = _refreshed(fault, report, policy, context)
        over = _closing(fault, want, report, policy, released, now, context)
        if over is None and refreshed.occurrence != fault.occurrence:
            if fault.over:  # it occurred again while it was held
                penalty = _heavier(penalty, memory, penalty_key(fault), policy, now)
                refreshed = msgspec.structs.replace(refreshed, over="", how="", by="")
            refreshed = msgspec.structs.replace(refreshed, raised=rfc3339_whole(signed))
            changes.append(FaultChange(FaultStep.RAISED, refreshed))
            still_open.append(refreshed)
            continue
        how, by = over or (fault.how, fault.by)
        fires_anew = refreshed.occurrence != fault.occurrence  # the evidence is about the old one
        if over is not None and how not in _AT_ONCE and not fault.over:
            refreshed = msgspec.structs.replace(refreshed, over=rfc3339_whole(now), how=how, by=by)
            held_s = held_until(refreshed, want, memory, policy) - seconds(refreshed.over)
            if held_s >= 1.0 and not fires_anew:
                changes.append(FaultChange(FaultStep.OVER, refreshed, how, by))
                still_open.append(refreshed)
                continue
        elif fault.over and how not in _AT_ONCE:
            if seconds(fault.over) > now + 1.0:  # the clock was set back: hold it from now on, not longer
                refreshed = msgspec.structs.replace(refreshed, over=rfc3339_whole(now))
            if held_until(refreshed, want, memory, policy) > now and not fires_anew:
                still_open.append(refreshed)
                continue
        elif over is None:
            still_open.append(refreshed)
            continue
        closed.append(_closed(fault, how, by, want, now))
        if how not in _AT_ONCE:
            flapped.add(penalty_key(fault))
        changes.append(FaultChange(FaultStep.CLOSED, fault, how, by))
    for flap in sorted(flapped - {penalty_key(fault) for fault in still_open}):
        penalty = _heavier(penalty, memory, flap, policy, now)  # the check, or device, has no open fault left
    if closed:
        # only with another change: expiry alone does not justify a write
        memory = msgspec.structs.replace(
            memory, closed=prune_closed((*closed, *memory.closed), now, _guarded(report, memory))
        )
    if penalty is not memory.penalty:
        memory = msgspec.structs.replace(memory, penalty=penalty)
    taken = {fault.key for fault in still_open}
    rests = {fault.check: fault.occurrence for fault in still_open if fault.rest}
    for key, finding in sorted((report.findings or {}).items(), key=lambda item: (item[1].occurrence, item[0])):
        if key in taken or finding.occurrence <= max(rests.get(key[0], 0), rests.get(REST, 0)):
            continue
        if _is_over(key, finding, memory, report, context):
            continue
        others = context.others.get(key, 0)
        rule = _rule_for(key[0], finding, policy, others)
        if rule is None or not rule.opens:
            continue
        fault = _opened(key[0], finding, rule, report.boot, signed)
        if others:
            fault = msgspec.structs.replace(fault, others=others, incident=context.incident.get(key, ""))
        still_open.append(fault)
        changes.append(FaultChange(FaultStep.OPENED, fault))
    opened = tuple(still_open)
    if opened != memory.open:
        memory = msgspec.structs.replace(memory, open=opened)
    return memory, tuple(changes)


def _rule_for(check: str, finding: ReportedFinding, policy: Policy, others: int) -> Rule | None:
    return policy.rule_for(check, finding.component, finding.reason, finding.verdict, finding.fault_class, others)


def _closed(fault: Fault, how: str, by: str, want: FaultPolicy, now: float) -> ClosedFault:
    return ClosedFault(
        check=fault.check,
        component=fault.component,
        reason=fault.reason,
        occurrence=fault.occurrence,
        closed_at=rfc3339_whole(now),
        by=by,
        how=how,
        rule=want.rule or fault.rule,
        since=fault.since,
        message=fault.message,
    )


def _heavier(
    penalty: Mapping[str, FlapPenalty], memory: NodeRecord, key: str, policy: Policy, now: float
) -> dict[str, FlapPenalty]:
    """``penalty`` with one more flap of ``key``; penalties that have decayed are dropped."""
    result = {
        name: known
        for name, known in penalty.items()
        if name != key and policy.hold_down.decayed(known.n, now - seconds(known.at)) >= PENALTY_LEAST
    }
    n = min(penalty_now(memory, key, now, policy) + 1.0, PENALTY_LIMIT)
    result[key] = FlapPenalty(n=round(n, 3), at=rfc3339_whole(now))
    return result


def _guarded(report: NodeReport, memory: NodeRecord) -> frozenset[FaultKey]:
    """Closed faults whose finding may still be reported: their numbers must be kept.

    A new leader may not have read the external sources yet.
    """
    if report.findings is None:
        return frozenset(closed.key for closed in memory.closed)
    foreign = (closed.key for closed in memory.closed if closed.check in FOREIGN_CHECKS)
    return frozenset(report.findings).union(foreign)


def _is_over(
    key: FaultKey, finding: ReportedFinding, memory: NodeRecord, report: NodeReport, context: DecisionContext
) -> bool:
    """This occurrence was closed before: by the tainter, by its agent, or by a person."""
    if memory.has_closed(key, finding.occurrence):
        return True
    # a fault that counted several was closed with one number: all that it counted stay closed
    if any(
        c.reason == REST and c.check in (key[0], REST) and closes(c.check, c.occurrence, finding.occurrence)
        for c in memory.closed
    ):
        return True
    over = (*(report.cleared or {}).get(key, ()), *context.over.get(key, ()))
    if any(closes(key[0], each.occurrence, finding.occurrence) for each in over):
        return True
    return report.clear_for(key, finding.occurrence) is not None


def _closing(
    fault: Fault,
    want: FaultPolicy,
    report: NodeReport,
    policy: Policy,
    released: Mapping[OurTaint, str],
    now: float,
    context: DecisionContext,
) -> tuple[str, str] | None:
    """(how, by) if the fault is resolved."""
    if want.taint is not None and want.taint in released:
        return PERSON, released[want.taint]
    if fault.device and fault.component in context.devices.released:
        return PERSON, context.devices.released[fault.component]
    clear = report.clear_for(fault.key, fault.occurrence)
    if clear is not None:
        return PERSON, clear.by or "spec.clear"
    for over in context.over.get(fault.key, ()):
        if not closes(fault.check, over.occurrence, fault.occurrence):
            continue
        if CloseOn.SOURCE in want.close_on or over.how in want.close_on:
            return _unless_passing(fault, want, now, "source", over.message or over.how)
    if not report.known:
        return None
    for over in (report.cleared or {}).get(fault.key, ()):
        if not closes(fault.check, over.occurrence, fault.occurrence):
            continue
        if over.how == _REQUEST:
            return PERSON, "spec.clear"
        if over.how == DISOWNED and fault.key not in context.external:
            return DISOWNED, "the agent never made this finding"
        if over.how in want.close_on:
            return _unless_passing(fault, want, now, over.how, over.message or "agent")
    if fault.rest and _rest_disowned(fault, report, policy):
        return DISOWNED, "the agent never made these findings"
    if CloseOn.BOOT in want.close_on and _gone_after_boot(fault, report, policy):
        return _unless_passing(fault, want, now, "boot", f"boot {report.boot}")
    if want.proof is not None:
        proof = proof_for(fault, want.proof, report)
        if proof is not None:
            return _unless_passing(
                fault, want, now, "proof", f"{want.proof.names_without(proof.without)} passed: {proof.id}"
            )
    if now < confirmed_at(fault, want, now) and fault.check in report.looked:
        left = _any_left(fault, report, policy) if fault.rest else report.finding(fault.key) is not None
        return None if left else (PASSING, f"ended within {want.wait_s:g} s")
    return None


def _unless_passing(fault: Fault, want: FaultPolicy, now: float, how: str, by: str) -> tuple[str, str]:
    return (how, by) if now >= confirmed_at(fault, want, now) else (PASSING, by)


def proof_for(fault: Fault, proof: ProofCheck, report: NodeReport) -> ProofRequest | None:
    """The request for this proof that was made after the fault's last sign and answered PASS."""
    if proof.new_boot and not _booted_anew(fault, report):
        return None
    last_sign = max(seconds(fault.since), seconds(fault.raised))
    for request in report.proved:
        if request.digest == proof.digest and request.at > last_sign:
            return request
    return None


def _booted_anew(fault: Fault, report: NodeReport) -> bool:
    return bool(report.boot and fault.boot and report.boot != fault.boot)


def _gone_after_boot(fault: Fault, report: NodeReport, policy: Policy) -> bool:
    """After a reboot, a complete run of the check measured and did not find it."""
    if not _booted_anew(fault, report):
        return False
    if fault.check == LOST_CHECK or fault.check == REST:
        return report.verdict in (Verdict.PASS, Verdict.WARN)
    if fault.check not in report.looked:
        return False
    if fault.rest:
        return not _any_left(fault, report, policy)
    return report.finding(fault.key) is None


def _rest_disowned(rest: Fault, report: NodeReport, policy: Policy) -> bool:
    """The last finding that ``rest`` counts was disowned, and the check reports none that opens faults."""
    disowned = (
        over.occurrence
        for (check, *_), entries in (report.cleared or {}).items()
        for over in entries
        if check == rest.check and over.how == DISOWNED
    )
    counted = any(closes(rest.check, number, rest.occurrence) for number in disowned)
    return counted and not _any_left(rest, report, policy)


def _any_left(rest: Fault, report: NodeReport, policy: Policy) -> bool:
    """The check still reports a finding that opens faults: it may be one that ``rest`` counts."""
    for (check, *_), finding in (report.findings or {}).items():
        if check == rest.check:
            rule = _rule_for(check, finding, policy, 0)
            if rule is not None and rule.opens:
                return True
    return False


def _refreshed(fault: Fault, report: NodeReport, policy: Policy, context: DecisionContext) -> Fault:
    """The fault updated from its finding, for changes that justify a write: a new occurrence, another boot, a worse
    verdict, and other nodes with the same finding if that changes the rule."""
    fault = _with_others(fault, policy, context)
    if not report.known and fault.key not in context.external:
        return fault
    boot = report.boot or fault.boot
    if fault.rest and _any_left(fault, report, policy):
        return fault if fault.boot == boot else msgspec.structs.replace(fault, boot=boot)
    finding = report.finding(fault.key)
    later = finding is not None and is_later_firing(fault.check, finding.occurrence, fault.occurrence)
    outdated = finding is not None and not later and finding.occurrence != fault.occurrence
    if finding is None or outdated or finding.verdict == Verdict.UNKNOWN:
        if not fault.boot and boot:  # the first pass since it was opened
            return msgspec.structs.replace(fault, boot=boot)
        return fault
    rule = _rule_for(fault.check, finding, policy, fault.others)
    if rule is None or not rule.opens:
        # a milder finding proves nothing: update only the boot in which it was seen
        return fault if fault.boot == boot else msgspec.structs.replace(fault, boot=boot)
    if later:
        fresh = _opened(fault.check, finding, rule, boot, 0.0)
        return msgspec.structs.replace(
            fresh,
            since=fault.since,
            others=fault.others,
            incident=fault.incident,
            over=fault.over,
            how=fault.how,
            by=fault.by,
        )
    if fault.key in context.external:
        boot = fault.boot or boot  # an external finding persists until resolved: it is not a sign in this boot
    same = (finding.verdict, finding.fault_class, boot) == (fault.verdict, fault.fault_class, fault.boot)
    if same:
        return fault
    return msgspec.structs.replace(fault, verdict=finding.verdict, fault_class=finding.fault_class, boot=boot)


def _with_others(fault: Fault, policy: Policy, context: DecisionContext) -> Fault:
    """A higher number of other nodes is recorded only if it changes the rule: it costs a write for each node."""
    others = context.others.get(fault.key, 0)
    if others <= fault.others or fault.rest or fault.check == LOST_CHECK:
        return fault
    more = msgspec.structs.replace(fault, others=others, incident=context.incident.get(fault.key, fault.incident))
    if match_policy(more, policy).rule == match_policy(fault, policy).rule and bool(fault.incident) == bool(
        more.incident
    ):
        return fault
    return more


def _opened(check: str, finding: ReportedFinding, rule: Rule, boot: str, now: float) -> Fault:
    first_seen = seconds(finding.first_seen)
    return Fault(
        check=check,
        component=finding.component,
        reason=finding.reason,
        occurrence=finding.occurrence,
        fault_class=finding.fault_class,
        verdict=finding.verdict,
        rule=rule.name,
        since=rfc3339_whole(now),
        first_seen=rfc3339_whole(first_seen) if first_seen else "",
        boot=boot,
        origin=finding.origin,
        message=finding.message,
        address=finding.address[:_ADDRESS_LIMIT] if finding.component.startswith("nic/") else "",
    )
