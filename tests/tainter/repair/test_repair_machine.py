"""Repairs, whoever dies when: random leaders, outages, clocks and pauses, and what holds all the time."""

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.tainter.repair.fake_cluster import Died, FakeCluster, unreachable
from tests.tainter.repair.repair_rounds import JOB, LABEL, RULES

from muster_kube.api.errors import ApiError
from muster_tainter.faults.record.node_record import RepairAttempt
from muster_tainter.policy.file import parse_policy
from muster_tainter.repair.repair_executor import RepairExecutor
from muster_tainter.repair.repair_plan import RepairStage, is_active

names = st.sampled_from(["n0", "n1", "n2"])
AT_ONCE = 2
MACHINE_POLICY = parse_policy(f"""{RULES}
  - name: all
    selector: {{}}
    repair:
      atOnce: {AT_ONCE}
      reset: {{{JOB}, attempts: 2, wait: 10m, escalate: reboot}}
      reboot: {{{JOB}, attempts: 1, wait: 20m}}
""")


class Repairs(RuleBasedStateMachine):
    """Leaders die at any call, answers are lost, watches lag, clocks jump, people pause, faults come and go."""

    @initialize()
    def start(self) -> None:
        self.world = FakeCluster()
        for number in range(3):
            self.world.add(f"n{number}")
        self.leader: RepairExecutor | None = None
        self.calls = 0
        self.fail_at: dict[int, BaseException] = {}
        self.world.fail = self.count
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        self.runner.close()

    def count(self, _: str) -> None:
        self.calls += 1
        error = self.fail_at.pop(self.calls, None)
        if error is not None:
            raise error

    @rule(name=names, fault_class=st.sampled_from(["reset", "reboot"]))
    def a_fault_opens(self, name: str, fault_class: str) -> None:
        if len(self.world.memory(name).open) < 3:
            self.world.open_fault(name, fault_class)

    @rule(name=names, how=st.sampled_from(["driver", "proof", "person"]))
    def its_faults_close(self, name: str, how: str) -> None:
        self.world.close_faults(name, how)

    @rule(name=names)
    def a_job_comes_or_goes(self, name: str) -> None:
        self.world.busy ^= {name}

    @rule()
    def somebody_pauses_or_resumes(self) -> None:
        self.world.withheld = "" if self.world.withheld else "paused by ada"

    @rule(outcome=st.sampled_from(["Complete", "Failed"]))
    def jobs_end(self, outcome: str) -> None:
        self.world.end_jobs(outcome)

    @rule(seconds=st.sampled_from([1.0, 61.0, 601.0, 1201.0, 8 * 86_400.0, -3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def the_watch_catches_up(self) -> None:
        self.world.catch_up()

    @rule(at=st.integers(1, 6), dies=st.booleans())
    def something_is_going_to_fail(self, at: int, dies: bool) -> None:
        self.fail_at[self.calls + at] = Died() if dies else unreachable()

    @rule()
    def the_leader_is_another_one(self) -> None:
        self.leader = None

    @rule(rounds=st.integers(1, 3), sees=st.booleans())
    def the_leader_looks(self, rounds: int, sees: bool) -> None:
        paused, before = bool(self.world.withheld), set(self.world.under_repair())
        busy, made = set(self.world.busy), len(self.world.made)
        for _ in range(rounds):
            self.look(sees)
        begun = set(self.world.under_repair()) - before
        assert not (paused and begun), "nothing begins while it is paused"
        assert not (paused and len(self.world.made) > made)
        assert not begun & busy, "nobody repairs under a running job"
        for name in begun:
            assert self.world.nodes[name].spec.taints, "nothing begins without a taint"

    def look(self, sees: bool) -> None:
        async def once() -> None:
            if sees:
                self.world.catch_up()
            if self.leader is None:
                self.leader = self.world.leader(MACHINE_POLICY)
                await self.leader.begin()
            self.leader.look_at_all()
            await self.leader.look()

        try:
            self.runner.run(once())
        except Died:
            self.leader = None
        except ApiError:
            pass

    @invariant()
    def no_attempt_is_made_twice(self) -> None:
        assert len(set(self.world.made)) == len(self.world.made)

    @invariant()
    def no_more_nodes_at_once_than_the_pool_allows(self) -> None:
        assert len(self.world.under_repair()) <= AT_ONCE

    @invariant()
    def one_at_a_time_and_no_more_than_the_policy_says(self) -> None:
        for name in self.world.nodes:
            attempts = self.world.memory(name).attempts
            assert sum(map(is_active, attempts.values())) <= 1
            assert attempts.get("reset", RepairAttempt(n=0)).n <= 2
            assert attempts.get("reboot", RepairAttempt(n=0)).n <= 1

    @precondition(lambda self: not self.world.withheld)
    @rule()
    def nothing_is_forgotten(self) -> None:
        """Left in peace, what was begun is made, what is over is cleaned up, and whoever waits has a turn."""
        self.fail_at.clear()
        self.world.busy.clear()
        for _ in range(30):
            before = dict(self.world.nodes), set(self.world.objects)
            if self.leader is not None:
                self.leader._poll_at = 0.0
            self.look(True)
            if before == (self.world.nodes, set(self.world.objects)):
                break
        world = self.world
        refs = set()
        for name in world.under_repair():
            [attempt] = [each for each in world.memory(name).attempts.values() if is_active(each)]
            assert attempt.stage == RepairStage.RUNNING
            assert world.memory(name).open
            refs.add(attempt.ref)
        assert world.unfinished() <= refs, "no Job runs for nothing"
        for name in world.nodes:
            memory, label = world.memory(name), world.nodes[name].metadata.labels.get(LABEL)
            if not memory.open:
                assert label is None
        waiting = [n for n in world.nodes if world.memory(n).open and LABEL not in world.nodes[n].metadata.labels]
        assert not waiting or len(world.under_repair()) == AT_ONCE


TestRepairs = Repairs.TestCase
TestRepairs.settings = settings(
    max_examples=20, stateful_step_count=40, suppress_health_check=list(HealthCheck), deadline=None
)


def test_an_attempt_that_ends_while_the_clock_is_set_back_is_not_made_again_a_week_later() -> None:
    state = Repairs()
    state.start()
    state.a_fault_opens("n0", "reset")
    for seconds in (0.0, -3600.0, 8 * 86_400.0):
        state.time_passes(seconds)
        state.nothing_is_forgotten()
    state.no_attempt_is_made_twice()
    state.teardown()
