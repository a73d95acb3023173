"""Which proofs are asked for, and when; what is told of it."""

import msgspec
import pytest
from tests.tainter.verification.proved_node import COSTS, ProvedNode, just_tainted

from muster_kube.api.objects import Taint
from muster_kube.api.times import seconds
from muster_kube.nodehealth import CheckRequest, NodeHealthSpec
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import OPEN_LIMIT
from muster_tainter.faults.record.verification_attempts import ANNOTATION, VerificationAttempts, limit_attempts
from muster_tainter.policy.recovery import MANAGER, Proof, ProofCheck
from muster_tainter.verification.messages import format_proof
from muster_tainter.verification.node_plan import AT_ONCE, EXPIRES_S, NodePlan, ProofToRequest, choose_nodes, plan_node

THEIRS = CheckRequest(id="ann-1", checks=("dcgm",), by="ann")


@pytest.fixture
def node() -> ProvedNode:
    return just_tainted()


@pytest.fixture
def asked(node: ProvedNode) -> ProvedNode:
    node.after(61.0)
    assert node.asked()
    return node


# the first ask


def test_a_failed_check_is_asked_for_on_the_tainted_node_and_passing_it_releases_the_node(asked: ProvedNode) -> None:
    [request] = asked.asked()
    assert request.checks == ("pciebw",)
    assert request.params == {"runs": "3", "interval_s": "10"}
    assert request.by == MANAGER
    assert not request.force
    assert seconds(request.expires) == int(asked.now + EXPIRES_S)
    asked.goes()
    asked.answer()
    asked.settle()
    assert not asked.tainted
    assert not asked.asked()
    assert asked.proved_over() == ["pciebw"]
    assert ANNOTATION not in asked.health.metadata.annotations


def test_nothing_is_asked_before_the_hold_down_is_over_as_a_moment_later_a_moment_s_fault_is_gone(
    node: ProvedNode,
) -> None:
    node.after(58.0)
    assert not node.asked()
    assert node.prove().look_at == pytest.approx(node.now + 2.0, abs=1.0)
    node.after(3.0)
    assert node.asked()


def test_64_each_ipu_is_proved_by_runs_that_see_it_and_not_by_a_boot_of_its_host() -> None:
    node = ProvedNode("{rules: [{name: ipus, action: quarantine}], holdDown: {base: 1s}}")
    node.checks = ("ipu",)
    for number in range(2):
        node.fails("ipu", f"ipu/10.1.1.1/{number}", fault_class="quarantine")
    node.settle()
    node.after(2.0)
    first, second = node.asked()
    assert [first.params["sees"], second.params["sees"]] == ["ipu/10.1.1.1/0", "ipu/10.1.1.1/1"]
    node.answer(request=first)
    node.answer("UNKNOWN", "NotSeen", request=second)
    node.settle()
    assert node.open == [("ipu", "ipu/10.1.1.1/1", "Slow")]
    node.reboots()
    node.settle()
    assert len(node.open) == 1


def test_each_sign_puts_the_first_ask_off(node: ProvedNode) -> None:
    node.after(50.0)
    node.fails()
    node.settle()
    node.after(20.0)
    assert not node.asked()
    node.after(41.0)
    assert node.asked()


def test_a_rule_s_own_hold_down_says_when_it_is_asked_first() -> None:
    node = ProvedNode("{rules: [{name: all, action: taint, holdDown: 5s}]}")
    node.fails()
    node.settle()
    node.after(6.0)
    assert node.asked()


def test_a_withheld_node_proves_itself_as_well() -> None:
    node = ProvedNode()
    node.fails()
    assert node.node is not None
    paused = DecisionContext(withhold="paused: by ann")
    node.node = decide(node.node, node.health, node.policy, node.now, {}, paused).applied(node.node)
    assert not node.tainted
    node.now += 61.0
    assert [ask.proof.checks for ask in node.prove().asks] == [("pciebw",)]


def test_an_unconfirmed_fault_is_asked_for_nothing() -> None:
    node = ProvedNode("{rules: [{name: all, action: taint, for: 10m, holdDown: 0s}]}")
    node.fails()
    node.settle()
    node.after(300.0)
    assert not node.asked()
    node.after(301.0)
    assert node.asked()


def test_faults_with_the_same_proof_share_a_request(node: ProvedNode) -> None:
    node.fails(component="gpu/1")
    node.settle()
    node.after(61.0)
    assert len(node.asked()) == 1
    node.answer()
    node.settle()
    assert node.open == []


def test_a_node_is_asked_for_a_few_proofs_at_a_time() -> None:
    node = ProvedNode("{rules: [{name: all, action: taint}], holdDown: {base: 1s}}")
    node.checks = tuple(f"check{letter}" for letter in "abcdef")
    for check in node.checks:
        node.fails(check)
    node.settle()
    node.after(2.0)
    assert len(node.asked()) == AT_ONCE
    node.answer()
    node.settle()
    assert len(node.asked()) == 2
    node.answer()
    node.settle()
    assert node.open == []


def test_what_others_ask_leaves_room_or_is_waited_for(node: ProvedNode) -> None:
    others = tuple(CheckRequest(id=f"ann-{n}", checks=("dcgm",), by="ann") for n in range(16))
    node.change(spec=NodeHealthSpec(requests=others))
    node.after(61.0)
    assert not node.asked()
    node.change(spec=NodeHealthSpec(requests=others[:15]))
    node.settle()
    assert len(node.asked()) == 1
    assert node.health.spec.requests[:15] == others[:15]


