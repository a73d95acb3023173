"""What the active policy says about a fault: its rule, taint, wait, proof and hold-down."""

from typing import Any

import pytest

from muster_tainter.faults.occurrence import LOST_CHECK, REST
from muster_tainter.faults.policy_match import (
    FaultPolicy,
    confirmed_at,
    current_penalty,
    held_until,
    match_as_node,
    match_policy,
    penalty_key,
    penalty_now,
)
from muster_tainter.faults.record.node_record import DeviceStage, Fault, FlapPenalty, NodeRecord, OurTaint
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import CloseOn

NOON = 1_800_000_000.0
AT_NOON = "2027-01-15T08:00:00Z"
FAULTY = OurTaint(key="muster.dev/faulty", value="true", effect="NoSchedule")
POLICY = parse_policy(
    """
rules:
  - {name: ipus, match: {class: [quarantine]}, action: quarantine, closeOn: [proof]}
  - {name: links, match: {check: [ipulink]}, action: drain, holdDown: 90s}
  - {name: notes, match: {verdict: WARN}, action: event}
  - {name: all, action: taint, holdDown: 60s, closeOn: [boot, proof]}
"""
)


def fault(**fields: Any) -> Fault:
    values: dict[str, Any] = {
        "check": "dmesg", "component": "gpu/a", "reason": "Xid79", "occurrence": 1, "verdict": "FAIL",
        "fault_class": "reset", "since": AT_NOON,
    } | fields  # fmt: skip
    return Fault(**values)


@pytest.mark.parametrize(
    ("fields", "rule", "taints", "quarantine", "drain"),
    [
        ({}, "all", True, False, False),
        ({"check": "ipulink"}, "links", True, False, True),
        ({"fault_class": "quarantine"}, "ipus", False, True, False),
        ({"verdict": "WARN"}, "notes", False, False, False),
    ],
)
def test_the_first_rule_that_matches_decides(
    fields: dict[str, Any], rule: str, taints: bool, quarantine: bool, drain: bool
) -> None:
    want = match_policy(fault(**fields), POLICY)
    assert (want.rule, want.taint, want.quarantine, want.drain) == (
        rule, FAULTY if taints else None, quarantine, drain,
    )  # fmt: skip


def test_without_a_rule_nothing_is_done() -> None:
    only = parse_policy("rules: [{name: one, match: {check: [none]}, action: taint}]")
    assert match_policy(fault(), only) == FaultPolicy()


def test_a_fault_whose_device_is_kept_out_alone_taints_only_that() -> None:
    alone = fault(device=DeviceStage.ALONE)
    want = match_policy(alone, POLICY)
    assert (want.taint, want.device, match_as_node(alone, POLICY).taint) == (None, FAULTY, FAULTY)
    for stage in ("", DeviceStage.WANTED, DeviceStage.PREVIEW):
        want = match_policy(fault(device=stage), POLICY)
        assert (want.taint, want.device) == (FAULTY, None)
    assert match_policy(fault(device=DeviceStage.ALONE, verdict="WARN"), POLICY).device is None


def test_a_lost_taint_stands_for_itself_and_a_reboot_closes_it() -> None:
    lost = fault(check=LOST_CHECK, component="taint/muster.dev/old:NoExecute", message="yes")
    want = match_policy(lost, POLICY)
    assert (want.taint, want.close_on) == (
        OurTaint(key="muster.dev/old", effect="NoExecute", value="yes"),
        (CloseOn.BOOT,),
    )


def test_the_count_of_the_rest_keeps_its_rule_and_has_no_proof() -> None:
    rest = fault(component=REST, reason=REST, rest=3, rule="links")
    assert (match_policy(rest, POLICY).rule, match_policy(rest, POLICY).proof) == ("links", None)
    assert match_policy(fault(component=REST, reason=REST, rest=3, rule="gone"), POLICY) == FaultPolicy()
    rest = fault(check="pciebw", component=REST, reason=REST, rest=3, rule="all")
    assert (match_policy(rest, POLICY).rule, match_policy(rest, POLICY).proof) == ("all", None)


