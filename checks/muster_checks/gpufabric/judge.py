"""Judges fabric registration, fabric health and the driver's recovery action.

Sources: NVML API Reference Guide, Fabric definitions (states, status, health mask, summary) and
nvmlDeviceGpuRecoveryAction_t. For the actions: NVIDIA GPU Memory Error Management, Error Recovery and Response Flags.
Fabric Manager User Guide: CUDA does not start on an unregistered GPU.
"""

from collections.abc import Mapping

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.gpufabric import GpufabricParameters
from muster_checks.nvidia.gpu import Gpu, GpuFabric, GpuReading, RecoveryAction
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread

NOTHING = "no GPU on this node is on an NVSwitch fabric or reports a recovery action (drivers before 555 do not)"
WAITING = ("not-started", "in-progress")

FAIL, WARN = Verdict.FAIL, Verdict.WARN
ACTIONS = {
    RecoveryAction.RESET: (FAIL, FaultClass.RESET, "reset the GPU"),
    RecoveryAction.BUS_RESET: (FAIL, FaultClass.RESET, "reset the GPU's PCIe bus"),
    # the GPU works with reduced capacity until then
    RecoveryAction.DRAIN_AND_RESET: (
        FAIL,
        FaultClass.RESET,
        "end the processes that use it or communicate with it, then reset the GPU",
    ),
    RecoveryAction.REBOOT: (FAIL, FaultClass.REBOOT, "reboot the node"),
    RecoveryAction.SYSTEM_REBOOT: (FAIL, FaultClass.REBOOT, "reboot the system"),
    # no reset needed: the GPU recovers when all processes that access it from other GPUs have ended
    RecoveryAction.DRAIN_P2P: (
        WARN,
        FaultClass.RESTART_APP,
        "end the processes that use this GPU together with others",
    ),
    RecoveryAction.RECOVER_IMEX: (WARN, FaultClass.CONTACT, "recover the IMEX domain"),
}


def unregistered(reading: GpuReading) -> dict[str, float]:
    """By GPU: 1 while it is not registered with its fabric, else 0."""
    return {
        gpu.component: float(gpu.fabric.state in WAITING)
        for gpu in reading.gpus
        if not gpu.lost and gpu.fabric.state is not None
    }


def judge(reading: GpuReading, series: Mapping[str, CounterSeries], limits: GpufabricParameters) -> list[Finding]:
    return judge_each(reading, lambda gpu: _judge(gpu, series.get(gpu.component), limits), NOTHING)


def _judge(gpu: Gpu, series: CounterSeries | None, limits: GpufabricParameters) -> list[Finding]:
    findings = [*judge_unread(gpu, "fabric", "recovery"), *_action(gpu)]
    if gpu.fabric.state not in (None, "not-supported"):
        findings += [*_registration(gpu, series, limits), *_health(gpu)]
    if not findings and (gpu.recovery is not None or gpu.fabric.state == "completed"):
        message = "registered with its fabric" if gpu.fabric.state == "completed" else "no recovery action requested"
        findings.append(gpu_finding(gpu, Verdict.PASS, "Ok", message))
    return findings


def _action(gpu: Gpu) -> list[Finding]:
    if gpu.recovery is None or gpu.recovery is RecoveryAction.NONE:
        return []
    verdict, fault_class, advice = ACTIONS[gpu.recovery]
    reason = "Recovery" + "".join(word.capitalize() for word in gpu.recovery.split("-"))
    return [gpu_finding(gpu, verdict, reason, f"the driver requests recovery: {advice}", (), fault_class)]


def _registration(gpu: Gpu, series: CounterSeries | None, limits: GpufabricParameters) -> list[Finding]:
    fabric = gpu.fabric
    if fabric.state == "completed":
        if not fabric.status:
            return []
        message = f"registration with the NVSwitch fabric failed: {fabric.status}; see the fabric manager's log"
        return [gpu_finding(gpu, FAIL, "FabricError", message, (), FaultClass.CONTACT)]
    if fabric.state not in WAITING:
        message = f"unknown state of the registration with the NVSwitch fabric: {fabric.state}"
        return [gpu_finding(gpu, Verdict.UNKNOWN, "NotReadable", message)]
    waited_s = _waited(series)
    message = f"the registration with the NVSwitch fabric is {fabric.state}, so CUDA does not start on this GPU"
    if waited_s < limits.max_registering_s:
        return [gpu_finding(gpu, WARN, "FabricNotReady", f"{message} (FAIL after {limits.max_registering_s:g} s)")]
    message += f" (for {waited_s:.0f} s): check that the fabric manager is running, then reboot the node"
    return [gpu_finding(gpu, FAIL, "FabricNotReady", message, (), FaultClass.REBOOT)]


def _waited(series: CounterSeries | None) -> float:
    """Seconds for which all readings up to the newest have been 1."""
    if series is None:
        return 0.0
    start = end = series.points[-1][0]
    for at, value in reversed(series.points):
        if not value:
            break
        start = at
    return end - start


def _health(gpu: Gpu) -> list[Finding]:
    fabric, findings = gpu.fabric, []
    troubles = _troubles(fabric)
    listed = f" ({', '.join(troubles)})" if troubles else ""
    if fabric.summary == "unhealthy" or fabric.route_unhealthy or fabric.misconfigured:
        message = f"the NVSwitch fabric is unhealthy{listed}: see the fabric manager's log"
        findings.append(gpu_finding(gpu, FAIL, "FabricUnhealthy", message, (), FaultClass.CONTACT))
    elif fabric.summary == "limited-capacity" or troubles:
        findings.append(gpu_finding(gpu, WARN, "FabricLimited", f"the NVSwitch fabric is not at full capacity{listed}"))
    return findings


def _troubles(fabric: GpuFabric) -> list[str]:
    flags = {
        "bandwidth degraded": fabric.bandwidth_degraded,
        "route unhealthy": fabric.route_unhealthy,
        "route recovery in progress": fabric.route_recovery,
        "access timeout recovery in progress": fabric.access_timeout_recovery,
    }
    return [name for name, on in flags.items() if on] + ([fabric.misconfigured] if fabric.misconfigured else [])
