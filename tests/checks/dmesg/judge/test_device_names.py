"""A NIC is mlx5_0, and a Gaudi its PCI address, whatever the kernel log calls it."""

import pytest

from muster_checks.base.declaration import NodeView
from muster_checks.dmesg.device_names import sysfs_names


@pytest.fixture
def node(tmp_path):
    for folder in (
        "sys/bus/pci/devices/0000:3b:00.0/infiniband/mlx5_0",
        "sys/bus/pci/devices/0000:01:00.0/nvme/nvme2",
        "sys/bus/pci/devices/0000:05:00.0",
        "sys/class/net/eth2/device/infiniband/mlx5_7",
        "sys/class/net/eth3/device",
        "etc/infiniband/evil",
    ):
        (tmp_path / folder).mkdir(parents=True)
    gaudi = tmp_path / "sys/class/habanalabs/hl3"
    gaudi.mkdir(parents=True)
    (gaudi / "pci_addr").write_text("0000:cd:00.0\n")
    return NodeView(tmp_path)


@pytest.mark.parametrize(
    ("component", "name"),
    [
        ("nic/0000:3b:00.0", "nic/mlx5_0"),
        ("nic/eth2", "nic/mlx5_7"),
        ("disk/0000:01:00.0", "disk/nvme2"),
        ("nic/0000:05:00.0", "nic/0000:05:00.0"),
        ("nic/0000:99:00.0", "nic/0000:99:00.0"),
        ("nic/eth3", "nic/eth3"),
        ("gpu/0000:3b:00.0", "gpu/0000:3b:00.0"),
        ("gpu/hl3", "gpu/0000:cd:00.0"),
        ("gpu/hl4", "gpu/hl4"),
        ("gpu/hl3/..", "gpu/hl3/.."),
        ("host", "host"),
        ("nic/", "nic/"),
        ("nic/../../../../etc", "nic/../../../../etc"),
        ("nic/\x00", "nic/\x00"),
        ("nic/" + "x" * 300, "nic/" + "x" * 300),
    ],
)
def test_a_component_gets_the_name_that_sysfs_gives_it(component, name, node):
    assert sysfs_names(node)(component) == name


def test_a_device_that_has_gone_keeps_its_name(node):
    names = sysfs_names(node)
    assert names("nic/0000:3b:00.0") == "nic/mlx5_0"
    (node.root / "sys/bus/pci/devices/0000:3b:00.0/infiniband/mlx5_0").rmdir()
    assert names("nic/0000:3b:00.0") == "nic/mlx5_0"


def test_the_judge_uses_the_names(node, new_bench, summarize):
    bench = new_bench(names=sysfs_names(node))
    line = "mlx5_core 0000:3b:00.0: poll_health:825: device's health compromised - reached miss count."
    assert summarize(bench.feed(line)) == [("nic/mlx5_0", "NicHealthCompromised", "FAIL", "reboot")]
    signs = summarize(bench.feed("NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 0 timed out"))
    assert signs[0][0] == "nic/mlx5_7"
