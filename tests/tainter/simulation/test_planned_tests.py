"""Faults that only a heavy check finds, and the plan that finds them: when, on which nodes, and what it saves."""

from dataclasses import replace
from typing import Any

import pytest
from tests.tainter.simulation.worlds import (
    BEGIN,
    HOUR,
    ONE_EACH,
    default_policy,
    fault,
    fleet_file,
    node_hours,
    policy,
    scenario,
)

from muster_kube.nodehealth import CheckRequest
from muster_tainter.policy.recovery import MANAGER
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.hardware import Hardware
from muster_tainter.simulation.job_queue import JobQueue
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.placement import Placement
from muster_tainter.simulation.recovery import Recovery
from muster_tainter.simulation.run import Scenario, replan, simulate
from muster_tainter.simulation.scenario.fault_file import FaultRow
from muster_tainter.simulation.scenario.fleet_file import JobKind
from muster_tainter.simulation.scenario.job_file import SubmittedJob
from muster_tainter.simulation.world import World
from muster_tainter.verification.fleet_plan import request_for

IDLE: dict[str, Any] = {"kinds": []}
HOURS = 48


def hidden(hour: float, ends: float | None = None, node: str = "gpu-1", **more: Any) -> FaultRow:
    return fault(hour, ends, node, "replace", check="gpumem", hidden=True, **more)


def idle(*faults: FaultRow, nodes: int = 2, **more: Any) -> Scenario:
    """A fleet without jobs, whose gpumem is due every six hours."""
    agents = {"planned": {"gpumem": "6h"}, **more.pop("agents", {})}
    return scenario(*faults, fleet=fleet_file(nodes, HOURS, workload=IDLE, agents=agents, **more))


def run(made: Scenario, rules: Policy | None = None) -> Outcome:
    outcome = simulate(made, policy() if rules is None else rules)
    assert sum(outcome.hours.values()) == pytest.approx(outcome.total_h, rel=1e-9)
    return outcome


def with_jobs(made: Scenario, count: int, every_h: float, lasts: str) -> Scenario:
    """Of one node each, one after the other."""
    kind = JobKind.model_validate({**ONE_EACH, "lasts": lasts, "checkpoint": "300d", "restart": "0s"})
    return replace(made, jobs=tuple(SubmittedJob(BEGIN + every_h * number * HOUR, kind) for number in range(count)))


def test_each_idle_node_is_tested_once_in_a_period() -> None:
    outcome = run(idle(nodes=5))
    assert outcome.tally.tests == 5 * HOURS / 6
    assert (outcome.tally.found, outcome.hours[Cause.TEST]) == (0, 0)


def test_without_a_period_nothing_is_tested() -> None:
    outcome = run(replan(idle(hidden(10)), {"gpumem": None}))
    assert (outcome.tally.tests, outcome.tally.found) == (0, 0)
    assert node_hours(outcome.hours[Cause.FAULT]) == HOURS - 10  # and nobody repairs what nobody has found


def test_a_hidden_fault_is_found_within_a_period_and_then_repaired() -> None:
    outcome = run(idle(hidden(10), people={"repair": {"replace": "1s"}, "clear": "0s"}))
    assert (outcome.tally.found, outcome.tally.faults) == (1, 1)
    assert 0 < node_hours(outcome.hours[Cause.FAULT]) <= 6 + 0.1


def test_the_same_fault_in_the_open_is_found_at_once() -> None:
    shown = hidden(10)._replace(hidden=False)
    outcome = run(idle(shown, people={"repair": {"replace": "1s"}, "clear": "0s"}))
    assert outcome.tally.found == 0
    assert node_hours(outcome.hours[Cause.FAULT]) < 0.1


def test_only_the_check_that_is_named_finds_it() -> None:
    outcome = run(idle(hidden(10)._replace(check="pciebw")))
    assert outcome.tally.tests > 0
    assert outcome.tally.found == 0


def test_nodes_that_are_never_idle_are_never_tested() -> None:
    made = scenario(hidden(10, fatal=False), fleet=fleet_file(2, HOURS, agents={"planned": {"gpumem": "6h"}}))
    assert run(made).tally.tests == 0


@pytest.mark.parametrize(("heavy", "tested"), [("10m", False), ("60s", True)])
def test_a_test_that_a_job_interrupts_measures_nothing(heavy: str, *, tested: bool) -> None:
    """The node is idle for five minutes between two jobs."""
    agents = {"heavy": heavy, "planned": {"gpumem": "1h"}}
    made = with_jobs(idle(nodes=1, agents=agents), count=10, every_h=10, lasts="595m")
    assert (run(made).tally.tests > 0) is tested


