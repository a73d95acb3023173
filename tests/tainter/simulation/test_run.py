"""One simulated run: what a fault costs under a policy, to the second, and books that close."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tainter.simulation.worlds import (
    HOUR,
    ONE_EACH,
    default_policy,
    fault,
    fleet_file,
    node_hours,
    policy,
    scenario,
)

from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import simulate
from muster_tainter.simulation.scenario.fleet_file import JobKind
from muster_tainter.simulation.scenario.job_file import SubmittedJob

REPAIR = """
pools:
  - name: all
    selector: {}
    repair:
      reboot: {annotate: {example.com/reboot: "yes"}, attempts: 2, wait: 1h}
"""
NO_HOLD = "holdDown: {base: 0s}\n"


def closes(outcome: Outcome) -> bool:
    return sum(outcome.hours.values()) == pytest.approx(outcome.total_h, rel=1e-9)


def test_fault_ends_the_job_and_costs_its_unsaved_work() -> None:
    outcome = simulate(scenario(fault(12.5, 18.5)), policy())
    assert (outcome.interruptions, outcome.tally.faults, outcome.tally.harmless) == (1, 1, 0)
    assert node_hours(outcome.hours[Cause.FAULT]) == pytest.approx(6.0)
    # 12.5 h less the start are twelve checkpoints and 480 s; the next start costs 600 s
    assert node_hours(outcome.hours[Cause.REWORK]) == pytest.approx((480 + 600) / HOUR)
    assert outcome.most_out == 8
    assert closes(outcome)


def test_fault_that_a_reboot_ends_is_released_at_once() -> None:
    outcome = simulate(scenario(fault(1, 2)), policy())
    assert (outcome.hours[Cause.TEST], outcome.hours[Cause.HOLD]) == (0, 0)


def test_gpu_board_is_tested_before_it_works_again() -> None:
    outcome = simulate(scenario(fault(1, 5, fault_class="replace")), default_policy())
    # two rounds of gpumem, pciebw and dcgm of 60 s, 10 s apart
    assert node_hours(outcome.hours[Cause.TEST]) == pytest.approx((6 * 60 + 10) / HOUR)
    assert outcome.hours[Cause.HOLD] == 0


def test_fault_without_a_proof_waits_for_a_person() -> None:
    host = fault(1, 5, fault_class="contact", component="host")
    waits = simulate(scenario(host, fleet=fleet_file(people={"clear": "45m"})), default_policy())
    assert node_hours(waits.hours[Cause.TEST]) == pytest.approx(0.75)


def test_second_failure_is_held_as_long_as_the_policy_says() -> None:
    held = policy("holdDown: {base: 2h, longest: 1d, halfLife: 7d}\n")
    outcome = simulate(scenario(fault(1, 2), fault(4, 5)), held)
    penalty = held.hold_down.decayed(1.0, 3 * HOUR)
    assert node_hours(outcome.hours[Cause.HOLD]) == pytest.approx(held.hold_down.seconds(penalty) / HOUR, abs=0.01)


def test_fault_on_a_held_node_interrupts_nothing() -> None:
    faults = fault(1, 2), fault(4, 5), fault(6, 7)
    held = simulate(scenario(*faults), policy("holdDown: {base: 4h, longest: 1d, halfLife: 7d}\n"))
    free = simulate(scenario(*faults), policy(NO_HOLD))
    assert (held.interruptions, held.tally.harmless) == (2, 1)
    assert (free.interruptions, free.tally.harmless) == (3, 0)


def test_fault_that_needs_load_waits_until_the_held_node_works_again() -> None:
    faults = fault(1, 2), fault(4, 5), fault(6, 7)
    held = policy("holdDown: {base: 4h, longest: 1d, halfLife: 7d}\n")
    outcome = simulate(scenario(*faults, fleet=fleet_file(idleFaults="wait")), held)
    assert (outcome.interruptions, outcome.tally.harmless) == (3, 0)


def test_budget_withholds_taints_and_jobs_fail_again_on_the_broken_nodes() -> None:
    tight = policy("pools: [{name: all, selector: {}, budget: {tainted: 1}}]\n")
    faults = [fault(1, 9, node=f"gpu-{number}") for number in (1, 2, 3)]
    fleet = fleet_file(nodes=3)
    outcome, wide = (simulate(scenario(*faults, fleet=fleet), each) for each in (tight, policy()))
    assert (outcome.tally.refusals, wide.tally.refusals) == (2, 0)
    assert outcome.tally.withheld_s == pytest.approx(2 * 8 * HOUR, rel=0.01)
    assert outcome.interruptions > wide.interruptions == 3


def test_fault_that_is_not_fatal_leaves_the_job_until_a_drain() -> None:
    fan = fault(1, 9, fault_class="contact", component="host", check="ipmi", fatal=False)
    drain = "pools: [{name: all, selector: {}, drain: {when: now}}]\n"
    stays, drained = (simulate(scenario(fan), each) for each in (policy(), policy(drain)))
    assert (stays.interruptions, stays.hours[Cause.DRAIN]) == (0, 0)
    assert drained.tally.interruptions == {Cause.DRAIN: 1}
    assert drained.hours[Cause.DRAIN] > 0 == drained.hours[Cause.REWORK]


def test_drain_after_a_time_waits_for_it() -> None:
    fan = fault(1, 9, fault_class="contact", component="host", check="ipmi", fatal=False)
    later = policy("pools: [{name: all, selector: {}, drain: {when: after, after: 3h}}]\n")
    outcome = simulate(scenario(fan), later)
    assert outcome.tally.interruptions == {Cause.DRAIN: 1}
    assert node_hours(outcome.hours[Cause.FAULT]) == pytest.approx(5.0, abs=0.02)


def test_taint_with_the_effect_no_execute_ends_the_job() -> None:
    rules = """
