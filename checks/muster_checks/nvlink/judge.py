"""Judges the states, speeds and error counters of NVLinks.

A link that is down is a fault if it must be up: on boards that use all their links (models.yaml), or if it was up
before. Cards joined by bridges have as many links up as their bridges connect. The only GPU of a node may have no peer
to link with (a part of a board in a virtual machine), so a board whose links are all down there warns. If a virtual
machine has several GPUs of a board without
switches, all of them miss the links to the GPUs elsewhere. A GPU in MIG mode does not use its links; on Ampere boards
they go down, and so do the links of its neighbours. Counters are judged by their increase.
Source of the advice: NVIDIA Health Validation, NVLink checks (no inactive link is allowed; reset the GPU, then restart
the system, then request service).
"""

from collections.abc import Callable, Mapping, Sequence

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.nvidia.gpu import Gpu, GpuReading, NvLink
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread
from muster_checks.nvidia.models import GpuModel
from muster_checks.nvlink import NvlinkParameters

NOTHING = "no GPU on this node uses NVLinks"
COUNTERS = ("replay", "recovery", "recovery_failed", "crc")
CRC_WINDOW_S, HOUR_S, DAY_S = 600.0, 3600.0, 86_400.0
# NVML reports 26,562 MB/s where the datasheet says 25 GB/s
LEAST_SHARE_OF_SPEED = 0.9


def counters(reading: GpuReading) -> dict[str, float]:
    """Error counters by GPU and link; by GPU, the links that are up, as bits of one number."""
    values: dict[str, float] = {}
    for gpu in reading.gpus:
        if gpu.lost or not gpu.nvlinks:
            continue
        values[f"{gpu.component} up"] = float(sum(1 << link.link for link in gpu.nvlinks if link.active))
        for link in gpu.nvlinks:
            for name in COUNTERS:
                if (value := getattr(link, name)) is not None:
                    values[f"{gpu.component} {link.link} {name}"] = float(value)
    return values


def judge(
    reading: GpuReading, series: Mapping[str, CounterSeries], models: ModelTable[GpuModel], limits: NvlinkParameters
) -> list[Finding]:
    node = _LinkPeers(reading, series, models)
    return judge_each(reading, lambda gpu: _judge(gpu, node, limits), NOTHING)


class _LinkPeers:
    """The GPUs and history with which the links of one GPU are compared."""

    def __init__(self, reading: GpuReading, series: Mapping[str, CounterSeries], models: ModelTable[GpuModel]) -> None:
        self.series = series
        self.gpus = [gpu for gpu in reading.gpus if not gpu.lost]
        self.alone = len(reading.gpus) < 2
        self.any_up = any(_up(gpu) for gpu in self.gpus)
        self.any_mig = any(gpu.mig for gpu in self.gpus)
        self._models = models

    def model(self, gpu: Gpu) -> GpuModel | None:
        return None if gpu.name is None else self._models.of(gpu.name)

    def was_up(self, gpu: Gpu) -> set[int]:
        """The links of ``gpu`` that were up in any reading of the last days."""
        series, seen = self.series.get(f"{gpu.component} up"), 0
        for _, mask in () if series is None else series.points:
            seen |= int(mask)
        return {link for link in range(seen.bit_length()) if seen >> link & 1}

    def complete(self, gpu: Gpu) -> bool:
        """Whether all peers of ``gpu`` are on this node: a switch, or GPUs of which one has all links up."""
        equals = [other for other in self.gpus if other.name == gpu.name and other.nvlinks]
        switched = any(link.remote == "switch" for other in equals for link in _up(other))
        return switched or any(len(_up(other)) == len(other.nvlinks or ()) for other in equals)

    def equals_up(self, gpu: Gpu) -> int:
        """The highest number of links up on a GPU of the same model."""
        return max((len(_up(other)) for other in self.gpus if other.name == gpu.name), default=0)


def _up(gpu: Gpu) -> list[NvLink]:
    return [link for link in gpu.nvlinks or () if link.active]


def _judge(gpu: Gpu, node: _LinkPeers, limits: NvlinkParameters) -> list[Finding]:
    findings = judge_unread(gpu, "nvlink")
    if not gpu.nvlinks:
        return findings
    up, measured = _up(gpu), _measurements(gpu, node)
    findings += _states(gpu, node, measured)
    findings += _errors(gpu, node, limits, measured)
    slow = _slow(gpu, node)
    if slow:
        message = (
            f"{_name_links(slow)} slower than other links or than expected: see the check dmesg, then reset the GPU"
        )
        findings.append(gpu_finding(gpu, Verdict.WARN, "LinkSlow", message, measured))
    if not findings and up:
        findings.append(gpu_finding(gpu, Verdict.PASS, "Ok", f"{len(up)} links up", measured))
    return findings


