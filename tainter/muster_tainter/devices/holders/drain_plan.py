"""Decides which pods that hold a quarantined device are evicted now, which stay, and which the drain waits for. Pure.

Only a device that has a rule is drained, so the budgets of devices limit these drains too. A rule with the effect
NoExecute leaves the evictions to Kubernetes.
"""

from collections.abc import Iterable

from muster_kube.api.objects import Node, Taint
from muster_kube.api.times import seconds
from muster_tainter.devices.holders.claims import tolerates
from muster_tainter.devices.holders.reader import DeviceHolder
from muster_tainter.devices.rules.plan import device_taint, staged_faults
from muster_tainter.devices.rules.taint_rule import DeviceTaintRule
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import DeviceStage, Fault, as_our_taint
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.repair import AT_ONCE, Drain
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.drain_plan import DrainOrder, SortedPods, is_left_alone

_NEVER = float("inf")


def find_device_orders(node: Node, rules: Iterable[DeviceTaintRule], policy: Policy) -> dict[str, DrainOrder]:
    """For each device of the node that is kept out of use alone and whose fault is not resolved. rules: Muster's for
    the node."""
    pool = policy.pool_of(node.metadata.labels)
    by_component: dict[str, list[DeviceTaintRule]] = {}
    for rule in rules:
        by_component.setdefault(rule.component, []).append(rule)
    orders: dict[str, DrainOrder] = {}
    for component, staged in staged_faults(node).items():
        faults = [each for each in staged if each.device == DeviceStage.ALONE and not each.over]
        taint = device_taint(faults, policy)
        if taint is None or component not in by_component or node.metadata.deletion_timestamp:
            continue
        drain = _drain(faults, taint.effect, pool, policy)
        begun = max(seconds(rule.metadata.creation_timestamp) for rule in by_component[component])
        orders[component] = DrainOrder(
            drain=drain or Drain(),
            since=max(begun, min(seconds(each.since) for each in faults)),
            taints=(Taint(key=taint.key, value=taint.value, effect=taint.effect),),
            faults=tuple(faults),
            by_policy=drain is not None,
        )
    return orders


def _drain(faults: list[Fault], effect: str, pool: Pool | None, policy: Policy) -> Drain | None:
    """None: no policy asks for one, or Kubernetes evicts."""
    if effect == "NoExecute":
        return None
    if pool is not None and pool.drain is not None:
        return pool.drain
    return AT_ONCE if any(match_policy(fault, policy).drain for fault in faults) else None


def sort_holders(holders: Iterable[DeviceHolder], order: DrainOrder, now: float) -> SortedPods:
    """Decide about each pod that holds the device. All of them are waited for: a device that a DaemonSet's pod holds is
    not idle."""
    evict, left = [], []
    waits = False
    for holder in holders:
        left.append(holder.pod)
        taint = as_our_taint(order.taints[0])
        stays = is_left_alone(holder.pod) or (holder.held and all(tolerates(each, taint) for each in holder.held))
        if stays or holder.pod.metadata.deletion_timestamp:
            continue
        if order.evict_at <= now:
            evict.append(holder.pod)
        elif order.evict_at < _NEVER:
            waits = True
    return SortedPods(tuple(evict), tuple(left), order.evict_at if waits else _NEVER)
