"""Reads the PCIe links of a node (twice on the first run, then once) and judges them against earlier readings."""

import asyncio
from collections.abc import Mapping, Sequence

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.counter_history import read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.hardware.pci import DeviceKind
from muster_checks.nvidia.gpu import Gpu
from muster_checks.nvidia.probe import read_gpus
from muster_checks.pcielink import PcielinkParameters
from muster_checks.pcielink.judge import counters, judge
from muster_checks.pcielink.sysfs import PciReading, read_node

NAME = "pcielink"
GPUS_TIMEOUT_S = 6.0  # sysfs alone is sufficient: other checks report a driver that hangs


async def probe(node: NodeView, parameters: PcielinkParameters) -> Sequence[Finding]:
    reading, gpus = PciReading((), {}), dict[str, Gpu]()

    async def read() -> Mapping[str, float]:
        nonlocal reading, gpus
        # a device that does not answer blocks every read of its registers
        reading = await in_thread(node, read_node, node)
        gpus = await read_link_gpus(node, reading)
        return counters(reading, gpus)

    seen = await read_series(node.history, NAME, read, parameters.first_interval_s)
    findings = judge(reading, seen, gpus, parameters, node.history.clock())
    _refuse_none(reading, findings)
    return findings


def judge_recorded(text: bytes, parameters: PcielinkParameters) -> Sequence[Finding] | None:
    """A tar of a node's /sys. Without an earlier reading, widths and speeds are judged, counters are not."""
    from muster_checks.hardware.recorded_tree import lay_out_tree  # an agent never needs its tar archives

    with lay_out_tree(text) as root:
        if root is None or not (root / "sys/bus/pci/devices").is_dir():
            return None
        reading = read_node(NodeView(root))
        findings = judge(reading, {}, {}, parameters, 0.0)
    _refuse_none(reading, findings)
    return findings


def _refuse_none(reading: PciReading, findings: Sequence[Finding]) -> None:
    if not findings and not reading.devices:
        raise NotHere("no GPU, IPU, NIC or NVMe disk on the PCI bus")
    if not findings:
        raise NotHere("no PCI device of this node shows a PCIe link, as in a virtual machine", "NoLink")


async def read_link_gpus(node: NodeView, reading: PciReading, timeout_s: float = GPUS_TIMEOUT_S) -> dict[str, Gpu]:
    """The NVIDIA driver's data, by address; empty if it does not answer."""
    if not any(device.kind is DeviceKind.GPU for device in reading.devices):
        return {}
    try:
        async with asyncio.timeout(timeout_s):
            return {gpu.address: gpu for gpu in (await read_gpus(node)).gpus}
    except (TimeoutError, NotHere, CannotTell, Unreadable):
        return {}
