"""The tainter's decisions about a fleet on a simulated clock: the real decision code, without an API server.

`muster replay` and `muster simulate` share it. No clock and no random numbers: the same reports give the same
decisions. Time advances from report to report, and stops in between where a decision itself schedules a change (a wait,
a hold-down, room under a rate limit).
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.allocator import BudgetAllocator
from muster_tainter.budgets.incidents import FaultOpening, IncidentIndex
from muster_tainter.budgets.pool_usage import budgeted_node
from muster_tainter.budgets.reservations import severity
from muster_tainter.faults.decision_context import UNREAD_DEVICES, AssignedRole, DecisionContext, DeviceContext
from muster_tainter.faults.desired_state import Decision, decide
from muster_tainter.faults.node_report import FaultKey, read_report
from muster_tainter.faults.record.node_record import NodeRecord, read_record
from muster_tainter.policy.rules import Policy

NEVER = float("inf")
_ROUNDS = 64  # decisions about one node at one moment; more would mean that the policy contradicts itself

Decided = Callable[[str, Decision], None]
AssignRole = Callable[[Node, Decision], AssignedRole | None]


class LoopDevices(Protocol):
    """The devices of the loop's nodes, and the budgets that limit how many are kept out alone."""

    def context(self, node: Node, components: Iterable[str]) -> DeviceContext:
        """components: those of which something is reported or recorded."""

    def reserve(self, node: Node, decision: Decision) -> str | None:
        """Reserve places in the budgets of devices for a decision. Returns why there are none, or None."""

    def note(self, node: Node, *, new: bool = False) -> None:
        """The node was written, or is new."""

    def take_woken(self) -> list[str]:
        """The nodes for whose devices there may be room since the last call."""


