"""Which faults are open: findings open them, proof closes them. Pure.

A finding that is merely absent closes nothing (an agent may have lost its state), UNKNOWN neither opens nor closes,
and a fault that was closed opens again only by a higher occurrence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from muster_checks.vocabulary import Verdict
from muster_kube.nodehealth import Finding
from muster_kube.times import rfc3339_whole, seconds
from muster_tainter.health import FaultKey, Report
from muster_tainter.memory import (
    LOST_CHECK,
    LOST_REASON,
    REST,
    Closed,
    Fault,
    Memory,
    OurTaint,
    lost_taint,
    ours,
    prune,
)
from muster_tainter.policy import CloseOn, Policy, Rule

_REQUEST = "request"  # NodeHealth's word for a clear that the agent carried out


class Step(StrEnum):
    OPENED = "opened"
    RAISED = "raised"  # fired anew while open
    CLOSED = "closed"


@dataclass(frozen=True)
class Change:
    """What became of one fault. how, by: of a closing (see :class:`Closed`)."""

    step: Step
    fault: Fault
    how: str = ""
    by: str = ""


@dataclass(frozen=True)
class Wanted:
    """Why a fault has its taint: the rule in force, and what it asks for (None: no taint any more)."""

    rule: str
    taint: OurTaint | None
    close_on: tuple[CloseOn, ...]


def wanted(fault: Fault, policy: Policy) -> Wanted:
    """What the policy in force makes of an open fault: a changed rule moves the taints of open faults too."""
    if fault.check == LOST_CHECK:
        return Wanted("", lost_taint(fault), (CloseOn.BOOT,))
    rule: Rule | None
    if fault.rest:
        rule = policy.rule_named(fault.rule)
    else:
        rule = policy.rule_for(fault.check, fault.component, fault.reason, fault.verdict, fault.fault_class)
    if rule is None:
        return Wanted("", None, (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.QUIET))
    taint = rule.node_taint
    return Wanted(rule.name, None if taint is None else ours(taint), rule.closes_on(fault.fault_class))


def lost_fault(taint: OurTaint, boot: str, now: float) -> Fault:
    """Stands for the reason of a taint whose memory is gone: nothing but a person or a good boot says it is over."""
    return Fault(
        check=LOST_CHECK,
        component=f"taint/{taint.key}:{taint.effect}",
        reason=LOST_REASON,
        occurrence=1,
        fault_class="contact",
        since=rfc3339_whole(now),
        boot=boot,
        message=taint.value,
    )


def step(
    memory: Memory, report: Report, policy: Policy, now: float, released: Mapping[OurTaint, str]
) -> tuple[Memory, tuple[Change, ...]]:
    """The memory after ``report``, and what changed. ``released``: taints a person took off, and who."""
    changes: list[Change] = []
    still_open: list[Fault] = []
    closed: list[Closed] = []
    for fault in memory.open:
        over = _closing(fault, report, policy, released)
        if over is None:
            refreshed = _refreshed(fault, report, policy)
            if refreshed.occurrence > fault.occurrence:
                changes.append(Change(Step.RAISED, refreshed))
            still_open.append(refreshed)
            continue
        how, by = over
        closed.append(
            Closed(
                check=fault.check,
                component=fault.component,
                reason=fault.reason,
                occurrence=fault.occurrence,
                closed_at=rfc3339_whole(now),
                by=by,
                how=how,
            )
        )
        changes.append(Change(Step.CLOSED, fault, how, by))
    if closed:
        # only with another change: growing old alone is not worth a write
        memory = msgspec.structs.replace(memory, closed=prune((*closed, *memory.closed), now, _guarded(report, memory)))
    taken = {fault.key for fault in still_open}
    rests = {fault.check: fault.occurrence for fault in still_open if fault.rest}
    for key, finding in sorted((report.findings or {}).items(), key=lambda item: (item[1].occurrence, item[0])):
        if key in taken or finding.occurrence <= max(rests.get(key[0], 0), rests.get(REST, 0)):
            continue
        if _is_over(key, finding, memory, report):
            continue
        rule = policy.rule_for(key[0], finding.component, finding.reason, finding.verdict, finding.fault_class)
        if rule is None or rule.node_taint is None:
            continue
        fault = _opened(key[0], finding, rule, report.boot, now)
        still_open.append(fault)
        changes.append(Change(Step.OPENED, fault))
    opened = tuple(still_open)
    if opened != memory.open:
        memory = msgspec.structs.replace(memory, open=opened)
    return memory, tuple(changes)


def _guarded(report: Report, memory: Memory) -> frozenset[FaultKey]:
    """Closed faults whose finding may still be reported: their numbers must not be forgotten."""
    if not report.known or report.findings is None:
        return frozenset(closed.key for closed in memory.closed)
    return frozenset(report.findings)


def _is_over(key: FaultKey, finding: Finding, memory: Memory, report: Report) -> bool:
    """This firing was closed before, here or by its agent, or a person has closed it before it was seen here."""
    if finding.occurrence <= memory.closed_up_to(key):
        return True
    # a fault that counted several closed with one number: what it counted stays closed
    if any(
        c.reason == REST and c.check in (key[0], REST) and finding.occurrence <= c.occurrence for c in memory.closed
    ):
        return True
    if any(over.occurrence >= finding.occurrence for over in (report.cleared or {}).get(key, ())):
        return True
    return report.clear_for(key, finding.occurrence) is not None


def _closing(fault: Fault, report: Report, policy: Policy, released: Mapping[OurTaint, str]) -> tuple[str, str] | None:
    """(how, by) if the fault is over."""
    want = wanted(fault, policy)
    if want.taint is not None and want.taint in released:
        return "person", released[want.taint]
    clear = report.clear_for(fault.key, fault.occurrence)
    if clear is not None:
        return "person", clear.by or "spec.clear"
    if not report.known:
        return None
    for over in (report.cleared or {}).get(fault.key, ()):
        if over.occurrence < fault.occurrence:
            continue
        if over.how == _REQUEST:
            return "person", "spec.clear"
        if over.how in want.close_on:
            return over.how, over.message or "agent"
    if CloseOn.BOOT in want.close_on and _gone_after_boot(fault, report, policy):
        return "boot", f"boot {report.boot}"
    return None


def _gone_after_boot(fault: Fault, report: Report, policy: Policy) -> bool:
    """Another boot was looked through as a whole, by a check that could measure, and the finding is not there."""
    if not report.boot or not fault.boot or report.boot == fault.boot:
        return False
    if fault.check == LOST_CHECK or fault.check == REST:
        return report.verdict in (Verdict.PASS, Verdict.WARN)
    if fault.check not in report.looked:
        return False
    if fault.rest:
        return not _any_left(fault, report, policy)
    return report.finding(fault.key) is None


def _any_left(rest: Fault, report: Report, policy: Policy) -> bool:
    """The check still reports something that taints: it may be one of those that ``rest`` counts."""
    for (check, *_), finding in (report.findings or {}).items():
        if check == rest.check:
            rule = policy.rule_for(check, finding.component, finding.reason, finding.verdict, finding.fault_class)
            if rule is not None and rule.node_taint is not None:
                return True
    return False


def _refreshed(fault: Fault, report: Report, policy: Policy) -> Fault:
    """With what its finding says now, as far as it is worth a write: a new firing, another boot, a worse judgement."""
    if not report.known:
        return fault
    boot = report.boot or fault.boot
    if fault.rest and _any_left(fault, report, policy):
        return fault if fault.boot == boot else msgspec.structs.replace(fault, boot=boot)
    finding = report.finding(fault.key)
    if finding is None or finding.occurrence < fault.occurrence or finding.verdict == Verdict.UNKNOWN:
        if not fault.boot and boot:  # the first pass of the boot in which it was opened
            return msgspec.structs.replace(fault, boot=boot)
        return fault
    rule = policy.rule_for(fault.check, finding.component, finding.reason, finding.verdict, finding.fault_class)
    if rule is None or rule.node_taint is None:
        # milder words are no proof: what opened the fault stands, except that it was seen in this boot
        return fault if fault.boot == boot else msgspec.structs.replace(fault, boot=boot)
    if finding.occurrence > fault.occurrence:
        fresh = _opened(fault.check, finding, rule, boot, 0.0)
        return msgspec.structs.replace(fresh, since=fault.since)
    same = (finding.verdict, finding.fault_class, boot) == (fault.verdict, fault.fault_class, fault.boot)
    if same:
        return fault
    return msgspec.structs.replace(fault, verdict=finding.verdict, fault_class=finding.fault_class, boot=boot)


def _opened(check: str, finding: Finding, rule: Rule, boot: str, now: float) -> Fault:
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
    )
