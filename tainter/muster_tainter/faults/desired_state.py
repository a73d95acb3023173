"""Computes what a Node should carry from the Node, its NodeHealth and the policy. Pure, level-triggered, idempotent.

The Node's own annotation is the only state: ``decide`` for a Node with an applied decision changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster_checks.base.vocabulary import Verdict, shorten
from muster_kube.api.objects import Node, NodeCondition, Taint
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.decision_context import EMPTY_CONTEXT, AssignedRole, DecisionContext
from muster_tainter.faults.device_isolation import (
    Isolation,
    isolate_devices,
    isolated_components,
    isolation_notices,
)
from muster_tainter.faults.lifecycle import FaultChange, FaultStep, advance_faults, lost_fault
from muster_tainter.faults.messages import (
    MESSAGE_LIMIT,
    Notice,
    TaintChange,
    describe_fault,
    fault_notices,
    jump_notices,
    node_condition,
    taint_notices,
    was_unknown_otherwise,
    withheld_reason,
)
from muster_tainter.faults.node_report import FaultKey, NodeReport, UnusableHealth, read_report
from muster_tainter.faults.policy_match import confirmed_at, held_until, match_policy
from muster_tainter.faults.record import node_record as remembered
from muster_tainter.faults.record.check_history import TESTING_LABEL, check_under_test, pre_flight_left
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    UNREADABLE_ANNOTATION,
    Fault,
    NodeRecord,
    OurTaint,
    UnreadableRecord,
    as_our_taint,
)
from muster_tainter.faults.record_trust import trusted_record, untrusted_notices
from muster_tainter.faults.role_record import ROLE_KEY, role_annotation
from muster_tainter.policy.repair import LABEL as REPAIR_LABEL
from muster_tainter.policy.rules import NOT_FOR_FAULTS, OUR_PREFIX, SILENT, SPARE_KEY, STARTUP_KEY, Policy
from muster_tainter.policy.spares import SpareRole

FAULTY_LABEL = "muster.dev/faulty"
HEALTH_LABEL = "muster.dev/health"
MANAGED_LABEL = "muster.dev/managed"
READY = "Ready"  # the kubelet's
OUR_LABELS = (FAULTY_LABEL, HEALTH_LABEL, MANAGED_LABEL, TESTING_LABEL, REPAIR_LABEL, ROLE_KEY, SPARE_KEY)
SPARE_TAINT = Taint(key=SPARE_KEY, value="true", effect="NoSchedule")
# Written to a Node that waits for a place, so that no write of a former leader, which names an earlier version of the
# Node, can taint it any more (muster_tainter.budgets.reservations)
FENCE_ANNOTATION = "muster.dev/fence"
OUR_ANNOTATIONS = (ANNOTATION, UNREADABLE_ANNOTATION, ROLE_KEY, FENCE_ANNOTATION)

_ASIDE_LIMIT = 16 << 10  # characters of an unreadable annotation that are kept

_HEALTH = {Verdict.PASS: "pass", Verdict.SKIP: "pass", Verdict.WARN: "warn", Verdict.FAIL: "fail"}


@dataclass(frozen=True)
class Decision:
    """What to write to the Node, and what to report after the write.

    taints:      the complete list, None for no change; labels, annotations: None removes the key
    condition:   the desired muster.dev/Healthy (None: absent); written after the taints
    changes:     faults opened, raised, over and closed; memory: the node record after the write
    withheld:    why a wanted taint is not set; empty if none is wanted or all are set
    isolates:    components that are kept out of use from now on, alone; they count against budgets of devices
    device_waits: components that are not kept out yet, because nothing more may be
    again_at:    when time alone changes this decision, in seconds since the epoch
    """

    taints: tuple[Taint, ...] | None = None
    labels: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    condition: NodeCondition | None = None
    changes: tuple[FaultChange, ...] = ()
    taint_changes: tuple[TaintChange, ...] = ()
    memory: NodeRecord = field(default_factory=NodeRecord)
    withheld: str = ""
    isolates: frozenset[str] = frozenset()
    device_waits: frozenset[str] = frozenset()
    again_at: float = float("inf")

    @property
    def writes(self) -> bool:
        return self.taints is not None or bool(self.labels) or bool(self.annotations)

    @property
    def takes_a_place(self) -> bool:
        """It gives the node its first taint of ours; only such decisions count against budgets."""
        return any(change.added and change.first for change in self.taint_changes)

    @property
    def urgent(self) -> bool:
        """It changes taints or faults, not only labels."""
        return self.taints is not None or bool(self.annotations)

    def patch(self, resource_version: str) -> dict[str, Any]:
        """The JSON merge patch of the Node."""
        metadata: dict[str, Any] = {"resourceVersion": resource_version}
        if self.labels:
            metadata["labels"] = self.labels
        if self.annotations:
            metadata["annotations"] = self.annotations
        body: dict[str, Any] = {"metadata": metadata}
        if self.taints is not None:
            body["spec"] = {"taints": self.taints or None}
        return body

    def applied(self, node: Node) -> Node:
        """``node`` after the write."""
        metadata = msgspec.structs.replace(
            node.metadata,
            labels=_merged(node.metadata.labels, self.labels),
            annotations=_merged(node.metadata.annotations, self.annotations),
        )
        if self.taints is None:
            return msgspec.structs.replace(node, metadata=metadata)
        return msgspec.structs.replace(
            node, metadata=metadata, spec=msgspec.structs.replace(node.spec, taints=self.taints)
        )


def _merged(old: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**old, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def is_managed(node: Node) -> bool:
    return node.metadata.labels.get(MANAGED_LABEL) != "false"


def may_carry_ours(node: Node) -> bool:
    """It has a record, or a taint with our prefix."""
    return ANNOTATION in node.metadata.annotations or any(t.key.startswith(OUR_PREFIX) for t in node.spec.taints)


def recall_record(node: Node) -> NodeRecord:
    """The Node's record. Raises UnreadableRecord."""
    return remembered.decode_record(node.metadata.annotations.get(ANNOTATION))


