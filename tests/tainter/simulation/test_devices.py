"""Policies that keep single accelerators out of use: what a fault of one costs then, and what still takes the node."""

from dataclasses import replace
from typing import Any

import pytest
from tests.tainter.simulation.worlds import BEGIN, DEVICES, HOUR, ONE_EACH, fault, fleet_file, policy, scenario

from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.devices.counted import device_component, is_device
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import simulate
from muster_tainter.simulation.scenario.fault_file import FaultRow
from muster_tainter.simulation.scenario.fleet_file import JobKind
from muster_tainter.simulation.scenario.job_file import SubmittedJob

ALONE = "devices: {quarantine: rules}\n"


def outcome_of(rules: Policy, *faults: FaultRow, devices: int | None = 7, **more: Any) -> Outcome:
    """One node, and a job that needs ``devices`` of its accelerators; None: all."""
    kind = {**ONE_EACH, "checkpointCost": "0s", "restart": "0s", **({} if devices is None else {"devices": devices})}
    fleet = fleet_file(nodes=1, workload={"queue": 1, "kinds": [kind]}, **more)
    return simulate(scenario(*faults, fleet=fleet), rules)


def broken(hour: float, ends: float, component: str = "gpu/3", **more: Any) -> FaultRow:
    return fault(hour, ends, **{"fault_class": "reset", "component": component, "fatal": False, **more})


@pytest.mark.parametrize(("rules", "hours"), [("", 10 * DEVICES), (ALONE, 10)])
def test_broken_accelerator_costs_one_instead_of_its_node(rules: str, hours: float) -> None:
    drained = "pools: [{name: all, selector: {}, drain: {when: now}}]\n"
    outcome = outcome_of(policy(rules + drained), broken(10, 20))
    assert outcome.hours[Cause.FAULT] == pytest.approx(hours, abs=0.2)
    assert outcome.tally.isolated == (1 if rules else 0)
    assert sum(outcome.hours.values()) == pytest.approx(outcome.total_h)


def test_job_that_needs_all_accelerators_waits_for_the_quarantined_one() -> None:
    outcome = outcome_of(policy(ALONE), broken(10, 20, fatal=True), devices=None)
    assert outcome.interruptions == 1
    assert outcome.hours[Cause.FAULT] == pytest.approx(10, abs=0.1)
    assert outcome.hours[Cause.WAIT] == pytest.approx(10 * 7, abs=0.2)


def test_job_that_starts_beside_a_quarantined_accelerator_does_not_crash() -> None:
    outcome = outcome_of(policy(ALONE), broken(10, 20, fatal=True))
    assert outcome.interruptions <= 1
    assert outcome.hours[Cause.GOODPUT] > 7 * 46


def test_drain_of_a_device_ends_the_job_that_holds_it() -> None:
    drained = policy(ALONE + "pools: [{name: all, selector: {}, drain: {when: after, after: 2h}}]\n")
    outcome = outcome_of(drained, broken(10, 20), devices=DEVICES)
    assert outcome.tally.interruptions == {Cause.DRAIN: 1}
    # it has run on for two hours, and its next start waits until hour 20
    assert outcome.hours[Cause.GOODPUT] == pytest.approx(8 * (48 - 8), abs=8)


def test_more_broken_accelerators_than_the_share_take_the_node() -> None:
    faults = [broken(10, 20, f"gpu/{number}", fatal=True) for number in range(5)]
    outcome = outcome_of(policy(ALONE), *faults)
    assert outcome.hours[Cause.FAULT] == pytest.approx(10 * DEVICES, abs=0.2)


def test_fault_of_the_host_or_of_a_nic_takes_the_node() -> None:
    for component in ("host", "nic/mlx5_0"):
        outcome = outcome_of(policy(ALONE), broken(10, 20, component, fatal=True))
        assert outcome.hours[Cause.FAULT] == pytest.approx(10 * DEVICES, abs=0.2)
        assert outcome.tally.isolated == 0


def test_budget_of_devices_withholds_the_next_one() -> None:
    limited = policy(ALONE + "pools: [{name: all, selector: {}, budget: {devices: 1}}]\n")
    outcome = outcome_of(limited, broken(10, 20, "gpu/3"), broken(12, 30, "gpu/4"))
    assert outcome.tally.refusals == 1
    # the second has its place when the first is free again
    assert outcome.tally.isolated == 2
    assert outcome.tally.withheld_s == pytest.approx(8 * 3600, abs=120)


def test_people_repair_what_the_policy_repairs_on_tainted_nodes_only() -> None:
    repaired = "pools: [{name: all, selector: {}, repair: {reset: {annotate: {example.com/reset: now}}}}]\n"
    row = fault(10, None, fault_class="reset", component="gpu/3", fatal=False)
    people = {"repair": {"reset": "1h"}}
    outcome = outcome_of(policy(ALONE + repaired), row, hours=200, people=people)
    assert outcome.tally.repairs == 0
    assert 0 < outcome.hours[Cause.FAULT] < 20


@pytest.mark.parametrize(("checks", "waits"), [("[gpumem]", False), ("[gpumem, pciebw]", True)])
def test_proof_of_one_device_runs_beside_a_job_if_its_checks_can(checks: str, waits: bool) -> None:
    proof = f"closeOn: [proof], proof: {{checks: {checks}}}"
    rules = f"rules: [{{name: bad, match: {{class: reset}}, action: taint, {proof}}}]\n"
    # what the kernel log reports would need a reboot first
    outcome = outcome_of(policy(ALONE, rules), broken(10, 20, check="remapped"))
    assert (outcome.hours[Cause.TEST] > 20) == waits
    assert outcome.hours[Cause.GOODPUT] == pytest.approx(7 * 48)