def test_so_many_at_a_time_as_the_policy_allows() -> None:
    made = idle(nodes=40, agents={"heavy": "5m", "planned": {"gpumem": "1h"}})
    tests = {
        testing: run(made, policy(testing)).tally.tests
        for testing in (
            "testing: {atOnce: 1}\n",
            "testing: {atOnce: 40}\npools: [{name: all, selector: {}, testing: {atOnce: 5%}}]\n",
            "testing: {atOnce: 40}\n",
        )
    }
    one, two, all_of_them = tests.values()
    assert HOURS * 12 - 20 <= one <= HOURS * 12
    assert HOURS * 24 - 40 <= two <= HOURS * 24
    assert HOURS * 40 - 80 <= all_of_them <= HOURS * 40


def test_after_each_job_where_the_pool_says_so() -> None:
    pool = "pools: [{name: all, selector: {}, testing: {postFlight: [gpumem]}}]\n"
    made = replan(with_jobs(idle(hidden(10, fatal=False), nodes=1), count=8, every_h=10, lasts="1h"), {"gpumem": None})
    assert run(made, policy(pool)).tally.found == 1
    assert run(made).tally.found == 0


def test_a_fault_that_nobody_looks_for_ends_one_job_after_the_other() -> None:
    made = with_jobs(idle(hidden(1), nodes=1), count=1, every_h=1, lasts="20h")
    crashed, found = run(replan(made, {"gpumem": None})), run(made)
    assert crashed.interruptions > 100  # every six minutes
    assert crashed.tally.finished == 0
    assert (found.tally.found, found.tally.finished) == (1, 1)
    assert found.interruptions < 50


def test_a_fault_that_was_not_really_repaired_is_found_by_the_proof_of_the_repair() -> None:
    generator = {"rates": [{"class": "replace", "check": "gpumem", "perNodeYear": 100, "hidden": True}]}
    comes_back = {**generator, "returns": {"share": 1.0, "within": "1s"}}
    people = {"repair": {"replace": "1h"}, "clear": "5m"}
    made = idle(hidden(1), people=people, faults=comes_back)
    found = run(made, default_policy())
    assert found.tally.faults > 3
    assert found.tally.found == 1  # by the plan; then the node has not passed a proof any more


def test_the_checks_of_spares_are_planned_as_those_of_others() -> None:
    spares = policy("pools: [{name: all, selector: {}, spares: {nodes: 1}, testing: {postFlight: [gpumem]}}]\n")
    assert run(replan(idle(nodes=4), {"gpumem": None}), spares).tally.tests == 4
    tests = run(idle(nodes=4), spares).tally.tests
    assert 4 * HOURS / 6 <= tests <= 4 * HOURS / 6 + 4


def test_a_spare_whose_checks_are_due_counts_as_tested() -> None:
    held = policy("pools: [{name: all, selector: {}, spares: {nodes: 1, noneReady: hold}}]\n")
    agents = {"planned": {"dcgm": "6h", "gpumem": "6h"}}
    kept, released = (run(idle(*faults, nodes=4, agents=agents), held) for faults in ((), (fault(10, HOURS),)))
    assert node_hours(kept.hours[Cause.SPARE]) == HOURS
    assert node_hours(released.hours[Cause.SPARE]) < 11


def test_a_fault_that_is_found_again_counts_once() -> None:
    nothing = policy(rules="rules: [{name: none, match: {class: [reset]}, action: event}]\n")
    outcome = run(idle(hidden(1, 40)), nothing)
    assert (outcome.tally.found, outcome.tally.faults) == (1, 1)


def test_the_verification_of_a_fault_leaves_the_requests_of_the_plan_alone() -> None:
    made = idle()
    world = World(made.fleet, made.nodes, default_policy(), made.begin, made.end, seed=1)
    placement = Placement(world, JobQueue(made.fleet.workload, seed=1), ())
    recovery = Recovery(world, placement, Hardware(world, placement, iter(()), {}))
    machine = world.machines["gpu-1"]
    machine.agent.find(("dmesg", "gpu/0", "Xid48"), "replace", world.now)
    planned = request_for("dcgm", "1", world.now)
    outdated = CheckRequest(id="proof-of-nothing", checks=("gpumem",), by=MANAGER)
    machine.agent.requests = (planned, outdated)
    world.publish(machine)
    world.loop.settle(["gpu-1"])
    assert recovery.look()
    assert outdated not in machine.agent.requests
    assert planned in machine.agent.requests


def test_all_checks_are_due_after_a_boot() -> None:
    rarely = {"planned": {"gpumem": "300d"}}
    assert [run(idle(*faults, agents=rarely)).tally.tests for faults in ((), (fault(12, 13),))] == [0, 1]


def test_a_reboot_does_not_show_it() -> None:
    both = hidden(10, component="gpu/1"), fault(12, 13)
    outcome = run(replan(idle(*both), {"gpumem": None}))
    assert outcome.tally.found == 0
    assert node_hours(outcome.hours[Cause.FAULT]) == HOURS - 10


def test_two_runs_are_equal() -> None:
    made = with_jobs(idle(hidden(10), hidden(30, node="gpu-2"), nodes=4), count=30, every_h=3, lasts="9h")
    assert run(made).hours == run(made).hours
    assert run(made).tally == run(made).tally