def is_ours(taint: Taint, memory: NodeRecord) -> bool:
    """According to the record, or by its prefix."""
    return taint.key.startswith(OUR_PREFIX) or as_our_taint(taint) in memory.ours


def missing_taints(node: Node, policy: Policy) -> tuple[OurTaint, ...]:
    """Taints that Muster set, that an open fault still requires, and that are missing."""
    try:
        memory = recall_record(node)
    except UnreadableRecord:
        return ()
    if not memory.ours or not is_managed(node):
        return ()
    there = {(taint.key, taint.effect) for taint in node.spec.taints}
    missing = [taint for taint in memory.ours if (taint.key, taint.effect) not in there]
    if not missing:
        return ()
    wants = {match_policy(fault, policy).taint for fault in memory.open}
    return tuple(taint for taint in missing if taint in wants)


def decide(
    node: Node,
    health: NodeHealth | UnusableHealth | None,
    policy: Policy,
    now: float,
    released: Mapping[OurTaint, str] | None = None,
    context: DecisionContext = EMPTY_CONTEXT,
) -> Decision:
    """The decision for ``node``. ``now``: seconds since the epoch; ``released``: taints that a person removed."""
    if not is_managed(node):
        return _hands_off(node, policy)
    report = read_report(health)
    notices: list[Notice] = []
    annotations: dict[str, str | None] = {}
    try:
        stored = recall_record(node)
        memory = before = trusted_record(stored, node, policy)
    except UnreadableRecord as error:
        stored = memory = before = NodeRecord()
        aside = node.metadata.annotations[ANNOTATION][:_ASIDE_LIMIT]
        annotations = {ANNOTATION: None, UNREADABLE_ANNOTATION: aside}
        text = f"annotation {ANNOTATION} cannot be read ({error}); kept in {UNREADABLE_ANNOTATION} and rebuilt"
        notices.append(Notice("MemoryUnreadable", shorten(text, MESSAGE_LIMIT), "memory"))
        memory, changes = advance_faults(memory, report, policy, now, {}, context)
        memory = _with_lost(memory, node, report, policy, now)
    else:
        memory, changes = advance_faults(memory, report, policy, now, released or {}, context)
        notices += untrusted_notices(node, stored, before)
    notices += [notice for change in changes for notice in fault_notices(change, policy)]
    memory = remembered.fit_record(memory)
    idle = isinstance(health, NodeHealth) and bool(health.status.idle_since)
    isolation, memory, wants = _isolated(memory, before, policy, now, context, idle=idle)
    withheld, waiting = isolation.withheld, [fault for fault in memory.open if fault.key in isolation.waiting]
    new = [taint for taint in wants if not _is_set(taint, node, before)] if context.withhold else []
    if new:
        withheld, waiting = context.withhold, [wants[taint][0] for taint in new]
        isolation, memory, wants = _isolated(memory, before, policy, now, context, idle=idle, node_withheld=True)
        wants = {taint: faults for taint, faults in wants.items() if _is_set(taint, node, before)}
        wants |= dict.fromkeys(_stand_ins(node, before, wants, waiting, changes, policy), waiting)
    taints = _taints(node, before, wants, passed=report.known and not report.error and _may_begin(node, health, policy))
    if context.spare is not None:
        taints = _with_role(taints, context.spare)
    held = tuple(
        as_our_taint(taint) for taint in taints if as_our_taint(taint) in wants and _may_hold(taint, node, before)
    )
    if held != memory.ours:
        tainted = rfc3339_whole(now) if held and not memory.ours else memory.tainted
        memory = remembered.fit_record(msgspec.structs.replace(memory, ours=held, tainted=tainted))
    taint_changes = _taint_changes(node, taints, before, memory, wants, changes, context)
    notices += taint_notices(taint_changes, before, policy, context.spare)
    silence = _silence(memory, context)
    condition = node_condition(memory, report, policy, withheld, silence)
    if withheld and not withheld_reason(node):
        text = f"{describe_fault(waiting[0])} is not tainted: {withheld}"
        notices.append(Notice("TaintWithheld", shorten(text, MESSAGE_LIMIT), "withheld"))
    labels = {FAULTY_LABEL: "true" if held else None, HEALTH_LABEL: _health(report, silence), TESTING_LABEL: None}
    if isinstance(health, NodeHealth):
        labels[TESTING_LABEL] = check_under_test(health)
    if context.spare is not None:
        labels[ROLE_KEY] = context.spare.role or None
    notices += jump_notices(changes, before, report.clears)
    notices += isolation_notices(isolation, before, policy)
    known = node.metadata.labels.get(HEALTH_LABEL) != "unknown"
    if report.error and (known or was_unknown_otherwise(node, condition)):
        notices.append(Notice("HealthUnreadable", f"invalid NodeHealth: {report.error}", "health"))
    if memory != stored or annotations:
        annotations[ANNOTATION] = remembered.encode_record(memory)
    if context.fence or not withheld:
        annotations[FENCE_ANNOTATION] = context.fence or None
    if context.spare is not None:
        annotations[ROLE_KEY] = role_annotation(node, context.spare, now)
    return Decision(
        taints=None if taints == node.spec.taints else taints,
        labels=_differing(node.metadata.labels, labels),
        annotations=_differing(node.metadata.annotations, annotations),
        notices=tuple(notices),
        condition=condition,
        changes=changes,
        taint_changes=taint_changes,
        memory=memory,
        withheld=withheld,
        isolates=isolated_components(memory) - isolated_components(before),
        device_waits=frozenset(component for _, component, _ in isolation.waiting),
        again_at=_again_at(memory, policy, now),
    )