def _states(gpu: Gpu, node: _LinkPeers, measured: Sequence[Measurement]) -> list[Finding]:
    up = {link.link for link in _up(gpu)}
    down = [link.link for link in gpu.nvlinks or () if link.active is False]
    fell = sorted(set(down) & node.was_up(gpu))
    model = node.model(gpu)
    fixed = model is not None and bool(model.nvlinks)
    if gpu.mig or (down and node.any_mig and not any(link.remote == "switch" for link in _up(gpu))):
        return []
    if fell:
        message = f"{_name_links(fell)} went down: see the check dmesg, then reset the GPU"
        return [gpu_finding(gpu, Verdict.FAIL, "LinkDown", message, measured, FaultClass.RESET)]
    if not down or (node.alone and not up and not fixed):
        return []
    if fixed and node.any_up and not node.complete(gpu):
        message = (
            f"{_name_links(down)} down, as on other GPUs: check whether their peers are in another virtual machine"
        )
        return [gpu_finding(gpu, Verdict.WARN, "LinksLeadElsewhere", message, measured)]
    if fixed and node.any_up:
        message = f"{_name_links(down)} down, but the board uses all {model.nvlinks if model else 0}: reset the GPU"
        return [gpu_finding(gpu, Verdict.FAIL, "LinkInactive", message, measured, FaultClass.RESET)]
    if fixed:
        message = "no NVLink is up on any GPU: check that the fabric manager is running, and see the check gpufabric"
        if node.alone:
            message += "; normal for a virtual machine with one GPU of a board"
        return [gpu_finding(gpu, Verdict.WARN, "NoLinkUp", message, measured)]
    if len(up) < node.equals_up(gpu):
        message = f"{len(up)} links up, {node.equals_up(gpu)} on other GPUs of this model: check its bridge"
        return [gpu_finding(gpu, Verdict.WARN, "FewerLinksThanEquals", message, measured)]
    return []


def _errors(gpu: Gpu, node: _LinkPeers, limits: NvlinkParameters, measured: Sequence[Measurement]) -> list[Finding]:
    def rising(counter: str, amount: Callable[[CounterSeries], float], least: float) -> dict[int, float]:
        found_here: dict[int, float] = {}
        for link in gpu.nvlinks or ():
            series = node.series.get(f"{gpu.component} {link.link} {counter}")
            if series is not None and (value := amount(series)) >= least:
                found_here[link.link] = value
        return found_here

    findings = []
    failed = rising("recovery_failed", lambda series: series.rise(DAY_S).amount, 1)
    if failed:
        message = f"{_name_links(failed)} could not be retrained in the last day: reset the GPU"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "LinkRecoveryFailed", message, measured, FaultClass.RESET))
    recovered = rising("recovery", lambda series: series.rise(DAY_S).amount, 1)
    if recovered:
        often = max(recovered.values()) >= limits.max_recoveries_per_day
        message = f"{_name_links(recovered)} retrained up to {max(recovered.values()):.0f} times in the last day"
        advice = f" (FAIL from {limits.max_recoveries_per_day})" if not often else ": reset the GPU"
        verdict, fault_class = (Verdict.FAIL, FaultClass.RESET) if often else (Verdict.WARN, FaultClass.NONE)
        findings.append(gpu_finding(gpu, verdict, "LinkRecovery", message + advice, measured, fault_class))
    crc = rising("crc", lambda series: series.rise(CRC_WINDOW_S).per(1.0), limits.max_crc_per_s)
    if crc:
        message = (
            f"{_name_links(crc)} with up to {max(crc.values()):.0f} CRC errors a second, limit {limits.max_crc_per_s:g}"
        )
        findings.append(
            gpu_finding(gpu, Verdict.FAIL, "LinkCrc", f"{message}: reset the GPU", measured, FaultClass.RESET)
        )
    replays = rising("replay", lambda series: series.rise(HOUR_S).amount, limits.max_replays_per_hour + 1)
    if replays:
        message = f"{_name_links(replays)} with up to {max(replays.values()):.0f} replays in the last hour"
        message += f", limit {limits.max_replays_per_hour}"
        findings.append(gpu_finding(gpu, Verdict.WARN, "LinkReplays", message, measured))
    noisy = {
        link.link: link.effective_ber
        for link in gpu.nvlinks or ()
        if link.effective_ber is not None and link.effective_ber > limits.max_effective_ber
    }
    if noisy:
        message = f"{_name_links(noisy)} with a bit error rate up to {max(noisy.values()):.1e}"
        message += f", limit {limits.max_effective_ber:g}"
        findings.append(gpu_finding(gpu, Verdict.WARN, "LinkBitErrors", message, measured))
    return findings


def _slow(gpu: Gpu, node: _LinkPeers) -> list[int]:
    speeds = {link.link: link.speed_mb_per_s for link in _up(gpu) if link.speed_mb_per_s}
    model = node.model(gpu)
    best = max(speeds.values(), default=0.0)
    nominal = best if model is None or model.nvlink_gb_per_s is None else model.nvlink_gb_per_s * 1000
    return [link for link, speed in speeds.items() if speed < LEAST_SHARE_OF_SPEED * max(best, nominal)]


def _name_links(links: "Sequence[int] | Mapping[int, float]") -> str:
    names = sorted(links)
    listed = ", ".join(str(link) for link in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"link{'s' if len(names) > 1 else ''} {listed}"


def _measurements(gpu: Gpu, node: _LinkPeers) -> list[Measurement]:
    model = node.model(gpu)
    measured = [Measurement("links_up", len(_up(gpu)), "", None if model is None else model.nvlinks)]
    for counter in ("replay", "recovery", "crc"):
        counts = [value for link in gpu.nvlinks or () if (value := getattr(link, counter)) is not None]
        if counts:
            measured.append(Measurement(f"{counter}_errors_total", sum(counts), ""))
    bers = [link.effective_ber for link in gpu.nvlinks or () if link.effective_ber is not None]
    return [*measured, Measurement("effective_ber_max", max(bers), "")] if bers else measured
