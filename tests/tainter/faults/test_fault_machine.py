"""Random sequences of everything that can happen to one node, with a crash or another writer between any two writes.

The agent, other writers and people are modelled; the decisions are the real ones. Two tainters take snapshots and write
later, as a former leader does; a write on an old version of the Node is refused.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster_kube.api.objects import Metadata, Node, Taint
from muster_kube.nodehealth import (
    ClearedFault,
    ClearEntry,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
)
from muster_tainter.faults.desired_state import Decision, decide, is_ours, missing_taints, recall_record
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import OurTaint, as_our_taint
from muster_tainter.policy.file import parse_policy

POLICY = parse_policy("""
rules:
  - {name: nics, match: {component: "nic/*"}, action: taint, taint: {key: example.com/nic, effect: NoExecute}}
  - {name: hardware, match: {class: [reset, replace]}, action: taint}
  - {name: rest, match: {verdict: [WARN, FAIL]}, action: event}
""")
COMPONENTS = ("gpu/0", "gpu/1", "nic/0")
REASONS = ("Xid79", "Xid95")
FOREIGN = tuple(Taint(key=f"other/{n}", effect="NoSchedule") for n in range(3))
KEYS = [("dmesg", component, reason) for component in COMPONENTS for reason in REASONS]

Key = tuple[str, str, str]


@dataclass
class Pending:
    """A decision that is not written yet."""

    node: Node
    decision: Decision


class OneNode(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.now = 1.8e9
        self.node = Node(metadata=Metadata(name="n1", resource_version="1"))
        self.foreign: set[Taint] = set()
        self.stale_list: tuple[Taint, ...] = ()
        self.evidence: dict[OurTaint, str] = {}
        self.counter = 0
        self.boot = 1
        self.findings: dict[Key, ReportedFinding] = {}
        self.cleared: list[ClearedFault] = []
        self.clears: list[ClearEntry] = []
        self.shown = "report"
        self.health: NodeHealth | None = None
        self.pending: list[Pending | None] = [None, None]
        self.released: dict[Key, int] = {}
        self.proved: dict[Key, int] = {}

    # the agent

    def publish(self) -> None:
        findings = tuple(self.findings.values()) if self.shown != "unknown" else ()
        if self.shown == "nonsense":
            findings = (*findings, ReportedFinding(component="", reason="x", verdict="FAIL"))
        verdict = "UNKNOWN" if self.shown == "unknown" else "FAIL" if findings else "PASS"
        check = ReportedCheck(name="dmesg", verdict=verdict, findings=findings, cleared=tuple(self.cleared[-16:]))
        self.health = NodeHealth(
            metadata=Metadata(name="n1"),
            spec=NodeHealthSpec(clear=tuple(self.clears[-32:])),
            status=NodeHealthStatus(verdict=verdict, checks=(check,), boot_id=f"boot-{self.boot}"),
        )

    @rule(key=st.sampled_from(KEYS), fault_class=st.sampled_from(["reset", "replace", "restart-app"]))
    def fires(self, key: Key, fault_class: str) -> None:
        if key not in self.findings:
            self.counter += 1
            self.findings[key] = ReportedFinding(
                component=key[1], reason=key[2], verdict="FAIL", fault_class=fault_class, occurrence=self.counter
            )
        self.publish()

    @rule(component=st.sampled_from(COMPONENTS), how=st.sampled_from(["driver", "quiet", "run"]))
    def goes(self, component: str, how: str) -> None:
        for key, finding in list(self.findings.items()):
            if key[1] == component:
                self.over(key, finding, how)
                if how == "driver" or (how == "quiet" and finding.fault_class == "restart-app"):
                    self.prove(key, finding.occurrence)
        self.publish()

    def over(self, key: Key, finding: ReportedFinding, how: str) -> None:
        del self.findings[key]
        over = ClearedFault(
            component=key[1], reason=key[2], occurrence=finding.occurrence, how=how, at="2026-01-01T00:00:00Z"
        )
        self.cleared.append(over)

    @rule()
    def agent_loses_its_state(self) -> None:
        """But not its counter: the NodeHealth remembers that."""
        self.findings.clear()
        self.cleared.clear()
        self.publish()

    @rule(again=st.sets(st.sampled_from(KEYS)))
    def reboots(self, again: set[Key]) -> None:
        self.boot += 1
        for key in KEYS:
            self.prove(key, self.counter)
        was, self.findings = self.findings, {}
        for key in sorted(again & was.keys()):
            self.counter += 1
            self.findings[key] = msgspec.structs.replace(was[key], occurrence=self.counter)
        self.publish()

    @rule(shown=st.sampled_from(["report", "unknown", "nonsense"]))
    def reports_differently(self, shown: str) -> None:
        self.shown = shown
        self.publish()

    @rule()
    def agent_carries_out_clears(self) -> None:
        for clear in self.clears:
            for key, finding in list(self.findings.items()):
                if clear.component in ("*", key[1]) and finding.occurrence <= clear.occurrence:
                    self.over(key, finding, "request")
        self.publish()

    @rule()
    def health_is_deleted(self) -> None:
        self.health = None

    # people and other controllers

    @rule(component=st.sampled_from(("*", *COMPONENTS)))
    def person_clears(self, component: str) -> None:
        if not self.counter:
            return
        self.clears.append(ClearEntry(check="dmesg", component=component, occurrence=self.counter, by="ada"))
        for key in KEYS:
            if component in ("*", key[1]):
                self.prove(key, self.counter)
        self.publish()

    @rule()
    def person_takes_our_taints_off(self) -> None:
        gone = set(vanished_if_bare(self.node))
        if not gone or missing_taints(self.node, POLICY):
            return  # others have just been at it: then nothing says that it was a person
        slots = {(taint.key, taint.effect) for taint in gone}
        taints = tuple(t for t in self.node.spec.taints if (t.key, t.effect) not in slots)
        self.written(taints)
        self.evidence = dict.fromkeys(gone, "ada")
        for fault in recall_record(self.node).open:
            if match_policy(fault, POLICY).taint in gone:
                self.prove(fault.key, fault.occurrence)

    @rule(taint=st.sampled_from(FOREIGN))
    def others_add(self, taint: Taint) -> None:
        if taint not in self.node.spec.taints:
            self.foreign.add(taint)
            self.written((*self.node.spec.taints, taint))

    @rule(taint=st.sampled_from(FOREIGN))
    def others_remove(self, taint: Taint) -> None:
        self.foreign.discard(taint)
        self.written(tuple(t for t in self.node.spec.taints if t != taint))

    @rule()
    def others_copy(self) -> None:
        self.stale_list = self.node.spec.taints

    @rule(taint=st.sampled_from(FOREIGN))
    def others_write_from_their_copy(self, taint: Taint) -> None:
        taints = (*(t for t in self.stale_list if t != taint), taint)
        self.foreign = {t for t in taints if t in FOREIGN}
        self.written(taints)

    @rule()
    def kubelet_writes(self) -> None:
        self.touched()

    def written(self, taints: tuple[Taint, ...]) -> None:
        self.node = msgspec.structs.replace(self.node, spec=msgspec.structs.replace(self.node.spec, taints=taints))
        self.evidence = {}
        self.touched()

    def touched(self) -> None:
        version = str(int(self.node.metadata.resource_version) + 1)
        self.node = msgspec.structs.replace(
            self.node, metadata=msgspec.structs.replace(self.node.metadata, resource_version=version)
        )

    # the tainters

    @rule(which=st.integers(0, 1))
    def tainter_decides(self, which: int) -> None:
        self.pending[which] = Pending(self.node, decide(self.node, self.health, POLICY, self.now, self.evidence))

    @rule(which=st.integers(0, 1))
    def tainter_writes(self, which: int) -> None:
        pending, self.pending[which] = self.pending[which], None
        if pending is None or not pending.decision.writes:
            return
        if pending.node.metadata.resource_version != self.node.metadata.resource_version:
            return  # 409
        self.apply(pending.decision)

    @rule(which=st.integers(0, 1))
    def tainter_crashes(self, which: int) -> None:
        self.pending[which] = None
        self.evidence = {}  # what the watch showed is gone with it

    @rule(hours=st.sampled_from([0.01, 30.0]))
    def time_passes(self, hours: float) -> None:
        self.now += hours * 3600

    @rule()
    def settles(self) -> None:
        for _ in range(3):
            decision = decide(self.node, self.health, POLICY, self.now, self.evidence)
            if not decision.writes:
                break
            self.apply(decision)
        again = decide(self.node, self.health, POLICY, self.now, {})
        assert not again.writes
        assert not again.notices
        memory = recall_record(self.node)
        wants = {match_policy(fault, POLICY).taint for fault in memory.open} - {None}
        there = {
            OurTaint(key=t.key, effect=t.effect, value=t.value) for t in self.node.spec.taints if is_ours(t, memory)
        }
        assert there == wants == set(memory.ours)
        assert (self.node.metadata.labels.get("muster.dev/faulty") == "true") == bool(wants)
        self.expected_open(memory)

    def expected_open(self, memory: Any) -> None:
        """Whatever is reported, wants a taint and was never closed is open."""
        if self.health is None or self.shown == "unknown":
            return
        opened = {fault.key for fault in memory.open}
        for key, finding in self.findings.items():
            rule_ = POLICY.rule_for(*key, finding.verdict, finding.fault_class)
            fresh = finding.occurrence > max(self.released.get(key, 0), self.proved.get(key, 0))
            if rule_ is not None and rule_.node_taint is not None and fresh:
                assert key in opened

    def apply(self, decision: Decision) -> None:
        before = recall_record(self.node)
        others_before = [t for t in self.node.spec.taints if not is_ours(t, before)]
        self.node = decision.applied(self.node)
        self.evidence = {}
        self.touched()
        after = recall_record(self.node)
        assert [t for t in self.node.spec.taints if t in others_before] == others_before
        had, has = {f.key: f for f in before.open}, {f.key: f for f in after.open}
        for key in had.keys() - has.keys():
            assert self.proved.get(key, 0) >= had[key].occurrence, f"{key} was closed without proof"
            self.released[key] = max(self.released.get(key, 0), had[key].occurrence)
        for key in has.keys() - had.keys():
            assert has[key].occurrence > self.released.get(key, 0), f"{key} was opened again"
        wants = {match_policy(fault, POLICY).taint for fault in after.open}
        for taint in self.node.spec.taints:
            assert not is_ours(taint, after) or as_our_taint(taint) in wants

    def prove(self, key: Key, occurrence: int) -> None:
        self.proved[key] = max(self.proved.get(key, 0), occurrence)

    @precondition(lambda self: hasattr(self, "foreign"))
    @invariant()
    def others_taints_are_as_others_left_them(self) -> None:
        assert {t for t in self.node.spec.taints if t in FOREIGN} == self.foreign

    @precondition(lambda self: hasattr(self, "node"))
    @invariant()
    def the_annotation_stays_small(self) -> None:
        assert all(len(text.encode()) <= 8192 for text in self.node.metadata.annotations.values())


def vanished_if_bare(node: Node) -> tuple[OurTaint, ...]:
    """Our taints that open faults want: those a person can take off."""
    return missing_taints(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=())), POLICY)


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
