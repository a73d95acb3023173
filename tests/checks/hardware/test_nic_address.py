"""The PCI address of a NIC that findings name by its RDMA device or interface."""

from pathlib import Path

import pytest

from muster_checks.base.declaration import NodeView
from muster_checks.hardware.nic_address import nic_address


@pytest.fixture
def node(tmp_path: Path) -> NodeView:
    for kind, name, target in (
        ("infiniband", "mlx5_0", "../../../0000:3b:00.0"),
        ("infiniband", "mlx5_bond_0", "../../../0000:3b:00.0"),
        ("infiniband", "siw0", "../../virtual"),
        ("net", "eth0", "../../../0000:5E:00.1"),
        ("net", "mlx5_0", "../../../0000:99:00.0"),
        ("net", "eth1", "../../../virtio3"),
    ):
        folder = tmp_path / "sys/class" / kind / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(target)
    (tmp_path / "sys/class/net/lo").mkdir()
    return NodeView(root=tmp_path)


@pytest.mark.parametrize(
    ("component", "address"),
    [
        ("nic/mlx5_0", "0000:3b:00.0"),
        ("nic/eth0", "0000:5e:00.1"),
        ("nic/mlx5_bond_0", ""),
        ("nic/siw0", ""),
        ("nic/eth1", ""),
        ("nic/lo", ""),
        ("nic/gone0", ""),
        ("nic/mlx5_0/1", ""),
        ("nic/0000:3b:00.0", ""),
        ("nic/../net/eth0", ""),
        ("gpu/mlx5_0", ""),
        ("host", ""),
    ],
)
def test_the_address_is_that_of_the_function_behind_the_name(node: NodeView, component: str, address: str) -> None:
    assert nic_address(node, component) == address
