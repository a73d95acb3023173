"""NICs that faults name by their RDMA device, and that ResourceSlices name by their PCI address."""

import pytest
from tests.tainter.devices.device_world import Leader, address, device, finding, health, resource_slice, taints, world

from muster_kube.nodehealth import NodeHealth, ReportedFinding
from muster_tainter.devices.device_states import DeviceMark, device_states
from muster_tainter.devices.slices.nic_names import NAMES_LIMIT, nic_names
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.record.node_record import DeviceStage, NodeRecord, read_record

NICS = "nic.example.com"


def nic(name: str = "mlx5_0", of: str = address(5), **fields: object) -> ReportedFinding:
    return finding(component=f"nic/{name}", reason="LinkDown", address=of, **fields)


def leader_of_nics() -> Leader:
    """One node with four GPUs and four NICs, at the addresses 4 to 7."""
    nics = resource_slice(driver=NICS, devices=[device(number, f"nic-{number}") for number in range(4, 8)])
    return world(gpus=resource_slice(), nics=nics)


async def settle(leader: Leader, report: NodeHealth) -> None:
    for _ in range(2):  # as the watches bring the report, then the record
        node = leader.api.nodes["n1"]
        leader.index.name_nics("n1", nic_names(read_record(node), report))
        await leader.settle(report)


@pytest.mark.parametrize(
    ("component", "key"),
    [
        ("nic/mlx5_0", "mlx5_0"),
        ("nic/eth0", "eth0"),
        ("nic/mlx5_0/2", None),
        ("nic/0000:3b:00.0", "0000:3b:00.0"),
        ("gpu/mlx5_0", None),
        ("nic/../x", None),
        ("nic/", None),
        (f"nic/{'x' * 64}", None),
    ],
)
def test_names_of_nics_are_keys_and_ports_are_not(component: str, key: str | None) -> None:
    assert device_key(component) == key


async def test_a_nic_is_kept_out_alone_by_the_address_that_its_agent_reports() -> None:
    leader = leader_of_nics()
    await settle(leader, health(nic()))
    assert leader.api.effects() == {"nic-5": "NoSchedule"}
    assert taints(leader) == []
    (fault,) = read_record(leader.api.nodes["n1"]).open
    assert (fault.component, fault.address, fault.device) == ("nic/mlx5_0", address(5), DeviceStage.ALONE)
    node, devices = leader.api.nodes["n1"], leader.index.devices("n1")
    states = device_states(node, read_record(node), devices, leader.fleet.policy(), leader.now)
    assert [each.device for each in states if each.mark is DeviceMark.ALONE] == [address(5)]
    assert len(states) == 8


async def test_it_stays_out_after_the_agent_reports_it_no_more_until_the_fault_is_closed() -> None:
    leader = leader_of_nics()
    await settle(leader, health(nic()))
    await settle(leader, health())
    assert leader.api.effects() == {"nic-5": "NoSchedule"}
    await settle(leader, health(boot="boot-2"))
    assert leader.api.effects() == {}


@pytest.mark.parametrize("of", ["", "0000:ff:00.0", "mlx5_0", "../../x", "0000:3b:00.0 or so"])
async def test_without_a_known_address_the_node_is_tainted_as_before(of: str) -> None:
    leader = leader_of_nics()
    await settle(leader, health(nic(of=of)))
    assert leader.api.effects() == {}
    assert taints(leader) == ["muster.dev/faulty:NoSchedule"]


def test_only_nics_have_such_names_the_last_report_counts_and_they_are_bounded() -> None:
    assert nic_names(NodeRecord(), health(finding(1, address=address(2)))) == {}
    many = [nic(f"mlx5_{number}", occurrence=number + 1) for number in range(10 * NAMES_LIMIT)]
    assert len(nic_names(NodeRecord(), health(*many))) == NAMES_LIMIT
    assert nic_names(NodeRecord(), health(nic("mlx5_0", address(5).upper()))) == {"mlx5_0": address(5)}
