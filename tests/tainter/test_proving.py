"""Which proofs are asked for, when, and what becomes of the answers."""

import msgspec
import pytest
from tests.tainter.one_proved_node import COSTS, GPU, LIMIT_S, ProvedNode

from muster_kube.nodehealth import Answer, Clear, Request, Spec
from muster_kube.objects import Taint
from muster_kube.times import seconds
from muster_tainter.desired import decide
from muster_tainter.health import Unusable
from muster_tainter.memory import OPEN_LIMIT
from muster_tainter.proof_words import proof_lines
from muster_tainter.proving import AT_ONCE, EXPIRES_S, Ask, Proving, chosen, prove
from muster_tainter.recovery import MANAGER, Proof, ProofCheck, asked_by
from muster_tainter.surroundings import Surroundings
from muster_tainter.tried import ANNOTATION, Tried, bounded, tried_of
from muster_tainter.wanting import wanted

THEIRS = Request(id="ann-1", checks=("dcgm",), by="ann")


@pytest.fixture
def node() -> ProvedNode:
    """Just tainted: pciebw has failed."""
    made = ProvedNode()
    made.fails()
    made.settle()
    assert made.tainted
    return made


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
    paused = Surroundings(withhold="paused: by ann")
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
    others = tuple(Request(id=f"ann-{n}", checks=("dcgm",), by="ann") for n in range(16))
    node.change(spec=Spec(requests=others))
    node.after(61.0)
    assert not node.asked()
    node.change(spec=Spec(requests=others[:15]))
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


def ask(since: float, *, heavy: bool) -> Ask:
    return Ask(ProofCheck(("dcgm" if heavy else "ib",), Proof(), new_boot=False), 0, since, heavy)


def test_heavy_proofs_of_a_rack_are_bounded_and_who_has_waited_longest_comes_first() -> None:
    fleet = [Proving(f"n{number}", asks=(ask(100.0 - number, heavy=True),)) for number in range(6)]
    assert set(chosen(fleet, 2)) == {"n5", "n4"}
    fleet[0] = Proving("n0", heavy=True)
    assert set(chosen(fleet, 2)) == {"n5"}
    fleet[1] = Proving("n1", heavy=True)
    assert chosen(fleet, 2) == {}


def test_light_proofs_need_no_place() -> None:
    light, heavy = ask(1.0, heavy=False), ask(2.0, heavy=True)
    fleet = [Proving("n0", heavy=True), Proving("n1", asks=(light, heavy)), Proving("n2", asks=(light,))]
    assert chosen(fleet, 1) == {"n1": (light,), "n2": (light,)}


def test_a_node_that_has_a_place_may_be_asked_for_more() -> None:
    heavy = ask(2.0, heavy=True)
    assert chosen([Proving("n0", heavy=True, asks=(heavy,))], 1) == {"n0": (heavy,)}


# answers


@pytest.mark.parametrize("verdict", ["FAIL", "WARN", "UNKNOWN", "SKIP"])
def test_only_pass_closes_and_anything_else_is_asked_again_later_each_time_twice_as_late(
    asked: ProvedNode, verdict: str
) -> None:
    pause = 600.0
    for tries in range(1, 6):
        asked.answer(verdict, "Slow")
        asked.settle()
        assert asked.tainted
        assert not asked.asked()
        [(digest, tried)] = tried_of(asked.health).items()
        assert (tried.tries, tried.said) == (tries, f"{verdict} Slow")
        asked.after(pause - 2.0)
        assert not asked.asked()
        asked.after(3.0)
        [request] = asked.asked()
        assert asked_by(request) is not None
        assert request.id.startswith(f"proof-{digest}-")
        pause *= 2
    asked.answer()
    asked.settle()
    assert not asked.tainted
    assert ANNOTATION not in asked.health.metadata.annotations


def test_the_pause_is_a_day_at_most(asked: ProvedNode) -> None:
    for _ in range(12):
        asked.answer("FAIL")
        asked.settle()
        asked.after(86_401.0)
        assert asked.asked()


def test_busy_is_no_failure_and_is_asked_again_soon(asked: ProvedNode) -> None:
    asked.answer("UNKNOWN", "Busy")
    asked.settle()
    [tried] = tried_of(asked.health).values()
    assert tried.tries == 0
    asked.after(61.0)
    assert asked.asked()


def test_silence_is_a_failure_once_the_agent_could_not_be_at_it_any_more(asked: ProvedNode) -> None:
    longest = EXPIRES_S + 3 * (LIMIT_S + 10.0)
    asked.after(longest - 2.0)
    assert asked.asked()
    asked.after(4.0)
    assert not asked.asked()
    [tried] = tried_of(asked.health).values()
    assert (tried.tries, tried.said) == (1, "no answer")


