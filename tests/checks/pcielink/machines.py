"""A node's PCI tree for tests: devices below bridges, with links as in /sys."""

import os
from pathlib import Path

from muster_checks.testing.recorded import lay_out

H100, CX7, NVME, MI300, C600 = "10de:2330", "15b3:1021", "144d:a80a", "1002:74a1", "1d95:0020"
NVSWITCH = "10de:22a3"
CLASSES = {H100: 0x030200, CX7: 0x020700, NVME: 0x010802, MI300: 0x120000, C600: 0x120000, NVSWITCH: 0x068000}
BRIDGE, ROOT_PORT, QEMU_PORT = "1000:c030", "8086:352a", "1b36:000c"
CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
UNCORRECTABLE = ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP")


class Machine:
    """Functions are added from the root port down: ``add("0000:00:01.0", ROOT_PORT)``, then what is below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places: dict[str, str] = {}

    def add(
        self,
        address: str,
        model: str,
        below: str = "",
        link: tuple[object, object, object, object] | None = ("32.0 GT/s PCIe", "32.0 GT/s PCIe", 16, 16),
        **names: str,
    ) -> "Machine":
        """``link``: speed now and at most, lanes now and at most. ``names``: infiniband="mlx5_0", net="eth0"."""
        place = f"{self.places[below] if below else '/sys/devices/pci0000:00'}/{address}"
        self.places[address] = place
        vendor, device = model.split(":")
        files: dict[str, str | int] = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{CLASSES.get(model, 0x060400):06x}",
        }
        if link is not None:
            files |= dict(
                zip(
                    ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width"),
                    map(str, link),
                    strict=True,
                )
            )
        for kind, name in names.items():
            files[f"{kind}/{name}/uevent"] = ""
        lay_out(self.root, {f"{place}/{name}": content for name, content in files.items()})
        devices = self.root / "sys/bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(os.path.relpath(self.root / place.lstrip("/"), devices))
        return self

    def set(self, address: str, **files: object) -> None:
        """``set("0000:00:01.0", current_link_width=8)``"""
        lay_out(self.root, {f"{self.places[address]}/{name}": str(value) for name, value in files.items()})

    def count(self, address: str, *, root_port_fatal: int | None = None, **errors: int) -> None:
        """AER counters: what is named, 0 for the rest; ``CmpltTO`` counts as non-fatal, ``DLP`` as fatal."""
        fatal = {name: n for name, n in errors.items() if name == "DLP"}
        nonfatal = {name: n for name, n in errors.items() if name in UNCORRECTABLE and name != "DLP"}
        files = {
            "aer_dev_correctable": _lines(CORRECTABLE, errors, "TOTAL_ERR_COR"),
            "aer_dev_nonfatal": _lines(UNCORRECTABLE, nonfatal, "TOTAL_ERR_NONFATAL"),
            "aer_dev_fatal": _lines(UNCORRECTABLE, fatal, "TOTAL_ERR_FATAL"),
        }
        if root_port_fatal is not None:
            files["aer_rootport_total_err_fatal"] = str(root_port_fatal)
        self.set(address, **files)

    def remove(self, address: str) -> None:
        (self.root / "sys/bus/pci/devices" / address).unlink()


def _lines(names: tuple[str, ...], counts: dict[str, int], total: str) -> str:
    counted = {name: counts.get(name, 0) for name in names}
    return "\n".join([*(f"{name} {n}" for name, n in counted.items()), f"{total} {sum(counted.values())}"])


def one_gpu(root: Path) -> Machine:
    """A GPU behind a switch."""
    machine = Machine(root).add("0000:00:01.0", ROOT_PORT).add("0000:01:00.0", BRIDGE, "0000:00:01.0")
    return machine.add("0000:02:01.0", BRIDGE, "0000:01:00.0").add("0000:04:00.0", H100, "0000:02:01.0")


def eight_gpus(root: Path) -> Machine:
    """Two switches with four GPUs and two NICs each, as HGX boards have them, and a disk on a root port."""
    machine = Machine(root)
    for side in (0, 1):
        port, switch = f"0000:0{side}:01.0", f"0000:{side}1:00.0"
        machine.add(port, ROOT_PORT).add(switch, BRIDGE, port)
        for slot in range(6):
            down, device = f"0000:{side}2:0{slot}.0", f"0000:{side}{slot + 3}:00.0"
            machine.add(down, BRIDGE, switch)
            if slot < 4:
                machine.add(device, H100, down)
            else:
                machine.add(device, CX7, down, infiniband=f"mlx5_{side * 2 + slot - 4}")
    gen4 = ("16.0 GT/s PCIe", "16.0 GT/s PCIe", 4, 4)
    machine.add("0000:a0:01.0", ROOT_PORT, link=gen4).add("0000:a1:00.0", NVME, "0000:a0:01.0", gen4, nvme="nvme0")
    return machine