rules:
  - name: bad
    match: {class: contact}
    action: taint
    taint: {key: muster.dev/faulty, value: "true", effect: NoExecute}
"""
    fan = fault(1, 9, fault_class="contact", component="host", check="ipmi", fatal=False)
    assert simulate(scenario(fan), policy(rules=rules)).tally.interruptions == {Cause.DRAIN: 1}


@pytest.mark.parametrize(("helps", "repairs", "given_up", "out_h"), [(1.0, 1, 0, 0.5), (0.0, 2, 1, None)])
def test_repair_of_the_policy(helps: float, repairs: int, given_up: int, out_h: float | None) -> None:
    fleet = fleet_file(repairs={"reboot": {"takes": "30m", "helps": helps}}, people={"repair": {"reboot": "1h"}})
    outcome = simulate(scenario(fault(1, None), fleet=fleet), policy(REPAIR))
    assert (outcome.tally.repairs, outcome.tally.given_up) == (repairs, given_up)
    if out_h is not None:
        assert node_hours(outcome.hours[Cause.FAULT]) == pytest.approx(out_h, abs=0.02)
    else:  # both attempts, then a person
        assert node_hours(outcome.hours[Cause.FAULT]) > 2
    assert closes(outcome)


def test_repairs_wait_for_a_place_in_their_pool() -> None:
    fleet = fleet_file(nodes=3, repairs={"reboot": {"takes": "30m", "helps": 1.0}})
    faults = [fault(1, None, node=f"gpu-{number}") for number in (1, 2, 3)]
    outcome = simulate(scenario(*faults, fleet=fleet), policy(REPAIR))
    assert outcome.tally.repairs == 3
    # one at a time: half an hour, an hour, and an hour and a half
    assert node_hours(outcome.hours[Cause.FAULT]) == pytest.approx(3.0, abs=0.05)


def test_person_repairs_what_the_policy_does_not() -> None:
    fleet = fleet_file(hours=2000, people={"repair": {"replace": "20h"}})
    faults = [fault(10 + 100 * number, None, fault_class="replace") for number in range(15)]
    outcome = simulate(scenario(*faults, fleet=fleet), default_policy())
    assert outcome.tally.repairs == 0
    assert 10 * 15 < node_hours(outcome.hours[Cause.FAULT]) < 30 * 15


def test_spare_takes_the_place_of_a_broken_node() -> None:
    kept = policy("pools: [{name: all, selector: {}, spares: {nodes: 1}}]\n")
    pair = {**ONE_EACH, "nodes": 2}
    fleet = fleet_file(nodes=3, workload={"queue": 1, "kinds": [pair]})
    with_spare = simulate(scenario(fault(10, 20), fleet=fleet), kept)
    assert with_spare.hours[Cause.SPARE] > 0
    assert with_spare.tally.requeued_s / HOUR == pytest.approx(0, abs=0.5)
    # the broken node is out for ten hours; the job runs on
    assert with_spare.goodput == pytest.approx(2 / 3, abs=0.02)
    assert closes(with_spare)


def test_job_without_a_gang_loses_only_the_failed_node() -> None:
    loose = {**ONE_EACH, "nodes": 4, "gang": False}
    fleet = fleet_file(nodes=4, workload={"queue": 1, "kinds": [loose]})
    gang = fleet_file(nodes=4, workload={"queue": 1, "kinds": [{**ONE_EACH, "nodes": 4}]})
    alone, together = (simulate(scenario(fault(10.9, 20), fleet=each), policy()) for each in (fleet, gang))
    assert together.hours[Cause.REWORK] == pytest.approx(4 * alone.hours[Cause.REWORK], rel=0.01)


def test_waiting_job_is_overtaken_only_by_jobs_that_end_before_it_can_start() -> None:
    fleet = fleet_file(nodes=4, hours=16, workload={"kinds": []})
    base = scenario(fault(15.9, 16), fleet=fleet)

    def job(hour: float, nodes: int, lasts_h: float) -> SubmittedJob:
        kind = JobKind.model_validate({**ONE_EACH, "checkpoint": "300d", "nodes": nodes, "lasts": f"{lasts_h}h"})
        return SubmittedJob(base.begin + hour * HOUR, kind)

    # the second needs all nodes, the third ends while it waits, and the fourth would delay it
    jobs = job(0, 3, 10), job(1, 4, 5), job(2, 1, 2), job(3, 1, 20)
    outcome = simulate(replace(base, jobs=jobs), policy())
    assert outcome.tally.finished == 3
    assert node_hours(outcome.hours[Cause.GOODPUT]) == pytest.approx(3 * 10 + 4 * 5 + 2, abs=0.6)


def test_fault_of_a_component_that_is_broken_already_is_counted_once() -> None:
    outcome = simulate(scenario(fault(1, 5), fault(2, 6), fault(3, 4, component="nic/0")), policy())
    assert (outcome.tally.faults, outcome.tally.repeated) == (2, 1)


def test_share_of_generated_repairs_is_none() -> None:
    faults: dict[str, Any] = {
        "rates": [{"class": "reboot", "perNodeYear": 100, "lasts": "1h"}],
        "returns": {"share": 1.0, "within": "2h"},
    }
    fleet = fleet_file(hours=100, faults=faults)
    outcome = simulate(scenario(fault(1, 2), fleet=fleet), policy())
    assert outcome.tally.faults > 5


def test_same_input_gives_the_same_result_and_another_seed_another() -> None:
    kinds = [{**ONE_EACH, "lasts": "5h", "nodes": 2}, {**ONE_EACH, "lasts": "3h"}]
    fleet = fleet_file(nodes=6, workload={"queue": 3, "kinds": kinds})
    faults = [fault(3.0 + 2 * number, None, node=f"gpu-{number + 1}") for number in range(5)]
    first, again, other = (simulate(scenario(*faults, fleet=fleet, seed=seed), policy()) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@settings(max_examples=25, deadline=None)
@given(
    faults=st.lists(
        st.builds(
            lambda hour, lasts, node, kind, fatal, component: fault(
                hour, None if lasts is None else hour + lasts, f"gpu-{node}", kind, fatal=fatal, component=component
            ),
            st.integers(0, 200).map(lambda tenth: tenth / 4),
            st.none() | st.integers(1, 40).map(lambda tenth: tenth / 8),
            st.integers(1, 6),
            st.sampled_from(["reset", "reboot", "replace", "contact"]),
            st.booleans(),
            st.sampled_from(["gpu/0", "gpu/3", "gpu/0000:3b:00.0", "nic/mlx5_0", "host"]),
        ),
        max_size=25,
    ),
    drain=st.sampled_from(["", "drain: {when: now}", "drain: {when: after, after: 1h}"]),
    repair=st.sampled_from(
        ["", 'repair: {atOnce: 2, reboot: {annotate: {example.com/a: "b"}, attempts: 2, wait: 20m}}']
    ),
    spares=st.sampled_from(["", "spares: {nodes: 1}"]),
    limit=st.sampled_from(["100%", "1", "0"]),
    devices=st.sampled_from(["", "devices: {quarantine: preview}", "devices: {quarantine: rules}"]),
    places=st.sampled_from(["", "devices: 1, "]),
    hold=st.sampled_from(["0s", "5m", "4h"]),
    replicate=st.integers(0, 2),
)
def test_books_close_under_any_policy(
    faults: list[Any],
    drain: str,
    repair: str,
    spares: str,
    limit: str,
    devices: str,
    places: str,
    hold: str,
    replicate: int,
) -> None:
    parts = ", ".join(part for part in (drain, repair, spares) if part)
    text = f"""
holdDown: {{base: {hold}}}
{devices}
pools:
  - {{name: all, selector: {{}}, budget: {{{places}tainted: {limit}}}{", " if parts else ""}{parts}}}
"""
    kinds = [{**ONE_EACH, "lasts": "9h", "nodes": 3}, {**ONE_EACH, "lasts": "2h", "nodes": 1, "devices": 5}]
    fleet = fleet_file(nodes=6, workload={"queue": 3, "kinds": kinds})
    outcome = simulate(scenario(*faults, fleet=fleet), policy(text), replicate)
    assert closes(outcome)
    assert "rules" in devices or not outcome.tally.isolated
    assert all(hours >= 0 for hours in outcome.hours.values())
    assert 0 <= outcome.most_out <= outcome.devices
    assert all(0 <= share <= 1 for share in outcome.out_share)
    assert limit != "0" or outcome.hours[Cause.HOLD] == 0
    assert outcome.tally.interruptions[Cause.DRAIN] == 0 or drain
