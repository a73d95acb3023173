"""Assigns each node its role among its pool's spares, as part of the decision about that node.

Keeps the groups of :mod:`muster_tainter.spares.plan` current from the watches, and from decisions whose write is under
way, so that two nodes never get the same role. When a group's plan changes a node, that node is decided again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.decision_context import AssignedRole
from muster_tainter.faults.desired_state import Decision, is_managed
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.role_record import ROLE_KEY
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.rules import SPARE_KEY, Policy
from muster_tainter.policy.spares import SpareRole, Spares
from muster_tainter.spares.facts import GroupKey, group_of, ready_within, role_of, spare_node
from muster_tainter.spares.plan import GroupState, SpareNode, SparePlan, TaintSlot, plan_spares

log = logging.getLogger(__name__)

_LOOK_AFTER_S = 0.02  # one look for the changes of a moment


@dataclass(slots=True)
class _Group:
    nodes: dict[str, SpareNode] = field(default_factory=dict)
    plan: SparePlan | None = None  # None: to be made
    reported: tuple[int, int, int] = (0, 0, 0)


class SpareFleet(Protocol):
    """What the roles need of the cluster; see :class:`muster_tainter.fleet.interface.Fleet`."""

    @property
    def nodes(self) -> Mapping[str, Node]: ...

    def policy(self) -> Policy: ...

    def node(self, name: str) -> Node | None: ...

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None: ...

    def withheld(self) -> str: ...


def _call_later(look: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(_LOOK_AFTER_S, look)


class SpareRoles:
    """wake: called with nodes whose role should change. later: calls a function soon, once for the changes of a moment;
    by default the event loop does."""

    def __init__(
        self,
        fleet: SpareFleet,
        replica: Replica,
        wake: Callable[[str], None],
        later: Callable[[Callable[[], None]], object] = _call_later,
    ) -> None:
        self._fleet = fleet
        self._replica = replica
        self._wake = wake
        self._later = later
        self._groups: dict[GroupKey, _Group] = {}
        self._group_of: dict[str, GroupKey] = {}
        self._pools: dict[str, Spares] = {}
        self._policy: Policy | None = None
        self._deciding: set[str] = set()  # nodes with a decision that is not written yet
        self._soon = False

    def look_at_all(self) -> None:
        """The policy or the pause may have changed."""
        self._policy = self._fleet.policy()
        self._pools = {pool.name: pool.spares for pool in self._policy.pools if pool.spares is not None}
        self._groups.clear()
        self._group_of.clear()
        if self._pools:
            for name in self._fleet.nodes:
                self.note(name)

    def note(self, name: str) -> None:
        """The Node or its NodeHealth has changed."""
        if self._fleet.policy() is not self._policy:
            self.look_at_all()
        if self._pools and name not in self._deciding:
            self._put(name, self._fleet.node(name), None)

    def settle(self, name: str) -> None:
        """The decision about the node was written, or never will be: what the store has holds again."""
        if name in self._deciding:
            self._deciding.discard(name)
            self.note(name)

    def assign(self, node: Node, decision: Decision) -> AssignedRole | None:
        """The role that the node gets with ``decision``; None: its pools have no spares, and it has no role to lose."""
        name = node.metadata.name
        if not is_managed(node):
            self.note(name)
            return None
        now = role_of(node)
        self._deciding.add(name)
        if self._fleet.policy() is not self._policy:
            self.look_at_all()
        found = self._put(name, node, decision) if self._pools else None
        if found is None:
            return AssignedRole(SpareRole.NONE, "its pool keeps no spares") if now or _marked(node) else None
        key, group = found
        facts = group.nodes[name]
        plan = self._plan(key, group)
        role = plan.changes.get(name, SpareRole.NONE if facts.out else facts.role)
        replaces = plan.replaces.get(name, "") if role is SpareRole.REPLACEMENT else ""
        if not facts.out and (role is not now or facts.proven):
            # as it will be written: the next decision counts on it, and this is not the node that it asks about
            group.nodes[name] = replace(facts, role=role, proven=False, replaces=replaces)
            others = {other: change for other, change in plan.changes.items() if other != name}
            group.plan = None if facts.proven else replace(plan, changes=others)
        return AssignedRole(role, _why(now, role, facts, plan), name not in plan.untested, replaces)

    def groups(self) -> Iterator[GroupState]:
        for (pool, domain), group in sorted(self._groups.items()):
            yield GroupState(pool, domain, self._make(pool, group))

    def common_taints(self, name: str) -> frozenset[TaintSlot]:
        """The taints of others that most nodes of the node's group have: they do not keep a spare from being ready."""
        key = self._group_of.get(name)
        return self._plan(key, self._groups[key]).common if key is not None else frozenset()

    # state

    def _put(self, name: str, node: Node | None, decision: Decision | None) -> tuple[GroupKey, _Group] | None:
        policy = self._fleet.policy()
        place = group_of(node, policy) if node is not None else None
        if node is None or place is None:
            self._drop(name)
            return None
        key, pool = place
        if self._group_of.get(name) != key:
            self._drop(name)
        facts = spare_node(node, self._fleet.health_of(name), pool, decision)
        group = self._groups.setdefault(key, _Group())
        self._group_of[name] = key
        if group.nodes.get(name) != facts:
            group.nodes[name] = facts
            group.plan = None
            self._look()
        return key, group

    def _drop(self, name: str) -> None:
        key = self._group_of.pop(name, None)
        if key is None:
            return
        group = self._groups[key]
        del group.nodes[name]
        group.plan = None
        if not group.nodes:
            del self._groups[key]
        self._look()

    def _plan(self, key: GroupKey, group: _Group) -> SparePlan:
        if group.plan is None:
            group.plan = self._make(key[0], group)
        return group.plan

    def _make(self, pool: str, group: _Group) -> SparePlan:
        spares = self._pools[pool]
        after = self._replica.now() - ready_within(spares, self._fleet.policy())
        return plan_spares(group.nodes.values(), spares, ready_after=after, paused=bool(self._fleet.withheld()))

    def _look(self) -> None:
        if not self._soon:
            self._soon = True
            self._later(self._wake_changed)

    def _wake_changed(self) -> None:
        self._soon = False
        for key, group in list(self._groups.items()):
            plan = self._plan(key, group)
            renamed = {name for name, other in plan.replaces.items() if group.nodes[name].replaces != other}
            for name in (*plan.changes, *renamed):
                self._wake(name)
            state = (plan.asked - plan.wanted, plan.held, plan.target - plan.spares)
            if state != group.reported and self._replica.may_write():
                _report(key, plan, group.reported, state)
                group.reported = state


