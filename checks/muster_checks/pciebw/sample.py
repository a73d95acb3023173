"""Judges recorded output of any bandwidth tool: nvbandwidth, our own child, DCGM's test, gc-hosttraffictest."""

from collections.abc import Sequence

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import Finding
from muster_checks.cuda.launcher import read_runs
from muster_checks.cuda.protocol import CopyResult, decode
from muster_checks.dcgm.parse import is_diagnosis
from muster_checks.dcgm.parse import parse as parse_diagnosis
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.nvidia.models import GpuModel
from muster_checks.pciebw import nvbandwidth
from muster_checks.pciebw.bandwidth import Bandwidth
from muster_checks.pciebw.dcgm_pcie import read_bandwidths
from muster_checks.pciebw.judge import PciebwLimits, judge
from muster_checks.pciebw.probe import host_link


def judge_recorded(text: bytes, limits: PciebwLimits, models: ModelTable[GpuModel]) -> Sequence[Finding] | None:
    if nvbandwidth.is_nvbandwidth(text):
        return _nvbandwidth(nvbandwidth.parse(text), limits, models)
    if is_diagnosis(text):
        found = list(read_bandwidths(parse_diagnosis(text)).values())
        return judge(found, {}, limits) if found else None
    if b'"host_transfer_speed' in text or b'"tile_transfer_speed' in text:
        from muster_checks.pciebw import graphcore

        return judge([graphcore.parse(text)], {}, limits)
    gpus = read_runs(decode(text), "the recording ends here")
    if not any(isinstance(gpu.result, CopyResult) for gpu in gpus):
        return None
    samples, ways = [], {}
    for gpu in gpus:
        component = f"gpu/{gpu.address or gpu.index}"
        if isinstance(gpu.result, CopyResult):
            samples.append(Bandwidth(component, gpu.result.to_device_gb_per_s, gpu.result.from_device_gb_per_s))
        else:
            samples.append(Bandwidth(component, None, None, gpu.trouble))
        ways[component] = host_link(gpu.name, None, models.of(gpu.name))
    return judge(samples, ways, limits)


def _nvbandwidth(
    report: nvbandwidth.NvbandwidthReport, limits: PciebwLimits, models: ModelTable[GpuModel]
) -> list[Finding]:
    """GPUs by their addresses if the recording has them, otherwise by CUDA's numbers."""
    columns = sorted(report.to_device.keys() | report.from_device.keys())
    if not columns:
        raise CannotTell(f"nvbandwidth: {report.error}", "NotMeasured")
    samples, ways = [], {}
    for column in columns:
        device = report.devices.get(column)
        component = f"gpu/{device.address}" if device is not None and device.address else f"gpu/{column}"
        name = device.name if device is not None else ""
        samples.append(Bandwidth(component, report.to_device.get(column), report.from_device.get(column)))
        ways[component] = host_link(name, None, models.of(name))
    return judge(samples, ways, limits)
