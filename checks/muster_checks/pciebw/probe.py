"""Measures every accelerator of a node: GPUs with :mod:`gpu_probe`, IPUs with Graphcore's own tool."""

from collections.abc import Sequence
from pathlib import Path

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.cuda.busy_gpus import find_busy_gpus
from muster_checks.cuda.launcher import NOT_OFFERED
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.hardware.pci import PciDevice, nvidia_gpus
from muster_checks.nvidia.models import GpuModel, gpu_models
from muster_checks.pciebw.bandwidth import Bandwidth, HostLink
from muster_checks.pciebw.gpu_probe import measure
from muster_checks.pciebw.judge import PciebwLimits, judge
from muster_checks.pciebw.link import GENERATIONS, link_gb_per_s

PER_IPU_S = 60.0


async def probe(node: NodeView, limits: PciebwLimits, expected: Path | None) -> list[Finding]:
    from muster_checks.pciebw import graphcore

    models = gpu_models(expected)
    # a GPU that is assigned to a virtual machine is not measured
    gpus = [gpu for gpu in await in_thread(node, nvidia_gpus, node) if gpu.driver in ("", "nvidia")]
    samples = await graphcore.measure(node, PER_IPU_S)
    if not gpus and not samples:
        raise NotHere("no NVIDIA GPU on the PCI bus, and no IPU")
    ways: dict[str, HostLink] = {}
    if gpus:
        measured, ways = await _gpus(node, gpus, models)
        samples += measured
    return judge(samples, ways, limits)


async def _gpus(
    node: NodeView, gpus: Sequence[PciDevice], models: ModelTable[GpuModel]
) -> tuple[list[Bandwidth], dict[str, HostLink]]:
    """Raises CannotTell if no tool on the node can measure."""
    held = await find_busy_gpus(node)
    measured = await measure(node, gpus)
    if not measured.samples:
        if not measured.troubles:
            raise CannotTell(NOT_OFFERED, "NoCudaDevice")
        if all("No such file" in trouble for trouble in measured.troubles):
            raise ToolMissing("nvbandwidth, libcuda.so.1, dcgmi", "the NVIDIA driver, with its CUDA library (libcuda1)")
        raise CannotTell("; ".join(measured.troubles), "NotMeasured")
    samples, ways = [], {}
    for gpu in gpus:
        why = "; ".join(measured.troubles) or NOT_OFFERED
        samples.append(measured.samples.get(gpu.address) or Bandwidth(f"gpu/{gpu.address}", None, None, why))
        name = measured.names.get(gpu.address, "")
        slice_of = "MIG is on, and a slice is not the whole GPU" if " MIG " in name else ""
        link = link_gb_per_s(gpu)
        ways[f"gpu/{gpu.address}"] = host_link(name, link, models.of(name), held.get(gpu.address) or slice_of)
    return samples, ways


def host_link(name: str, link_gb_per_s: float | None, model: GpuModel | None, busy: str = "") -> HostLink:
    """The product's expected values apply only if its slot is as fast as the product."""
    fitting = model is not None and not _slower(link_gb_per_s, model)
    return HostLink(
        name=name,
        link_gb_per_s=link_gb_per_s,
        expected_to_device_gb_per_s=model.h2d_gb_per_s if model is not None and fitting else None,
        expected_from_device_gb_per_s=model.d2h_gb_per_s if model is not None and fitting else None,
        busy=busy,
    )


def _slower(link_gb_per_s: float | None, model: GpuModel) -> bool:
    lane = GENERATIONS.get(model.pcie_generation or 0)
    if link_gb_per_s is None or lane is None or model.pcie_width is None:
        return False
    return link_gb_per_s < 0.99 * lane * model.pcie_width
