"""Budgets for the controller: tracks each node, the queue of waiting nodes, and when to try again.

The counting is in :mod:`muster_tainter.budgets.allocator`; this module ties a node's write to its reserved place.
"""

import asyncio
from collections.abc import Callable, Iterable

from muster_kube.api.errors import Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.api.versions import is_later
from muster_kube.controller.leader_client import NotLeading
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.allocator import BudgetAllocator, Severity
from muster_tainter.budgets.pool_usage import BudgetUsage, Shortage, budgeted_node
from muster_tainter.faults.desired_state import Decision, decide
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.policy.rules import Policy

_EFFECTS = {"NoExecute": 2.0, "NoSchedule": 1.0}
_CLASSES = {"replace": 4.0, "contact": 3.0, "reboot": 2.0, "reset": 1.0}
# errors after which the server certainly did not apply the write
_REFUSED = (Conflict, Forbidden, Invalid, NotFound, NotLeading, TooManyRequests)


class BudgetReservations:
    """wake: called with nodes that may try again, worst first. now: seconds since the epoch; clock: monotonic."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        wake: Callable[[str], None],
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._wake = wake
        self._now = now
        self._allocator = BudgetAllocator(clock, policy().pools)
        self._pools = policy().pools
        self._took_over_at = ""
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False

    def policy_changed(self, nodes: Callable[[], list[Node]]) -> None:
        pools = self._policy().pools
        if pools == self._pools:
            return
        self._pools = pools
        self._allocator.policy(pools)
        for node in nodes():
            self.note(node.metadata.name, node)
        self._look()

    def take_over(self, at: str, wanting: Iterable[Node]) -> None:
        """Another process may have led until now. at: the API server's resourceVersion after this one was elected,
        empty if unknown; wanting: the nodes that may need a place.

        A process that was stopped between the check of its lease and a write may send it at any time later. The write
        names the resourceVersion of its Node, which is not later than ``at``. So it fails once the Node has been
        written again, and until then the node counts as tainted. Where there is no room now, the former leader had
        none to give either.
        """
        self._took_over_at, now = at, self._now()
        possible = [
            node.metadata.name
            for node in wanting
            if at and not is_later(node.metadata.resource_version, at)
            if self._allocator.room(node.metadata.name, now) is None
        ]
        for name in possible:
            self._allocator.block(name, at)

    def fence(self, name: str) -> str:
        """Not empty: the node must be written before it can have a place. The value is new in each leadership."""
        return self._took_over_at if self._allocator.blocked(name) else ""

    def note(self, name: str, node: Node | None) -> None:
        """Record the node's state in the store."""
        if node is None:
            changed = self._allocator.note(name, None)
        else:
            memory = read_record(node)
            standing = budgeted_node(
                node, self._pools, ours=bool(memory.ours), tainted_at=seconds(memory.tainted) if memory.tainted else 0.0
            )
            changed = self._allocator.note(name, standing, node.metadata.resource_version)
        if changed:
            self._look()

    def reserve(self, name: str, decision: Decision) -> Shortage | None:
        """Reserve a place for what ``decision`` does to the node; returns why there is none, or None."""
        if not decision.takes_a_place:
            if self._allocator.withdraw(name):
                self._look()
            return None
        shortage = self._allocator.ask(name, severity(decision), self._now())
        if shortage is not None:
            self._look()
        return shortage

    def shortage(self, name: str) -> str:
        """Why the budgets have no room for a taint on the node now; empty if they have. Reserves nothing."""
        found = self._allocator.room(name, self._now())
        return "" if found is None else found.reason

    def confirm(self, name: str) -> None:
        if self._allocator.confirm(name):
            self._look()

    def release(self, name: str) -> None:
        """The reserved write will not happen."""
        if self._allocator.release(name):
            self._look()

    def handle_failure(self, name: str, version: str, error: BaseException) -> None:
        """Handle the ``error`` of a write on this resourceVersion: rejected, or with unknown outcome."""
        if isinstance(error, _REFUSED):
            self.release(name)
        elif self._allocator.mark_uncertain(name, version):
            self._look()

    def usage(self) -> list[BudgetUsage]:
        return self._allocator.usage(self._now())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Runs once for everything that happens in one turn of the event loop."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._soon = False
        self.stop()
        now = self._now()
        for name in self._allocator.ready(now):
            self._wake(name)
        at = self._allocator.next_room_at(now)
        if at != float("inf"):
            delay_s = min(max(at - now, 0.05), 3600.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._serve)


def worst_first(nodes: Iterable[tuple[Node, NodeHealth]], policy: Policy, now: float) -> list[str]:
    """Those that would get their first taint of ours. now: seconds since the epoch."""
    found: list[tuple[Severity, str]] = []
    for node, health in nodes:
        decision = decide(node, health, policy, now)
        if decision.takes_a_place:
            found.append((severity(decision), node.metadata.name))
    return [name for _, name in sorted(found, reverse=True)]


def severity(decision: Decision) -> Severity:
    """Orders nodes: by the taint's effect, then by the fault's class, then by age."""
    faults = decision.memory.open
    effect = max((_EFFECTS.get(c.taint.effect, 0.0) for c in decision.taint_changes if c.added), default=0.0)
    asks = max((_CLASSES.get(fault.fault_class, 0.0) for fault in faults), default=0.0)
    since = min((seconds(fault.since) for fault in faults), default=0.0)
    return effect, asks, -since
