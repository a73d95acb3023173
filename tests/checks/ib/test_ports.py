"""State and rate of ports: what is in use must be up and as fast as it was; what nobody uses takes no node."""

from pathlib import Path

import pytest
from tests.checks.ib.conftest import Node
from tests.checks.ib.port_tree import BOND, COMPUTE
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Verdict

DOWN = ("nic/mlx5_4", Verdict.FAIL, "PortDown")


def test_a_healthy_node_passes_with_its_rates(h100: Node) -> None:
    found = h100.findings()
    assert {f.component for f in found} == {f"nic/{name}" for name in (*COMPUTE, BOND)}
    assert {f.verdict for f in found} == {Verdict.PASS}
    rate = next(f for f in found if f.component == "nic/mlx5_4").measurements[0]
    assert (rate.name, rate.value, rate.unit, rate.threshold) == ("rate", 400.0, "Gb/s", 400.0)


def test_full_counters_of_a_healthy_node_are_named_not_judged(h100: Node) -> None:
    found = next(f for f in h100.findings() if f.component == "nic/mlx5_4")
    assert missing_facts(found.message, "excessive_buffer_overrun_errors") == []


def test_a_port_that_carried_packets_and_is_down_fails(h100: Node) -> None:
    h100.down("mlx5_4")
    found = [f for f in h100.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [DOWN]
    assert found[0].fault_class is FaultClass.CONTACT
    assert "mlx5_4/1 is DOWN, Polling" in found[0].message


def test_a_port_that_goes_down_under_our_eyes_warns_first_and_passes_when_it_is_back(h100: Node) -> None:
    assert h100.bad() == []
    h100.down("mlx5_4")
    verdicts = [h100.bad() for _ in range(5)]
    assert verdicts[:3] == [[("nic/mlx5_4", Verdict.WARN, "PortDown")]] * 3
    assert verdicts[3:] == [[DOWN]] * 2
    h100.set("mlx5_4", state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)")
    assert h100.bad() == []


@pytest.mark.parametrize("state", ["2: INIT", "3: ARMED"])
def test_a_port_the_subnet_manager_forgot_fails_and_says_so(h100: Node, state: str) -> None:
    h100.set("mlx5_4", state=state)
    found = [f for f in h100.findings() if f.verdict is not Verdict.PASS]
    assert [(f.verdict, f.reason) for f in found] == [(Verdict.FAIL, "PortDown")]
    assert "subnet manager" in found[0].message


def test_ports_nobody_has_cabled_take_no_node(h100: Node) -> None:
    h100.never_linked("mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8")
    assert h100.bad() == []


def test_a_single_port_that_never_linked_only_warns(h100: Node) -> None:
    h100.never_linked("mlx5_4")
    assert h100.bad() == [("nic/mlx5_4", Verdict.WARN, "PortDown")]


def test_ports_that_are_not_looked_at_say_nothing(h100: Node) -> None:
    h100.down("mlx5_4")
    assert h100.bad(ports="mlx5_[2-3], mlx5_5") == []


def test_ports_of_a_switched_off_fabric_warn_once_for_the_host(empty: Node) -> None:
    for number in range(8):
        empty.add(f"mlx5_{number}", state="1: DOWN", phys_state="2: Polling")
    assert empty.bad() == [("host", Verdict.WARN, "NoPortActive")]
    empty.up_for_s = 30.0
    assert empty.bad() == []


def test_a_card_or_two_without_a_cable_say_nothing(empty: Node) -> None:
    empty.add("mlx5_0", state="1: DOWN", phys_state="2: Polling")
    empty.add("mlx5_1", state="1: DOWN", phys_state="3: Disabled")
    assert empty.findings() == []


def test_too_few_active_ports_fail_where_a_number_is_expected(h100: Node) -> None:
    h100.never_linked("mlx5_4", "mlx5_5")
    assert h100.bad(expected_ports=7) == [
        ("nic/mlx5_4", Verdict.WARN, "PortDown"),
        ("nic/mlx5_5", Verdict.WARN, "PortDown"),
    ]
    assert ("host", Verdict.FAIL, "FewerPorts") in h100.bad(expected_ports=8)
    h100.up_for_s = 100.0
    assert ("host", Verdict.WARN, "FewerPorts") in h100.bad(expected_ports=8)


def test_no_device_at_all_fails_where_ports_are_expected(empty: Node) -> None:
    assert empty.bad(expected_ports=8) == [("host", Verdict.FAIL, "FewerPorts")]


def test_a_port_that_cannot_be_read_is_unknown_and_does_not_count_as_missing(h100: Node) -> None:
    h100.set("mlx5_4", state="")
    h100.down("mlx5_5")
    assert h100.bad(expected_ports=9) == [
        ("nic/mlx5_4", Verdict.UNKNOWN, "NotReadable"),
        ("nic/mlx5_5", Verdict.FAIL, "PortDown"),
    ]


def test_a_roce_ports_link_is_the_check_nics_where_its_interface_is_here(h100: Node) -> None:
    h100.down("mlx5_bond_0", phys="3: Disabled")
    assert h100.bad() == [("nic/mlx5_bond_0", Verdict.FAIL, "PortDown")]
    (h100.root / "sys/class/infiniband/mlx5_bond_0/device/net/p0").mkdir(parents=True)
    assert h100.bad() == []


def test_virtual_functions_and_software_rdma_are_left_out(h100: Node) -> None:
    h100.add("mlx5_20", state="1: DOWN", phys_state="3: Disabled", port_rcv_packets=5)
    (h100.root / "sys/class/infiniband/mlx5_20/device/physfn").mkdir(parents=True)
    for name, place in (("rxe0", "virtual/infiniband/rxe0"), ("mlx5_21", "pci0000:00/0000:3b:00.0/mlx5_core.sf.4/x")):
        folder = h100.root / "sys/devices" / place
        (folder / "ports/1").mkdir(parents=True)
        (folder / "ports/1/state").write_text("1: DOWN\n")
        (h100.root / "sys/class/infiniband" / name).symlink_to(folder)
    assert h100.bad() == []


def test_devices_with_two_ports_name_each(empty: Node) -> None:
    for port in (1, 2):
        empty.add("mlx4_0", "MT4099", "MT_2", port=port)
    assert [f.component for f in empty.findings()] == ["nic/mlx4_0/1", "nic/mlx4_0/2"]


def test_a_port_that_runs_slower_than_it_did_fails(h100: Node) -> None:
    h100.findings()
    h100.set("mlx5_4", rate="200 Gb/sec (2X NDR)")
    found = [f for f in h100.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [("nic/mlx5_4", Verdict.FAIL, "LowRate")]
    assert missing_facts(found[0].message, "200 Gb/s", "2", "400") == []


def test_a_port_that_alone_is_slower_than_its_equals_warns(h100: Node) -> None:
    h100.set("mlx5_4", rate="200 Gb/sec (2X NDR)")
    found = [f for f in h100.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [("nic/mlx5_4", Verdict.WARN, "LowRate")]
    assert missing_facts(found[0].message, "200 Gb/s", "400") == []


def test_storage_ports_slower_than_compute_ports_are_of_another_role(empty: Node) -> None:
    for number in range(10):
        empty.add(f"mlx5_{number}", rate="400 Gb/sec (4X NDR)" if number < 8 else "200 Gb/sec (4X HDR)")
    assert empty.bad() == []


def test_a_port_that_is_faster_than_its_equals_is_no_fault(empty: Node) -> None:
    for number in range(5):
        empty.add(f"mlx5_{number}", rate="200 Gb/sec (4X HDR)" if number else "400 Gb/sec (4X NDR)")
    assert empty.bad() == []


def test_a_known_board_below_its_rate_warns_on_infiniband_only(h100: Node) -> None:
    for name in COMPUTE:
        h100.set(name, rate="200 Gb/sec (4X HDR)")
    assert h100.bad() == [(f"nic/{name}", Verdict.WARN, "LowRate") for name in COMPUTE]
    for name in COMPUTE:
        h100.set(name, link_layer="Ethernet")
    assert h100.bad() == []


def test_an_owners_own_rates_win(h100: Node, tmp_path: Path) -> None:
    for name in COMPUTE:
        h100.set(name, rate="200 Gb/sec (4X HDR)")
    own = tmp_path / "own.yaml"
    own.write_text("- {model: 'MT4129/*', rate_gb_per_s: 200}\n")
    assert h100.bad(expected=own) == []
    own.write_text("- {model: 'MT4129/*', min_rate_gb_per_s: 400}\n")
    assert h100.bad(expected=own) == [(f"nic/{name}", Verdict.FAIL, "LowRate") for name in COMPUTE]


def test_a_rate_below_the_parameter_fails(h100: Node) -> None:
    assert h100.bad(min_rate_gb_per_s=400, ports="mlx5_[0-9]") == []
    assert h100.bad(min_rate_gb_per_s=400) == [("nic/mlx5_bond_0", Verdict.FAIL, "LowRate")]


@pytest.mark.parametrize("rate", ["", "N/A", "fast", "Gb/sec (4X NDR)", "400 Gb/sec", "-1 Gb/sec (4X)", "9" * 500])
def test_a_rate_that_cannot_be_read_is_unknown(one: Node, rate: str) -> None:
    one.findings()
    one.set("mlx5_4", rate=rate)
    assert one.bad(min_rate_gb_per_s=100) == [("nic/mlx5_4", Verdict.UNKNOWN, "NotReadable")]


def test_a_model_nobody_knows_passes(empty: Node) -> None:
    empty.add("bnxt_re0", "BCM57508", "", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    found = empty.findings()
    assert [(f.component, f.verdict) for f in found] == [("nic/bnxt_re0", Verdict.PASS)]
    assert found[0].measurements[0].threshold is None
