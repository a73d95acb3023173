"""The DeviceTaintRules of one node: which to create, change and remove. Pure, level-triggered.

Rules follow from the node's record and its ResourceSlices. A device that no slice names at the moment keeps the rules
that it has: a driver may be restarting, and :mod:`muster_tainter.faults.device_isolation` decides when it is gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node
from muster_tainter.devices.rules.taint_rule import PREVIEW_EFFECT, DeviceTaintRule, WantedRule
from muster_tainter.devices.slices.device_map import NodeDevice
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.messages import describe_fault
from muster_tainter.faults.policy_match import match_as_node
from muster_tainter.faults.record.node_record import DeviceStage, Fault, OurTaint, read_record
from muster_tainter.policy.rules import Policy

_WHY_LIMIT = 256  # bytes
_EFFECTS = ("NoExecute", "NoSchedule")  # the stronger first


@dataclass(frozen=True)
class RulePlan:
    """create, change: before ``remove``, so that a device which has another name now is never without a rule."""

    create: tuple[WantedRule, ...] = ()
    change: tuple[tuple[DeviceTaintRule, WantedRule], ...] = ()
    remove: tuple[DeviceTaintRule, ...] = ()


def staged_faults(node: Node | None) -> dict[str, list[Fault]]:
    """The faults whose device is to have rules, by component."""
    found: dict[str, list[Fault]] = {}
    if node is not None and is_managed(node):
        for fault in read_record(node).open:
            if fault.device and device_key(fault.component) is not None:
                found.setdefault(fault.component, []).append(fault)
    return found


def plan_rules(
    name: str,
    node: Node | None,
    cards: Mapping[str, NodeDevice],
    rules: Iterable[DeviceTaintRule],
    policy: Policy,
) -> RulePlan:
    """name: of the node; node: None if it is gone; cards: its devices by address and UUID; rules: Muster's for it."""
    there = {rule.metadata.name: rule for rule in rules}
    create: dict[str, WantedRule] = {}
    change: list[tuple[DeviceTaintRule, WantedRule]] = []
    kept: set[str] = set()
    for component, faults in staged_faults(node).items():
        card = cards.get(device_key(component) or "")
        own = [rule for rule in there.values() if rule.component == component]
        wanted_here = () if card is None or card.problem else wanted_rules(name, component, faults, card, policy)
        if not wanted_here:
            kept.update(rule.metadata.name for rule in own)
        for wanted in wanted_here:
            kept.add(wanted.name)
            known = there.get(wanted.name)
            if known is None:
                create.setdefault(wanted.name, wanted)  # two components may name one device
            elif not wanted.is_met_by(known):
                change.append((known, wanted))
    remove = tuple(rule for rule_name, rule in sorted(there.items()) if rule_name not in kept)
    return RulePlan(tuple(create.values()), tuple(change), remove)


def is_obsolete(
    rule: str, component: str, faults: list[Fault], cards: Mapping[str, NodeDevice], node: str, policy: Policy
) -> bool:
    """Whether the device is to have rules, but none of this name: it has other names now."""
    names = _wanted_names(component, faults, cards, node, policy)
    return bool(names) and rule not in names


def is_unclear(
    rules: Iterable[DeviceTaintRule],
    component: str,
    faults: list[Fault],
    cards: Mapping[str, NodeDevice],
    node: str,
    policy: Policy,
) -> bool:
    """Whether the slices do not say yet why a rule of the device was deleted: they do not name the device, or it has
    one of ``rules`` that they do not ask for. They may be older than these rules, which a former leader wrote for the
    device's other name before it deleted the rule of the old one."""
    names = _wanted_names(component, faults, cards, node, policy)
    return device_key(component) not in cards or any(rule.metadata.name not in names for rule in rules)


def _wanted_names(
    component: str, faults: list[Fault], cards: Mapping[str, NodeDevice], node: str, policy: Policy
) -> set[str]:
    card = cards.get(device_key(component) or "")
    wanted = () if card is None or card.problem else wanted_rules(node, component, faults, card, policy)
    return {each.name for each in wanted}


def wanted_rules(
    node: str, component: str, faults: list[Fault], card: NodeDevice, policy: Policy
) -> tuple[WantedRule, ...]:
    """One rule for each device of the card; none if the policy taints no device for them any more, as the record will
    say soon."""
    taint = device_taint(faults, policy)
    if taint is None:
        return ()
    why = shorten(describe_fault(faults[0]), _WHY_LIMIT)
    return tuple(WantedRule(node, component, card.driver, card.pool, device, taint, why) for device in card.names)


def device_taint(faults: Iterable[Fault], policy: Policy) -> OurTaint | None:
    """The taint of the rules: of the fault with the strongest effect; without effect in a preview."""
    wants = [(fault, match_as_node(fault, policy).taint) for fault in faults]
    taints = [(fault, taint) for fault, taint in wants if taint is not None and taint.effect in _EFFECTS]
    if not taints:
        return None
    taint = min((taint for _, taint in taints), key=lambda each: _EFFECTS.index(each.effect))
    if all(each.device == DeviceStage.PREVIEW for each, _ in taints):
        return msgspec.structs.replace(taint, effect=PREVIEW_EFFECT)
    return taint