@pytest.mark.parametrize("why", ["unmanaged", "gone", "unreachable", "leaving", "no agent", "nonsense"])
def test_nobody_is_asked_who_is_not_ours_or_not_there(node: ProvedNode, why: str) -> None:
    node.now += 61.0
    assert node.prove().asks
    assert node.node is not None
    metadata, spec, status = node.node.metadata, node.node.spec, node.health.status
    replace = msgspec.structs.replace
    if why == "unmanaged":
        node.node = replace(node.node, metadata=replace(metadata, labels={"muster.dev/managed": "false"}))
    elif why == "gone":
        node.node = None
    elif why == "leaving":
        node.node = replace(node.node, metadata=replace(metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    elif why == "unreachable":
        silent = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
        node.node = replace(node.node, spec=replace(spec, taints=(*spec.taints, silent)))
    elif why == "no agent":
        node.change(status=replace(status, agent=type(status.agent)()))
    else:
        node.change(status=replace(status, verdict="FINE"))
    assert not node.prove().asks


def test_a_node_that_is_no_longer_managed_keeps_no_request_and_no_memory_of_it(asked: ProvedNode) -> None:
    asked.asks_too(THEIRS)
    asked.answer("FAIL")
    asked.settle()
    asked.after(601.0)
    assert asked.asked()
    assert ANNOTATION in asked.health.metadata.annotations
    assert asked.node is not None
    labels = {"muster.dev/managed": "false"}
    asked.node = msgspec.structs.replace(
        asked.node, metadata=msgspec.structs.replace(asked.node.metadata, labels=labels)
    )
    asked.settle()
    assert asked.health.spec.requests == (THEIRS,)
    assert ANNOTATION not in asked.health.metadata.annotations


# heavy ones, and how many at once


def test_a_heavy_proof_waits_for_the_node_to_be_idle(node: ProvedNode) -> None:
    node.idle = False
    node.publish()
    node.after(3600.0)
    assert not node.asked()
    node.idle = True
    node.publish()
    node.settle()
    assert node.asked()


def test_a_light_proof_is_asked_for_beside_a_job() -> None:
    node = ProvedNode()
    node.idle = False
    node.fails("remapped")
    node.settle()
    node.after(61.0)
    assert [request.checks for request in node.asked()] == [("remapped",)]


def ask(since: float, *, heavy: bool) -> ProofToRequest:
    return ProofToRequest(ProofCheck(("dcgm" if heavy else "ib",), Proof(), new_boot=False), 0, since, heavy)


def test_heavy_proofs_of_a_rack_are_bounded_and_who_has_waited_longest_comes_first() -> None:
    fleet = [NodePlan(f"n{number}", asks=(ask(100.0 - number, heavy=True),)) for number in range(6)]
    assert set(choose_nodes(fleet, 2)) == {"n5", "n4"}
    fleet[0] = NodePlan("n0", heavy=True)
    assert set(choose_nodes(fleet, 2)) == {"n5"}
    fleet[1] = NodePlan("n1", heavy=True)
    assert choose_nodes(fleet, 2) == {}


def test_light_proofs_need_no_place() -> None:
    light, heavy = ask(1.0, heavy=False), ask(2.0, heavy=True)
    fleet = [NodePlan("n0", heavy=True), NodePlan("n1", asks=(light, heavy)), NodePlan("n2", asks=(light,))]
    assert choose_nodes(fleet, 1) == {"n1": (light,), "n2": (light,)}


def test_a_node_that_has_a_place_may_be_asked_for_more() -> None:
    heavy = ask(2.0, heavy=True)
    assert choose_nodes([NodePlan("n0", heavy=True, asks=(heavy,))], 1) == {"n0": (heavy,)}


# words


def lines(node: ProvedNode) -> list[str]:
    [fault] = node.memory.open
    return format_proof(
        fault, match_policy(fault, node.policy), node.health, node.now, hold_s=node.policy.hold_down.base
    )


def test_what_is_asked_how_often_it_failed_and_when_it_is_asked_next_is_told(node: ProvedNode) -> None:
    [due] = lines(node)
    assert "2027-01-15T08:01:00Z" in due
    node.idle = False
    node.publish()
    node.after(61.0)
    [waits] = lines(node)
    assert "idle" in waits
    node.idle = True
    node.publish()
    node.settle()
    assert (lines(node), len(node.asked())) == ([], 1)  # what is asked for now stands in the request
    node.answer("FAIL", "Slow")
    node.settle()
    failed, again = lines(node)
    assert "FAIL Slow" in failed
    assert "1 " in failed
    assert "2027-01-15T" in again


def test_a_board_s_proof_is_told_to_wait_for_a_boot() -> None:
    node = ProvedNode()
    node.fails("dmesg", reason="Xid79", fault_class="replace")
    node.settle()
    [waits] = lines(node)
    assert "boot" in waits


def test_a_healthy_node_asks_for_no_look() -> None:
    assert not ProvedNode().prove().matters


def test_a_nodehealth_that_cannot_be_read_is_let_alone(asked: ProvedNode) -> None:
    made = plan_node(asked.node, UnusableHealth("no"), asked.policy, asked.now, COSTS)
    assert not made.matters


def test_of_no_proof_of_an_open_fault_is_it_forgotten_that_it_failed() -> None:
    """It would be asked for again at once, and again."""
    assert (
        len(limit_attempts({f"{n:010x}": VerificationAttempts(tries=1, requested=n) for n in range(OPEN_LIMIT)}))
        == OPEN_LIMIT
    )


def test_tries_of_many_proofs_are_bounded() -> None:
    kept = limit_attempts({f"{n:010x}": VerificationAttempts(tries=1, requested=n) for n in range(OPEN_LIMIT + 24)})
    assert len(kept) == OPEN_LIMIT
    assert min(each.requested for each in kept.values()) == 24