def test_an_answer_that_is_not_final_is_none(asked: ProvedNode) -> None:
    [request] = asked.asked()
    asked.answers[request.id] = Answer(id=request.id, verdict="PASS", runs=1)
    asked.publish()
    asked.settle()
    assert asked.asked() == [request]
    assert asked.tainted


def test_a_new_boot_starts_the_count_anew(asked: ProvedNode) -> None:
    key = ("pciebw", GPU, "Slow")
    for _ in range(4):
        asked.answer("FAIL")
        asked.settle()
        asked.after(6000.0)
    assert asked.asked()
    asked.answer("FAIL")
    asked.settle()
    asked.reboots(again=(key,))  # the same finding is there, and fires anew
    asked.settle()
    asked.after(61.0)
    assert asked.asked()


def test_a_fault_that_is_raised_anew_makes_the_proof_under_way_void(asked: ProvedNode) -> None:
    [old] = asked.asked()
    asked.now += 5.0
    asked.fails()
    asked.answer(request=old)  # what ran before does not speak of it
    asked.settle()
    assert asked.tainted
    assert not asked.asked()
    asked.after(61.0)
    [new] = asked.asked()
    assert new.id != old.id
    asked.answer()
    asked.after(0.0)
    assert asked.memory.open[0].over  # it passed, failed and passed: held as one that comes and goes
    asked.after(61.0)
    assert not asked.tainted


def test_an_answer_to_what_was_asked_before_the_last_fault_does_not_close_the_next_one(asked: ProvedNode) -> None:
    [old] = asked.asked()
    asked.answer()
    asked.decide()
    assert not asked.tainted
    assert asked.asked() == [old]  # with its PASS
    asked.now -= 3600.0  # the next leader's clock
    asked.fails()
    asked.settle()
    assert asked.tainted
    [new] = asked.asked()
    assert new.id != old.id


def test_a_clock_that_is_set_back_delays_no_proof(node: ProvedNode) -> None:
    node.after(-3600.0)
    assert node.asked()
    node.answer()
    node.settle()
    assert not node.tainted


def test_ids_differ_also_when_the_clock_does_not_move(asked: ProvedNode) -> None:
    asked.now -= 7200.0  # every request is asked at the same number, were it by the fault alone
    ids = set()
    for _ in range(3):
        asked.settle()
        [request] = asked.asked()
        ids.add(request.id)
        asked.answer("FAIL")
        asked.settle()
        [(digest, tried)] = tried_of(asked.health).items()
        at_once = msgspec.structs.replace(tried, after="")
        annotations = {ANNOTATION: msgspec.json.encode({digest: at_once}).decode()}
        asked.change(metadata=msgspec.structs.replace(asked.health.metadata, annotations=annotations))
    assert len(ids) == 3


def test_a_request_by_a_clock_that_ran_ahead_is_asked_anew(asked: ProvedNode) -> None:
    [request] = asked.asked()
    asked.now -= 30 * 86_400.0
    asked.settle()
    assert request not in asked.asked()


def test_faults_that_close_otherwise_take_their_request_with_them(asked: ProvedNode) -> None:
    asked.asks_too(THEIRS)
    asked.goes(how="driver")
    asked.settle()
    assert not asked.tainted
    assert asked.health.spec.requests == (THEIRS,)


def test_what_was_tried_is_forgotten_with_the_last_fault_it_was_for(asked: ProvedNode) -> None:
    asked.answer("FAIL")
    asked.settle()
    assert ANNOTATION in asked.health.metadata.annotations
    asked.goes(how="driver")
    asked.settle()
    assert ANNOTATION not in asked.health.metadata.annotations


def test_a_garbled_memory_of_tries_only_means_that_it_is_asked_at_once(asked: ProvedNode) -> None:
    for text in ("{", '{"x": {"tries": "many"}}', '{"x": {"tries": -5, "asked": 99999999999999}}'):
        asked.change(metadata=msgspec.structs.replace(asked.health.metadata, annotations={ANNOTATION: text}))
        asked.answer("FAIL")
        asked.settle()
        assert [each.tries for each in tried_of(asked.health).values()] == [1]
        asked.after(601.0)
        assert asked.asked()


def test_somebody_s_entry_under_our_name_is_taken_away_and_one_with_our_id_is_left(node: ProvedNode) -> None:
    forged = Request(id="proof-0123456789-1800000000", checks=("dcgm",), by="ann")
    node.asks_too(forged)
    node.asks_too(Request(id="whatever", checks=("dcgm",), by=MANAGER))
    node.settle()
    assert node.health.spec.requests == (forged,)


