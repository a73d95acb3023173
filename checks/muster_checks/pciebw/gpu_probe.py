"""Measures every GPU with the tools of the node: nvbandwidth, then our own copies, then DCGM's test.

If a tool skips GPUs (it hung, crashed, or stopped at the first GPU in use), the next tool measures those.
"""

from collections.abc import Sequence

import msgspec

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell
from muster_checks.cuda.launcher import run_on_each_gpu
from muster_checks.cuda.protocol import CopyResult
from muster_checks.dcgm.program import find_dcgmi
from muster_checks.hardware.pci import PciDevice
from muster_checks.pciebw.bandwidth import Bandwidth
from muster_checks.pciebw.nvbandwidth import FROM_DEVICE, TO_DEVICE, NvbandwidthReport, parse

NVBANDWIDTH_S = 240.0  # 2 tests, 3 samples of 16 copies of 512 MiB, plus verification: a few seconds per GPU
PER_GPU_S = 60.0
COPIES_S = 360.0
DCGM_S = 600.0
IN_PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class GpuBandwidths(msgspec.Struct):
    """``samples``: by address. ``names``: of the GPUs, as far as known. ``troubles``: errors of the tools that
    failed."""

    samples: dict[str, Bandwidth] = {}
    names: dict[str, str] = {}
    troubles: list[str] = []

    def take(self, address: str, to_device: float | None, from_device: float | None, trouble: str = "") -> None:
        self.samples[address] = Bandwidth(f"gpu/{address}", to_device, from_device, trouble)


async def measure(node: NodeView, gpus: Sequence[PciDevice]) -> GpuBandwidths:
    """A sample for each of ``gpus`` that any tool could measure, or the reason why not."""
    addresses = [gpu.address for gpu in gpus]
    measured = GpuBandwidths()
    if node.commands.which("nvbandwidth") is not None:
        await _by_nvbandwidth(node, addresses, measured)
    if not measured.samples.keys() >= set(addresses):
        offered = await _by_copies(node, measured)
        if not offered and find_dcgmi(node) is not None:
            await _by_dcgm(node, measured)
    return measured


async def _by_nvbandwidth(node: NodeView, addresses: Sequence[str], measured: GpuBandwidths) -> None:
    tests = ("nvbandwidth", "-t", TO_DEVICE, FROM_DEVICE)
    output = await node.commands.run((*tests, "-j"), timeout_s=NVBANDWIDTH_S, environment=IN_PCI_ORDER)
    if output.exit_code and b"Invalid Arguments" in output.stdout:  # -j exists from version 0.5 on
        output = await node.commands.run(tests, timeout_s=NVBANDWIDTH_S, environment=IN_PCI_ORDER)
    try:
        report = parse(output.stdout)
    except Unreadable as error:
        measured.troubles.append(output.trouble or str(error))
        return
    place(report, addresses, measured)
    if report.error or output.trouble:
        measured.troubles.append(f"nvbandwidth: {report.error}" if report.error else output.trouble)


def place(report: NvbandwidthReport, addresses: Sequence[str], measured: GpuBandwidths) -> None:
    """Match columns to addresses: by the listed address, or in order if there are equally many of each."""
    columns = sorted(report.to_device.keys() | report.from_device.keys() | report.devices.keys())
    in_order = dict(zip(columns, sorted(addresses), strict=False)) if len(columns) == len(addresses) else {}
    for column in columns:
        device = report.devices.get(column)
        address = (device.address if device else "") or in_order.get(column, "")
        both = report.to_device.get(column), report.from_device.get(column)
        if address and device:
            measured.names[address] = device.name
        if address and None not in both:
            measured.take(address, *both)


async def _by_copies(node: NodeView, measured: GpuBandwidths) -> bool:
    """False if the driver offers no GPU at all."""
    sweep = await run_on_each_gpu(node, "copies", per_gpu_s=PER_GPU_S, total_s=COPIES_S)
    for gpu in sweep.gpus:
        if gpu.name and gpu.address:
            measured.names[gpu.address] = gpu.name
        if gpu.address in measured.samples or not gpu.address:
            continue
        if isinstance(gpu.result, CopyResult):
            measured.take(gpu.address, gpu.result.to_device_gb_per_s, gpu.result.from_device_gb_per_s)
        else:
            measured.take(gpu.address, None, None, gpu.trouble)
    measured.troubles += [f"CUDA driver: {sweep.rest}"] if sweep.rest else []
    return bool(sweep.gpus)


async def _by_dcgm(node: NodeView, measured: GpuBandwidths) -> None:
    from muster_checks.dcgm.discovery import read_addresses
    from muster_checks.dcgm.probe import diagnose
    from muster_checks.pciebw.dcgm_pcie import ARGUMENTS, read_bandwidths

    try:
        diagnosis = await diagnose(node, ARGUMENTS, DCGM_S)
    except CannotTell as error:
        measured.troubles.append(error.message)
        return
    addresses = await read_addresses(node)
    for number, sample in read_bandwidths(diagnosis).items():
        if (address := addresses.get(number)) is not None and address not in measured.samples:
            measured.take(address, sample.to_device_gb_per_s, sample.from_device_gb_per_s)
