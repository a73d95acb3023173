"""Random sequences of everything that can happen to a fleet: findings, budgets, pauses, crashes, other writers, clocks.

The agents, other writers and people are modelled; the decisions, the allocator and what ties them together are the real
ones. A leader decides and writes later; between the two anything may happen, the leader's death among it. A write on an
old version of the Node is refused, one that nobody answers was carried out or was not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus, Taint
from muster_kube.api.times import seconds
from muster_kube.nodehealth import (
    ClearedFault,
    ClearEntry,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
)
from muster_tainter.budgets.allocator import BudgetAllocator
from muster_tainter.budgets.pool_usage import budgeted_node
from muster_tainter.budgets.reservations import severity
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, decide, is_ours, missing_taints, recall_record
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.faults.record.node_record import OurTaint
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy

NAMES = tuple(f"n{number}" for number in range(6))
RACK = {"n0": "a", "n1": "a", "n2": "a", "n3": "b", "n4": "b", "n5": "b"}
CLASSES = ("reset", "replace")
FOREIGN = Taint(key="other/taint", effect="NoSchedule")
SLOT = ("muster.dev/faulty", "NoSchedule")
WAIT_S, RATE_S = 30.0, 600.0


@dataclass(frozen=True)
class Limits:
    """What budgets say; 6 is no limit in a fleet of six."""

    most: int
    in_rack: int
    healthy_in_rack: int
    rate: int


# one that binds at a time, and all of them
LIMITS = (
    *(Limits(most, 6, 0, 6) for most in (0, 1, 3)),
    *(Limits(6, in_rack, 0, 6) for in_rack in (1, 2)),
    *(Limits(6, 6, healthy, 6) for healthy in (1, 2)),
    *(Limits(6, 6, 0, rate) for rate in (1, 2)),
    Limits(3, 2, 1, 2),
)


def policy_of(limits: Limits) -> Policy:
    rate = f"rate: {{nodes: {limits.rate}, within: {RATE_S:g}s}}"
    racks = f"perDomain: {limits.in_rack}, healthyPerDomain: {limits.healthy_in_rack}"
    return parse_policy(f"""
pools:
  - {{name: all, selector: {{}}, budget: {{tainted: {limits.most}, {rate}}}}}
  - {{name: racks, selector: {{}}, domain: rack, budget: {{{racks}}}}}
rules:
  - {{name: later, match: {{class: reset}}, for: {WAIT_S:g}s, action: taint}}
  - {{name: hardware, action: taint}}
""")


nodes = st.sampled_from(NAMES)


@dataclass
class Pending:
    """A decision that has its place and is not written yet. over, paused: the fleet's, when it was made."""

    node: Node
    decision: Decision
    over: dict[tuple[str, str], int]
    paused: bool