def test_a_flapping_node_is_held_after_its_second_proof(asked: ProvedNode) -> None:
    asked.goes()
    asked.answer()
    asked.settle()
    assert not asked.tainted  # the first time it waits for nothing but its proof
    asked.fails()
    asked.settle()
    asked.after(61.0)
    asked.goes()
    asked.answer()
    asked.settle()
    assert asked.tainted
    assert asked.memory.open[0].over
    assert not asked.asked()  # and it is asked for nothing meanwhile
    asked.after(30.0)
    assert asked.tainted
    assert not asked.asked()
    asked.after(31.0)
    assert not asked.tainted


def test_a_fault_that_fires_while_it_is_held_is_open_anew_whatever_had_ended_it(asked: ProvedNode) -> None:
    asked.goes()
    asked.answer()
    asked.settle()
    asked.fails()
    asked.settle()
    asked.after(61.0)
    asked.goes()
    asked.answer()
    asked.decide()  # it is held, and the request with its PASS still stands
    assert asked.memory.open[0].over
    asked.fails()
    asked.settle()
    assert not asked.memory.open[0].over
    asked.after(600.0)
    assert asked.tainted
    assert asked.asked()


def test_a_firing_in_the_report_that_ends_the_last_one_is_not_held_but_open() -> None:
    node = ProvedNode()
    node.fails("dmesg")
    node.settle()
    node.goes("dmesg", "driver")
    node.settle()
    node.fails("dmesg")
    node.settle()
    node.goes("dmesg", "driver")  # alone it would be held, as the second time
    node.fails("dmesg")
    node.settle()
    assert node.tainted
    assert not node.memory.open[0].over
    node.after(86_400.0)
    assert node.tainted


# what closes what


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
    node.change(spec=Spec(clear=(Clear(check="dmesg", component="*", occurrence=1, by="ann"),)))
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


def test_what_a_person_has_closed_is_not_cleared_by_us(asked: ProvedNode) -> None:
    assert asked.node is not None
    released = {wanted(fault, asked.policy).taint: "ann" for fault in asked.memory.open}
    by_hand = {taint: who for taint, who in released.items() if taint is not None}
    asked.node = decide(asked.node, asked.health, asked.policy, asked.now, by_hand).applied(asked.node)
    asked.settle()
    assert not asked.tainted
    assert not asked.asked()
    assert asked.clears == ()


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


# words


def lines(node: ProvedNode) -> list[str]:
    [fault] = node.memory.open
    return proof_lines(fault, wanted(fault, node.policy), node.health, node.now, hold_s=node.policy.hold_down.base)


def test_what_is_asked_how_often_it_failed_and_when_it_is_asked_next_is_told(node: ProvedNode) -> None:
    assert lines(node) == ["asked for from 2027-01-15T08:01:00Z on"]
    node.idle = False
    node.publish()
    node.after(61.0)
    assert lines(node) == ["waits for the node to be idle, or a place"]
    node.idle = True
    node.publish()
    node.settle()
    assert (lines(node), len(node.asked())) == ([], 1)  # what is asked for now stands in the request
    node.answer("FAIL", "Slow")
    node.settle()
    failed, again = lines(node)
    assert failed == "1 time not passed in this boot, last: FAIL Slow"
    assert again.startswith("asked for again from 2027-01-15T")


def test_a_board_s_proof_is_told_to_wait_for_a_boot() -> None:
    node = ProvedNode()
    node.fails("dmesg", reason="Xid79", fault_class="replace")
    node.settle()
    assert lines(node) == ["not asked for before the node has booted anew"]


def test_a_healthy_node_asks_for_no_look() -> None:
    assert not ProvedNode().prove().matters


def test_a_nodehealth_that_cannot_be_read_is_let_alone(asked: ProvedNode) -> None:
    made = prove(asked.node, Unusable("no"), asked.policy, asked.now, COSTS)
    assert not made.matters


def test_of_no_proof_of_an_open_fault_is_it_forgotten_that_it_failed() -> None:
    """It would be asked for again at once, and again."""
    assert len(bounded({f"{n:010x}": Tried(tries=1, asked=n) for n in range(OPEN_LIMIT)})) == OPEN_LIMIT


def test_tries_of_many_proofs_are_bounded() -> None:
    kept = bounded({f"{n:010x}": Tried(tries=1, asked=n) for n in range(OPEN_LIMIT + 24)})
    assert len(kept) == OPEN_LIMIT
    assert min(each.asked for each in kept.values()) == 24
