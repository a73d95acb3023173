"""What an iperf3 client reports, of several releases and on its bad days."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, any_json, huge, mangled, replaced

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.execution import CannotTell, run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.iperf import IPERF, IperfParameters
from muster_checks.iperf.parse import read_report

SAMPLES = Path(__file__).parent / "samples"
GOOD = ("tcp", "tcp6", "reverse", "bidir", "udp", "udp-reverse", "udp-bidir", "slow", "black-hole")


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.json").read_bytes()


def document(name: str) -> dict[str, dict[str, dict[str, object]]]:
    loaded: dict[str, dict[str, dict[str, object]]] = json.loads(sample(name))
    return loaded


def written(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("name", "flows"),
    [
        ("tcp", [(True, 13.998, 4e9 / 3537633280)]),
        ("tcp6", [(True, 10.888, 1727e9 / 1361969152)]),
        ("reverse", [(False, 11.632, 0.0)]),
        ("bidir", [(True, 8.903, 0.0), (False, 2.550, 97e9 / 347078656)]),
        ("slow", [(True, 0.190, 9018e9 / 49548928)]),
        ("black-hole", [(True, 0.0, 0.0)]),
    ],
)
def test_tcp_is_read_as_it_arrived(name: str, flows: list[tuple[bool, float, float]]):
    report = read_report(sample(name))
    assert (report.protocol, report.limited, report.cpu_bound) == ("TCP", False, False)
    assert [flow.to_server for flow in report.flows] == [flow[0] for flow in flows]
    assert [flow.gbit_per_s for flow in report.flows] == pytest.approx([flow[1] for flow in flows], abs=5e-4)
    assert [flow.retransmits_per_gb for flow in report.flows] == pytest.approx([flow[2] for flow in flows])
    assert report.server == ("fd77::2" if name == "tcp6" else "10.77.0.2")


@pytest.mark.parametrize(
    ("name", "flows"),
    [
        ("udp", [(True, 0.0999, 0.014575)]),
        ("udp-reverse", [(False, 0.04997, 0.079158)]),
        ("udp-bidir", [(True, 0.01998, 0.02062), (False, 0.01999, 0.035429)]),
    ],
)
def test_udp_is_read_and_known_to_be_limited(name: str, flows: list[tuple[bool, float, float]]):
    report = read_report(sample(name))
    assert (report.protocol, report.limited) == ("UDP", True)
    assert [flow.to_server for flow in report.flows] == [flow[0] for flow in flows]
    assert [flow.gbit_per_s for flow in report.flows] == pytest.approx([flow[1] for flow in flows], rel=1e-3)
    assert [flow.jitter_ms for flow in report.flows] == pytest.approx([flow[2] for flow in flows], rel=1e-3)
    assert [(flow.lost_percent, flow.retransmits_per_gb) for flow in report.flows] == [(0.0, None)] * len(flows)


def test_older_udp_reports_have_only_what_was_sent_and_the_share_that_was_lost():
    old = document("udp")
    del old["end"]["sum_sent"], old["end"]["sum_received"]
    old["end"]["sum"]["lost_percent"] = 25
    (flow,) = read_report(written(old)).flows
    assert flow.gbit_per_s == pytest.approx(0.75 * 0.0999148, rel=1e-4)
    old["end"]["sum"]["lost_percent"] = "-nan"
    with pytest.raises(Unreadable, match="0 to 100"):
        read_report(written(old))


def test_a_rate_that_was_asked_for_says_nothing_of_the_link():
    asked = document("tcp")
    asked["start"]["test_start"]["target_bitrate"] = 10_000_000
    assert read_report(written(asked)).limited


@pytest.mark.parametrize(
    ("version", "side", "percent", "bound"),
    [
        ("iperf 3.12", "host_total", 99.5, True),
        ("iperf 3.12", "remote_total", 99.5, True),
        ("iperf 3.12", "remote_total", 89.0, False),
        ("iperf 3.1.3", "host_total", 99.5, True),
        ("iperf 3.16", "host_total", 99.5, False),
        ("iperf 3.17.1+", "host_total", 799.0, True),
        ("", "host_total", 99.5, True),
    ],
)
def test_a_full_processor_holds_back_one_thread_before_3_16_and_eight_since(
    version: str, side: str, percent: float, bound: bool
):
    busy = document("tcp")  # of 8 streams
    busy["start"]["version"] = version  # type: ignore[assignment] # a text where most have objects
    busy["end"]["cpu_utilization_percent"][side] = percent
    assert read_report(written(busy)).cpu_bound is bound


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("refused", "NotMeasured", "unable to connect to server: Connection refused"),
        ("busy", "ServerBusy", "the server is busy running a test"),
        ("interrupted", "NotMeasured", "interrupt - the client has terminated"),
        ("server-died", "NotMeasured", "control socket has closed unexpectedly"),
    ],
)
def test_a_test_that_failed_gives_the_tools_own_words(name: str, reason: str, said: str):
    with pytest.raises(CannotTell, match=said) as caught:
        read_report(sample(name))
    assert caught.value.reason == reason


def test_older_releases_say_error_twice():
    old = sample("refused").replace(b"unable to connect", b"error - unable to connect")
    with pytest.raises(CannotTell, match=r"^iperf3: unable to connect"):
        read_report(old)


def test_gigabytes_sent_and_none_received_is_a_missing_count_and_no_black_hole():
    lost = document("tcp")
    lost["end"]["sum_received"] |= {"bytes": 0, "bits_per_second": 0}
    with pytest.raises(Unreadable, match="receiver"):
        read_report(written(lost))


def test_a_line_of_error_after_the_report_does_no_harm():
    assert read_report(sample("tcp") + b"iperf3: error - unable to send control message: Broken pipe\n").flows


@pytest.mark.parametrize("text", [*TEXTS, b'{"error": "no such option"}', b'{"start": {}, "end": {}}'])
def test_what_is_no_report_is_unreadable(text: bytes):
    with pytest.raises(Unreadable):
        read_report(text)


def test_a_hundred_megabytes_are_unreadable():
    test_what_is_no_report_is_unreadable(huge())


@pytest.mark.parametrize("name", GOOD)
def test_mangled_and_senseless_reports_never_fail_a_node(name: str):
    changed = document(name)
    # what is not looked at would only take time
    changed.pop("intervals")
    changed["end"].pop("streams", None)
    for text in [*mangled(sample(name)), *map(written, replaced(changed))]:
        result = run_recorded(IPERF, text, IperfParameters(link_gbit_per_s=10))
        assert result is None or result.verdict is not Verdict.FAIL, text


@settings(max_examples=100, deadline=None)
@given(any_json(), any_json())
def test_any_report_is_read_or_refused(start: object, end: object):
    try:
        report = read_report(written({"start": start, "end": end}))
    except UNMEASURED:
        return
    assert report.flows


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(text: bytes):
    with pytest.raises(UNMEASURED):
        read_report(text)


@pytest.mark.parametrize("text", [*TEXTS, b'{"error": "no such option"}', b'{"start": {}, "end": {}}'])
def test_texts_of_another_kind_are_not_judged(text: bytes):
    assert run_recorded(IPERF, text, IperfParameters()) is None


def test_a_recorded_report_that_is_cut_short_is_unknown():
    result = run_recorded(IPERF, sample("tcp")[:-400], IperfParameters())
    assert result is not None
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "Unreadable")


def test_a_recorded_report_is_judged_against_a_named_link():
    fits = run_recorded(IPERF, sample("tcp"), IperfParameters(link_gbit_per_s=10))
    slow = run_recorded(IPERF, sample("tcp"), IperfParameters(link_gbit_per_s=25))
    assert fits is not None
    assert slow is not None
    assert (fits.verdict, slow.verdict, slow.reason) == (Verdict.PASS, Verdict.WARN, "SlowPair")
    assert slow.findings[0].component == "peer/10.77.0.2"
    assert "14 Gbit/s, expected 17.5" in slow.message
