"""Judges PCIe links. Pure: takes readings, earlier readings and limits; returns findings.

A FAIL needs proof that the link was better earlier, or is better on equal devices: a link that has always been narrow
may be wired that way.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.hardware.pci import AMD, INTEL, NVIDIA, DeviceKind
from muster_checks.nvidia.gpu import ClocksEvent, Gpu
from muster_checks.pcielink import PcielinkParameters
from muster_checks.pcielink.errors import AerErrors
from muster_checks.pcielink.sysfs import FASTEST_GT_PER_S, WIDEST, PcieDevice, PcieLink, PciReading

GONE_S = 180.0  # NVSentinel requires three polls; a driver that re-scans its device needs seconds
# Devices that do not disappear on a healthy node. Excluded: NVMe disks, which are volumes in clouds; network cards,
# which virtual machines and Amazon's bare metal add and remove at run time; NVIDIA GPUs, which the check gpucount
# covers
STAY = (DeviceKind.IPU, DeviceKind.ACCELERATOR, DeviceKind.NIC)
AMAZON = 0x1D0F
LEAST_SIBLINGS = 2
SLOW_WHEN_IDLE = (NVIDIA, AMD, INTEL)  # vendors whose GPUs slow their link down to save power
SOME = 1e-6  # tolerance for "more than zero": a rise cut at the edge of a window is not a whole number

Seen = Mapping[str, CounterSeries]


def counters(reading: PciReading, gpus: Mapping[str, Gpu]) -> dict[str, float]:
    """The values to remember from a reading, by the names that :func:`judge` looks up."""
    values: dict[str, float | None] = {}
    for device in reading.devices:
        if device.kind in STAY and device.vendor != AMAZON and not reading.virtual:
            values[f"{device.component} present {device.address}"] = 1.0
        gpu = gpus.get(device.address)
        values[f"{device.component} replays"] = gpu.pcie.replays if gpu else None
        for link in device.links:
            values[f"{link.name} lanes"] = link.lanes
            values[f"{link.name} GT/s"] = link.gt_per_s
    for component, errors in reading.errors.items():
        values[f"{component} link"] = errors.link
        values[f"{component} nonfatal"] = errors.nonfatal
        values[f"{component} fatal"] = errors.fatal
        values[f"{component} below fatal"] = errors.below_fatal
    return {name: float(value) for name, value in values.items() if value is not None}


def judge(
    reading: PciReading, seen: Seen, gpus: Mapping[str, Gpu], limits: PcielinkParameters, now: float
) -> list[Finding]:
    """``gpus``: the NVIDIA driver's data, by address; ``now``: by the clock of ``seen``."""
    findings: list[Finding] = []
    for device in reading.devices:
        trouble = [
            *_own_link(device, reading, seen, gpus.get(device.address)),
            *_errors(device.component, reading.errors.get(device.component), seen, limits),
            *_replays(device, seen, limits),
        ]
        findings += _merge(trouble) or _sound(device, seen, limits)
    findings += _judge_bridges(reading, seen)
    findings += _bridge_errors(reading, seen, limits)
    findings += _judge_missing(reading.devices, seen, now)
    return findings


def _own_link(device: PcieDevice, reading: PciReading, seen: Seen, gpu: Gpu | None) -> Iterable[Finding]:
    link = next(iter(device.links), None)
    if link is None or device.asleep:
        return
    if link.lanes is None or link.gt_per_s is None:
        if not reading.virtual:
            yield _finding(
                device.component,
                Verdict.UNKNOWN,
                "NotReadable",
                f"{device.address} reports no link speed and width, as a device that is off the bus does",
            )
        return
    # if the slot's capability is unknown, only earlier readings can serve as the reference
    most = link.best_lanes or link.lower.max_lanes or WIDEST
    why = _describe_loss(seen, f"{link.name} lanes", link.lanes, most, "x")
    if why or (link.best_lanes is not None and link.lanes < link.best_lanes):
        why = why or _describe_siblings(device, reading.devices)
        yield _worse(device.component, why, device.kind is not DeviceKind.NVME, "LinkWidth", link, link.lanes, most)
    if device.kind in (DeviceKind.GPU, DeviceKind.ACCELERATOR) and device.vendor in SLOW_WHEN_IDLE:
        if not reading.virtual:  # a guest's GPU may report 2.5 GT/s even under load
            yield from _working_gpu(device, gpu)
        return
    fastest = link.best_gt_per_s or link.lower.max_gt_per_s or FASTEST_GT_PER_S
    why = _describe_loss(seen, f"{link.name} GT/s", link.gt_per_s, fastest, "", " GT/s")
    if why or (link.best_gt_per_s is not None and link.gt_per_s < link.best_gt_per_s):
        yield _worse(
            device.component, why, device.kind is not DeviceKind.NVME, "LinkSpeed", link, link.gt_per_s, fastest
        )