def test_the_proof_of_an_ipu_is_about_that_ipu() -> None:
    of_ipu = match_policy(fault(check="ipulink", component="ipu/10.1.1.1/0", fault_class="quarantine"), POLICY).proof
    of_node = match_policy(fault(check="pciebw"), POLICY).proof
    assert of_node is not None
    assert ((of_ipu and of_ipu.component), of_node.component) == ("ipu/10.1.1.1/0", "")


@pytest.mark.parametrize(
    ("check", "component", "alone"),
    [
        ("gpumem", "gpu/0000:3b:00.0", True),  # its proof is gpumem itself, which can test one device
        ("gpumem", "gpu/a", False),
        ("gpumem", "nic/mlx5_0", False),
        ("dcgm", "gpu/0000:3b:00.0", False),  # heavy, of the whole node
        ("gpucount", "gpu/0000:3b:00.0", False),  # light
    ],
)
def test_the_proof_of_a_device_that_is_kept_out_alone_tests_only_that_if_it_can(
    check: str, component: str, alone: bool
) -> None:
    proved = parse_policy("rules: [{name: hw, action: taint, closeOn: [proof], proof: {passes: 2}}]")
    want = match_policy(fault(check=check, component=component, device=DeviceStage.ALONE), proved).proof
    assert want is not None
    assert want.checks == (check,)
    assert (want.alone, want.component) == (alone, component if alone else "")


@pytest.mark.parametrize(
    ("stage", "board", "key"),
    [
        ("", "", "dmesg"),
        ("", "GPU-1", "dmesg"),
        (DeviceStage.PREVIEW, "GPU-1", "dmesg"),
        (DeviceStage.WANTED, "GPU-1", "dmesg@GPU-1"),
        (DeviceStage.ALONE, "GPU-1", "dmesg@GPU-1"),
        (DeviceStage.ALONE, "", "dmesg@gpu/a"),
    ],
)
def test_flaps_count_for_the_check_or_for_the_board_that_is_kept_out_alone(stage: str, board: str, key: str) -> None:
    assert penalty_key(fault(device=stage, board=board)) == key


@pytest.mark.parametrize(("board", "n"), [("", 1.0), ("GPU-1", 4.0)])
def test_the_flaps_of_a_board_that_was_kept_out_alone_count_for_its_node_too(board: str, n: float) -> None:
    memory = NodeRecord(
        penalty={
            "dmesg": FlapPenalty(n=1.0, at=AT_NOON),
            "dmesg@gpu/a": FlapPenalty(n=8.0, at=AT_NOON),
            "dmesg@GPU-1": FlapPenalty(n=4.0, at=AT_NOON),
        }
    )
    assert current_penalty(memory, fault(board=board), NOON, POLICY) == n


# times


@pytest.mark.parametrize(("now", "at"), [(NOON, 30.0), (NOON + 9, 30.0), (NOON - 1, -1.0)])
def test_a_fault_is_confirmed_after_its_wait_and_a_clock_that_was_set_back_delays_nothing(
    now: float, at: float
) -> None:
    assert confirmed_at(fault(), FaultPolicy(wait_s=30.0), now) == NOON + at


def test_a_resolved_fault_is_held_for_longer_the_more_often_it_flaps() -> None:
    over = fault(over=AT_NOON)
    want = match_policy(over, POLICY)
    held = []
    for flaps in (0.0, 1.0, 3.0):
        penalty = {"dmesg": FlapPenalty(n=flaps, at=AT_NOON), "other": FlapPenalty(n=9.0, at=AT_NOON)}
        held.append(held_until(over, want, NodeRecord(penalty=penalty), POLICY) - NOON)
    assert held == [0.0, 60.0, 7 * 60.0]
    assert held_until(over, want, NodeRecord(), POLICY) == NOON


def test_a_penalty_decays_with_time() -> None:
    memory = NodeRecord(penalty={"dmesg": FlapPenalty(n=3.0, at=AT_NOON)})
    penalties = [penalty_now(memory, "dmesg", NOON + later, POLICY) for later in (0.0, 3600.0, 36000.0)]
    assert penalties[0] == 3.0
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[2] < penalties[1] < 3.0
    assert penalty_now(memory, "other", NOON, POLICY) == 0.0