def _marked(node: Node) -> bool:
    return ROLE_KEY in node.metadata.labels


def _why(now: SpareRole, role: SpareRole, facts: SpareNode, plan: SparePlan) -> str:
    if role is SpareRole.SPARE:
        origin = "chosen by a person" if facts.choice else "repaired" if facts.proven else "idle"
        return f"kept free as a spare ({origin}); the pool keeps {plan.target}"
    if role is SpareRole.REPLACEMENT:
        untested = " although its last full test is too old or missing" if facts.name in plan.untested else ""
        return f"spare released to replace {plan.replaces.get(facts.name) or 'a node with a fault'}{untested}"
    if facts.choice is False:
        return f"no spare: label {SPARE_KEY}=false"
    return "no longer a spare" if now is SpareRole.SPARE else ""


def _report(key: GroupKey, plan: SparePlan, before: tuple[int, int, int], now: tuple[int, int, int]) -> None:
    """Log what changed."""
    name = "/".join(part for part in key if part)
    excess, held, missing = now
    if excess and not before[0]:
        log.warning(
            "pool %s: spares: %d of %d nodes would leave none for work: no node is kept as a spare",
            name,
            plan.asked,
            plan.size,
        )
    if held and held != before[1]:
        log.warning("pool %s: %d spares are needed and held: none is ready", name, held)
    if missing > 0 and missing != before[2]:
        log.info("pool %s: %d spares are missing until nodes are idle or repaired", name, missing)