def _worse(
    component: str, why: str, serious: bool, reason: str, link: PcieLink, now: float, best: float, behind: str = ""
) -> Finding:
    """A link below its capability. ``why``: the proof that it is not built that way; empty without one."""
    wide = reason == "LinkWidth"
    is_now = f"x{now:g} of x{best:g}" if wide else f"{now:g} of {best:g} GT/s"
    return _finding(
        component,
        Verdict.FAIL if why and serious else Verdict.WARN,
        reason,
        f"{is_now} between {link.name}{why or ', perhaps by design'}{behind}: reboot; if it stays, reseat the card",
        FaultClass.REBOOT if why else FaultClass.CONTACT,
        Measurement("lanes", now, "", best) if wide else Measurement("speed", now, "GT/s", best),
    )


def _working_gpu(device: PcieDevice, gpu: Gpu | None) -> Iterable[Finding]:
    """GPUs slow their link down while idle, so only a busy GPU's speed counts, and only the driver knows its state."""
    if gpu is None or gpu.clocks.events is None or ClocksEvent.IDLE in gpu.clocks.events:
        return
    now, best = gpu.pcie.generation, gpu.pcie.generation_max
    if now is not None and best is not None and now < best:
        yield _finding(
            device.component,
            Verdict.WARN,
            "LinkSpeed",
            f"PCIe generation {now} of {best} though the GPU is not idle: reboot; if it stays, reseat card or riser",
            FaultClass.CONTACT,
            Measurement("generation", now, "", best),
        )


def _describe_siblings(device: PcieDevice, devices: Sequence[PcieDevice]) -> str:
    """Text if all equal accelerators run at full width. NICs and disks of one kind may sit in different slots."""
    others = [
        other.links[0] for other in devices if other.model == device.model and other is not device and other.links
    ]
    full = [link for link in others if link.best_lanes is not None and link.lanes == link.best_lanes]
    if device.kind in (DeviceKind.NIC, DeviceKind.NVME) or len(full) < max(LEAST_SIBLINGS, len(others)):
        return ""
    return f", the other {len(full)} of its kind run at full width"


def _describe_loss(seen: Seen, name: str, now: float, best: float, before: str, after: str = "") -> str:
    """Text if the link was better earlier."""
    series = seen.get(name)
    most = max((value for _, value in series.points if value <= best), default=now) if series else now
    return f", earlier {before}{most:g}{after}" if most > now else ""


def _judge_bridges(reading: PciReading, seen: Seen) -> Iterable[Finding]:
    """The links of switches, once each, with the devices behind them."""
    hanging: dict[str, tuple[PcieLink, list[PcieDevice]]] = {}
    for device in reading.devices:
        for link in device.links[1:]:
            hanging.setdefault(link.name, (link, []))[1].append(device)
    for link, devices in hanging.values():
        if link.upper is None:
            continue
        component = f"pci/{link.upper.address}"
        behind = f"; behind it {', '.join(device.component for device in devices[:3])}" + " …" * (len(devices) > 3)
        serious = any(device.kind is not DeviceKind.NVME for device in devices)
        if link.lanes is not None and link.best_lanes is not None and link.lanes < link.best_lanes:
            why = _describe_loss(seen, f"{link.name} lanes", link.lanes, link.best_lanes, "x")
            yield _worse(component, why, serious, "LinkWidth", link, link.lanes, link.best_lanes, behind)
        # a switch on a GPU's own card (AMD, Intel) slows down with the GPU
        if link.lower.vendor in (AMD, INTEL) and all(device.vendor == link.lower.vendor for device in devices):
            continue
        if link.gt_per_s is not None and link.best_gt_per_s is not None and link.gt_per_s < link.best_gt_per_s:
            why = _describe_loss(seen, f"{link.name} GT/s", link.gt_per_s, link.best_gt_per_s, "", " GT/s")
            yield _worse(component, why, serious, "LinkSpeed", link, link.gt_per_s, link.best_gt_per_s, behind)


def _errors(component: str, errors: AerErrors | None, seen: Seen, limits: PcielinkParameters) -> Iterable[Finding]:
    if errors is None:
        return
    for kind, verdict, reason, asks in (
        ("fatal", Verdict.FAIL, "PcieFatal", FaultClass.REBOOT),
        # lost transactions on a link that is up; probing for absent devices looks the same
        ("nonfatal", Verdict.WARN, "PcieNonFatal", FaultClass.RESET),
    ):
        amount = _rise(seen, f"{component} {kind}", limits.errors_window_s)
        if amount > SOME:
            since_boot = f" (since boot: {', '.join(errors.names[:6])})" if errors.names else ""
            yield _finding(
                component,
                verdict,
                reason,
                f"{ceil(amount)} {kind} PCIe errors within {limits.errors_window_s / 60:.0f} min{since_boot}: "
                f"see the kernel log; {asks} it",
                asks,
                Measurement(f"{kind} errors", amount, "", 0.0),
            )
    yield from _too_many(
        component, seen, f"{component} link", limits, "PcieErrors", "corrected errors of the link", "link errors"
    )


