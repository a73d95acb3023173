"""Who is at fault: one peer, or this node."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.ping import PingParameters
from muster_checks.ping.judge import PingPeer, judge
from muster_checks.ping.parse import PingReplies

SOUND = PingReplies(10, 10, 0.2, 0.05)
SILENT = PingReplies(12, 0)
LATE = PingReplies(10, 10, 25.0, 3.0)
LIMITS = PingParameters()


def peers(*answers: PingReplies | None) -> list[PingPeer]:
    return [
        PingPeer(f"node-{place}", f"10.0.0.{place}", each, "" if each else "ping: killed by SIGSEGV")
        for place, each in enumerate(answers)
    ]


def judged(*answers: PingReplies | None, before: bool = True) -> dict[str, Finding]:
    return {finding.component: finding for finding in judge(peers(*answers), LIMITS, answered_before=before)}


def bad(findings: dict[str, Finding]) -> dict[str, tuple[Verdict, str]]:
    return {name: (f.verdict, f.reason) for name, f in findings.items() if f.verdict is not Verdict.PASS}


def test_one_silent_peer_is_a_warning_about_that_peer_alone():
    findings = judged(SILENT, *[SOUND] * 7)
    assert bad(findings) == {"peer/node-0": (Verdict.WARN, "NoAnswer")}
    assert findings["peer/node-0"].fault_class is FaultClass.NONE


def test_seven_of_eight_silent_peers_are_this_node_and_no_peer_is_accused():
    assert bad(judged(SOUND, *[SILENT] * 7)) == {"host": (Verdict.FAIL, "PeersSilent")}


def test_six_of_eight_silent_peers_prove_nothing():
    findings = judged(SOUND, SOUND, *[SILENT] * 6)
    assert findings["host"].verdict is Verdict.WARN
    assert len(bad(findings)) == 7


def test_all_silent_is_this_node_once_some_peer_has_answered_it():
    assert bad(judged(*[SILENT] * 3)) == {"host": (Verdict.FAIL, "PeersSilent")}


def test_all_silent_from_the_beginning_may_be_a_filter():
    findings = judged(*[SILENT] * 8, before=False)
    assert bad(findings) == {"host": (Verdict.WARN, "PeersSilent")}
    assert "filtered" in findings["host"].message


def test_an_answer_among_the_silent_shows_that_nothing_is_filtered():
    assert judged(SOUND, *[SILENT] * 7, before=False)["host"].verdict is Verdict.FAIL


def test_of_two_silent_peers_both_may_be_off():
    findings = judged(SILENT, SILENT)
    assert set(bad(findings)) == {"peer/node-0", "peer/node-1"}
    assert "both ends" in findings["peer/node-0"].message


def test_a_peer_that_could_not_be_asked_is_unknown_and_the_others_are_judged():
    assert bad(judged(None, SOUND, SILENT)) == {
        "peer/node-0": (Verdict.UNKNOWN, "NotMeasured"),
        "peer/node-2": (Verdict.WARN, "NoAnswer"),
    }


def test_however_long_a_name_or_a_trouble_is_the_message_is_bounded():
    long = [
        PingPeer("n" * 253, "10.0.0.1", SILENT),
        PingPeer("b", "10.0.0.2", None, "x" * 900),
        PingPeer("c", "10.0.0.3", SOUND),
    ]
    assert all(len(f.message.encode()) <= 256 for f in judge(long, LIMITS, answered_before=True))


@pytest.mark.parametrize("count", [0, 1, 8])
def test_when_none_could_be_asked_nothing_is_known(count: int):
    with pytest.raises(CannotTell):
        judge(peers(*[None] * count), LIMITS, answered_before=True)


@pytest.mark.parametrize(
    "answers",
    [PingReplies(12, 10, 0.2, 0.05), PingReplies(10, 10, 10.5, 0.05), PingReplies(10, 10, 9.0, 10.5)],
    ids=["loss", "round trip", "deviation"],
)
def test_above_each_limit_a_peer_warns(answers: PingReplies):
    assert bad(judged(answers, SOUND, SOUND)) == {"peer/node-0": (Verdict.WARN, "Poor")}


@pytest.mark.parametrize("answers", [PingReplies(11, 10, 10.0, 10.0), PingReplies(10, 9), PingReplies(10, 10)])
def test_at_the_limits_a_peer_passes(answers: PingReplies):
    assert bad(judged(answers, SOUND, SOUND)) == {}


def test_bad_answers_of_all_are_this_node_and_warn():
    assert bad(judged(*[LATE] * 7, SOUND)) == {"host": (Verdict.WARN, "NetworkPoor")}


def test_a_silent_peer_is_named_beside_bad_answers_of_all_others():
    assert bad(judged(*[LATE] * 4, SILENT)) == {
        "host": (Verdict.WARN, "NetworkPoor"),
        "peer/node-4": (Verdict.WARN, "NoAnswer"),
    }


def test_a_sound_sample_passes_with_its_figures():
    findings = judged(SOUND, SOUND, PingReplies(10, 10, 0.4, 0.1))
    assert bad(findings) == {}
    assert [(m.name, m.value, m.threshold) for m in findings["host"].measurements] == [
        ("peers", 3, None),
        ("peers_silent", 0, 2.625),
        ("rtt_median", 0.2, 10.0),
    ]
    assert [(m.name, m.value, m.unit) for m in findings["peer/node-2"].measurements] == [
        ("loss", 0.0, "%"),
        ("rtt", 0.4, "ms"),
        ("mdev", 0.1, "ms"),
    ]


_ANSWERS = st.none() | st.builds(
    lambda sent, share, rtt: PingReplies(sent, int(sent * share), rtt, rtt),
    st.integers(1, 30),
    st.floats(0, 1),
    st.none() | st.floats(0, 1e6),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_ANSWERS, min_size=1, max_size=16), st.booleans())
def test_no_peer_ever_fails_and_the_host_only_by_near_all_of_a_sample(answers: list[PingReplies | None], before: bool):
    measured = [each for each in answers if each is not None]
    if not measured:
        return
    findings = judge(peers(*answers), LIMITS, answered_before=before)
    failed = [finding.component for finding in findings if finding.verdict is Verdict.FAIL]
    assert failed in ([], ["host"])
    if failed:
        silent = sum(each.received == 0 for each in measured)
        assert silent >= 3
        assert silent / len(measured) >= 7 / 8
    assert all(finding.fault_class is FaultClass.NONE for finding in findings)