def _again_at(memory: NodeRecord, policy: Policy, now: float) -> float:
    """When the next wait or hold-down of a fault ends."""
    times = []
    for fault in memory.open:
        want = match_policy(fault, policy)
        times.append(held_until(fault, want, memory, policy) if fault.over else confirmed_at(fault, want, now))
    return min((at for at in times if at > now), default=float("inf"))


def _is_set(taint: OurTaint, node: Node, before: NodeRecord) -> bool:
    """Present already, or to be set again: neither is a new taint."""
    slot = (taint.key, taint.effect)
    return any((t.key, t.effect) == slot for t in node.spec.taints) or any(
        (t.key, t.effect) == slot for t in before.ours
    )


def _stand_ins(
    node: Node,
    before: NodeRecord,
    wants: Mapping[OurTaint, object],
    waiting: list[Fault],
    changes: tuple[FaultChange, ...],
    policy: Policy,
) -> list[OurTaint]:
    """Taints of ours that a policy change replaced by others, which may not be set now.

    Removing them would release a node whose faults are open.
    """
    earlier = _keys(before.open)
    if not any(fault.key in earlier for fault in waiting):
        return []
    slots = {(taint.key, taint.effect) for taint in wants}
    over = {match_policy(change.fault, policy).taint for change in changes if change.step is FaultStep.CLOSED}
    there = {as_our_taint(taint) for taint in node.spec.taints}
    return [t for t in before.ours if t in there and t not in over and (t.key, t.effect) not in slots]


