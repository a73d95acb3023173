"""What becomes of the answers to requests for proof: who is asked again, and when a proof is void."""

import msgspec
import pytest
from tests.tainter.verification.proved_node import GPU, LIMIT_S, ProvedNode, just_tainted

from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_tainter.faults.record.verification_attempts import ANNOTATION, read_attempts
from muster_tainter.policy.recovery import MANAGER, read_proof_request
from muster_tainter.verification.node_plan import EXPIRES_S

THEIRS = CheckRequest(id="ann-1", checks=("dcgm",), by="ann")


@pytest.fixture
def node() -> ProvedNode:
    return just_tainted()


@pytest.fixture
def asked(node: ProvedNode) -> ProvedNode:
    node.after(61.0)
    assert node.asked()
    return node


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
        [(digest, tried)] = read_attempts(asked.health).items()
        assert (tried.tries, tried.last_result) == (tries, f"{verdict} Slow")
        asked.after(pause - 2.0)
        assert not asked.asked()
        asked.after(3.0)
        [request] = asked.asked()
        assert read_proof_request(request) is not None
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
    [tried] = read_attempts(asked.health).values()
    assert tried.tries == 0
    asked.after(61.0)
    assert asked.asked()


def test_silence_is_a_failure_once_the_agent_could_not_be_at_it_any_more(asked: ProvedNode) -> None:
    longest = EXPIRES_S + 3 * (LIMIT_S + 10.0)
    asked.after(longest - 2.0)
    assert asked.asked()
    asked.after(4.0)
    assert not asked.asked()
    [tried] = read_attempts(asked.health).values()
    assert (tried.tries, tried.last_result) == (1, "no answer")


def test_an_answer_that_is_not_final_is_none(asked: ProvedNode) -> None:
    [request] = asked.asked()
    asked.answers[request.id] = RequestAnswer(id=request.id, verdict="PASS", runs=1)
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
        [(digest, tried)] = read_attempts(asked.health).items()
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
        assert [each.tries for each in read_attempts(asked.health).values()] == [1]
        asked.after(601.0)
        assert asked.asked()


def test_somebody_s_entry_under_our_name_is_taken_away_and_one_with_our_id_is_left(node: ProvedNode) -> None:
    forged = CheckRequest(id="proof-0123456789-1800000000", checks=("dcgm",), by="ann")
    node.asks_too(forged)
    node.asks_too(CheckRequest(id="whatever", checks=("dcgm",), by=MANAGER))
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
