"""Reads the ports of a node (twice on the first run, then once) and judges them against earlier readings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from muster_checks.base.bounded_read import names_in
from muster_checks.base.counter_history import CounterSeries, read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import NotHere
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.hardware.expected_values import load_table
from muster_checks.hardware.link_state import uptime_s
from muster_checks.ib import IbParameters
from muster_checks.ib.ibstat import parse_ibstat
from muster_checks.ib.judge import counters, judge
from muster_checks.ib.sysfs import IbPort, read_ports
from muster_checks.ib.thresholds import ModelRow, load_counter_rows

NAME = "ib"


async def probe(node: NodeView, parameters: IbParameters) -> Sequence[Finding]:
    folder = node.path("/sys/class/infiniband")
    ports: list[IbPort] = []

    async def read() -> Mapping[str, float]:
        nonlocal ports
        # a card that does not answer its driver blocks every read of its counters
        ports = await in_thread(node, read_ports, folder, parameters.ports, load_counter_rows())
        return counters(ports)

    seen = await read_series(node.history, NAME, read, parameters.first_interval_s)
    return _judge(folder, ports, seen, parameters, node.history.clock(), uptime_s(node))


def judge_recorded(text: bytes, parameters: IbParameters) -> Sequence[Finding] | None:
    """A tar of /sys or of /sys/class/infiniband, or the output of `ibstat`. Without an earlier reading, counters are
    not judged."""
    ports = parse_ibstat(text, parameters.ports)
    if ports is not None:
        return _judge(Path("/nonexistent"), ports, {}, parameters, 0.0, None)
    from muster_checks.hardware.recorded_tree import lay_out_tree  # an agent never needs its tar archives

    with lay_out_tree(text) as root:
        folder = root and _class_folder(root)
        if not folder:
            return None
        ports = read_ports(folder, parameters.ports, load_counter_rows())
        return _judge(folder, ports, {}, parameters, 0.0, None)


def _judge(
    folder: Path,
    ports: Sequence[IbPort],
    seen: Mapping[str, CounterSeries],
    parameters: IbParameters,
    now: float,
    up_for_s: float | None,
) -> Sequence[Finding]:
    models = load_table(ModelRow, "ib/models.yaml", parameters.expected)
    findings = judge(ports, seen, load_counter_rows(), models, parameters, now=now, up_for_s=up_for_s)
    if findings:
        return findings
    if ports:
        raise NotHere(f"none of {len(ports)} RDMA ports is in use; set expected_ports if some must be", "NotInUse")
    if names_in(folder):
        raise NotHere(f"no RDMA device of this node matches {parameters.ports}")
    raise NotHere("no InfiniBand or RoCE device (/sys/class/infiniband)")


def _class_folder(root: Path) -> Path | None:
    """The folder that holds the devices: its entries have ports."""
    for folder in (root / "sys/class/infiniband", root, *sorted(root.iterdir())):
        if any((folder / name / "ports").is_dir() for name in names_in(folder)):
            return folder
    return None
