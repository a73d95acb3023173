"""Simulates what a policy would have done to a fleet, given its NodeHealths: real decisions, simulated time.

No clock and no random numbers: the same reports give the same outcome. Time advances from report to report, and stops
in between where a decision itself schedules a change (a wait, a hold-down, room under a rate limit).
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import msgspec

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.incidents import Incident
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices
from muster_tainter.devices.slices.resource_slice import ResourceSlice
from muster_tainter.explain.device_periods import DeviceOutcome, DevicePeriods
from muster_tainter.faults.desired_state import READY, Decision, is_managed
from muster_tainter.faults.lifecycle import FaultStep
from muster_tainter.faults.messages import describe_fault, format_taint
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.decision_loop import DecisionLoop
from muster_tainter.simulation.devices.replayed import ReplayedDevices

SPELLS_LIMIT = 20_000  # kept for display; all are counted
INCIDENTS_LIMIT = 1000


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
    devices: DeviceOutcome = field(default_factory=DeviceOutcome)


class PolicyReplay:
    """nodes: the fleet's Nodes, if known; budgets depend on their labels and number. Their taints are ignored: the
    replay starts with a clean fleet. slices: name the devices that may be kept out alone; without them, each fault
    taints its node."""

    def __init__(self, policy: Policy, nodes: Iterable[Node] = (), slices: Collection[ResourceSlice] = ()) -> None:
        self._loop = DecisionLoop(policy, self._record)
        self._known = ReplayedDevices(slices, policy, self._loop.nodes, lambda: self._loop.now) if slices else None
        self._loop.devices = self._known
        self._devices = DevicePeriods(self._devices_of)
        self.outcome = ReplayOutcome(devices=self._devices.outcome)
        self._taints: dict[tuple[str, str], TaintPeriod] = {}
        self._waits: dict[str, TaintPeriod] = {}
        self._tainted_since: dict[str, float] = {}
        for node in nodes:
            self._loop.add(clean_node(node))

    def take(self, at: float, health: NodeHealth) -> None:
        """Apply a NodeHealth that holds from ``at`` on, in seconds since the epoch; calls must be in time order."""
        name, loop = health.metadata.name, self._loop
        if not loop.healths:
            loop.now = self.outcome.begin = at
        loop.run_until(max(at, loop.now))
        if name not in loop.nodes:
            loop.add(clean_node(Node(metadata=Metadata(name=name))))
        loop.report(health)
        loop.settle([name])

    def finish(self, at: float = 0.0) -> ReplayOutcome:
        """End the replay. at: end of the logs, if later than the last report."""
        end = max(at, self._loop.now)
        self._loop.run_until(end)
        self.outcome.end = end
        self.outcome.nodes = len(self._loop.nodes)
        for spell in [*self._taints.values()]:
            self._keep(self.outcome.spells, replace(spell, until=end))
        for spell in [*self._waits.values()]:
            self._keep(self.outcome.withheld_spells, replace(spell, until=end))
            self.outcome.withheld_s += end - spell.since
        self._devices.finish(end)
        self.outcome.tainted_s += sum(end - since for since in self._tainted_since.values())
        for spells in (self.outcome.spells, self.outcome.withheld_spells):
            spells.sort(key=lambda spell: (spell.since, spell.node, spell.taint))
        return self.outcome

    # outcome

    def _record(self, name: str, decision: Decision) -> None:
        outcome, now = self.outcome, self._loop.now
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
        if any(change.step is FaultStep.OPENED for change in decision.changes):
            self._note_incidents(name, decision)
        self._devices.note(self._loop.nodes[name], decision, now)

    def _devices_of(self, name: str) -> NodeDevices:
        return NO_DEVICES if self._known is None else self._known.of(name)

    def _keep(self, spells: list[TaintPeriod], spell: TaintPeriod) -> None:
        if len(spells) < SPELLS_LIMIT:
            spells.append(spell)
        else:
            self.outcome.left_out += 1

    def _note_incidents(self, name: str, decision: Decision) -> None:
        for fault in decision.memory.open:
            incident = self._loop.incidents.of(name, fault.check, fault.reason, seconds(fault.since))
            if incident is None:
                continue
            known = self.outcome.incidents.get(incident.id)
            if known is None and len(self.outcome.incidents) >= INCIDENTS_LIMIT:
                continue
            if known is None or known.count <= incident.count:
                self.outcome.incidents[incident.id] = incident


def clean_node(node: Node) -> Node:
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
