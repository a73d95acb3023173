"""A node's InfiniBand ports: a healthy node, laid out so that a test can change a value."""

from pathlib import Path

import pytest
from tests.checks.ib.port_tree import H100_PORTS, lay_out_ports
from tests.checks.node_over_time import NodeOverTime

from muster_checks.base.vocabulary import Finding
from muster_checks.hardware.expected_values import load_table
from muster_checks.ib import IbParameters
from muster_checks.ib.judge import counters, judge
from muster_checks.ib.sysfs import read_ports
from muster_checks.ib.thresholds import ModelRow, load_counter_rows
from muster_checks.testing.recorded import lay_out


class Node(NodeOverTime):
    def set(self, device: str, port: int = 1, **files: object) -> None:
        """``set("mlx5_4", state="1: DOWN", link_downed=3)``"""
        rows = {row.counter: row.folder for row in load_counter_rows()} | {"port_rcv_packets": "counters"}
        lay_out(
            self.root,
            {
                f"/sys/class/infiniband/{device}/ports/{port}/{rows[name] + '/' if name in rows else ''}{name}": str(
                    value
                )
                for name, value in files.items()
            },
        )

    def add(
        self, device: str, hca_type: str = "MT4129", board_id: str = "MT_1", port: int = 1, **files: object
    ) -> None:
        top = f"/sys/class/infiniband/{device}"
        lay_out(self.root, {f"{top}/hca_type": hca_type, f"{top}/board_id": board_id})
        plain = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
        }
        self.set(device, port, **(plain | files))

    def down(self, *devices: str, phys: str = "2: Polling", **files: object) -> None:
        for device in devices:
            self.set(device, state="1: DOWN", phys_state=phys, rate="10 Gb/sec (4X SDR)", **files)

    def never_linked(self, *devices: str) -> None:
        self.down(*devices, port_rcv_packets=0, link_downed=0)

    def findings(self, after_s: float = 60.0, **limits: object) -> list[Finding]:
        self.now += after_s
        parameters = IbParameters.model_validate(limits)
        ports = read_ports(self.view.path("/sys/class/infiniband"), parameters.ports, load_counter_rows())
        self.view.history.note("ib", counters(ports))
        models = load_table(ModelRow, "ib/models.yaml", parameters.expected)
        seen = self.view.history.of("ib")
        return judge(ports, seen, load_counter_rows(), models, parameters, now=self.now, up_for_s=self.up_for_s)


@pytest.fixture
def empty(tmp_path: Path) -> Node:
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    return Node(tmp_path)


@pytest.fixture
def one(empty: Node) -> Node:
    """One port, which has carried packets."""
    still = {row.counter: 0 for row in load_counter_rows()}
    empty.add("mlx5_4", **(still | {"port_rcv_packets": 48112000000, "excessive_buffer_overrun_errors": 15}))
    return empty


@pytest.fixture
def h100(tmp_path: Path) -> Node:
    lay_out_ports(tmp_path / "sys/class/infiniband", H100_PORTS)
    return Node(tmp_path)
