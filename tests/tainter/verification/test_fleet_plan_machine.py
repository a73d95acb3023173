"""Random fleets under the plan: leaders die between any two writes, agents answer, refuse or fall silent, jobs come and
go, people take nodes away. The plan and what is written are the real ones.
"""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import AgentIdentity, NodeHealth, NodeHealthSpec, NodeHealthStatus, RequestAnswer
from muster_tainter.faults.record.check_history import (
    ANNOTATION,
    encode_history,
    final_answer,
    note_answer,
    pending_request,
    read_history,
)
from muster_tainter.policy.file import parse_policy
from muster_tainter.verification.fleet_plan import FleetPlan, PlanStep, node_test_state, plan_fleet, request_for

NAMES = [f"n{number}" for number in range(7)]
CHECKS = ("pciebw", "gpumem")
CAP, POOL_CAP = 3, 1
LIMIT_S = 300.0
POLICY = parse_policy(f"""
rules: []
testing:
  atOnce: {CAP}
  coverage: 1d
  pause: 60s
pools: [{{name: a, selector: {{matchLabels: {{pool: a}}}}, testing: {{atOnce: {POOL_CAP}, postFlight: pciebw}}}}]
""")
IN_POOL = ("n0", "n1", "n2")
nodes = st.sampled_from(NAMES)


