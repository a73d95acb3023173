"""Verdicts on what IPUs say of themselves."""

import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.counter_history import Rise
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.graphcore.models import IpuModel, ipu_models
from muster_checks.graphcore.probe import IpuHealth, IpuReading
from muster_checks.graphcore.tools.attributes import IpuAttributes
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.graphcore.tools.health import UnhealthyIpu
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.ipu.judge import IpuLimits, counters, judge, judge_health, judge_unlisted

LIMITS = IpuLimits(ipu_models(None), 460.0)
SOUND = IpuAttributes(
    component="", board="M2000", error_state="no errors", link_gt_per_s=16, link_width=8, host_link_errors=2_932_108
)


def _reading(said: IpuAttributes | None = SOUND, name: str = "ipu/10.1.5.10/3", trouble: str = "") -> IpuReading:
    return IpuReading(IpuDevice(name, "0"), said, trouble)


def _changed(**values: object) -> IpuAttributes:
    return msgspec.structs.replace(SOUND, **values)


def _judge(said, rises=None, limits=LIMITS):
    (finding,) = judge([_reading(said)], {"ipu/10.1.5.10/3": rises or {}}, limits)
    return finding


def test_a_sound_ipu_passes_with_its_numbers():
    finding = _judge(SOUND)
    assert (finding.verdict, finding.reason, finding.message) == (Verdict.PASS, "Healthy", "no errors")
    assert {(one.name, one.value, one.unit) for one in finding.measurements} == {
        ("link_speed", 16, "GT/s"),
        ("link_width", 8, "lanes"),
        ("host_link_errors", 2_932_108, "errors"),
    }


def test_an_error_state_fails_the_ipu_and_asks_for_quarantine():
    finding = _judge(_changed(error_state="IPUSOFTERR"))
    assert (finding.verdict, finding.reason) == (Verdict.FAIL, "IpuErrorState")
    assert finding.fault_class is FaultClass.QUARANTINE
    assert "IPUSOFTERR" in finding.message
    assert finding.measurements


def test_an_error_state_that_could_not_be_read_is_unknown():
    assert _judge(_changed(error_state="")).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("state", [None, "No Errors"])
def test_no_error_state_at_all_or_in_other_letters_is_sound(state):
    assert _judge(_changed(error_state=state)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("values", "facts"),
    [({"link_width": 4}, ("width 4 lanes", "expected 8")), ({"link_gt_per_s": 8}, ("speed 8 GT/s", "expected 16"))],
)
def test_a_link_below_what_its_board_has_is_degraded(values, facts):
    finding = _judge(_changed(**values))
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "LinkDegraded")
    assert all(fact in finding.message for fact in facts)
    assert len({one.name for one in finding.measurements}) == len(finding.measurements)


def test_a_link_below_that_of_its_siblings_is_degraded_whatever_a_table_says():
    slow = _changed(board="Bow", link_width=4)
    readings = [_reading(_changed(board="Bow"), f"ipu/h/{index}") for index in range(3)] + [_reading(slow, "ipu/h/3")]
    findings = {finding.component: finding for finding in judge(readings, {}, LIMITS)}
    assert findings["ipu/h/3"].reason == "LinkBelowSiblings"
    assert "50%" in findings["ipu/h/3"].message
    assert findings["ipu/h/0"].verdict is Verdict.PASS


def test_another_board_is_no_sibling():
    readings = [_reading(_changed(board=f"Kind{index}", link_width=8 + index), f"ipu/h/{index}") for index in range(4)]
    assert {finding.verdict for finding in judge(readings, {}, LIMITS)} == {Verdict.PASS}


def test_a_high_and_steady_counter_is_healthy():
    assert _judge(SOUND, {"host_link_errors": Rise(0.0, 3600.0)}).verdict is Verdict.PASS


def test_a_rate_that_is_within_the_specification_is_healthy():
    assert _judge(SOUND, {"host_link_errors": Rise(460.0, 3600.0)}).verdict is Verdict.PASS


def test_a_rate_above_the_specification_is_degraded():
    finding = _judge(SOUND, {"host_link_errors": Rise(2000.0, 3600.0)})
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "HostLinkErrors")
    assert finding.measurements[0].value == 2000.0
    finding = _judge(_changed(link_errors=5.0), {"link_errors": Rise(500.0, 1800.0)})
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "LinkErrors")
    assert missing_facts(finding.message, "1000", "460") == []


def test_one_error_in_the_two_seconds_of_a_first_run_is_no_rate():
    assert _judge(SOUND, {"host_link_errors": Rise(1.0, 2.0)}).verdict is Verdict.PASS


def test_what_a_counter_did_before_it_could_no_longer_be_read_does_not_count():
    assert _judge(_changed(host_link_errors=None), {"host_link_errors": Rise(9e9, 60.0)}).verdict is Verdict.PASS


def test_the_sessions_counter_stands_in_for_a_missing_total():
    assert counters(_changed(link_errors=7, link_errors_session=1)) == {"link_errors": 7, "host_link_errors": 2_932_108}
    assert counters(_changed(link_errors_session=1, host_link_errors=None)) == {"link_errors": 1}


