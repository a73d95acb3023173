"""Which nodes of a group are spares, which are released, and which become one. Pure, level-triggered, idempotent.

A group has ``wanted`` spares, less one for each of its nodes with a taint for a fault. The Nodes are the only state: a
fault lowers the number, which releases a spare; the repaired node raises it again, and takes the free place. So a
leader that is killed between two writes leaves nothing for the next one to remember.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from muster_tainter.policy.spares import SpareRole, Spares

TaintSlot = tuple[str, str]  # key, effect


@dataclass(frozen=True, slots=True)
class SpareNode:
    """A node of a group.

    out:       seconds since the epoch when it was tainted for a fault; 0: it is not
    usable:    Ready, schedulable, not new, without an open fault, and its agent reports
    idle:      no job runs there
    proven:    it loses its last taint for a fault, or its startup taint, with the decision that asks
    choice:    a person's: True for a spare, False for no spare, None for either
    tested_at: its last full test, seconds since the epoch; 0: never
    foreign:   NoSchedule and NoExecute taints of others
    replaces:  of a replacement, the node for which it was released
    """

    name: str
    domain: str = ""
    role: SpareRole = SpareRole.NONE
    out: float = 0.0
    usable: bool = True
    idle: bool = True
    proven: bool = False
    choice: bool | None = None
    tested_at: float = 0.0
    foreign: tuple[TaintSlot, ...] = ()
    replaces: str = ""

    def can_work(self, common: Collection[TaintSlot]) -> bool:
        """common: taints that most nodes of the group have."""
        return self.usable and all(taint in common for taint in self.foreign)

    def is_ready(self, common: Collection[TaintSlot], ready_after: float) -> bool:
        return self.can_work(common) and self.idle and self.tested_at > ready_after


@dataclass(frozen=True)
class SparePlan:
    """size: nodes in the group, out: tainted for a fault
    target:  spares there should be now; spares: there are, ready: of these
    changes: new roles; untested: those of them that are released although they are not ready
    held:    spares that would be released if they were ready, or usable
    asked:   the policy's number, which may be more than the group can spare
    replaces: of each node that is a replacement now or then, the node with a fault; a hint for people
    common:  taints of others that most nodes have
    """

    size: int = 0
    out: int = 0
    asked: int = 0
    wanted: int = 0
    target: int = 0
    spares: int = 0
    ready: int = 0
    held: int = 0
    changes: dict[str, SpareRole] = field(default_factory=dict)
    untested: frozenset[str] = frozenset()
    replaces: dict[str, str] = field(default_factory=dict)
    common: frozenset[TaintSlot] = frozenset()


class GroupState(NamedTuple):
    """A group for display: a pool, or a domain of it."""

    pool: str
    domain: str
    plan: SparePlan


def plan_spares(group: Collection[SpareNode], policy: Spares, *, ready_after: float, paused: bool = False) -> SparePlan:
    """ready_after: a test before that is too old, seconds since the epoch. paused: no node becomes a spare."""
    size = len(group)
    wanted = policy.wanted(size)
    common = _on_most(group)
    out = [node for node in group if node.out]
    spares = [node for node in group if node.role is SpareRole.SPARE and not node.out]
    replacements = [node for node in group if node.role is SpareRole.REPLACEMENT and not node.out]
    target = max(wanted - len(out), 0)
    changes: dict[str, SpareRole] = {node.name: SpareRole.NONE for node in group if node.out and node.role}

    def ready(node: SpareNode) -> bool:
        return node.is_ready(common, ready_after)

    def usable(node: SpareNode) -> bool:
        return node.can_work(common)

    # beyond the policy's number, or against a person's choice: whatever their state, and nothing is replaced
    best = sorted(
        spares, key=lambda node: (not node.choice, not ready(node), not usable(node), -node.tested_at, node.name)
    )
    kept = [node for node in best if node.choice is not False][:wanted]
    changes |= dict.fromkeys((node.name for node in spares if node not in kept), SpareRole.NONE)

    # for nodes with a fault
    due = {node.domain: 0 for node in out} | Counter(node.domain for node in out)
    for node in replacements:
        due[node.domain] = due.get(node.domain, 0) - 1
    latest = {node.domain: node.out for node in sorted(out, key=lambda node: node.out)}
    untested: set[str] = set()
    held = 0
    for _ in range(len(kept) - target):
        choices = [node for node in kept if usable(node) and (ready(node) or policy.none_ready == "release")]
        if not choices:
            held = len(kept) - target
            break
        chosen = min(
            choices,
            key=lambda node: (
                not ready(node),
                due.get(node.domain, 0) <= 0,
                -latest.get(node.domain, 0.0),
                -node.tested_at,
                node.name,
            ),
        )
        kept.remove(chosen)
        due[chosen.domain] = due.get(chosen.domain, 0) - 1
        changes[chosen.name] = SpareRole.REPLACEMENT
        replacements.append(chosen)
        if not ready(chosen):
            untested.add(chosen.name)

    # the repaired nodes' replacements are ordinary nodes again
    surplus = max(len(replacements) - len(out), 0)
    names_out = {node.name for node in out}
    replacements.sort(key=lambda node: (node.replaces in names_out, due.get(node.domain, 0) >= 0, node.name))
    changes |= dict.fromkeys((node.name for node in replacements[:surplus]), SpareRole.NONE)

    if not paused:
        taken = {node.name for node in spares}
        able = [
            node
            for node in group
            if not node.out
            and node.name not in taken
            and changes.get(node.name, node.role) is not SpareRole.REPLACEMENT
            and node.choice is not False
            and usable(node)
        ]
        # a node that a person has chosen takes the place of one that nobody has
        given = [node for node in kept if not node.choice]
        for node in given[::-1][: max(sum(node.choice is True for node in able) - max(target - len(kept), 0), 0)]:
            kept.remove(node)
            changes[node.name] = SpareRole.NONE
        if len(kept) < target:
            able = [node for node in able if node.idle or node.proven or node.choice]
            changes |= dict.fromkeys((node.name for node in _spread(able, kept)[: target - len(kept)]), SpareRole.SPARE)
    share = policy.nodes if policy.nodes is not None else policy.per_domain
    return SparePlan(
        size=size,
        out=len(out),
        asked=share.of(size) if share is not None else 0,
        wanted=wanted,
        target=target,
        spares=len(spares),
        ready=sum(map(ready, spares)),
        held=held,
        changes=changes,
        untested=frozenset(untested),
        replaces=_pair(replacements[surplus:], out),
        common=common,
    )


def _pair(replacements: list[SpareNode], out: list[SpareNode]) -> dict[str, str]:
    """Which node each one replaces: the one that it replaced before while that is tainted, then one of its domain, the
    latest first."""
    left = {node.name: node for node in sorted(out, key=lambda node: (-node.out, node.name))}
    pairs: dict[str, str] = {}
    for node in sorted(replacements, key=lambda node: (node.replaces not in left, node.name)):
        if node.replaces in left:
            found = node.replaces
        else:
            found = min(left, key=lambda name: left[name].domain != node.domain, default="")
        left.pop(found, None)
        pairs[node.name] = found
    return pairs


def _on_most(group: Collection[SpareNode]) -> frozenset[TaintSlot]:
    """Taints of others that more than half of the nodes have: permanent ones, which the group's jobs tolerate."""
    counts = Counter(taint for node in group for taint in node.foreign)
    return frozenset(taint for taint, number in counts.items() if 2 * number > len(group))


def _spread(candidates: list[SpareNode], spares: list[SpareNode]) -> list[SpareNode]:
    """The best first: a person's choice, then a repaired node, then evenly over the domains, then the latest test."""
    numbers = Counter(node.domain for node in spares)
    ranked: list[tuple[bool, bool, int, int, SpareNode]] = []
    for node in sorted(
        candidates, key=lambda node: (not node.choice, not node.proven, not node.idle, -node.tested_at, node.name)
    ):
        ranked.append((not node.choice, not node.proven, numbers[node.domain], len(ranked), node))
        numbers[node.domain] += 1
    return [each[-1] for each in sorted(ranked, key=lambda each: each[:4])]
