"""What ping prints, of whatever make and on its bad days."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, huge, mangled, verdicts_of

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.ping import PING, PingParameters
from muster_checks.ping.parse import PEERS_LIMIT, PingReplies, parse_summaries

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = {
    "iputils-sound": ("10.77.0.2", PingReplies(10, 10, 0.056, 0.054)),
    "iputils-ipv6": ("fd77::2", PingReplies(10, 10, 0.056, 0.034)),
    "iputils-host-unreachable": ("10.77.0.9", PingReplies(12, 0)),
    "iputils-silent": ("10.77.0.2", PingReplies(20, 0)),
    "iputils-loss": ("10.77.0.2", PingReplies(11, 10, 389.286, 307.941)),
    "busybox-sound": ("10.77.0.2", PingReplies(10, 10, 0.076)),
    "busybox-silent": ("10.77.0.9", PingReplies(10, 0)),
    "busybox-loss": ("10.77.0.2", PingReplies(10, 5, 762.567)),
    "inetutils-sound": ("10.77.0.2", PingReplies(10, 10, 0.060, 0.0)),
    "inetutils-host-unreachable": ("10.77.0.9", PingReplies(10, 0)),
    "inetutils-loss": ("10.77.0.2", PingReplies(10, 7, 426.838, 265.843)),
}


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.txt").read_bytes()


def test_every_sample_is_read_here():
    assert {file.stem for file in SAMPLES.glob("*.txt")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_loss_and_round_trip_are_read_from_every_make_of_ping(name: str):
    assert parse_summaries(sample(name)) == [EXPECTED[name]]


def test_duplicates_corrupted_and_errors_stand_between():
    text = (
        b"--- 10.0.0.1 ping statistics ---\n"
        b"4 packets transmitted, 2 received, +3 duplicates, +1 corrupted, +1 errors, 50% packet loss, time 3ms\n"
        b"rtt min/avg/max/mdev = 1/2/3/0.5 ms, pipe 2, ipg/ewma 0.1/0.2 ms\n"
    )
    assert parse_summaries(text) == [("10.0.0.1", PingReplies(4, 2, 2.0, 0.5))]


def test_several_outputs_in_one_text_are_several_peers():
    assert [address for address, _ in parse_summaries(sample("iputils-sound") + sample("busybox-silent"))] == [
        "10.77.0.2",
        "10.77.0.9",
    ]


@pytest.mark.parametrize("counts", [(0, 0), (3, 4)])
def test_counts_that_make_no_sense_are_unreadable(counts: tuple[int, int]):
    text = sample("iputils-sound").replace(b"10 packets transmitted, 10 ", b"%d packets transmitted, %d " % counts)
    with pytest.raises(Unreadable, match=rf"\b{counts[0]}\b"):
        parse_summaries(text)


def test_a_senseless_round_trip_is_none():
    text = sample("iputils-sound").replace(b"0.056", b"0.0.5")
    assert parse_summaries(text) == [("10.77.0.2", PingReplies(10, 10, None, 0.054))]


def test_a_text_of_very_many_outputs_is_bounded():
    assert len(parse_summaries(sample("iputils-sound") * 1000)) == PEERS_LIMIT


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_summary_is_unreadable(text: bytes):
    with pytest.raises(Unreadable):
        parse_summaries(text)


@pytest.mark.parametrize(
    "beginning", [(b"--- 10.0.0.1 ping statistics ---\n1", b"x"), (b"", b"1 packets transmitted, ")]
)
def test_a_hundred_megabytes_are_unreadable(beginning: tuple[bytes, bytes]):
    test_what_is_no_summary_is_unreadable(huge(*beginning))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_mangled_summary_never_fails_a_node(name: str):
    for text in mangled(sample(name)):
        result = run_recorded(PING, text, PingParameters())
        assert result is None or result.verdict is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_noise_within_a_summary_is_read_or_refused(noise: bytes, at: int):
    text = sample("iputils-loss")
    try:
        found = parse_summaries(text[:at] + noise + text[at:])
    except UNMEASURED:
        return
    assert all(answers.sent >= answers.received for _, answers in found)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_another_kind_are_not_judged(text: bytes):
    assert run_recorded(PING, text, PingParameters()) is None


def test_a_recorded_output_is_judged():
    result = run_recorded(PING, sample("iputils-sound"), PingParameters())
    assert result is not None
    assert verdicts_of(result.findings) == {Verdict.PASS}
    assert {finding.component for finding in result.findings} == {"host", "peer/10.77.0.2"}


def test_a_recorded_output_that_is_cut_short_is_unknown():
    result = run_recorded(PING, sample("iputils-sound")[:115], PingParameters())
    assert result is not None
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "Unreadable")