class Fleet(RuleBasedStateMachine):
    @initialize(limits=st.sampled_from(LIMITS))
    def start(self, limits: Limits) -> None:
        self.limits = limits
        self.policy = policy_of(limits)
        self.now = 1.8e9
        self.monotonic = 0.0
        self.paused = False
        ready = NodeStatus(conditions=(NodeCondition(type="Ready", status="True"),))
        self.nodes = {
            name: Node(metadata=Metadata(name=name, resource_version="1", labels={"rack": RACK[name]}), status=ready)
            for name in NAMES
        }
        self.findings: dict[str, dict[str, ReportedFinding]] = {name: {} for name in NAMES}
        self.cleared: dict[str, list[ClearedFault]] = {name: [] for name in NAMES}
        self.clears: dict[str, list[ClearEntry]] = {name: [] for name in NAMES}
        self.counters = dict.fromkeys(NAMES, 0)
        self.over: dict[tuple[str, str], int] = {}  # (node, reason) -> occurrence that a person or the driver closed
        self.removed: dict[str, dict[OurTaint, str]] = {}
        self.pending: dict[str, Pending] = {}
        self.lead()

    def lead(self) -> None:
        """A new leader knows what the cluster holds, and nothing else."""
        self.allocator = BudgetAllocator(lambda: self.monotonic, self.policy.pools)
        self.pending.clear()
        self.removed.clear()
        for name in NAMES:
            self.note(name)

    def note(self, name: str) -> None:
        node, memory = self.nodes[name], recall_record(self.nodes[name])
        standing = budgeted_node(
            node,
            self.policy.pools,
            ours=bool(memory.ours),
            tainted_at=seconds(memory.tainted) if memory.tainted else 0.0,
        )
        self.allocator.note(name, standing, node.metadata.resource_version)

    def health(self, name: str) -> NodeHealth:
        findings = tuple(self.findings[name].values())
        check = ReportedCheck(
            name="dmesg",
            verdict="FAIL" if findings else "PASS",
            findings=findings,
            cleared=tuple(self.cleared[name][-16:]),
        )
        return NodeHealth(
            metadata=Metadata(name=name),
            spec=NodeHealthSpec(clear=tuple(self.clears[name][-32:])),
            status=NodeHealthStatus(verdict=check.verdict, checks=(check,), boot_id="b"),
        )

    # agents

    @rule(name=nodes, fault_class=st.sampled_from(CLASSES))
    def fires(self, name: str, fault_class: str) -> None:
        reason = f"Xid-{fault_class}"
        if reason not in self.findings[name]:
            self.counters[name] += 1
            self.findings[name][reason] = ReportedFinding(
                component="gpu/0",
                reason=reason,
                verdict="FAIL",
                fault_class=fault_class,
                occurrence=self.counters[name],
            )

    @rule(name=nodes, fault_class=st.sampled_from(CLASSES))
    def driver_says_it_is_over(self, name: str, fault_class: str) -> None:
        finding = self.findings[name].pop(f"Xid-{fault_class}", None)
        if finding is not None:
            self.cleared[name].append(
                ClearedFault(
                    component="gpu/0", reason=finding.reason, occurrence=finding.occurrence, how="driver", at=""
                )
            )

    @rule(name=nodes)
    def agent_loses_its_state(self, name: str) -> None:
        self.findings[name].clear()
        self.cleared[name].clear()

    # people and other controllers

    @rule(name=nodes)
    def person_clears(self, name: str) -> None:
        if self.counters[name]:
            self.clears[name].append(ClearEntry(check="dmesg", component="*", occurrence=self.counters[name], by="ada"))
            self.closed_by_a_person(name)

    def closed_by_a_person(self, name: str) -> None:
        for fault_class in CLASSES:
            self.over[name, f"Xid-{fault_class}"] = self.counters[name]

    @rule(name=nodes)
    def person_takes_our_taint_off(self, name: str) -> None:
        node = self.nodes[name]
        gone = {
            OurTaint(key=t.key, effect=t.effect, value=t.value)
            for t in node.spec.taints
            if is_ours(t, recall_record(node)) and t in node.spec.taints
        }
        if not gone or missing_taints(node, self.policy):
            return
        self.write_taints(name, (t for t in node.spec.taints if (t.key, t.effect) != SLOT))
        self.removed[name] = dict.fromkeys(gone, "ada")
        for fault in recall_record(node).open:
            if match_policy(fault, self.policy).taint in gone:
                self.over[name, fault.reason] = max(self.over.get((name, fault.reason), 0), fault.occurrence)

    @rule(name=nodes)
    def another_controller_writes_a_list_without_ours(self, name: str) -> None:
        self.write_taints(name, (FOREIGN,))

    @rule(name=nodes)
    def others_taint(self, name: str) -> None:
        if FOREIGN not in self.nodes[name].spec.taints:
            self.write_taints(name, (*self.nodes[name].spec.taints, FOREIGN))

    @rule(name=nodes)
    def others_untaint(self, name: str) -> None:
        self.write_taints(name, (t for t in self.nodes[name].spec.taints if t != FOREIGN))

    @rule(name=nodes, cordoned=st.booleans())
    def somebody_cordons(self, name: str, cordoned: bool) -> None:
        node = self.nodes[name]
        spec = msgspec.structs.replace(node.spec, unschedulable=cordoned)
        self.touch(msgspec.structs.replace(node, spec=spec))

    @rule(name=nodes, ready=st.booleans())
    def kubelet_says(self, name: str, ready: bool) -> None:
        condition = NodeCondition(type="Ready", status=str(ready))
        self.touch(msgspec.structs.replace(self.nodes[name], status=NodeStatus(conditions=(condition,))))

    @rule(paused=st.booleans())
    def person_pauses(self, paused: bool) -> None:
        self.paused = paused

    @rule(seconds_=st.sampled_from([1.0, WAIT_S, RATE_S + 1, 90_000.0]))
    def time_passes(self, seconds_: float) -> None:
        self.now += seconds_
        self.monotonic += seconds_

    @rule(seconds_=st.sampled_from([-3600.0, 3600.0]))
    def clock_jumps(self, seconds_: float) -> None:
        self.now += seconds_

    def write_taints(self, name: str, taints: Iterable[Taint]) -> None:
        node = self.nodes[name]
        self.removed.pop(name, None)
        self.touch(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=tuple(taints))))

    def touch(self, node: Node) -> None:
        metadata = msgspec.structs.replace(
            node.metadata, resource_version=str(int(self.nodes[node.metadata.name].metadata.resource_version) + 1)
        )
        self.nodes[node.metadata.name] = msgspec.structs.replace(node, metadata=metadata)
        self.note(node.metadata.name)

    # the leader

    def decision(self, name: str) -> Decision:
        """As the controller makes it."""
        node, health = self.nodes[name], self.health(name)
        around = DecisionContext(withhold="paused" if self.paused else "")
        released = self.removed.get(name, {})
        made = decide(node, health, self.policy, self.now, released, around)
        if not made.takes_a_place:
            self.allocator.withdraw(name)
            return made
        shortage = self.allocator.ask(name, severity(made), self.now)
        if shortage is not None:
            made = decide(node, health, self.policy, self.now, released, DecisionContext(withhold=shortage.reason))
        return made

    @rule(name=nodes)
    def leader_decides(self, name: str) -> None:
        if name not in self.pending:
            self.pending[name] = Pending(self.nodes[name], self.decision(name), dict(self.over), self.paused)

    @rule(name=nodes, fate=st.sampled_from(["answered", "answered", "refused", "lost", "done unanswered"]))
    def leader_writes(self, name: str, fate: str) -> None:
        pending = self.pending.pop(name, None)
        if pending is None:
            return
        version = pending.node.metadata.resource_version
        if not pending.decision.writes:
            return
        if fate == "refused" or version != self.nodes[name].metadata.resource_version:
            self.allocator.release(name)
        elif fate == "lost":
            self.allocator.mark_uncertain(name, version)
        else:
            self.land(name, pending.decision, pending.over, paused=pending.paused)
            if fate == "answered":
                self.allocator.confirm(name)
            else:
                self.allocator.mark_uncertain(name, version)

    @rule()
    def leader_dies(self) -> None:
        self.lead()

    def land(self, name: str, decision: Decision, over: dict[tuple[str, str], int], *, paused: bool) -> None:
        """over, paused: when it was decided; what a person does meanwhile is for the next decision."""
        before, taken_before, healthy_before = self.nodes[name], self.taken(), self.healthy()
        had = {fault.key: fault for fault in recall_record(before).open}
        foreign = FOREIGN in before.spec.taints
        self.removed.pop(name, None)
        self.touch(decision.applied(before))
        after = self.nodes[name]
        memory = recall_record(after)
        assert (FOREIGN in after.spec.taints) == foreign, "a foreign taint came or went by our hand"
        if self.taken() > taken_before:
            assert len(self.taken()) <= self.limits.most
            assert sum(RACK[n] == RACK[name] for n in self.taken()) <= self.limits.in_rack
            assert self.tainted_lately() <= self.limits.rate
            if name in healthy_before:
                assert sum(RACK[n] == RACK[name] for n in self.healthy()) >= self.limits.healthy_in_rack
            assert not paused
        wants = {match_policy(fault, self.policy).taint for fault in memory.open}
        for taint in after.spec.taints:
            assert (
                not is_ours(taint, memory) or OurTaint(key=taint.key, effect=taint.effect, value=taint.value) in wants
            )
        for fault in memory.open:
            if fault.key not in had or had[fault.key].occurrence < fault.occurrence:
                assert fault.occurrence > over.get((name, fault.reason), 0), "opened again though it was closed"

    def taken(self) -> frozenset[str]:
        return frozenset(name for name in NAMES if recall_record(self.nodes[name]).ours)

    def healthy(self) -> frozenset[str]:
        return frozenset(
            name for name in NAMES if budgeted_node(self.nodes[name], (), ours=False, tainted_at=0).healthy
        )

    def tainted_lately(self) -> int:
        stamps = [seconds(recall_record(node).tainted) for node in self.nodes.values() if recall_record(node).tainted]
        return sum(abs(self.now - stamp) < RATE_S for stamp in stamps)

    # what has to come of it

    @rule()
    def settles(self) -> None:
        """With nobody in between, all is done that there is room for."""
        for name in list(self.pending):
            self.leader_writes(name, "answered")
        self.monotonic += 120.0  # writes of unknown fate are known by then
        for _ in range(4 * len(NAMES)):
            order = [*self.allocator.ready(self.now), *NAMES]
            wrote = False
            for name in order:
                decision = self.decision(name)
                if decision.writes:
                    wrote = True
                    self.land(name, decision, self.over, paused=self.paused)
                    self.allocator.confirm(name)
            if not wrote:
                break
        else:
            raise AssertionError("it never comes to rest")
        for name in NAMES:
            self.is_as_it_should_be(name)

    def is_as_it_should_be(self, name: str) -> None:
        node, memory = self.nodes[name], recall_record(self.nodes[name])
        wants = {
            want.taint
            for fault in memory.open
            if confirmed_at(fault, want := match_policy(fault, self.policy), self.now) <= self.now
        }
        has = {OurTaint(key=t.key, effect=t.effect, value=t.value) for t in node.spec.taints if is_ours(t, memory)}
        assert has <= wants
        assert ("muster.dev/faulty" in node.metadata.labels) == bool(has)
        opened = {fault.reason: fault for fault in memory.open}
        for reason, finding in self.findings[name].items():
            if finding.occurrence > self.over.get((name, reason), 0):
                assert reason in opened, "an open finding is no fault"
        if wants and not has:
            assert self.paused or self.no_room(name), "a confirmed fault is not tainted though there is room"

    def no_room(self, name: str) -> bool:
        taken = self.taken()
        rack = [other for other in NAMES if RACK[other] == RACK[name]]
        healthy = self.healthy()
        return (
            len(taken) >= self.limits.most
            or sum(other in taken for other in rack) >= self.limits.in_rack
            or self.tainted_lately() >= self.limits.rate
            or (name in healthy and sum(other in healthy for other in rack) <= self.limits.healthy_in_rack)
            or (name not in healthy and sum(other in healthy for other in rack) < self.limits.healthy_in_rack)
        )


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
