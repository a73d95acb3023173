"""Looks for GPUs in all sources. A missing GPU is confirmed by a second look, because a reset takes seconds."""

import asyncio
import re

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.gpucount import GpucountParameters
from muster_checks.gpucount.judge import GpuCount, judge
from muster_checks.hardware.pci import nvidia_gpus
from muster_checks.nvidia import KNOWN_GPUS
from muster_checks.nvidia.driver_files import device_minor, read_driver_files
from muster_checks.nvidia.gpu import GpuReading
from muster_checks.nvidia.probe import SHARED_S, read_gpus

_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes\b", re.M)


async def probe(node: NodeView, parameters: GpucountParameters) -> list[Finding]:
    findings = await _count_once(node, parameters, SHARED_S)
    if any(finding.verdict is Verdict.FAIL for finding in findings) and parameters.confirm_after_s:
        await asyncio.sleep(parameters.confirm_after_s)
        findings = await _count_once(node, parameters, 0.0)
    return findings


async def _count_once(node: NodeView, parameters: GpucountParameters, max_age_s: float) -> list[Finding]:
    blind: CannotTell | NotHere | None = None
    try:
        reading = await read_gpus(node, max_age_s)
    except (NotHere, CannotTell) as error:
        # the GPUs on the bus can be counted without the driver
        blind = error
        reading = None
        if isinstance(error, NotHere):
            reading = GpuReading(source="pci", missing=tuple(sorted(node.history.of(KNOWN_GPUS))))
    files = read_driver_files(node)
    count = GpuCount(
        reading=reading,
        # a GPU that the driver is configured to exclude (NVreg_ExcludedGpus) has no user, but is not missing
        on_bus={
            device.address: "excluded" if _EXCLUDED.search(files.get(device.address, "")) else device.driver
            for device in await in_thread(node, nvidia_gpus, node)
        },
        minors={address: device_minor(text) for address, text in files.items()},
    )
    try:
        findings = judge(count, parameters)
    except CannotTell as error:
        raise blind or error from None
    if blind is not None and not any(finding.verdict is Verdict.FAIL for finding in findings):
        raise blind
    if isinstance(blind, CannotTell):
        # without an answer from the driver, earlier findings on single GPUs must stay open
        findings.append(Finding(component="host", verdict=Verdict.UNKNOWN, reason=blind.reason, message=blind.message))
    return findings
