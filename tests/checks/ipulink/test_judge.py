"""Verdicts on links, traffic, sync and partitions."""

import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.graphcore.models import IpuModel
from muster_checks.graphcore.tools.host_sync import HostSync
from muster_checks.graphcore.tools.ipu_traffic import Transfer
from muster_checks.graphcore.tools.links import IpuLinkChannel, IpuLinks
from muster_checks.graphcore.tools.partitions import ListedPartition
from muster_checks.ipulink.judge import judge_links, judge_partitions, judge_sync, judge_traffic

SOUND = IpuLinkChannel(
    from_id="7", to_id="6", from_channel="NLC_W_1B", to_channel="NLC_W_1B", status="passed", gen=4, lanes=8
)
C600 = IpuModel(model="C600", ipu_link_gen=4, ipu_link_lanes=8)
NAMES = {"7": "ipu/10.1.5.10/3", "6": "ipu/10.1.5.10/2"}


def _channel(**values: object) -> IpuLinkChannel:
    return msgspec.structs.replace(SOUND, **values)


def _links(
    *channels: IpuLinkChannel, overall: str = "", trained_before: bool = False, expected: IpuModel | None = None
):
    return judge_links(IpuLinks(channels, overall, trained_before), expected, NAMES)


def test_an_ipu_whose_channels_all_trained_passes_once():
    findings = _links(
        SOUND, _channel(from_channel="NLC_W_1C", tries=2, lowest_fom=140), _channel(from_id="6", lowest_fom=154)
    )
    assert [(finding.component, finding.verdict) for finding in findings] == [
        ("ipu/10.1.5.10/3", Verdict.PASS),
        ("ipu/10.1.5.10/2", Verdict.PASS),
    ]
    assert {(one.name, one.value) for one in findings[0].measurements} == {
        ("ipu_link_channels", 2),
        ("ipu_link_lowest_figure_of_merit", 140),
        ("ipu_link_most_tries", 2),
    }


def test_each_failed_channel_is_named_with_both_its_ends():
    bad = _channel(status="failed", from_channel="NLC_W_1C", to_channel="NLC_E_1C", gen=0, lanes=0)
    findings = _links(SOUND, bad, msgspec.structs.replace(bad, from_channel="NLC_W_2A"))
    assert [finding.reason for finding in findings] == ["IpuLinkFailed:NLC_W_1C", "IpuLinkFailed:NLC_W_2A"]
    assert {(finding.component, finding.verdict, finding.fault_class) for finding in findings} == {
        ("ipu/10.1.5.10/3", Verdict.FAIL, FaultClass.QUARANTINE)
    }
    assert "NLC_W_1C of ipu/10.1.5.10/3 to NLC_E_1C of ipu/10.1.5.10/2" in findings[0].message
    assert "gen 0, 0 lanes" in findings[0].message


@pytest.mark.parametrize("status", ["", "n/a", "skipped"])
def test_a_status_that_is_neither_passed_nor_failed_is_unknown(status):
    (finding,) = _links(_channel(status=status))
    assert (finding.verdict, finding.reason) == (Verdict.UNKNOWN, "IpuLinkNotRead:NLC_W_1B")


def test_a_channel_of_fewer_lanes_than_the_others_is_degraded():
    findings = _links(SOUND, SOUND, SOUND, _channel(from_id="6", lanes=4, from_channel="NLC_W_2A"))
    bad = [finding for finding in findings if finding.verdict is not Verdict.PASS]
    assert [(finding.verdict, finding.reason) for finding in bad] == [(Verdict.WARN, "IpuLinkDegraded:NLC_W_2A")]
    assert missing_facts(bad[0].message, "NLC_W_2A", "gen 4", "4") == []


@pytest.mark.parametrize("values", [{"gen": 3}, {"lanes": 4}])
def test_a_channel_below_what_its_board_has_is_degraded(values):
    (finding,) = _links(_channel(**values), expected=C600)
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "IpuLinkDegraded:NLC_W_1B")


def test_a_channel_whose_speed_is_not_told_is_not_called_slow():
    findings = _links(SOUND, SOUND, SOUND, _channel(from_id="6", gen=None, lanes=None), expected=C600)
    assert {finding.verdict for finding in findings} == {Verdict.PASS}


def test_two_channels_do_not_tell_which_one_is_out_of_the_ordinary():
    assert {finding.verdict for finding in _links(SOUND, _channel(lanes=4))} == {Verdict.PASS}


def test_a_failed_result_without_a_failed_channel_fails_no_ipu_by_name():
    findings = _links(SOUND, overall="failed")
    assert [(finding.component, finding.verdict) for finding in findings] == [
        ("ipu/10.1.5.10/3", Verdict.PASS),
        ("ipu/unnamed", Verdict.FAIL),
    ]


