"""A node's network interfaces as /sys shows them; each test changes what it is about."""

from pathlib import Path

import pytest
from tests.checks.node_over_time import NodeOverTime

from muster_checks.base.vocabulary import Finding
from muster_checks.nic import NicParameters
from muster_checks.nic.judge import counters, judge
from muster_checks.nic.sysfs import STATISTICS, read_interfaces
from muster_checks.testing.recorded import lay_out

CX7, I350 = "15b3:1021", "8086:1521"
UP, ADMIN_DOWN = "0x1003", "0x1002"


class Node(NodeOverTime):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.places: dict[str, str] = {}
        (root / "sys/class/net").mkdir(parents=True)

    def add(self, name: str, model: str = CX7, address: str = "", under: str = "net", **files: object) -> None:
        """An interface that is up and has carried packets. ``under``: its folder below the PCI function."""
        address = address or f"0000:{len(self.places) + 16:02x}:00.0"
        function = f"/sys/devices/pci0000:00/{address}"
        place = self.places[name] = f"{function}/{under}/{name}"
        vendor, device = model.split(":")
        lay_out(
            self.root,
            {f"{function}/vendor": f"0x{vendor}", f"{function}/device": f"0x{device}", f"{function}/class": "0x020000"},
        )
        devices = self.root / "sys/bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        if not (devices / address).exists():
            (devices / address).symlink_to(f"../../../..{function}")
        self._list(name, place)
        plain: dict[str, object] = {"type": 1, "flags": UP, "carrier": 1, "operstate": "up", "duplex": "full"}
        plain |= {"speed": 400000, "mtu": 9000, "carrier_up_count": 1, "carrier_down_count": 0, "carrier_changes": 1}
        self.set(name, **(plain | dict.fromkeys(STATISTICS, 0) | {"rx_packets": 1000, "tx_packets": 1000} | files))

    def virtual(self, name: str, **files: object) -> None:
        self.places[name] = f"/sys/devices/virtual/net/{name}"
        self.set(name, **({"type": 1, "flags": UP, "carrier": 0, "speed": -1} | files))
        self._list(name, self.places[name])

    def _list(self, name: str, place: str) -> None:
        (self.root / "sys/class/net" / name).symlink_to(f"../../..{place}")

    def set(self, name: str, **files: object) -> None:
        """``set("eth0", carrier=0, rx_errors=5)``"""
        place = self.places[name]
        lay_out(
            self.root,
            {f"{place}/{'statistics/' if key in STATISTICS else ''}{key}": str(value) for key, value in files.items()},
        )

    def unplugged(self, name: str) -> None:
        """Up, but never had a cable."""
        self.set(name, carrier=0, carrier_up_count=0, carrier_changes=0, rx_packets=0, speed="", duplex="unknown")

    def bond(self, name: str, *slaves: str) -> None:
        self.virtual(name, carrier=1)
        (self.root / self.places[name].lstrip("/") / "bonding").mkdir()
        for slave in slaves:
            (self.root / self.places[slave].lstrip("/") / "master").symlink_to(f"../../../../virtual/net/{name}")
            lay_out(self.root, {f"{self.places[slave]}/bonding_slave/mii_status": "up"})

    def findings(self, after_s: float = 60.0, **limits: object) -> list[Finding]:
        self.now += after_s
        parameters = NicParameters.model_validate(limits)
        interfaces = read_interfaces(self.view, parameters.interfaces)
        self.view.history.note("nic", counters(interfaces))
        seen = self.view.history.of("nic")
        return judge(interfaces, seen, parameters, now=self.now, up_for_s=self.up_for_s)


@pytest.fixture
def empty(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def fleet(empty: Node) -> Node:
    """Four fast ports, two for management of which one has no cable, and what a Kubernetes node adds."""
    for number in range(4):
        empty.add(f"ens{number}np0")
    for number in range(2):
        empty.add(f"eno{number + 1}", I350, speed=1000, mtu=1500)
    empty.unplugged("eno2")
    for name in ("lo", "docker0", "cali1234", "vethab12", "cni0", "flannel.1", "tunl0", "ifb0"):
        empty.virtual(name, type=772 if name == "lo" else 1)
    return empty
