"""Which PCI devices there are, what they are called, and what hangs above them."""

import os
from pathlib import Path

import pytest

from muster_checks.hardware.pci import DeviceKind, normal_address, nvidia_gpus, pci_devices, port_name, upstream
from muster_checks.testing.recorded import lay_out, node


def _device(root: Path, address: str, ids: tuple[object, object, object], place: str = "", **names: str) -> None:
    """``ids``: vendor, device, class; ``names``: ``net="eth0"`` makes the folder net/eth0 in it."""
    folder = root / f"sys/devices/pci0000:00/{place}{address}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(("vendor", "device", "class"), ids, strict=True):
        (folder / name).write_text(f"{value}\n")
    for kind, name in names.items():
        (folder / kind / name).mkdir(parents=True)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / address).symlink_to(os.path.relpath(folder, devices))


@pytest.mark.parametrize(
    ("vendor", "class_code", "kind"),
    [
        ("0x10de", "0x030000", DeviceKind.GPU),
        ("0x10de", "0x030200", DeviceKind.GPU),
        ("0x10de", "0x068000", DeviceKind.NVSWITCH),
        ("0x10de", "0x040300", DeviceKind.OTHER),  # a GPU's sound
        ("0x1002", "0x038000", DeviceKind.ACCELERATOR),
        ("0x1002", "0x120000", DeviceKind.ACCELERATOR),
        ("0x1da3", "0x120000", DeviceKind.ACCELERATOR),
        ("0x1002", "0x030000", DeviceKind.OTHER),
        ("0x1d95", "0x120000", DeviceKind.IPU),
        ("0x15b3", "0x020000", DeviceKind.NIC),
        ("0x15b3", "0x020700", DeviceKind.NIC),
        ("0x144d", "0x010802", DeviceKind.NVME),
        ("0x8086", "0x060400", DeviceKind.BRIDGE),
        ("0x1a03", "0x030000", DeviceKind.OTHER),  # the management controller's screen
        ("0x1af4", "0x018000", DeviceKind.OTHER),
    ],
)
def test_what_a_device_is_comes_from_vendor_and_class(
    tmp_path: Path, vendor: str, class_code: str, kind: DeviceKind
) -> None:
    _device(tmp_path, "0000:3b:00.0", (vendor, "0x1234", class_code))
    assert [device.kind for device in pci_devices(node(tmp_path))] == [kind]


def test_devices_come_by_address_with_their_numbers(tmp_path: Path) -> None:
    _device(tmp_path, "0000:af:00.0", ("0x10de", "0x2330", "0x030200"))
    _device(tmp_path, "0000:3b:00.0", ("0x15b3", "0x1021", "0x020700"))
    found = pci_devices(node(tmp_path))
    assert [(d.address, d.vendor, d.device, d.class_code, d.driver) for d in found] == [
        ("0000:3b:00.0", 0x15B3, 0x1021, 0x020700, ""),
        ("0000:af:00.0", 0x10DE, 0x2330, 0x030200, ""),
    ]
    assert [device.address for device in nvidia_gpus(node(tmp_path))] == ["0000:af:00.0"]


def test_the_driver_is_the_name_of_its_folder(tmp_path: Path) -> None:
    _device(tmp_path, "0000:3b:00.0", ("0x15b3", "0x1021", "0x020700"))
    (tmp_path / "sys/bus/pci/drivers/mlx5_core").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0/driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    assert [device.driver for device in pci_devices(node(tmp_path))] == ["mlx5_core"]


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    _device(tmp_path, "0000:3b:00.0", ("0x15b3", "0x1021", "0x020700"))
    _device(tmp_path, "0000:3b:00.2", ("0x15b3", "0x101e", "0x020700"), physfn="x")
    assert [device.address for device in pci_devices(node(tmp_path))] == ["0000:3b:00.0"]