def _replays(device: PcieDevice, seen: Seen, limits: PcielinkParameters) -> Iterable[Finding]:
    yield from _too_many(
        device.component, seen, f"{device.component} replays", limits, "PcieReplays", "PCIe replays", "replays"
    )


def _too_many(
    component: str, seen: Seen, name: str, limits: PcielinkParameters, reason: str, what: str, label: str
) -> Iterable[Finding]:
    series = seen.get(name)
    if series is None:
        return
    rise = series.rise(limits.replays_window_s)
    minutes = max(1.0, rise.over_s / 60.0)
    if rise.amount > limits.max_replays_per_minute * minutes:
        yield _finding(
            component,
            Verdict.WARN,
            reason,
            f"{rise.amount:.0f} {what} within {max(rise.over_s, 1.0):.0f} s (limit {limits.max_replays_per_minute:g} "
            "per minute): reseat card, riser or cable",
            FaultClass.CONTACT,
            Measurement(label, rise.amount / minutes, "/min", limits.max_replays_per_minute),
        )


def _bridge_errors(reading: PciReading, seen: Seen, limits: PcielinkParameters) -> Iterable[Finding]:
    devices = {device.component for device in reading.devices}
    counted = any(_rise(seen, f"{name} fatal", limits.errors_window_s) > SOME for name in reading.errors)
    for component, errors in reading.errors.items():
        if component not in devices:
            yield from _errors(component, errors, seen, limits)
        # from a device that has disappeared, or that this check ignores
        amount = _rise(seen, f"{component} below fatal", limits.errors_window_s)
        if amount > SOME and not counted:
            yield _finding(
                component,
                Verdict.FAIL,
                "PcieFatal",
                f"{ceil(amount)} fatal PCIe errors below this root port within {limits.errors_window_s / 60:.0f} min, "
                "which no remaining device counts: see the kernel log, then reboot the node",
                FaultClass.REBOOT,
                Measurement("fatal errors", amount, "", 0.0),
            )


def _judge_missing(devices: Sequence[PcieDevice], seen: Seen, now: float) -> Iterable[Finding]:
    there = {device.address for device in devices}
    for name, series in seen.items():
        component, _, address = name.partition(" present ")
        if not address or address in there:
            continue
        missing_s = now - series.points[-1][0]
        yield _finding(
            component,
            Verdict.WARN if missing_s < GONE_S else Verdict.FAIL,
            "DeviceGone",
            f"{address} has been off the PCI bus for {missing_s:.0f} s: see the kernel log; reboot, then reseat it",
            FaultClass.REBOOT,
            Measurement("missing", missing_s, "s", GONE_S),
        )


def _sound(device: PcieDevice, seen: Seen, limits: PcielinkParameters) -> list[Finding]:
    link = next(iter(device.links), None)
    if device.asleep:
        return [_finding(device.component, Verdict.PASS, "Asleep", "powered down to save energy")]
    if link is None or link.lanes is None or link.gt_per_s is None:
        return []
    measured = [
        Measurement("lanes", link.lanes, "", link.best_lanes),
        Measurement("speed", link.gt_per_s, "GT/s", link.best_gt_per_s),
    ]
    for label, name in (("link errors", "link"), ("replays", "replays")):
        if (series := seen.get(f"{device.component} {name}")) is not None:
            rise = series.rise(limits.replays_window_s)
            minutes = max(1.0, rise.over_s / 60.0)
            measured.append(Measurement(label, rise.amount / minutes, "/min", limits.max_replays_per_minute))
    message = f"x{link.lanes} at {link.gt_per_s:g} GT/s"
    return [_finding(device.component, Verdict.PASS, "Ok", message, FaultClass.NONE, *measured)]


def _merge(findings: list[Finding]) -> list[Finding]:
    """Drop replays if AER errors, which include them, are reported."""
    reasons = {finding.reason for finding in findings}
    return [finding for finding in findings if finding.reason != "PcieReplays" or "PcieErrors" not in reasons]


def _rise(seen: Seen, name: str, window_s: float) -> float:
    series = seen.get(name)
    return series.rise(window_s).amount if series else 0.0


def _finding(
    component: str,
    verdict: Verdict,
    reason: str,
    message: str,
    fault_class: FaultClass = FaultClass.NONE,
    *measured: Measurement,
) -> Finding:
    return Finding(
        component=component,
        verdict=verdict,
        reason=reason,
        message=shorten(message),
        fault_class=fault_class,
        measurements=measured,
    )