@pytest.mark.parametrize(
    ("values", "reason"),
    [({"die_temp_c": 90.0}, "DieHot"), ({"board_temp_c": 70.0}, "BoardHot"), ({"board_power_w": 400.0}, "BoardPower")],
)
def test_sensors_are_judged_by_an_operators_limits_only(values, reason):
    own = IpuModel(model="*", max_die_temp_c=85, max_board_temp_c=60, max_board_power_w=300)
    finding = _judge(_changed(**values), limits=IpuLimits(ModelTable([own]), 460.0))
    assert (finding.verdict, finding.reason) == (Verdict.WARN, reason)
    assert _judge(_changed(**values)).verdict is Verdict.PASS


def test_an_ipu_that_cannot_be_read_is_unknown_and_the_others_are_judged():
    findings = judge([_reading(None, "ipu/h/0", "gc-info: gone"), _reading(SOUND, "ipu/h/1")], {}, LIMITS)
    assert [(finding.verdict, finding.component) for finding in findings] == [
        (Verdict.UNKNOWN, "ipu/h/0"),
        (Verdict.PASS, "ipu/h/1"),
    ]
    assert findings[0].message == "gc-info: gone"


def test_parity_not_yet_initialised_is_measured_and_no_fault():
    finding = _judge(_changed(parity_initialised=0.0, parity_threshold=4.0, parity_interval_s=7_776_000.0))
    assert finding.verdict is Verdict.PASS
    assert {"parity_initialised", "parity_error_threshold"} <= {one.name for one in finding.measurements}


@pytest.mark.parametrize(("error", "said"), [("device", "has failed"), ("connection", "check RNIC")])
def test_an_ipu_on_the_librarys_list_fails(error, said):
    (finding,) = judge_health(IpuHealth((UnhealthyIpu("ipu/10.1.5.10/1", "2", "p1", error),)), {})
    assert (finding.verdict, finding.fault_class) == (Verdict.FAIL, FaultClass.QUARANTINE)
    assert (finding.component, finding.reason) == ("ipu/10.1.5.10/1", f"Unhealthy:{error}")
    assert said in finding.message


@pytest.mark.parametrize("error", ["", "surprise"])
def test_an_error_that_nobody_documented_is_unknown(error):
    (finding,) = judge_health(IpuHealth((UnhealthyIpu("ipu/h/1", "2", "p1", error),)), {})
    assert finding.verdict is Verdict.UNKNOWN


def test_the_address_names_an_ipu_before_its_id_which_counts_anew_in_each_partition():
    listed = {"2": "ipu/10.1.5.99/0", "7": "ipu/10.1.5.10/1"}
    (finding,) = judge_health(IpuHealth((UnhealthyIpu("ipu/10.1.5.10/1", "2", "p1", "device"),)), listed)
    assert finding.component == "ipu/10.1.5.10/1"
    (finding,) = judge_health(
        IpuHealth((UnhealthyIpu("ipu/10.1.5.10/1", "2", "p1", "device"),)), {"2": "ipu/10.1.5.99/0"}
    )
    assert finding.component == "ipu/10.1.5.10/1"  # gc-info no longer lists it, and its id is another's


def test_an_ipu_that_the_library_gives_no_address_of_is_named_by_its_id():
    card = {"2": "ipu/0000:1a:00.0"}
    (finding,) = judge_health(IpuHealth((UnhealthyIpu("ipu/localhost/0", "2", "", "device"),)), card)
    assert finding.component == "ipu/0000:1a:00.0"
    (finding,) = judge_health(IpuHealth((UnhealthyIpu("ipu/2", "2", "", "device"),)), {"2": "ipu/10.1.5.10/1"})
    assert finding.component == "ipu/10.1.5.10/1"
    (finding,) = judge_health(IpuHealth((UnhealthyIpu("ipu/10.1.5.10/1", "2", "", "device"),)), {})
    assert finding.component == "ipu/10.1.5.10/1"


def test_an_ipu_that_gc_monitor_does_not_show_is_worth_a_look():
    listed = {"0": "ipu/h/3", "1": "ipu/h/2"}
    (finding,) = judge_health(IpuHealth(monitored=frozenset({"0"})), listed)
    assert (finding.verdict, finding.component, finding.reason) == (Verdict.WARN, "ipu/h/2", "NotMonitored")


def test_health_that_could_not_be_asked_is_unknown_on_the_host():
    (finding,) = judge_health(IpuHealth(trouble="no library"), {"0": "ipu/h/3"})
    assert (finding.verdict, finding.component) == (Verdict.UNKNOWN, "host")


def test_a_card_that_is_not_listed_is_worth_a_look_and_closes_nothing_known_of_it():
    findings = judge_unlisted(["ipu/0000:1a:00.0"])
    assert [finding.verdict for finding in findings] == [Verdict.WARN, Verdict.UNKNOWN]
    assert {finding.component for finding in findings} == {"ipu/0000:1a:00.0"}
