"""Random histories of one faulty node: its agent answers anything or nothing, leaders die between any two writes and
decide on what is no longer there, clocks jump, people and other programs ask too. Decisions and writes are the real
ones; what really came after what is counted beside them, by no clock.
"""

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.tainter.verification.proved_node import COSTS, ProvedNode

from muster_kube.api.objects import Node
from muster_kube.nodehealth import CheckRequest, ClearEntry, NodeHealth, NodeHealthSpec, RequestAnswer
from muster_tainter.faults.desired_state import decide, recall_record
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import Fault
from muster_tainter.policy.recovery import read_proof_request
from muster_tainter.verification.node_plan import NodePlan, ProofToRequest, is_ours, plan_node

POLICY = """
rules:
  - name: boards
    match: {check: dmesg, class: replace}
    action: taint
    proof: {checks: [pciebw, dcgm], passes: 2, retry: 10m}
  - {name: slow, match: {check: pciebw, component: gpu/1}, action: taint, for: 30s, proof: {passes: 1, retry: 1m}}
  - {name: hardware, match: {class: [reset, replace]}, action: taint, proof: {retry: 10m}}
holdDown: {base: 60s}
"""
KEYS = [
    ("dmesg", "gpu/0", "Xid48"),
    ("pciebw", "gpu/0", "Slow"),
    ("pciebw", "gpu/1", "Slow"),
    ("remapped", "gpu/1", "Remapped"),
]
Key = tuple[str, str, str]
VERDICTS = ["PASS", "PASS", "FAIL", "WARN", "UNKNOWN", "SKIP", "Busy"]
THEIRS = [CheckRequest(id=f"ann-{n}", checks=("dcgm",), params={"dcgm.level": "2"}, by="ann") for n in range(14)]


@dataclass
class Snapshot:
    """What a leader has seen, and may decide on, while others write."""

    node: Node
    health: NodeHealth
    now: float