@pytest.mark.parametrize("ids", [("", "0x1", "0x2"), ("0x1", "N/A", "0x2"), ("0x1", "0x2", "\0")])
def test_a_device_whose_numbers_cannot_be_read_is_left_out(tmp_path: Path, ids: tuple[object, object, object]) -> None:
    _device(tmp_path, "0000:3b:00.0", ids)
    assert pci_devices(node(tmp_path)) == []


def test_a_node_without_pci_has_no_devices(tmp_path: Path) -> None:
    assert pci_devices(node(tmp_path)) == []


def test_the_bridges_above_a_device_end_at_its_root_port(tmp_path: Path) -> None:
    _device(tmp_path, "0000:01:00.0", ("0x10de", "0x2330", "0x030200"), place="0000:00:01.0/")
    device = pci_devices(node(tmp_path))[0]
    assert [folder.name for folder in upstream(device)] == ["0000:00:01.0"]


def test_a_bus_of_a_controllers_own_begins_anew(tmp_path: Path) -> None:
    """Intel's VMD: its disks are on a bus of a domain of their own, below a device that is no bridge."""
    place = "0000:00:0e.0/pci10000:e0/10000:e0:06.0/"
    _device(tmp_path, "10000:e1:00.0", ("0x144d", "0xa80a", "0x010802"), place=place, nvme="nvme0")
    device = pci_devices(node(tmp_path))[0]
    assert [folder.name for folder in upstream(device)] == ["10000:e0:06.0"]


def test_a_device_on_the_root_bus_has_nothing_above_it(tmp_path: Path) -> None:
    _device(tmp_path, "0000:00:03.0", ("0x1af4", "0x1041", "0x020000"))
    assert upstream(pci_devices(node(tmp_path))[0]) == []


@pytest.mark.parametrize(
    ("ids", "names", "component"),
    [
        (("0x10de", "0x2330", "0x030200"), {}, "gpu/0000:3b:00.0"),
        (("0x1002", "0x74a1", "0x120000"), {}, "gpu/0000:3b:00.0"),
        (("0x10de", "0x22a3", "0x068000"), {}, "nvswitch/0000:3b:00.0"),
        (("0x15b3", "0x1021", "0x020700"), {"infiniband": "mlx5_0", "net": "ib0"}, "nic/mlx5_0"),
        (("0x15b3", "0x1021", "0x020000"), {"net": "eth0"}, "nic/eth0"),
        (("0x15b3", "0x1021", "0x020000"), {}, "nic/0000:3b:00.0"),
        (("0x1af4", "0x1041", "0x020000"), {"virtio2/net": "eth0"}, "nic/eth0"),
        (("0x144d", "0xa80a", "0x010802"), {"nvme": "nvme0"}, "disk/nvme0"),
        (("0x144d", "0xa80a", "0x010802"), {}, "disk/0000:3b:00.0"),
        (("0x1d95", "0x0020", "0x120000"), {}, "pci/0000:3b:00.0"),
        (("0x8086", "0x352a", "0x060400"), {}, "pci/0000:3b:00.0"),
    ],
)
def test_devices_are_named_as_findings_name_them(
    tmp_path: Path, ids: tuple[object, object, object], names: dict[str, str], component: str
) -> None:
    _device(tmp_path, "0000:3b:00.0", ids, **names)
    view = node(tmp_path)
    assert port_name(view, pci_devices(view)[0]) == component


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("0000:3b:00", "0000:3b:00.0"),
        (" 0009:01:00.0\n", "0009:01:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("N/A", "n/a"),
        ("", ""),
        ("xyz:01:00.0", "xyz:01:00.0"),
    ],
)
def test_addresses_of_any_writing_are_made_alike(text: str, address: str) -> None:
    assert normal_address(text) == address


def test_links_in_a_circle_are_no_device_and_no_error(tmp_path: Path) -> None:
    lay_out(tmp_path, {"/sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de"})
    (tmp_path / "sys/bus/pci/devices/0000:5e:00.0").symlink_to("0000:5e:00.0")
    assert pci_devices(node(tmp_path)) == []