def _hands_off(node: Node, policy: Policy) -> Decision:
    try:
        stored = recall_record(node)
    except UnreadableRecord:
        stored = NodeRecord()
    memory = trusted_record(stored, node, policy)
    kept = tuple(taint for taint in node.spec.taints if not is_ours(taint, memory))
    gone = tuple(
        TaintChange(taint, False, "", f"label {MANAGED_LABEL}=false") for taint in node.spec.taints if taint not in kept
    )
    return Decision(
        taints=None if kept == node.spec.taints else kept,
        labels=_differing(
            node.metadata.labels, dict.fromkeys((FAULTY_LABEL, HEALTH_LABEL, TESTING_LABEL, REPAIR_LABEL, ROLE_KEY))
        ),
        annotations=_differing(node.metadata.annotations, dict.fromkeys(OUR_ANNOTATIONS)),
        notices=(*untrusted_notices(node, stored, memory), *taint_notices(gone, memory, None)),
        taint_changes=gone,
    )


def _differing(have: dict[str, str], want: Mapping[str, str | None]) -> dict[str, str | None]:
    return {key: value for key, value in want.items() if have.get(key) != value}


def _silence(memory: NodeRecord, context: DecisionContext) -> str:
    """Since when the node's agent is silent, as text; empty if it is not. Its last report is outdated then."""
    for fault in memory.open:
        if fault.key == SILENT and not fault.over:
            return fault.message or describe_fault(fault)
    finding = context.external.get(SILENT)
    return "" if finding is None else finding.message


def _health(report: NodeReport, silence: str) -> str:
    if silence or report.error:
        return "unknown"
    return _HEALTH.get(Verdict(report.verdict), "unknown") if report.known else "unknown"


def _with_lost(memory: NodeRecord, node: Node, report: NodeReport, policy: Policy, now: float) -> NodeRecord:
    """A taint with our prefix had a reason: without a record it stays until a lost fault for it is closed."""
    wants = _wants(memory, policy, now)
    lost = [
        lost_fault(as_our_taint(taint), report.boot, now)
        for taint in node.spec.taints
        if taint.key.startswith(OUR_PREFIX) and taint.key not in NOT_FOR_FAULTS and as_our_taint(taint) not in wants
    ]
    return msgspec.structs.replace(memory, open=(*memory.open, *lost))


def _isolated(
    memory: NodeRecord,
    before: NodeRecord,
    policy: Policy,
    now: float,
    context: DecisionContext,
    *,
    idle: bool,
    node_withheld: bool = False,
) -> tuple[Isolation, NodeRecord, dict[OurTaint, list[Fault]]]:
    """What is done about single devices, the record with it, and the taints that the node still has to have."""
    isolation = isolate_devices(memory, before, policy, now, context.devices, idle=idle, node_withheld=node_withheld)
    memory = remembered.fit_record(isolation.memory)
    return isolation, memory, _wants(memory, policy, now, isolation.waiting)


def _wants(
    memory: NodeRecord, policy: Policy, now: float, waiting: frozenset[FaultKey] = frozenset()
) -> dict[OurTaint, list[Fault]]:
    """Each wanted taint and the faults that want it; for one key and effect only the first value. waiting: faults whose
    device is to be kept out instead."""
    wants: dict[OurTaint, list[Fault]] = {}
    slots: dict[tuple[str, str], OurTaint] = {}
    for fault in memory.open:
        want = match_policy(fault, policy)
        taint = want.taint
        if taint is not None and fault.key not in waiting and confirmed_at(fault, want, now) <= now:
            taint = slots.setdefault((taint.key, taint.effect), taint)
            wants.setdefault(taint, []).append(fault)
    return wants


