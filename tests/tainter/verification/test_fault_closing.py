"""What closes which faults: a proof, a new boot, the driver, a person; and what is cleared with them."""

import pytest
from tests.tainter.verification.proved_node import GPU, ProvedNode, just_tainted

from muster_kube.nodehealth import ClearEntry, NodeHealthSpec
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.policy.file import default_policy_text


@pytest.fixture
def node() -> ProvedNode:
    return just_tainted()


@pytest.fixture
def asked(node: ProvedNode) -> ProvedNode:
    node.after(61.0)
    assert node.asked()
    return node


def test_that_a_run_of_the_agent_no_longer_finds_it_closes_nothing(node: ProvedNode) -> None:
    node.goes(how="run")
    node.settle()
    node.after(1e6)
    assert node.tainted


@pytest.mark.parametrize("fault_class", ["reset", "reboot"])
@pytest.mark.parametrize("how", ["boot", "driver"])
def test_kernel_faults_of_class_reset_and_reboot_close_by_a_new_boot_or_the_driver_s_reset_line(
    fault_class: str, how: str
) -> None:
    node = ProvedNode()
    node.fails("dmesg", reason="Xid79", fault_class=fault_class)
    node.settle()
    node.after(86_400.0)
    assert node.tainted
    assert not node.asked()
    if how == "boot":
        node.reboots()
    else:
        node.goes("dmesg", "driver")
    node.settle()
    assert not node.tainted


@pytest.mark.parametrize("fault_class", ["replace", "contact"])
def test_kernel_faults_of_class_replace_and_contact_close_only_by_heavy_proof_in_a_new_boot(fault_class: str) -> None:
    node = ProvedNode()
    node.fails("dmesg", reason="Xid79", fault_class=fault_class)
    node.settle()
    for how in ("driver", "quiet", "run"):
        node.goes("dmesg", how)
        node.after(86_400.0)
        assert node.tainted
        assert not node.asked()
    node.reboots()
    node.settle()
    assert node.tainted
    [request] = node.asked()
    assert request.checks == ("gpumem", "dcgm")
    assert request.params == {"runs": "2", "interval_s": "10"}
    node.answer()
    node.settle()
    assert not node.tainted


def test_under_the_built_in_policy_a_board_is_proved_without_the_tool_that_its_node_lacks() -> None:
    node = ProvedNode(default_policy_text())
    node.fails("dmesg", reason="Xid79", fault_class="replace")
    node.settle()
    node.reboots()
    node.after(600.0)
    [request] = node.asked()
    assert request.checks == ("gpumem", "pciebw", "dcgm")
    assert request.params["if_installed"] == "dcgm"
    node.answer(without=("dcgm", "gpumem"))  # the policy does not let gpumem be left out, so nothing says that it was
    node.settle()
    assert not node.tainted
    [closed] = node.memory.closed
    assert closed.by.startswith("gpumem, pciebw (without dcgm")


def test_a_board_that_fails_in_the_new_boot_too_waits_for_the_next_one() -> None:
    node = ProvedNode()
    node.fails("dmesg", reason="Xid79", fault_class="replace")
    node.settle()
    node.after(61.0)
    node.reboots()
    node.settle()
    assert node.asked()
    node.fails("dmesg", reason="Xid79", fault_class="replace")
    node.answer()
    node.settle()
    node.after(86_400.0)
    assert node.tainted
    assert not node.asked()


def test_a_board_is_released_by_a_person_as_well() -> None:
    node = ProvedNode()
    node.fails("dmesg", reason="Xid79", fault_class="replace")
    node.settle()
    node.change(spec=NodeHealthSpec(clear=(ClearEntry(check="dmesg", component="*", occurrence=1, by="ann"),)))
    node.settle()
    assert not node.tainted


# the agent's own ledger


def test_a_finding_that_outlives_its_fault_is_cleared_by_the_proof_s_word(asked: ProvedNode) -> None:
    [request] = asked.asked()
    asked.answer()
    asked.settle()
    [clear] = asked.clears
    assert (clear.check, clear.component, clear.occurrence) == ("pciebw", GPU, 1)
    assert clear.by.startswith("muster-tainter: ")
    assert request.id in clear.by
    before = asked.health
    asked.settle()
    assert asked.health == before


def test_a_finding_that_its_agent_has_closed_is_not_cleared(asked: ProvedNode) -> None:
    asked.goes()
    asked.answer()
    asked.settle()
    assert asked.clears == ()


def take_taints_off(node: ProvedNode) -> None:
    """As a person does with kubectl."""
    assert node.node is not None
    released = {match_policy(fault, node.policy).taint: "ann" for fault in node.memory.open}
    by_hand = {taint: who for taint, who in released.items() if taint is not None}
    node.node = decide(node.node, node.health, node.policy, node.now, by_hand).applied(node.node)
    node.settle()
    assert not node.tainted


def test_what_a_person_has_closed_is_not_cleared_by_us(asked: ProvedNode) -> None:
    take_taints_off(asked)
    assert not asked.asked()
    assert asked.clears == ()


def test_a_kernel_line_whose_taint_a_person_took_off_is_let_go_of_so_that_it_can_come_anew() -> None:
    node = ProvedNode()
    for occurrence in (1, 2, 3):
        node.fails("dmesg", reason="Xid79", fault_class="reboot")
        node.settle()
        assert node.tainted
        take_taints_off(node)
        [clear] = node.clears
        assert (clear.check, clear.component, clear.occurrence) == ("dmesg", GPU, occurrence)
        assert clear.by == "muster-tainter: ann"


@pytest.mark.parametrize("still_open", [True, False])
def test_no_clear_takes_another_fault_or_finding_of_that_component_with_it(still_open: bool) -> None:
    other = "taint, closeOn: [boot]" if still_open else "event"
    rules = f"[{{name: other, match: {{reason: Other}}, action: {other}}}, {{name: all, action: taint}}]"
    node = ProvedNode(f"{{rules: {rules}, holdDown: {{base: 60s}}}}")
    node.fails(reason="Other")
    node.fails()
    node.settle()
    node.after(61.0)
    node.answer()
    node.settle()
    assert ("pciebw", GPU, "Slow") not in node.open
    assert node.clears == ()


def test_a_held_fault_is_not_cleared_before_its_time_as_that_would_release_the_node(asked: ProvedNode) -> None:
    asked.answer()
    asked.settle()
    asked.fails()
    asked.settle()
    asked.after(61.0)
    cleared = asked.clears
    asked.answer()
    asked.settle()
    assert asked.tainted
    assert asked.clears == cleared
    asked.after(61.0)
    assert not asked.tainted
    assert asked.clears != cleared
