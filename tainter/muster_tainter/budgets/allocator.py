"""Decides which nodes may be tainted now: places under the pools' budgets, reserved before the write and kept until its
outcome is known.

Only the store's contents and reservations count. A place that :meth:`BudgetAllocator.ask` gave stays taken until
:meth:`BudgetAllocator.confirm` (the write succeeded and the store has it) or :meth:`BudgetAllocator.release` (not sent,
or rejected). A write without an answer may still be applied: after :meth:`BudgetAllocator.mark_uncertain` its place is
freed only when the node appears in a later version than the one the write was based on, or when no server could still
apply it and no watch could still hide that it was applied. A former leader that was stopped just before a write may
send it later: after :meth:`BudgetAllocator.block`, such a node counts as tainted too, but has no place of its own. So
no place given here exceeds a budget, whatever happens between reservation and write. Other changes may exceed it (a
lowered budget, removed nodes, a cordon): then no place is given until the budget holds again, and no node is untainted.

The level does not depend on a clock. The rate uses the times in the nodes' annotations: a clock set forward ends a
window at once, so as many nodes again may be tainted, within the level. A clock set back leaves stamps in the future:
they count while they are less than the window away, and again when the clock approaches them, so room comes later.
Windows move once a second.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from muster_kube.api.versions import is_later
from muster_kube.controller.reflector import LIST_SILENCE_S, SILENCE_MARGIN_S, WATCH_S
from muster_tainter.budgets.pool_usage import BudgetedNode, BudgetUsage, PoolUsage, Shortage
from muster_tainter.policy.budgets import Budget
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.sections.heavy_checks import AtOnce

# kube-apiserver ends a request after 60 s (--request-timeout). What it wrote is in the store once the watch shows it,
# or, if that watch is dead and this is not yet noticed, once the watch is given up and the nodes are listed again.
UNCERTAIN_S = 60.0 + WATCH_S[1] + SILENCE_MARGIN_S + LIST_SILENCE_S
_NEVER = float("inf")

Severity = tuple[float, ...]  # greater is worse
_Turn = tuple[Severity, int]  # severity negated, number of the first request: the smallest comes first
_Kind = tuple[tuple[tuple[str, str], ...], bool, float, bool]  # nodes of one kind differ only in their turn


@dataclass(slots=True)
class _Hold:
    """A reservation. asked: a write is under way. doubt: the version on which a write of unknown outcome was made;
    until: when it expires, monotonic. seen: the node's newest version since. given: the place is the node's own; else
    it is only kept free for a write of a former leader."""

    asked: bool = True
    given: bool = True
    doubt: str = ""
    until: float = _NEVER
    seen: str = ""


class _Wait(NamedTuple):
    turn: _Turn
    kind: _Kind


_UNKNOWN = Shortage("", "unknown", 0, 0, AtOnce(0), 0)


class BudgetAllocator:
    """The places of a fleet. clock: monotonic seconds; every other time is a parameter, in seconds since the epoch.

    Methods that return a bool return whether :meth:`ready` and :meth:`next_room_at` may have changed.
    """

    def __init__(self, clock: Callable[[], float], pools: Iterable[Pool] = ()) -> None:
        self._clock = clock
        self._pools: dict[str, PoolUsage] = {}
        self._limited: frozenset[str] = frozenset()
        self._nodes: dict[str, BudgetedNode] = {}
        self._held: dict[str, _Hold] = {}
        self._doubted: set[str] = set()
        self._waiting: dict[str, _Wait] = {}
        self._kinds: dict[_Kind, list[tuple[_Turn, str]]] = {}
        self._turns = 0
        self._second = 0  # of the wall clock, for which ``_served`` is valid
        self._served: dict[str, None] | None = None  # the nodes that get the remaining room; None: to be computed
        self.policy(pools)

    # state

    def policy(self, pools: Iterable[Pool]) -> bool:
        """Set the budgets. :meth:`note` assigns nodes to pools: call it for all nodes afterwards."""
        limits = {pool.name: pool for pool in pools}
        self._limited = frozenset(limits)
        for name in [*self._pools, *limits]:
            count = self._pools.setdefault(name, PoolUsage(name))
            pool = limits.get(name)
            count.budget = Budget() if pool is None else pool.budget
            count.label = "" if pool is None else pool.domain or ""
            self._drop_empty(count)
        self._served = None
        return bool(self._waiting)

    def note(self, name: str, standing: BudgetedNode | None, version: str = "") -> bool:
        """Record the node's current state; None if it is gone. version: its resourceVersion."""
        old = self._nodes.get(name)
        freed = False
        if standing is not None and name in self._held:
            self._held[name].seen = version
            freed = self._resolve(name)
        if standing == old:
            return freed and bool(self._waiting)
        held = name in self._held
        wait = self._waiting.get(name)
        before = None if old is None else self._figures(old)
        if wait is not None:
            self._leave(name)
        if old is not None:
            self._uncount(old, held)
        if standing is None:
            self._nodes.pop(name, None)
            self._held.pop(name, None)
            self._doubted.discard(name)
        else:
            self._nodes[name] = standing
            self._count(standing, held)
            if wait is not None and not standing.ours:
                self._enter(name, standing, wait.turn)
        if wait is not None or standing is None or self._figures(standing) != before:
            self._served = None  # otherwise e.g. a reservation was confirmed: the room of the others is unchanged
        return bool(self._waiting)

    # requests

    def ask(self, name: str, severity: Severity, now: float) -> Shortage | None:
        """Request a place for a taint on the node. None: it has one, until ``confirm`` or ``release``. Else it waits.

        A node that carries taints of ours or holds a place always gets one. No place is given that a worse waiting
        node could use. A node that is gone gets none.
        """
        standing = self._nodes.get(name)
        if standing is None:
            return _UNKNOWN
        self._expire()
        second = self._clock_shows(now)
        if not self._has_place(name) and not standing.ours:
            negated = tuple(-number for number in severity)
            wait = self._waiting.get(name)
            if wait is not None and wait.turn[0] != negated:
                self._leave(name)
                self._served = None
            turn = negated, self._turns if wait is None else wait.turn[1]
            shortage = self._shortage(standing, second) or self._left_for_worse(name, standing, turn, second)
            if shortage is not None and not self._may_use_own_block(name, standing, turn, second):
                if name not in self._waiting:
                    self._turns += wait is None
                    self._enter(name, standing, turn)  # the room of the others is unchanged: ``_served`` stays valid
                return shortage
            if self._served and name not in self._served:
                self._served = None  # it precedes some of them
        if name in self._waiting:
            self._leave(name)
        self._hold(name, standing)
        return None

    def room(self, name: str, now: float) -> Shortage | None:
        """What :meth:`ask` would answer to a node without a taint of ours; gives no place."""
        standing = self._nodes.get(name)
        return _UNKNOWN if standing is None else self._shortage(standing, self._clock_shows(now))

    def confirm(self, name: str) -> bool:
        """The write succeeded and the store has the result."""
        if name in self._held:
            self._release(name)
        return bool(self._waiting)

    def release(self, name: str) -> bool:
        """The reserved write was not made: not sent, or rejected by the server. An earlier write of unknown outcome
        keeps the place."""
        hold = self._held.get(name)
        if hold is not None:
            hold.asked = False
            if not hold.doubt:
                self._release(name)
        return bool(self._waiting)

    def mark_uncertain(self, name: str, version: str) -> bool:
        """The write based on this resourceVersion of the node got no answer."""
        hold = self._held.get(name)
        if hold is not None:
            hold.asked = False
            self._doubt(name, hold, version)
            self._resolve(name)
        return bool(self._waiting)

    def block(self, name: str, version: str) -> None:
        """A former leader's write, based on this resourceVersion or an earlier one, may still taint the node.

        Until the node is seen in a later version, it takes room from all: also from itself, if a worse one waits for
        that room. ``version``: an etcd revision; the node's own must not be later.
        """
        standing = self._nodes.get(name)
        if standing is None or standing.ours:
            return
        if name not in self._held:
            wait = self._waiting.get(name)
            if wait is not None:
                self._leave(name)
            self._held[name] = _Hold(asked=False, given=False)
            self._recount([name], held=True)
            if wait is not None:
                self._enter(name, standing, wait.turn)
            self._served = None
        self._doubt(name, self._held[name], version)

    def blocked(self, name: str) -> bool:
        """No place can be given to the node before it is seen in a later version."""
        hold = self._held.get(name)
        return hold is not None and not hold.given

    def withdraw(self, name: str) -> bool:
        """The node no longer wants a place and stops waiting: there may be room for others, which it preceded."""
        if name not in self._waiting and name not in self._held:
            return False
        if name in self._waiting:
            self._leave(name)
            if self._served is not None and name in self._served:
                self._served = None
        return self.release(name)

    def ready(self, now: float) -> list[str]:
        """The waiting nodes for which there is room, worst first, then longest waiting. They have to ask again: this
        reserves nothing."""
        self._expire()
        return list(self._to_serve(self._clock_shows(now)))

    def next_room_at(self, now: float) -> float:
        """When time alone may make room for a waiting node that is not ``ready`` now, since the epoch; inf: never."""
        if not self._waiting:
            return _NEVER
        second = math.floor(now)
        at = min((pool.rate_room_at(second) for pool in self._pools.values() if pool.waiting), default=_NEVER)
        at = float(math.ceil(at)) if at < _NEVER else at
        if self._doubted:
            until = min(self._held[name].until for name in self._doubted)
            at = min(at, now + max(until - self._clock(), 0.0))
        return at

    def usage(self, now: float) -> list[BudgetUsage]:
        """The used budgets, pool by pool: a few rows per pool, and one or two for each of its domains."""
        return [row for _, pool in sorted(self._pools.items()) for row in pool.usage(math.floor(now))]

    @property
    def waiting(self) -> int:
        """Number of withheld nodes."""
        return len(self._waiting)

    def holds(self, name: str) -> bool:
        """A place is reserved for the node: its write is under way or its outcome is unknown."""
        return name in self._held

    # counting

    def _count(self, standing: BudgetedNode, held: bool) -> None:
        for name, domain in standing.pools:
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = PoolUsage(name)
            pool.add(domain, standing, held)

    def _uncount(self, standing: BudgetedNode, held: bool) -> None:
        for name, domain in standing.pools:
            pool = self._pools[name]
            pool.remove(domain, standing, held)
            self._drop_empty(pool)

    def _figures(self, standing: BudgetedNode) -> list[object]:
        """Everything that the room in the node's pools depends on."""
        return [self._pools[pool].figures(domain, self._second) for pool, domain in standing.pools]

    def _drop_empty(self, pool: PoolUsage) -> None:
        if not pool.nodes and pool.name not in self._limited:
            del self._pools[pool.name]

    def _recount(self, names: Iterable[str], *, held: bool) -> None:
        for standing in map(self._nodes.__getitem__, names):
            for pool, domain in standing.pools:
                self._pools[pool].change(domain, standing, held)

    def _hold(self, name: str, standing: BudgetedNode) -> None:
        hold = self._held.get(name)
        if hold is not None:
            hold.asked = hold.given = True
            return
        self._held[name] = _Hold()
        self._recount([name], held=True)
        if standing.ours and standing.healthy:
            self._served = None
        elif self._served is not None:
            self._served.pop(name, None)  # the others' places are unchanged

    def _has_place(self, name: str) -> bool:
        return name in self._held and self._held[name].given

    def _doubt(self, name: str, hold: _Hold, version: str) -> None:
        if not is_later(hold.doubt, version):
            hold.doubt = version or "?"
        hold.until = self._clock() + UNCERTAIN_S
        self._doubted.add(name)

    def _release(self, name: str) -> None:
        standing, wait = self._nodes[name], self._waiting.get(name)
        if wait is not None:
            self._leave(name)  # it was blocked
        del self._held[name]
        self._doubted.discard(name)
        self._recount([name], held=False)
        if wait is not None:
            self._enter(name, standing, wait.turn)
        if standing.healthy or not standing.ours:
            self._served = None

    def _resolve(self, name: str) -> bool:
        """A version after the one that the write was based on: the write was applied, or can never be."""
        hold = self._held[name]
        if not hold.doubt or not is_later(hold.seen, hold.doubt):
            return False
        return self._no_doubt(name, hold)

    def _expire(self) -> None:
        if self._doubted:
            clock = self._clock()
            for name in [name for name in self._doubted if self._held[name].until <= clock]:
                self._no_doubt(name, self._held[name])

    def _no_doubt(self, name: str, hold: _Hold) -> bool:
        hold.doubt, hold.until = "", _NEVER
        self._doubted.discard(name)
        if not hold.asked:
            self._release(name)
        return not hold.asked

    # room

    def _shortage(self, standing: BudgetedNode, now: int) -> Shortage | None:
        for name, domain in standing.pools:
            shortage = self._pools[name].shortage(domain, standing, now)
            if shortage is not None:
                return shortage
        return None

    def _left_for_worse(self, name: str, standing: BudgetedNode, turn: _Turn, second: int) -> Shortage | None:
        """The shortage after all worse waiting nodes have got what they can use."""
        served = self._to_serve(second)
        if name in served:
            return None
        worse = [other for other in served if self._waiting[other].turn < turn]
        self._recount(worse, held=True)
        shortage = self._shortage(standing, second)
        self._recount(worse, held=False)
        return None if shortage is None else shortage._replace(for_worse=True)

    def _may_use_own_block(self, name: str, standing: BudgetedNode, turn: _Turn, second: int) -> bool:
        """Whether the place that is kept free for the node may be given to it: no worse node waits for it."""
        if not self.blocked(name):
            return False
        worse = [other for other, wait in self._waiting.items() if wait.turn < turn]
        served = self._to_serve(second)
        if any(other not in served for other in worse):
            return False
        self._recount(worse, held=True)
        self._recount([name], held=False)
        shortage = self._shortage(standing, second)
        self._recount([name], held=True)
        self._recount(worse, held=False)
        return shortage is None

    def _clock_shows(self, now: float) -> int:
        second = math.floor(now)
        if second != self._second:
            self._served, self._second = None, second
        return second

    def _to_serve(self, second: int) -> dict[str, None]:
        """The result of :meth:`_serve` for all waiting nodes, cached while it is valid.

        A place given to one of them, or to a node after all of them, does not change the result for the others: any
        subset of nodes that fit together fits too, and a node without room stays without.
        """
        if self._served is None:
            served = self._serve(second)
            self._recount(served, held=False)
            self._served = dict.fromkeys(served)
        return self._served

    def _serve(self, now: int) -> list[str]:
        """Take a place for each waiting node while there is one."""
        heads = [(*members[0], 0, kind) for kind, members in self._kinds.items() if not kind[-1]]
        heapq.heapify(heads)
        served = []
        while heads:
            _, name, place, kind = heads[0]
            if self._shortage(self._nodes[name], now) is not None:
                heapq.heappop(heads)  # no room for one node of a kind means none for the others: room only shrinks
                continue
            self._recount([name], held=True)
            served.append(name)
            members = self._kinds[kind]
            if place + 1 < len(members):
                heapq.heapreplace(heads, (*members[place + 1], place + 1, kind))
            else:
                heapq.heappop(heads)
        return served

    def _enter(self, name: str, standing: BudgetedNode, turn: _Turn) -> None:
        kind = standing.pools, standing.healthy, standing.tainted_at, name in self._held  # True: it is blocked
        self._waiting[name] = _Wait(turn, kind)
        insort(self._kinds.setdefault(kind, []), (turn, name))
        for pool, domain in standing.pools:
            self._pools[pool].add_waiting(domain, 1)

    def _leave(self, name: str) -> None:
        turn, kind = self._waiting.pop(name)
        members = self._kinds[kind]
        del members[bisect_left(members, (turn, name))]
        if not members:
            del self._kinds[kind]
        for pool, domain in kind[0]:
            self._pools[pool].add_waiting(domain, -1)
