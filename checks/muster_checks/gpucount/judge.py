"""Decides which GPUs are missing, by address.

A GPU can be off the bus, on the bus without a driver, bound to the driver but lost, or healthy. NVML lists only GPUs
whose device file it may open, so a GPU hidden from this process is UNKNOWN, not missing. A GPU bound to another driver
(vfio-pci) counts as present.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.gpucount import GpucountParameters
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.judge import gpu_finding, judge_unread


@dataclass(frozen=True)
class GpuCount:
    """The sources in which GPUs were found.

    reading:  the driver's list; None if it could not be read
    on_bus:   PCI address -> kernel driver bound to it; empty if none is
    minors:   PCI address -> number of its device file, from the kernel driver
    """

    reading: GpuReading | None
    on_bus: Mapping[str, str] = field(default_factory=dict)
    minors: Mapping[str, int | None] = field(default_factory=dict)


def judge(count: GpuCount, limits: GpucountParameters) -> list[Finding]:
    """Raises CannotTell if no source lists a GPU."""
    listed = () if count.reading is None else count.reading.gpus
    findings = [_listed(gpu) for gpu in listed]
    if count.reading is not None:
        findings += [_unlisted(address, count, count.reading) for address in _not_listed(count)]
    missing = set(() if count.reading is None else count.reading.missing) | set(count.minors)
    findings += [
        _judge_gone(address) for address in sorted(missing - set(count.on_bus) - {gpu.address for gpu in listed})
    ]
    there = _there(count, listed)
    findings += _host(there, limits, findings)
    if not findings:
        raise CannotTell("no GPU on the PCI bus, none with the driver, and expected_count is not set", "NoGpuListed")
    return findings


def _listed(gpu: Gpu) -> Finding:
    if (unreadable := judge_unread(gpu)) and not gpu.lost:
        return unreadable[0]
    if not gpu.lost:
        return gpu_finding(gpu, Verdict.PASS, "Ok", "present")
    # the driver names a reset if one is enough; for a lost GPU NVIDIA says to restart the machine (Xid 79: RESTART_BM)
    wants_reset = any(word in gpu.lost.casefold() for word in ("restart", "reset"))
    advice = "reset it" if wants_reset else "reboot the node"
    fault_class = FaultClass.RESET if wants_reset else FaultClass.REBOOT
    return gpu_finding(
        gpu, Verdict.FAIL, "GpuLost", f"lost, the driver reports {gpu.lost!r}: {advice}", (), fault_class
    )


def _not_listed(count: GpuCount) -> list[str]:
    assert count.reading is not None  # noqa: S101 - the caller has checked it
    listed = {gpu.address for gpu in count.reading.gpus}
    return sorted(
        address for address, driver in count.on_bus.items() if address not in listed and driver in ("", "nvidia")
    )


def _unlisted(address: str, count: GpuCount, reading: GpuReading) -> Finding:
    minor = count.minors.get(address)
    if minor is not None and reading.visible is not None and minor not in reading.visible:
        message = f"GPU {address} is hidden from the agent: /dev/nvidia{minor} cannot be opened"
        return Finding(component=f"gpu/{address}", verdict=Verdict.UNKNOWN, reason="NotVisible", message=message)
    if not count.on_bus[address]:
        problem = "no driver is bound to it, because the driver rejected it"
        reason = "NoDriverBound"
    else:
        problem = "the driver does not list it"
        reason = "GpuNotListed"
    return Finding(
        component=f"gpu/{address}",
        verdict=Verdict.FAIL,
        reason=reason,
        message=f"GPU {address} is on the PCI bus, but {problem}: see the check dmesg, then reboot the node",
        fault_class=FaultClass.REBOOT,
    )


def _judge_gone(address: str) -> Finding:
    message = f"GPU {address} has disappeared from the PCI bus: see the check dmesg, then reboot the node"
    return Finding(
        component=f"gpu/{address}",
        verdict=Verdict.FAIL,
        reason="GpuMissing",
        message=message,
        fault_class=FaultClass.REBOOT,
    )


def _there(count: GpuCount, listed: tuple[Gpu, ...]) -> int:
    """Number of GPUs on the bus (in recorded output: listed), healthy or not."""
    return len(set(count.on_bus) | {gpu.address or gpu.component for gpu in listed})


def _host(there: int, limits: GpucountParameters, findings: list[Finding]) -> list[Finding]:
    expected = limits.expected_count
    if expected is None and not there:
        return []
    measured = (Measurement("gpus", there, "", expected),)
    if expected is not None and there < expected:
        message = f"{there} of {expected} GPUs are on the PCI bus: see the check dmesg, then reboot the node"
        return [_of_host(Verdict.FAIL, "GpuCount", message, measured, FaultClass.REBOOT)]
    if expected is not None and there > expected:
        return [
            _of_host(
                Verdict.WARN,
                "GpuCount",
                f"{there} GPUs found, {expected} expected: correct expected_count or the node",
                measured,
            )
        ]
    sound = sum(finding.verdict is Verdict.PASS for finding in findings)
    return [_of_host(Verdict.PASS, "Ok", f"{there} GPUs, {sound} of them respond", measured)]


def _of_host(
    verdict: Verdict,
    reason: str,
    message: str,
    measured: tuple[Measurement, ...],
    fault_class: FaultClass = FaultClass.NONE,
) -> Finding:
    return Finding(
        component="host",
        verdict=verdict,
        reason=reason,
        message=message,
        measurements=measured,
        fault_class=fault_class,
    )