def _may_hold(taint: Taint, node: Node, before: NodeRecord) -> bool:
    """Ours already, or new: an equal taint that somebody else set remains theirs."""
    return is_ours(taint, before) or taint not in node.spec.taints


def _may_begin(node: Node, health: NodeHealth | UnusableHealth | None, policy: Policy) -> bool:
    """The first full pass of this boot is complete, and the node passed its pool's preFlight checks."""
    if not isinstance(health, NodeHealth) or not health.status.boot_id:
        return False
    pool = policy.pool_of(node.metadata.labels)
    return pool is None or not pre_flight_left(health, pool.testing.pre_flight)


def _taints(node: Node, before: NodeRecord, wants: Mapping[OurTaint, object], *, passed: bool) -> tuple[Taint, ...]:
    """Others' taints unchanged, ours as wanted. passed: remove the startup taint."""
    left = {(taint.key, taint.effect): taint for taint in wants}
    result: list[Taint] = []
    for taint in node.spec.taints:
        if not is_ours(taint, before):
            left.pop((taint.key, taint.effect), None)  # it has the same effect, and the API rejects a duplicate
            result.append(taint)
        elif taint.key == STARTUP_KEY:
            if not passed:
                result.append(taint)
        elif taint.key == SPARE_KEY:
            result.append(taint)  # whether it stays does not depend on this node alone
        else:
            want = left.pop((taint.key, taint.effect), None)
            if want is not None:
                result.append(taint if taint.value == want.value else _taint(want))
    result += [_taint(want) for want in left.values()]
    return tuple(result)


def _with_role(taints: tuple[Taint, ...], assigned: AssignedRole) -> tuple[Taint, ...]:
    spare = (SPARE_TAINT,) if assigned.role is SpareRole.SPARE else ()
    if [as_our_taint(taint) for taint in taints if taint.key == SPARE_KEY] == [as_our_taint(taint) for taint in spare]:
        return taints
    return (*(taint for taint in taints if taint.key != SPARE_KEY), *spare)


def _taint(want: OurTaint) -> Taint:
    return Taint(key=want.key, value=want.value, effect=want.effect)


def _taint_changes(
    node: Node,
    taints: tuple[Taint, ...],
    before: NodeRecord,
    after: NodeRecord,
    wants: Mapping[OurTaint, list[Fault]],
    changes: tuple[FaultChange, ...],
    context: DecisionContext,
) -> tuple[TaintChange, ...]:
    result = []
    why_spare = context.spare.why if context.spare is not None else ""
    for taint in taints:
        if taint.key == SPARE_KEY:
            if taint not in node.spec.taints:
                result.append(TaintChange(taint, True, "", why_spare))
        elif taint not in node.spec.taints:
            faults = wants[as_our_taint(taint)]
            put_back = as_our_taint(taint) in before.ours and all(fault.key in _keys(before.open) for fault in faults)
            why = "put back" if put_back else describe_fault(faults[0])
            rules = ", ".join(sorted({f.rule for f in faults if f.rule}))
            result.append(TaintChange(taint, True, rules, why, first=not before.ours))
    closed = [change for change in changes if change.step is FaultStep.CLOSED]
    for taint in node.spec.taints:
        if taint not in taints:
            rules = ", ".join(sorted({change.fault.rule for change in closed if change.fault.rule}))
            if taint.key == STARTUP_KEY:
                why = "the first full pass is complete"
            elif taint.key == SPARE_KEY:
                why = why_spare
            elif closed:
                why = f"closed ({closed[-1].how}): {describe_fault(closed[-1].fault)}"
            elif any(fault.device for fault in after.open):
                why = "only the device is kept out of use now"
            else:
                why = "no open fault requires it"
            result.append(TaintChange(taint, False, rules, why))
    return tuple(result)


def _keys(faults: tuple[Fault, ...]) -> set[tuple[str, str, str]]:
    return {fault.key for fault in faults}