class Fleet(RuleBasedStateMachine):
    @initialize(came=st.permutations(range(len(NAMES))))
    def start(self, came: list[int]) -> None:
        self.now = 1.8e9
        self.serial = 0
        self.nodes = {
            name: Node(metadata=Metadata(name=name, labels={"pool": "a"} if name in IN_POOL else {})) for name in NAMES
        }
        self.healths = {
            name: NodeHealth(
                metadata=Metadata(name=name, creation_timestamp=rfc3339_whole(self.now - 60 * ago)),
                status=NodeHealthStatus(verdict="PASS", boot_id="b", agent=AgentIdentity(pod_uid="p"), due=CHECKS,
                              idle_since=rfc3339_whole(self.now)),
            )
            for name, ago in zip(NAMES, came, strict=True)
        }  # fmt: skip

    def says(self, name: str, **status: object) -> None:
        health = self.healths[name]
        self.healths[name] = msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, **status))

    # the leader, whichever it is

    def made(self) -> FleetPlan:
        fleet = [node_test_state(self.nodes[name], health, POLICY) for name, health in self.healths.items()]
        return plan_fleet(fleet, POLICY, self.now, limit_s=lambda _: LIMIT_S)

    def write(self, step: PlanStep) -> None:
        health = self.healths[step.node]
        past = read_history(health)
        requests = ()
        if step.check:
            self.serial += 1
            requests = (request_for(step.check, str(self.serial), self.now),)
        elif step.end is not None and step.noted:
            past = note_answer(
                past, health, step.end, step.answer, pause_s=POLICY.testing.pause, now=self.now, new=False
            )
        metadata = msgspec.structs.replace(health.metadata, annotations={ANNOTATION: encode_history(past)})
        self.healths[step.node] = msgspec.structs.replace(
            health, metadata=metadata, spec=NodeHealthSpec(requests=requests)
        )

    @rule(written=st.lists(st.booleans(), min_size=1, max_size=10))
    def a_leader_plans_and_dies_in_the_midst_of_it(self, written: list[bool]) -> None:
        for step, is_written in zip(self.made().steps, written, strict=False):
            if is_written:
                self.write(step)

    @rule()
    def a_leader_plans(self) -> None:
        made = self.made()
        self.longest_waiting_are_first(made)
        for step in made.steps:
            self.write(step)

    def longest_waiting_are_first(self, made: FleetPlan) -> None:
        """No node of a pool that is passed over has waited longer for what it is idle for."""
        chosen = {step.node: step.check for step in made.steps if step.check}
        fleet = {name: node_test_state(self.nodes[name], health, POLICY) for name, health in self.healths.items()}
        late = self.now - POLICY.testing.coverage

        def turn(name: str, check: str | None = None) -> tuple[int, float]:
            ready = [want for want in fleet[name].wants if want.after <= self.now and check in (None, want.check)]
            return min((min(want.turn, 1) if want.since < late else want.turn, want.since) for want in ready)

        for name, check in chosen.items():
            assert turn(name, check) == turn(name)  # of its own checks, too
            for other, standing in fleet.items():
                waits = standing.idle and not standing.out and standing.request is None
                ready = waits and any(want.after <= self.now for want in standing.wants)
                if ready and other not in chosen and standing.pool == fleet[name].pool:
                    assert turn(other) >= turn(name)

    # agents, jobs, people, time

    @rule(name=nodes, verdict=st.sampled_from(["PASS", "FAIL", "UNKNOWN", "Busy"]))
    def an_agent_answers(self, name: str, verdict: str) -> None:
        request = pending_request(self.healths[name])
        if request is not None:
            busy = verdict == "Busy"
            answer = RequestAnswer(
                id=request.id, verdict="UNKNOWN" if busy else verdict, reason=verdict, finished="now"
            )
            due = tuple(check for check in self.healths[name].status.due if check != request.checks[0])
            self.says(name, answers=(answer,), **({} if answer.verdict == "UNKNOWN" else {"due": due}))

    @rule(name=nodes)
    def a_job_comes(self, name: str) -> None:
        self.says(name, idle_since="")

    @rule(name=nodes)
    def a_job_ends(self, name: str) -> None:
        if not self.healths[name].status.idle_since:
            self.says(name, idle_since=rfc3339_whole(self.now))

    @rule(name=nodes)
    def everything_falls_due(self, name: str) -> None:
        self.says(name, due=CHECKS)

    @rule(name=nodes, managed=st.booleans(), faulty=st.booleans())
    def a_node_changes_hands(self, name: str, managed: bool, faulty: bool) -> None:
        labels = {key: value for key, value in self.nodes[name].metadata.labels.items() if key == "pool"}
        labels |= {} if managed else {"muster.dev/managed": "false"}
        labels |= {"muster.dev/faulty": "true"} if faulty else {}
        self.nodes[name] = Node(metadata=Metadata(name=name, labels=labels))

    @rule(seconds=st.sampled_from([1.0, 31.0, 400.0, 4000.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """Every idle node that is due has its turn, whatever was before."""
        for name in NAMES:
            self.a_node_changes_hands(name, managed=True, faulty=False)
            self.says(name, due=CHECKS, idle_since=rfc3339_whole(self.now))
        begun = self.now
        for _ in range(200):
            for step in self.made().steps:
                self.write(step)
            self.never_more_than_the_cap()
            for name in NAMES:
                self.an_agent_answers(name, "PASS")
            # rounds of at most a day: the longest that a node has to wait after all that it failed to answer
            if not any(health.status.due or health.spec.requests for health in self.healths.values()):
                break
            self.now = max(self.now + 1.0, min(self.made().look_again_at, self.now + 3600.0))
        for health in self.healths.values():
            assert not health.status.due
            assert not health.spec.requests
            assert all(seconds(read_history(health).checks[check].at) >= int(begun) for check in CHECKS)

    # what always holds

    @invariant()
    def never_more_than_the_cap(self) -> None:
        testing = [name for name, health in self.healths.items() if pending_request(health) is not None]
        assert len(testing) <= CAP
        assert len([name for name in testing if name in IN_POOL]) <= POOL_CAP

    @invariant()
    def one_request_a_node(self) -> None:
        assert all(len(health.spec.requests) <= 1 for health in self.healths.values())

    @invariant()
    def nothing_stays_asked_for_ever(self) -> None:
        for name, health in self.healths.items():
            for request in health.spec.requests:
                over = final_answer(health, request) is not None or self.now > seconds(request.expires) + LIMIT_S
                ended = {step.node for step in self.made().steps if step.end is not None}
                assert (name in ended) or not over


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=20, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
