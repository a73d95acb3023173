"""Simulates what a policy would have done to a fleet, given its NodeHealths: real decisions, simulated time.

No clock and no random numbers: the same reports give the same outcome. Time advances from report to report, and stops
in between where a decision itself schedules a change (a wait, a hold-down, room under a rate limit).
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.allocator import BudgetAllocator
from muster_tainter.budgets.incidents import FaultOpening, Incident, IncidentIndex
from muster_tainter.budgets.pool_usage import budgeted_node
from muster_tainter.budgets.reservations import severity
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import READY, Decision, decide, is_managed
from muster_tainter.faults.lifecycle import FaultStep
from muster_tainter.faults.messages import describe_fault, format_taint
from muster_tainter.faults.node_record import NodeRecord, read_record
from muster_tainter.faults.node_report import FaultKey, read_report
from muster_tainter.policy.rules import Policy

SPELLS_LIMIT = 20_000  # kept for display; all are counted
INCIDENTS_LIMIT = 1000
_ROUNDS = 64  # decisions about one node at one moment; more would mean that the policy contradicts itself
_NEVER = float("inf")


@dataclass(frozen=True)
class TaintPeriod:
    """A period, in seconds since the epoch, during which a node had a taint, or a taint was withheld from it.

    ended: why it ended, empty if it had not at the end of the log. rules, why: the rules and the fault that wanted the
    taint; for a withheld taint, why is the budget.
    """

    node: str
    since: float
    until: float
    taint: str
    rules: str
    why: str
    ended: str = ""


@dataclass
class ReplayOutcome:
    """tainted_s: total over all nodes with any of Muster's taints. at_once, at_once_at: the most nodes tainted at the
    same time, and when first. opened, closed: faults by rule. left_out: periods that are counted but not kept."""

    begin: float = 0.0
    end: float = 0.0
    nodes: int = 0
    tainted: set[str] = field(default_factory=set)
    tainted_s: float = 0.0
    withheld: set[str] = field(default_factory=set)
    withheld_s: float = 0.0
    at_once: int = 0
    at_once_at: float = 0.0
    spells: list[TaintPeriod] = field(default_factory=list)
    withheld_spells: list[TaintPeriod] = field(default_factory=list)
    left_out: int = 0
    opened: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    incidents: dict[str, Incident] = field(default_factory=dict)


class PolicyReplay:
    """nodes: the fleet's Nodes, if known; budgets depend on their labels and number. Their taints are ignored: the
    replay starts with a clean fleet."""

    def __init__(self, policy: Policy, nodes: Iterable[Node] = ()) -> None:
        self.outcome = ReplayOutcome()
        self._policy = policy
        self._now = 0.0
        self._nodes: dict[str, Node] = {}
        self._healths: dict[str, NodeHealth] = {}
        self._allocator = BudgetAllocator(lambda: self._now, policy.pools)
        marks = [rule.match.correlated + 1 for rule in policy.rules if rule.match.correlated is not None]
        self._incidents = IncidentIndex(policy.incidents, marks)
        self._seen: dict[str, dict[FaultKey, tuple[int, float]]] = {}  # findings: their occurrence, and since when
        self._due: list[tuple[float, str]] = []
        self._again: dict[str, float] = {}
        self._taints: dict[tuple[str, str], TaintPeriod] = {}
        self._waits: dict[str, TaintPeriod] = {}
        self._tainted_since: dict[str, float] = {}
        for node in nodes:
            self._add(_clean(node))

    def take(self, at: float, health: NodeHealth) -> None:
        """Apply a NodeHealth that holds from ``at`` on, in seconds since the epoch; calls must be in time order."""
        name = health.metadata.name
        if not self._healths:
            self._now = self.outcome.begin = at
        at = max(at, self._now)
        self._run_until(at)
        self._now = at
        if name not in self._nodes:
            self._add(_clean(Node(metadata=Metadata(name=name))))
        self._healths[name] = health
        self._see(name, health)
        self._settle([name])

    def finish(self, at: float = 0.0) -> ReplayOutcome:
        """End the replay. at: end of the logs, if later than the last report."""
        end = max(at, self._now)
        self._run_until(end)
        self._now = self.outcome.end = end
        self.outcome.nodes = len(self._nodes)
        for spell in [*self._taints.values()]:
            self._keep(self.outcome.spells, replace(spell, until=end))
        for spell in [*self._waits.values()]:
            self._keep(self.outcome.withheld_spells, replace(spell, until=end))
            self.outcome.withheld_s += end - spell.since
        self.outcome.tainted_s += sum(end - since for since in self._tainted_since.values())
        for spells in (self.outcome.spells, self.outcome.withheld_spells):
            spells.sort(key=lambda spell: (spell.since, spell.node, spell.taint))
        return self.outcome

    # time

    def _run_until(self, end: float) -> None:
        """Process everything that time alone triggers, until ``end``."""
        while True:
            at = min(self._due[0][0] if self._due else _NEVER, self._allocator.next_room_at(self._now))
            if at > end:
                return
            self._now = max(at, self._now)
            names = []
            while self._due and self._due[0][0] <= self._now:
                due, name = heapq.heappop(self._due)
                if self._again.get(name) == due:
                    del self._again[name]
                    names.append(name)
            ready = self._allocator.ready(self._now)
            if not names and not ready and at == self._now:
                self._now += 1.0  # the predicted room was not there: try again one second later
                if self._now > end:
                    self._now = end
                    return
            self._settle([*names, *ready])

    def _settle(self, names: Iterable[str]) -> None:
        """Decide about these nodes, and about the nodes that those decisions affect."""
        queue = deque(dict.fromkeys(names))
        waiting = set(queue)
        rounds: Counter[str] = Counter()
        while queue:
            name = queue.popleft()
            waiting.discard(name)
            rounds[name] += 1
            if rounds[name] > _ROUNDS:
                raise RuntimeError(f"the decisions about node {name} at {self._now} do not settle")
            for concerned in self._decide(name):
                if concerned not in waiting:
                    waiting.add(concerned)
                    queue.append(concerned)

    def _decide(self, name: str) -> list[str]:
        """Make and apply one decision. Returns the nodes to decide about again."""
        node, health, policy = self._nodes[name], self._healths.get(name), self._policy
        around = self._around(node)
        decision = decide(node, health, policy, self._now, {}, around)
        if decision.takes_a_place:
            shortage = self._allocator.ask(name, severity(decision), self._now)
            if shortage is not None:
                decision = decide(node, health, policy, self._now, {}, replace(around, withhold=shortage.reason))
        else:
            self._allocator.withdraw(name)
        self._nodes[name] = node = decision.applied(node)
        self._record(name, decision)
        self._plan(name, decision.again_at)
        freed = self._note(node)
        freed = self._allocator.confirm(name) or freed
        concerned = self._incidents.note(name, self._opened(name, decision))
        if any(change.step is FaultStep.OPENED for change in decision.changes):
            self._note_incidents(name, decision)
        return [*sorted(concerned), *(self._allocator.ready(self._now) if freed else ())]

    def _plan(self, name: str, at: float) -> None:
        if at == _NEVER:
            self._again.pop(name, None)
        elif self._again.get(name) != at:
            self._again[name] = at
            heapq.heappush(self._due, (at, name))

    # decision context of a node

    def _add(self, node: Node) -> None:
        self._nodes[node.metadata.name] = node
        self._note(node)

    def _note(self, node: Node) -> bool:
        memory = read_record(node)
        tainted_at = seconds(memory.tainted) if memory.tainted else 0.0
        standing = budgeted_node(node, self._policy.pools, ours=bool(memory.ours), tainted_at=tainted_at)
        return self._allocator.note(node.metadata.name, standing, node.metadata.resource_version)

    def _see(self, name: str, health: NodeHealth) -> None:
        before, seen = self._seen.get(name, {}), {}
        for key, finding in (read_report(health).findings or {}).items():
            if finding.verdict in (Verdict.WARN, Verdict.FAIL):
                known = before.get(key)
                is_same = known is not None and known[0] == finding.occurrence
                seen[key] = known if known is not None and is_same else (finding.occurrence, float(int(self._now)))
        self._seen[name] = seen

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

    def _around(self, node: Node) -> DecisionContext:
        name = node.metadata.name
        others: dict[FaultKey, int] = {}
        incident: dict[FaultKey, str] = {}
        for key, since in self._since(name, read_record(node)).items():
            check, _, reason = key
            others[key] = self._incidents.others(name, check, reason, since)
            known = self._incidents.of(name, check, reason, since)
            if known is not None:
                incident[key] = known.id
        return DecisionContext(others=others, incident=incident)

    # outcome

    def _record(self, name: str, decision: Decision) -> None:
        outcome, now = self.outcome, self._now
        for change in decision.changes:
            if change.step is FaultStep.OPENED:
                outcome.opened[change.fault.rule] += 1
            elif change.step is FaultStep.CLOSED:
                outcome.closed[change.fault.rule] += 1
        for taint_change in decision.taint_changes:
            taint = format_taint(taint_change.taint)
            if taint_change.added:
                self._taints[name, taint] = TaintPeriod(name, now, now, taint, taint_change.rule, taint_change.why)
            else:
                spell = self._taints.pop((name, taint))
                self._keep(outcome.spells, replace(spell, until=now, ended=taint_change.why))
        if decision.withheld and name not in self._waits:
            outcome.withheld.add(name)
            fault = decision.memory.open[0]
            self._waits[name] = TaintPeriod(name, now, now, describe_fault(fault), fault.rule, decision.withheld)
        elif not decision.withheld and name in self._waits:
            wait = self._waits.pop(name)
            outcome.withheld_s += now - wait.since
            ended = "tainted" if decision.memory.ours else "its fault is resolved"
            self._keep(outcome.withheld_spells, replace(wait, until=now, ended=ended))
        tainted = bool(decision.memory.ours)
        if tainted and name not in self._tainted_since:
            self._tainted_since[name] = now
            outcome.tainted.add(name)
            if len(self._tainted_since) > outcome.at_once:
                outcome.at_once, outcome.at_once_at = len(self._tainted_since), now
        elif not tainted and name in self._tainted_since:
            outcome.tainted_s += now - self._tainted_since.pop(name)

    def _keep(self, spells: list[TaintPeriod], spell: TaintPeriod) -> None:
        if len(spells) < SPELLS_LIMIT:
            spells.append(spell)
        else:
            self.outcome.left_out += 1

    def _note_incidents(self, name: str, decision: Decision) -> None:
        for fault in decision.memory.open:
            incident = self._incidents.of(name, fault.check, fault.reason, seconds(fault.since))
            if incident is None:
                continue
            known = self.outcome.incidents.get(incident.id)
            if known is None and len(self.outcome.incidents) >= INCIDENTS_LIMIT:
                continue
            if known is None or known.count <= incident.count:
                self.outcome.incidents[incident.id] = incident


def _clean(node: Node) -> Node:
    """The node as a healthy one with the same name and labels; an unmanaged node keeps its Muster labels."""
    metadata = Metadata(name=node.metadata.name, resource_version="1", labels=dict(node.metadata.labels))
    labels = metadata.labels
    if is_managed(node):
        labels = {key: value for key, value in labels.items() if not key.startswith("muster.dev/")}
    ready = NodeCondition(type=READY, status="True")
    return Node(
        metadata=msgspec.structs.replace(metadata, labels=labels),
        spec=msgspec.structs.replace(node.spec, taints=()),
        status=NodeStatus(conditions=(ready,)),
    )