@pytest.mark.parametrize(
    ("component", "named", "device"),
    [
        ("gpu/3", "gpu/0000:03:00.0", True),
        ("gpu/300", "gpu/0001:2c:00.0", True),
        ("gpu/400", "gpu/400", False),
        ("gpu/0000:3b:00.0", "gpu/0000:3b:00.0", True),
        ("nic/mlx5_0", "nic/mlx5_0", False),
        ("host", "host", False),
    ],
)
def test_names_of_devices(component: str, named: str, device: bool) -> None:
    assert device_component(component, 400) == named
    assert is_device(named) == device


def some_jobs(devices: int, **more: Any) -> dict[str, Any]:
    return {**ONE_EACH, "checkpointCost": "0s", "restart": "0s", "devices": devices, **more}


def test_drain_ends_a_job_that_started_on_the_device_before_it_was_kept_out() -> None:
    drained = policy(ALONE + "pools: [{name: all, selector: {}, drain: {when: now}}]\n")
    # the device breaks in the hour before the job is there, and is reported in the hour after its start
    fleet = fleet_file(nodes=1, workload={"kinds": []}, agents={"detect": "2h"})
    job = SubmittedJob(BEGIN + 11 * HOUR, JobKind.model_validate(some_jobs(DEVICES)))
    made = replace(scenario(broken(10, 20), fleet=fleet), jobs=(job,))
    assert simulate(made, drained).tally.interruptions == {Cause.DRAIN: 1}


def test_job_of_one_accelerator_seldom_starts_on_the_broken_one() -> None:
    """Nobody has found it yet. Each start meets it with the chance that a fault under the job would have."""
    fleet = fleet_file(nodes=1, workload={"kinds": []}, agents={"detect": "400h"}, hours=400)
    kind = JobKind.model_validate(some_jobs(1, lasts="1h"))
    jobs = tuple(SubmittedJob(BEGIN + (10 + 2 * n) * HOUR, kind) for n in range(160))
    made = replace(scenario(broken(5, 390, fatal=True), fleet=fleet), jobs=jobs)
    interrupted = simulate(made, policy(ALONE)).tally.interruptions[Cause.REWORK]
    # 160 starts and those after a crash, one in eight of which crashes: 23, give or take 5
    assert 8 <= interrupted <= 40


def test_job_that_has_all_accelerators_starts_on_the_broken_one() -> None:
    fleet = fleet_file(nodes=1, workload={"kinds": []}, agents={"detect": "40h"})
    job = SubmittedJob(BEGIN + 10 * HOUR, JobKind.model_validate(some_jobs(DEVICES)))
    made = replace(scenario(broken(5, 11, fatal=True), fleet=fleet), jobs=(job,))
    assert simulate(made, policy(ALONE)).tally.interruptions[Cause.REWORK] > 0


@pytest.mark.parametrize("breaks", [10, 17])  # before the last job is submitted, and while it waits
def test_reservation_leaves_out_a_node_that_will_not_be_whole(breaks: float) -> None:
    """Two whole nodes are free together at hour 60 only, and a job that ends by then may overtake what waits."""
    fleet = fleet_file(nodes=3, workload={"kinds": []}, hours=100)
    submitted = [
        (0, "short", some_jobs(7, lasts="20h")),  # gpu-1, whose accelerator breaks
        (0, "long", some_jobs(DEVICES, lasts="60h")),
        (0, "middle", some_jobs(DEVICES, lasts="15h")),
        (12, "pair", some_jobs(DEVICES, nodes=2, lasts="5h")),
        (16, "late", some_jobs(DEVICES, lasts="42h")),
    ]
    jobs = tuple(
        SubmittedJob(BEGIN + hour * HOUR, JobKind.model_validate({**kind, "name": name}))
        for hour, name, kind in submitted
    )
    # the device is kept out until hour 90, and the job beside it runs on
    made = replace(scenario(broken(breaks, 90), fleet=fleet), jobs=jobs)
    outcome = simulate(made, policy(ALONE))
    # with a reservation at hour 20, the last job would start after the pair, at hour 65, and not end in time
    assert outcome.tally.finished == 5
    assert outcome.tally.isolated == 1


@pytest.mark.parametrize(("second", "tested_h"), [("gpu/4", 1), ("host", 0.5 + DEVICES * 0.5)])
def test_repaired_device_does_not_wait_for_what_is_still_broken(second: str, tested_h: float) -> None:
    """Nothing but a person's clear, half an hour after the repair, closes these faults."""
    rules = "rules: [{name: bad, match: {class: contact}, action: taint, isolate: device, closeOn: [proof]}]\n"
    both = (broken(10, 20, fault_class="contact"), broken(10, 40, second, fault_class="contact"))
    fleet = fleet_file(nodes=1, workload={"kinds": []}, people={"clear": "30m"})
    outcome = simulate(scenario(*both, fleet=fleet), policy(ALONE, rules))
    assert outcome.tally.isolated == (1 if second == "host" else 2)
    assert outcome.hours[Cause.TEST] == pytest.approx(tested_h, abs=0.1)