class DecisionLoop:
    """now: seconds since the epoch. nodes, healths: by name, as after the last write.

    decided: called after each decision, when it is applied to the node and to the index of incidents
    assign_role: the node's role among its pool's spares with this decision; None: no pool keeps spares
    devices: of the nodes, for a policy that keeps single ones out of use; set before the first node is added
    """

    def __init__(self, policy: Policy, decided: Decided, assign_role: AssignRole | None = None) -> None:
        self.policy = policy
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.healths: dict[str, NodeHealth] = {}
        self._decided = decided
        self._assign_role = assign_role
        self.devices: LoopDevices | None = None
        self._allocator = BudgetAllocator(lambda: self.now, policy.pools)
        marks = [rule.match.correlated + 1 for rule in policy.rules if rule.match.correlated is not None]
        self.incidents = IncidentIndex(policy.incidents, marks)
        self._seen: dict[str, dict[FaultKey, tuple[int, float]]] = {}  # findings: their occurrence, and since when
        self._due: list[tuple[float, str]] = []
        self._again: dict[str, float] = {}
        self._not_before = 0.0

    def add(self, node: Node) -> None:
        """A node that the fleet has from now on. Call it also after a write that was not a decision."""
        new = node.metadata.name not in self.nodes
        self.nodes[node.metadata.name] = node
        if self.devices is not None:
            self.devices.note(node, new=new)
        self._note(node)

    def report(self, health: NodeHealth) -> None:
        """A NodeHealth that holds from now on; :meth:`settle` decides about its node."""
        name = health.metadata.name
        self.healths[name] = health
        self._see(name, health)

    # time

    def next_at(self) -> float:
        """When time alone triggers a decision, in seconds since the epoch; inf: never."""
        at = min(self._due[0][0] if self._due else NEVER, self._allocator.next_room_at(self.now))
        return at if at == NEVER else max(at, self.now, self._not_before)

    def advance(self, at: float) -> None:
        """Move the clock to ``at``, which is not after :meth:`next_at`, and decide what is due then."""
        self.now = max(at, self.now)
        names, looked = [], False
        while self._due and self._due[0][0] <= self.now:
            due, name = heapq.heappop(self._due)
            looked = True
            if self._again.get(name) == due:
                del self._again[name]
                names.append(name)
        ready = self._allocator.ready(self.now)
        # a predicted room that was not there: try again one second later
        self._not_before = self.now if looked or ready else self.now + 1.0
        self.settle([*names, *ready])

    def run_until(self, end: float) -> None:
        """Process everything that time alone triggers, until ``end``."""
        while (at := self.next_at()) <= end:
            self.advance(at)
        self.now = max(end, self.now)

    # decisions

    def settle(self, names: Iterable[str]) -> None:
        """Decide about these nodes, and about the nodes that those decisions affect."""
        queue = deque(dict.fromkeys(names))
        waiting = set(queue)
        rounds: Counter[str] = Counter()
        while queue:
            name = queue.popleft()
            waiting.discard(name)
            rounds[name] += 1
            if rounds[name] > _ROUNDS:
                raise RuntimeError(f"the decisions about node {name} at {self.now} do not settle")
            for concerned in self._decide(name):
                if concerned not in waiting:
                    waiting.add(concerned)
                    queue.append(concerned)

    def _decide(self, name: str) -> list[str]:
        """Make and apply one decision. Returns the nodes to decide about again."""
        node, health, policy = self.nodes[name], self.healths.get(name), self.policy
        context = self._context(node)
        decision = decide(node, health, policy, self.now, {}, context)
        if decision.takes_a_place:
            shortage = self._allocator.ask(name, severity(decision), self.now)
            if shortage is not None:
                context = replace(context, withhold=shortage.reason)
                decision = decide(node, health, policy, self.now, {}, context)
        else:
            self._allocator.withdraw(name)
        no_room = self.devices.reserve(node, decision) if self.devices is not None else None
        if no_room is not None:
            context = replace(context, devices=replace(context.devices, withhold=no_room))
            decision = decide(node, health, policy, self.now, {}, context)
        role = self._assign_role(node, decision) if self._assign_role is not None else None
        if role is not None:
            decision = decide(node, health, policy, self.now, {}, replace(context, spare=role))
        self.nodes[name] = node = decision.applied(node)
        self._plan(name, decision.again_at)
        freed = self._note(node)
        freed = self._allocator.confirm(name) or freed
        concerned = self.incidents.note(name, self._opened(name, decision))
        woken: list[str] = []
        if self.devices is not None:
            self.devices.note(node)
            woken = self.devices.take_woken()
        self._decided(name, decision)
        return [*sorted(concerned), *woken, *(self._allocator.ready(self.now) if freed else ())]

    def _plan(self, name: str, at: float) -> None:
        if at == NEVER:
            self._again.pop(name, None)
        elif self._again.get(name) != at:
            self._again[name] = at
            heapq.heappush(self._due, (at, name))

    # decision context of a node

    def _note(self, node: Node) -> bool:
        memory = read_record(node)
        tainted_at = seconds(memory.tainted) if memory.tainted else 0.0
        standing = budgeted_node(node, self.policy.pools, ours=bool(memory.ours), tainted_at=tainted_at)
        return self._allocator.note(node.metadata.name, standing, node.metadata.resource_version)

    def _see(self, name: str, health: NodeHealth) -> None:
        before, seen = self._seen.get(name, {}), {}
        for key, finding in (read_report(health).findings or {}).items():
            if finding.verdict in (Verdict.WARN, Verdict.FAIL):
                known = before.get(key)
                is_same = known is not None and known[0] == finding.occurrence
                seen[key] = known if known is not None and is_same else (finding.occurrence, float(int(self.now)))
        if seen:
            self._seen[name] = seen
        else:
            self._seen.pop(name, None)

    def _since(self, name: str, memory: NodeRecord) -> dict[FaultKey, float]:
        """Everything wrong with the node, and since when, whether it opens a fault or not."""
        since = {key: at for key, (_, at) in self._seen.get(name, {}).items()}
        return since | {fault.key: seconds(fault.since) for fault in memory.open if not fault.rest}

    def _opened(self, name: str, decision: Decision) -> list[FaultOpening]:
        incidents = {fault.key: fault.incident for fault in decision.memory.open}
        return [
            FaultOpening(check, reason, component, since, incidents.get((check, component, reason), ""))
            for (check, component, reason), since in self._since(name, decision.memory).items()
        ]

    def _context(self, node: Node) -> DecisionContext:
        name = node.metadata.name
        others: dict[FaultKey, int] = {}
        incident: dict[FaultKey, str] = {}
        wrong = self._since(name, read_record(node))
        for key, since in wrong.items():
            check, _, reason = key
            others[key] = self.incidents.others(name, check, reason, since)
            known = self.incidents.of(name, check, reason, since)
            if known is not None:
                incident[key] = known.id
        devices = UNREAD_DEVICES if self.devices is None else self.devices.context(node, [key[1] for key in wrong])
        return DecisionContext(others=others, incident=incident, devices=devices)