def test_a_failed_result_is_said_once_where_its_channels_are_named():
    assert len(_links(_channel(status="failed"), overall="failed")) == 1


@pytest.mark.parametrize(
    ("overall", "trained_before", "verdict", "said"),
    [
        ("passed", True, Verdict.PASS, "tested nothing"),
        ("passed", False, Verdict.PASS, "links passed"),
        ("failed", True, Verdict.FAIL, "no channel"),
        ("", True, Verdict.UNKNOWN, "no result"),
    ],
)
def test_a_result_without_channels(overall, trained_before, verdict, said):
    (finding,) = _links(overall=overall, trained_before=trained_before)
    assert (finding.component, finding.verdict) == ("ipu/unnamed", verdict)
    assert said in finding.message


def test_a_channel_name_that_fits_no_reason_is_left_out_of_it():
    (finding,) = _links(_channel(status="failed", from_channel="a-b", from_id="", to_channel=""))
    assert (finding.component, finding.reason) == ("ipu/unnamed", "IpuLinkFailed")
    assert "to ? of" in finding.message


def _traffic(*transfers: Transfer, expected: IpuModel | None = None):
    return judge_traffic(transfers, expected, 0.5, NAMES)


def test_traffic_passes_once_for_each_ipu_with_its_slowest_pair():
    (finding,) = _traffic(Transfer("7", "6", 423.3, 0), Transfer("7", "5", 400.0, 0))
    assert (finding.component, finding.verdict) == ("ipu/10.1.5.10/3", Verdict.PASS)
    assert [(one.name, one.value, one.unit) for one in finding.measurements] == [("ipu_traffic", 400.0, "Gbit/s")]


def test_errors_in_the_data_fail():
    (finding,) = _traffic(Transfer("7", "6", 423.3, 2))
    assert (finding.verdict, finding.fault_class) == (Verdict.FAIL, FaultClass.QUARANTINE)
    assert finding.reason == "IpuTrafficErrors:6"
    assert missing_facts(finding.message, "2", "ipu/10.1.5.10/3", "ipu/10.1.5.10/2") == []


@pytest.mark.parametrize(
    "one", [Transfer("7", "6", None, 0), Transfer("7", "6", 9.0, None), Transfer("7", "6", 9.0, -1)]
)
def test_traffic_without_its_numbers_is_unknown(one):
    (finding,) = _traffic(one)
    assert finding.verdict is Verdict.UNKNOWN


def test_a_pair_far_below_the_others_is_worth_a_look_and_no_proof():
    findings = _traffic(*[Transfer("7", str(other), 420.0, 0) for other in range(3)], Transfer("6", "7", 200.0, 0))
    assert {(finding.component, finding.verdict) for finding in findings} == {
        ("ipu/10.1.5.10/3", Verdict.PASS),
        ("ipu/10.1.5.10/2", Verdict.WARN),
    }


def test_an_operators_minimum_is_a_proof():
    (finding,) = _traffic(Transfer("7", "6", 150.0, 0), expected=IpuModel(model="*", min_ipu_traffic_gbit_per_s=200))
    assert (finding.verdict, finding.reason) == (Verdict.FAIL, "IpuTrafficSlow:6")
    assert finding.measurements[0].threshold == 200


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        ("pass", Verdict.PASS),
        ("fail", Verdict.FAIL),
        ("failed", Verdict.FAIL),
        ("", Verdict.UNKNOWN),
        ("timeout", Verdict.UNKNOWN),
    ],
)
def test_the_result_of_a_sync_test(result, verdict):
    finding = judge_sync(HostSync("0", 1485.0, result), "ipu/h/3")
    assert (finding.verdict, finding.component) == (verdict, "ipu/h/3")
    numbers = [one.value for one in finding.measurements]
    assert numbers == ([] if verdict is Verdict.UNKNOWN else [1485.0])
    assert judge_sync(HostSync("0", None, result), "ipu/h/3").measurements == ()


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("ACTIVE", Verdict.PASS),
        ("PS_ACTIVE", Verdict.PASS),
        ("PENDING", Verdict.WARN),
        ("ERROR", Verdict.WARN),
        ("", Verdict.UNKNOWN),
    ],
)
def test_the_state_of_a_partition(state, verdict):
    (finding,) = judge_partitions([ListedPartition("p1", state, 16.0), ListedPartition("p2", "ACTIVE", None)], "p1")
    assert (finding.verdict, finding.component) == (verdict, "ipu/partition:p1")


def test_every_partition_counts_where_none_is_named():
    assert (
        len(judge_partitions([ListedPartition("p1", "ACTIVE", 16.0), ListedPartition("p2", "ACTIVE", None)], "")) == 2
    )


def test_a_partition_that_the_controller_does_not_have_is_worth_a_look():
    (finding,) = judge_partitions([], "p9")
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "PartitionMissing")
