"""Which interfaces count, and when one without a link is a fault."""

import pytest
from tests.checks.nic.conftest import ADMIN_DOWN, CX7, Node
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Verdict

DOWN = ("nic/ens1np0", Verdict.FAIL, "LinkDown")


def test_a_sound_node_passes_with_its_real_ports_only(fleet: Node) -> None:
    found = fleet.findings()
    assert [f.component for f in found] == ["nic/eno1", *(f"nic/ens{number}np0" for number in range(4))]
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert [(m.name, m.value, m.unit) for m in found[1].measurements][:3] == [
        ("speed", 400000, "Mbit/s"),
        ("mtu", 9000, ""),
        ("link downs", 0.0, ""),
    ]


def test_a_port_that_carried_packets_and_has_no_link_fails(fleet: Node) -> None:
    fleet.set("ens1np0", carrier=0)
    found = [f for f in fleet.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [DOWN]
    assert found[0].fault_class is FaultClass.CONTACT
    assert found[0].message.startswith("ens1np0 ")


def test_a_link_that_is_lost_warns_first_and_passes_when_it_is_back(fleet: Node) -> None:
    fleet.findings()
    fleet.set("ens1np0", carrier=0)
    verdicts = [fleet.bad() for _ in range(4)]
    assert verdicts == [[("nic/ens1np0", Verdict.WARN, "LinkDown")]] * 3 + [[DOWN]]
    fleet.set("ens1np0", carrier=1)
    assert fleet.bad() == []


def test_a_fast_port_that_never_had_a_link_while_its_equals_have_warns(fleet: Node) -> None:
    fleet.unplugged("ens1np0")
    assert fleet.bad() == [("nic/ens1np0", Verdict.WARN, "LinkDown")]


def test_ports_without_cables_take_no_node(fleet: Node) -> None:
    fleet.unplugged("ens1np0")
    fleet.unplugged("ens2np0")
    assert fleet.bad() == []


def test_an_interface_that_is_taken_down_is_ignored(fleet: Node) -> None:
    fleet.set("ens1np0", flags=ADMIN_DOWN, carrier="", operstate="down")
    assert fleet.bad() == []
    assert "nic/ens1np0" not in {f.component for f in fleet.findings()}


def test_a_required_interface_must_have_a_link_though_it_never_had_one(fleet: Node) -> None:
    assert fleet.bad(required="eno2") == [("nic/eno2", Verdict.FAIL, "LinkDown")]
    fleet.up_for_s = 60.0
    assert fleet.bad(required="eno2") == [("nic/eno2", Verdict.WARN, "LinkDown")]


def test_a_required_interface_that_is_not_there_or_taken_down_fails(fleet: Node) -> None:
    fleet.set("ens1np0", flags=ADMIN_DOWN)
    assert fleet.bad(required="ens1np0, ib*") == [
        ("nic/ens1np0", Verdict.FAIL, "Missing"),
        ("nic/ib*", Verdict.FAIL, "Missing"),
    ]
    fleet.up_for_s = 60.0
    assert fleet.bad(required="ib*") == [("nic/ib*", Verdict.WARN, "Missing")]


def test_interfaces_that_are_not_looked_at_say_nothing(fleet: Node) -> None:
    fleet.set("ens1np0", carrier=0)
    assert fleet.bad(interfaces="eno*,ens0np0") == []


def test_a_carrier_that_cannot_be_read_is_unknown_and_the_others_are_judged(fleet: Node) -> None:
    fleet.set("ens0np0", carrier="")
    fleet.set("ens1np0", carrier=0)
    assert fleet.bad() == [("nic/ens0np0", Verdict.UNKNOWN, "NotReadable"), DOWN]


def test_a_bond_that_lost_one_of_two_links_warns(fleet: Node) -> None:
    fleet.bond("bond0", "ens0np0", "ens1np0")
    assert fleet.bad() == []
    fleet.set("ens1np0", carrier=0)
    found = [f for f in fleet.findings(600.0) if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [("nic/ens1np0", Verdict.WARN, "BondSlaveDown")]
    assert missing_facts(found[0].message, "bond0") == []


def test_a_bond_without_any_link_fails(fleet: Node) -> None:
    fleet.bond("bond0", "ens0np0", "ens1np0")
    for name in ("ens0np0", "ens1np0"):
        fleet.set(name, carrier=0)
    assert fleet.bad() == [("nic/ens0np0", Verdict.FAIL, "LinkDown"), DOWN]


def test_an_interface_somebody_put_into_a_bond_is_in_use(fleet: Node) -> None:
    fleet.unplugged("ens1np0")
    fleet.bond("bond0", "ens0np0", "ens1np0")
    assert fleet.bad() == [("nic/ens1np0", Verdict.WARN, "BondSlaveDown")]
    assert fleet.bad(required="ens1np0") == [DOWN]


def test_a_link_that_its_bond_does_not_take_warns(fleet: Node) -> None:
    fleet.bond("bond0", "ens0np0", "ens1np0")
    (fleet.root / fleet.places["ens1np0"].lstrip("/") / "bonding_slave/mii_status").write_text("down\n")
    assert fleet.bad() == [("nic/ens1np0", Verdict.WARN, "BondSlaveDown")]


def test_a_bridge_as_master_is_no_bond(fleet: Node) -> None:
    (fleet.root / fleet.places["ens1np0"].lstrip("/") / "master").symlink_to("../../../../virtual/net/cni0")
    fleet.unplugged("ens1np0")
    fleet.unplugged("ens2np0")
    assert fleet.bad() == []


def test_a_virtio_interface_is_named_and_has_no_speed(empty: Node) -> None:
    empty.add("eth0", "1af4:1041", "0000:00:03.0", under="virtio2/net", speed=-1, duplex="unknown", mtu=1400)
    found = empty.findings(min_speed_mbit_per_s=100_000)
    assert [(f.component, f.verdict) for f in found] == [("nic/eth0", Verdict.PASS)]
    assert missing_facts(found[0].message, "eth0") == []
    assert "Mbit/s" not in found[0].message


def test_virtual_functions_representors_and_subfunctions_are_left_out(empty: Node) -> None:
    empty.add("ens0np0", phys_port_name="p0")
    empty.add("ens0npf0vf0", address="0000:10:00.0", phys_port_name="pf0vf0", carrier=0)
    empty.add("pf0hpf", address="0000:10:00.0", phys_port_name="c1pf0", carrier=0)
    empty.add("sf0", address="0000:10:00.0", under="mlx5_core.sf.4/net", carrier=0)
    empty.add("ens0v1", address="0000:10:00.2", carrier=0)
    (empty.root / "sys/devices/pci0000:00/0000:10:00.2/physfn").mkdir()
    assert [f.component for f in empty.findings()] == ["nic/ens0np0"]


def test_a_port_with_rdma_is_named_as_the_check_ib_names_it(empty: Node) -> None:
    empty.add("ens0np0")
    (empty.root / "sys/devices/pci0000:00/0000:10:00.0/infiniband/mlx5_0").mkdir(parents=True)
    assert [f.component for f in empty.findings()] == ["nic/mlx5_0"]


def test_two_ports_of_one_function_have_a_name_each(empty: Node) -> None:
    empty.add("ens0", CX7, "0000:10:00.0")
    empty.add("ens0d1", CX7, "0000:10:00.0")
    (empty.root / "sys/devices/pci0000:00/0000:10:00.0/infiniband/mlx4_0").mkdir(parents=True)
    assert [f.component for f in empty.findings()] == ["nic/ens0", "nic/ens0d1"]


@pytest.mark.parametrize("kind", [32, 512, "", "x"])
def test_what_is_not_ethernet_is_left_out(empty: Node, kind: object) -> None:
    empty.add("ib0", type=kind, carrier=0)
    assert empty.findings() == []
