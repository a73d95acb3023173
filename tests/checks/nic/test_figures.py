"""Speed, duplex, MTU, errors by their share of packets, and links that come and go."""

from collections.abc import Mapping

import pytest
from tests.checks.bad_input import TEXTS
from tests.checks.nic.conftest import Node
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Verdict

PORT = "nic/ens1np0"


def test_a_port_that_runs_slower_than_it_did_fails(fleet: Node) -> None:
    fleet.findings()
    fleet.set("ens1np0", speed=100000)
    found = [f for f in fleet.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason, f.fault_class) for f in found] == [
        (PORT, Verdict.FAIL, "LowSpeed", FaultClass.CONTACT)
    ]
    assert missing_facts(found[0].message, "100000 Mbit/s", "400000") == []


def test_a_port_that_alone_is_slower_than_its_equals_warns(fleet: Node) -> None:
    fleet.set("ens1np0", speed=100000)
    assert fleet.bad() == [(PORT, Verdict.WARN, "LowSpeed")]


def test_a_port_that_alone_is_faster_is_no_fault(fleet: Node) -> None:
    fleet.set("ens1np0", speed=800000)
    assert fleet.bad() == []


def test_an_expected_speed_is_for_the_ports_it_is_meant_for(fleet: Node) -> None:
    assert fleet.bad(min_speed_mbit_per_s=400_000, min_speed_of="ens*np*") == []
    assert fleet.bad(min_speed_mbit_per_s=800_000, min_speed_of="ens1np0") == [(PORT, Verdict.FAIL, "LowSpeed")]
    assert fleet.bad(min_speed_mbit_per_s=10_000) == [("nic/eno1", Verdict.FAIL, "LowSpeed")]


@pytest.mark.parametrize("speed", ["", "-1", "0", "4294967295", "fast"])
def test_a_speed_nobody_knows_is_not_judged(fleet: Node, speed: str) -> None:
    fleet.findings()
    fleet.set("ens1np0", speed=speed)
    assert fleet.bad(min_speed_mbit_per_s=1) == []


def test_half_duplex_warns(fleet: Node) -> None:
    fleet.set("eno1", duplex="half")
    assert fleet.bad() == [("nic/eno1", Verdict.WARN, "HalfDuplex")]


@pytest.mark.parametrize("mtu", [1500, 9216])
def test_an_mtu_that_alone_differs_from_its_equals_warns(fleet: Node, mtu: int) -> None:
    fleet.set("ens1np0", mtu=mtu)
    assert fleet.bad() == [(PORT, Verdict.WARN, "MtuDiffers")]


def test_mtus_of_two_roles_are_no_fault(fleet: Node) -> None:
    fleet.set("ens0np0", mtu=1500)
    fleet.set("ens1np0", mtu=1500)
    assert fleet.bad() == []


@pytest.mark.parametrize(
    ("counter", "packets", "reason"),
    [
        ("rx_errors", "rx_packets", "ReceiveErrors"),
        ("rx_missed_errors", "rx_packets", "ReceiveMissed"),
        ("tx_errors", "tx_packets", "TransmitErrors"),
        ("tx_dropped", "tx_packets", "TransmitDropped"),
    ],
)
def test_errors_above_their_share_of_packets_warn(fleet: Node, counter: str, packets: str, reason: str) -> None:
    fleet.findings()
    fleet.set("ens1np0", **{counter: 100, packets: 1000 + 9900})
    assert fleet.bad() == []
    fleet.set("ens1np0", **{counter: 250, packets: 1000 + 9900})
    found = [f for f in fleet.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [(PORT, Verdict.WARN, reason)]
    assert missing_facts(found[0].message, "ens1np0", counter, "250", "10 min", "0.025") == []


def test_wrong_checksums_warn_far_earlier(fleet: Node) -> None:
    fleet.findings()
    fleet.set("ens1np0", rx_crc_errors=20, rx_packets=20_001_000)
    assert fleet.bad() == []
    fleet.set("ens1np0", rx_crc_errors=40, rx_packets=20_001_000)
    assert fleet.bad() == [(PORT, Verdict.WARN, "CrcErrors")]


def test_a_few_errors_on_a_quiet_port_are_no_share_of_anything(fleet: Node) -> None:
    fleet.findings()
    fleet.set("ens1np0", rx_errors=9, rx_crc_errors=9, tx_errors=9)
    assert fleet.bad() == []


def test_high_counters_that_stand_still_are_sound(fleet: Node) -> None:
    fleet.set("ens1np0", rx_errors=10**9, rx_crc_errors=10**9, tx_dropped=10**9, carrier_down_count=1000)
    fleet.findings()
    assert fleet.bad() == []


def test_errors_are_forgotten_when_their_window_is_over(fleet: Node) -> None:
    fleet.findings()
    fleet.set("ens1np0", rx_errors=1000)
    assert fleet.bad() == [(PORT, Verdict.WARN, "ReceiveErrors")]
    assert fleet.bad(601.0) == []


@pytest.mark.parametrize("files", [{"carrier_down_count": 4}, {"carrier_down_count": "", "carrier_changes": 9}])
def test_a_link_that_comes_and_goes_warns(fleet: Node, files: Mapping[str, object]) -> None:
    if files["carrier_down_count"] == "":
        fleet.set("ens1np0", carrier_down_count="")
    fleet.findings()
    fleet.set("ens1np0", **files)
    found = [f for f in fleet.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [(PORT, Verdict.WARN, "LinkFlaps")]
    assert missing_facts(found[0].message, "4", "3", "3 h") == []


def test_a_link_that_was_lost_three_times_is_fine(fleet: Node) -> None:
    fleet.findings()
    fleet.set("ens1np0", carrier_down_count=3)
    assert fleet.bad() == []


@pytest.mark.parametrize("text", TEXTS)
def test_rubbish_is_never_a_fault(empty: Node, text: bytes) -> None:
    empty.add("ens1np0")
    empty.findings()
    folder = empty.root / empty.places["ens1np0"].lstrip("/")
    for path in [*folder.iterdir(), *(folder / "statistics").iterdir()]:
        if path.is_file():
            path.write_bytes(text)
    assert all(verdict is not Verdict.FAIL for _, verdict, _ in empty.bad())


def test_a_driver_without_statistics_is_sound(empty: Node) -> None:
    empty.add("ens1np0")
    folder = empty.root / empty.places["ens1np0"].lstrip("/")
    for path in (folder / "statistics").iterdir():
        path.unlink()
    for name in ("carrier_down_count", "carrier_changes", "mtu"):
        (folder / name).unlink()
    empty.findings()
    found = empty.findings()
    assert [(f.component, f.verdict) for f in found] == [(PORT, Verdict.PASS)]