class OneFaultyNode(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.it = ProvedNode(POLICY)
        self.theirs: list[CheckRequest] = []
        self.snapshots: list[Snapshot | None] = [None, None]
        self.order = 0  # what really came after what
        self.fired: dict[tuple[Key, int], int] = {}  # the firing with that number
        self.asked_at: dict[str, int] = {}  # by request
        self.forgotten: dict[str, RequestAnswer] = {}  # that its agent has answered, by request
        self.booted_at = 0
        self.clears: list[ClearEntry] = []
        self.driver: dict[Key, int] = {}

    def happens(self) -> int:
        self.order += 1
        return self.order

    # the agent and its node

    @rule(key=st.sampled_from(KEYS))
    def fires(self, key: Key) -> None:
        self.it.fails(*key, fault_class="replace" if key[0] != "pciebw" else "reset")
        self.fired[key, self.it.counters[key[0]]] = self.happens()

    @rule(check=st.sampled_from(["dmesg", "pciebw", "remapped"]), how=st.sampled_from(["run", "quiet", "driver"]))
    def agent_no_longer_finds_it(self, check: str, how: str) -> None:
        for key, finding in self.it.findings.items():
            if key[0] == check and how == "driver":
                self.driver[key] = finding.occurrence
        self.it.goes(check, how)
        self.happens()

    @rule(again=st.sets(st.sampled_from(KEYS)))
    def reboots(self, again: set[Key]) -> None:
        """Faults that a boot closes are not in this policy's way: those of pciebw are found again, or were."""
        self.it.reboots(tuple(sorted(again)))
        self.booted_at = self.happens()
        for key, finding in self.it.findings.items():
            self.fired[key, finding.occurrence] = self.booted_at

    @rule(verdict=st.sampled_from(VERDICTS))
    def agent_answers(self, verdict: str) -> None:
        asked = [request for request in self.it.asked() if request.id not in self.it.answers]
        if asked:
            self.happens()
            reason = "Busy" if verdict == "Busy" else ""
            self.it.answer("UNKNOWN" if reason else verdict, reason, asked[0])

    @rule(idle=st.booleans())
    def jobs_come_and_go(self, idle: bool) -> None:
        self.it.idle = idle
        self.it.publish()

    @rule()
    def agent_carries_out_clears(self) -> None:
        for clear in self.it.clears:
            for key, finding in list(self.it.findings.items()):
                if clear.check == key[0] and clear.component == key[1] and finding.occurrence <= clear.occurrence:
                    del self.it.findings[key]
        self.it.publish()

    # people and other programs

    @rule(count=st.integers(0, 14))
    def others_ask(self, count: int) -> None:
        self.theirs = THEIRS[:count]
        ours = [request for request in self.it.health.spec.requests if is_ours(request)]
        room = 16 - len(ours)
        self.theirs = self.theirs[:room]
        self.it.change(spec=NodeHealthSpec(requests=(*ours, *self.theirs), clear=self.it.clears))

    @rule()
    def person_deletes_what_we_ask(self) -> None:
        self.it.change(spec=NodeHealthSpec(requests=tuple(self.theirs), clear=self.it.clears))

    @rule(key=st.sampled_from(KEYS))
    def person_clears(self, key: Key) -> None:
        occurrence = self.it.counters.get(key[0], 0)
        if occurrence:
            clear = ClearEntry(check=key[0], component=key[1], occurrence=occurrence, by="ann")
            self.clears.append(clear)
            self.it.change(
                spec=NodeHealthSpec(requests=self.it.health.spec.requests, clear=(*self.it.clears, clear)[-32:])
            )

    # the leaders, two of them, as one that was stopped does not know that it leads no longer

    @rule(which=st.integers(0, 1))
    def leader_looks(self, which: int) -> None:
        assert self.it.node is not None
        self.snapshots[which] = Snapshot(self.it.node, self.it.health, self.it.now)

    @rule(which=st.integers(0, 1))
    def leader_decides_on_what_it_saw(self, which: int) -> None:
        seen = self.snapshots[which]
        if seen is None or self.it.node is None:
            return
        decision = decide(seen.node, seen.health, self.it.policy, seen.now)
        if seen.node is self.it.node:  # else 409
            self.write_node(decision.applied(self.it.node))

    @rule(which=st.integers(0, 1), late=st.sampled_from([0.0, 20.0]))
    def leader_writes_proofs_by_what_it_saw(self, which: int, late: float) -> None:
        seen = self.snapshots[which]
        if seen is None:
            return
        made = plan_node(seen.node, seen.health, self.it.policy, seen.now + late, COSTS)
        if seen.health is self.it.health:  # else 409
            self.write_health(made)

    @rule(which=st.integers(0, 1))
    def leader_dies(self, which: int) -> None:
        self.snapshots[which] = None

    @rule(seconds=st.sampled_from([0.0, 61.0, 700.0]), turns=st.integers(1, 3))
    def leader_goes_on(self, seconds: float, turns: int) -> None:
        """Undisturbed for a while: most of what is worth disturbing begins here."""
        self.it.now += seconds
        for _ in range(turns):
            self.leader_decides()
            self.leader_writes_proofs()

    @rule(key=st.sampled_from(KEYS), passes=st.booleans())
    def fault_is_asked_about(self, key: Key, passes: bool) -> None:
        self.fires(key)
        if key[0] == "dmesg":
            self.leader_decides()
            self.reboots(set())
        self.jobs_come_and_go(idle=True)
        self.leader_goes_on(0.0, 1)
        self.leader_goes_on(61.0, 2)
        if passes:
            self.agent_answers("PASS")

    @rule(
        key=st.sampled_from(KEYS), passes=st.booleans(), clock_s=st.sampled_from([0.0, -7.0, -3600.0, -39 * 86_400.0])
    )
    def fault_fires_when_its_proof_is_done(self, key: Key, passes: bool, clock_s: float) -> None:
        """Before anybody has noted that, by a clock that says it was before."""
        self.fault_is_asked_about(key, passes)
        self.the_clock_is_set(clock_s)
        self.fires(key)
        self.leader_decides()
        self.leader_decides()

    @rule()
    def leader_decides(self) -> None:
        assert self.it.node is not None
        self.write_node(decide(self.it.node, self.it.health, self.it.policy, self.it.now).applied(self.it.node))

    @rule()
    def leader_writes_proofs(self) -> None:
        self.write_health(self.it.prove())

    def write_health(self, made: NodePlan) -> None:
        if made.writes:
            self.it.delete(made)
        elif made.asks:
            self.ask(made, made.asks)

    def ask(self, made: NodePlan, asks: tuple[ProofToRequest, ...]) -> None:
        now = self.happens()
        before = {request.id for request in self.it.asked()}
        self.it.ask(made, asks)
        for request in self.it.asked():
            if request.id not in before:
                # where a person has deleted it, and time was set back to that second: agents forget in ten minutes
                answer = self.it.answers.pop(request.id, None)
                if answer is not None:
                    self.forgotten[request.id] = answer
                    self.it.publish()
                self.asked_at[request.id] = now

    def write_node(self, node: Node) -> None:
        assert self.it.node is not None
        before, after = recall_record(self.it.node), recall_record(node)
        self.it.node = node
        left = {fault.key: fault for fault in after.open}
        for fault in before.open:
            now = left.get(fault.key)
            if now is None:
                [closed] = [each for each in after.closed if each.key == fault.key]
                self.ended_rightly(fault, closed.how, closed.by)
            elif now.over and not fault.over and now.occurrence == fault.occurrence:
                self.ended_rightly(fault, now.how, now.by)

    def ended_rightly(self, fault: Fault, how: str, by: str) -> None:
        """On the word of somebody who could know."""
        want = match_policy(fault, self.it.policy)
        assert how in ("proof", "boot", "driver", "person", "passing"), how
        if how == "proof":
            assert want.proof is not None
            request = by.rpartition(" ")[2]
            asked = read_proof_request(CheckRequest(id=request, by="muster-tainter-proof"))
            assert asked is not None
            assert asked.digest == want.proof.digest
            known = (self.it.answers, self.forgotten)  # a leader may decide on what it saw before
            assert "PASS" in [answers[request].verdict for answers in known if request in answers]
            assert self.asked_at[request] > self.fired[fault.key, fault.occurrence], "asked before its last sign"
            if want.proof.new_boot:
                assert self.booted_at > self.fired[fault.key, fault.occurrence]
        elif how == "driver":
            assert self.driver[fault.key] >= fault.occurrence
        elif how == "boot":
            assert fault.fault_class != "replace"
        elif how == "person":
            assert any(each.check == fault.check and each.occurrence >= fault.occurrence for each in self.clears)

    # time

    @rule(seconds=st.sampled_from([0.4, 15.0, 61.0, 700.0, 7200.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.it.now += seconds

    @rule(seconds=st.sampled_from([-3600.0, -30.0, 3600.0, 40 * 86_400.0, -39 * 86_400.0]))
    def the_clock_is_set(self, seconds: float) -> None:
        self.it.now += seconds

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """Whatever was before: each fault that a proof can close is asked about and closed within days."""
        self.others_ask(3)
        self.snapshots = [None, None]
        for check in ("dmesg", "pciebw", "remapped"):
            self.it.goes(check, "run")
        self.reboots(set())
        self.jobs_come_and_go(idle=True)
        for _ in range(300):
            before = (self.it.node, self.it.health)
            self.leader_decides()
            self.leader_writes_proofs()
            self.agent_answers("PASS")
            self.only_theirs_are_theirs()
            if (self.it.node, self.it.health) == before:
                if not self.it.open:
                    break
                self.it.now += 1800.0
        assert self.it.open == []
        assert not self.it.asked()
        assert self.it.health.metadata.annotations == {}

    # what always holds

    @precondition(lambda self: hasattr(self, "it"))
    @invariant()
    def only_theirs_are_theirs(self) -> None:
        requests = self.it.health.spec.requests
        assert [request for request in requests if not is_ours(request)] == self.theirs
        assert len(requests) <= 16
        digests = [asked.digest for asked in map(read_proof_request, self.it.asked()) if asked is not None]
        assert len(digests) == len(set(digests))

    @precondition(lambda self: hasattr(self, "it"))
    @invariant()
    def what_stands_is_looked_at_again(self) -> None:
        """A request, or a fault that may be proved: by the clock at the latest, or there is something to do now."""
        made = self.it.prove()
        for request in made.keep:
            passed = request.id in self.it.answers and self.it.answers[request.id].verdict == "PASS"
            assert passed or made.look_at < self.it.now + 86_400.0

    @precondition(lambda self: hasattr(self, "it"))
    @invariant()
    def clears_are_of_people_or_of_what_a_proof_has_closed(self) -> None:
        for clear in self.it.clears:
            assert clear.by == "ann" or clear.by.startswith("muster-tainter: ")


TestOneFaultyNode = OneFaultyNode.TestCase
TestOneFaultyNode.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
