"""Judges links, traffic, sync and partitions. ``components`` maps device ids to components."""

import re
from collections.abc import Mapping, Sequence
from statistics import median

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.graphcore import UNNAMED
from muster_checks.graphcore.models import IpuModel
from muster_checks.graphcore.tools.host_sync import HostSync
from muster_checks.graphcore.tools.ipu_traffic import Transfer
from muster_checks.graphcore.tools.links import IpuLinkChannel, IpuLinks
from muster_checks.graphcore.tools.partitions import ACTIVE, ListedPartition

Components = Mapping[str, str]
_IN_A_REASON = re.compile(r"\w{1,40}", re.ASCII)


def name_component(components: Components, device_id: str) -> str:
    return components.get(device_id) or (f"ipu/{device_id}" if device_id else UNNAMED)


def judge_links(links: IpuLinks, expected: IpuModel | None, components: Components) -> list[Finding]:
    """A finding for each bad channel, and a PASS for each IPU without one."""
    findings: list[Finding] = []
    usual = _median([speed for one in links.channels if (speed := _line_rate(one)) is not None])
    by_ipu: dict[str, list[IpuLinkChannel]] = {}
    for one in links.channels:
        by_ipu.setdefault(name_component(components, one.from_id), []).append(one)
    for ipu, channels in by_ipu.items():
        judged = [_channel(ipu, one, expected, usual, name_component(components, one.to_id)) for one in channels]
        found = [finding for finding in judged if finding is not None]
        findings += found or [_pass(ipu, "LinksTrained", f"{len(channels)} channels trained", _lowest(channels))]
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        return findings
    return findings + _overall(links)


def _overall(links: IpuLinks) -> list[Finding]:
    """The tool's overall result, for output that names no channel."""
    if links.overall == "failed":
        message = "gc-links: the overall result is failed, but it names no channel; run gc-links manually"
        return [_fail(UNNAMED, "IpuLinksFailed", message)]
    if links.channels:
        return []
    if links.overall != "passed":
        return [_unknown(UNNAMED, "LinksNotTested", "gc-links prints no result")]
    message = (
        "links were trained with the partition; gc-links tested nothing" if links.trained_before else "links passed"
    )
    return [_pass(UNNAMED, "LinksTrained", message)]


def _line_rate(one: IpuLinkChannel) -> float | None:
    return None if one.status != "passed" or one.gen is None or one.lanes is None else one.gen * one.lanes


def _median(values: Sequence[float]) -> float | None:
    """Needs at least three values: with fewer, none can be called an outlier."""
    return median(values) if len(values) > 2 else None


def _channel(ipu: str, one: IpuLinkChannel, expected: IpuModel | None, usual: float | None, far: str) -> Finding | None:
    link = f"IPU-Link {one.from_channel or '?'} of {ipu} to {one.to_channel or '?'} of {far}"
    state = f"gen {_number(one.gen)}, {_number(one.lanes)} lanes"
    named = _tag(one.from_channel)
    measured = _lowest([one])
    if one.status == "failed":
        message = f"{link} did not train ({state}): check its cable, and keep both IPUs out of use"
        return _fail(ipu, f"IpuLinkFailed{named}", message, measured)
    if one.status != "passed":
        return _unknown(ipu, f"IpuLinkNotRead{named}", f"{link}: status {one.status!r}, expected passed or failed")
    below = expected is not None and (
        _is_less(one.gen, expected.ipu_link_gen) or _is_less(one.lanes, expected.ipu_link_lanes)
    )
    if below or _is_less(_line_rate(one), usual):
        return Finding(
            component=ipu,
            verdict=Verdict.WARN,
            reason=f"IpuLinkDegraded{named}",
            message=f"{link} trained at {state}: below {'the expected values' if below else 'the other channels'}",
            measurements=measured,
        )
    return None


def judge_traffic(
    transfers: Sequence[Transfer], expected: IpuModel | None, min_share: float, components: Components
) -> list[Finding]:
    """Compares each pair of IPUs with the operator's minimum and with the other pairs.

    Pairs may have different numbers of links between them, so being slower than the others proves nothing: WARN.
    """
    usual = _median([one.gbit_per_s for one in transfers if one.gbit_per_s is not None])
    least = expected.min_ipu_traffic_gbit_per_s if expected else None
    findings: list[Finding] = []
    sound: dict[str, list[float]] = {}
    for one in transfers:
        near, far = name_component(components, one.device0), name_component(components, one.device1)
        way, reason = f"from {near} to {far}", _tag(one.device1)
        if one.errors is not None and one.errors > 0:
            message = f"{one.errors} errors in the data {way}: keep both IPUs out of use, and run gc-links"
            measured = Measurement("ipu_traffic_errors", float(one.errors), "errors", 0.0)
            findings.append(_fail(near, f"IpuTrafficErrors{reason}", message, (measured,)))
        elif one.errors != 0 or one.gbit_per_s is None or one.gbit_per_s < 0:
            findings.append(_unknown(near, f"IpuTrafficNotRead{reason}", f"no bandwidth or error count {way}"))
        elif least is not None and one.gbit_per_s < least:
            message = f"{one.gbit_per_s:.0f} Gbit/s {way}, expected at least {least:.0f}"
            findings.append(_fail(near, f"IpuTrafficSlow{reason}", message, (_speed(one.gbit_per_s, least),)))
        elif usual is not None and one.gbit_per_s < usual * min_share:
            message = f"{one.gbit_per_s:.0f} Gbit/s {way}; the median of all pairs is {usual:.0f}"
            findings.append(
                Finding(
                    component=near,
                    verdict=Verdict.WARN,
                    reason=f"IpuTrafficBelowSiblings{reason}",
                    message=message,
                    measurements=(_speed(one.gbit_per_s, usual * min_share),),
                )
            )
        else:
            sound.setdefault(near, []).append(one.gbit_per_s)
    return findings + [
        _pass(
            near,
            "IpuTraffic",
            f"at least {min(speeds):.0f} Gbit/s to {len(speeds)} IPUs",
            (_speed(min(speeds), least),),
        )
        for near, speeds in sound.items()
    ]


def judge_sync(sync: HostSync, ipu: str) -> Finding:
    measured = () if sync.time_us is None else (Measurement("host_sync", sync.time_us, "us"),)
    if sync.result == "pass":
        return _pass(ipu, "HostSync", "host and IPU synchronise", measured)
    if sync.result in ("fail", "failed"):
        return _fail(ipu, "HostSyncFailed", "gc-hostsynclatencytest: host and IPU do not synchronise", measured)
    return _unknown(ipu, "HostSyncNotRead", f"gc-hostsynclatencytest: result {sync.result!r}, expected pass or fail")


def judge_partitions(partitions: Sequence[ListedPartition], wanted: str) -> list[Finding]:
    """``wanted``: the partition this host uses; empty: all of them.

    A partition is also not ACTIVE while it is being created, and no other state is documented: WARN.
    """
    chosen = [one for one in partitions if wanted in ("", one.name)]
    if wanted and not chosen:
        return [_partition(wanted, Verdict.WARN, "PartitionMissing", "the V-IPU controller has no such partition")]
    return [_judge_partition(one) for one in chosen]


def _judge_partition(one: ListedPartition) -> Finding:
    size = () if one.size is None else (Measurement("partition_size", one.size, "IPUs"),)
    if one.state in ACTIVE:
        return _partition(one.name, Verdict.PASS, "PartitionActive", "partition is ACTIVE", size)
    if not one.state:
        return _partition(one.name, Verdict.UNKNOWN, "PartitionNotRead", "vipu prints no state of this partition", size)
    message = f"partition is {one.state}, expected ACTIVE: its IPUs cannot be used"
    return _partition(one.name, Verdict.WARN, "PartitionNotActive", message, size)


def _partition(
    name: str, verdict: Verdict, reason: str, message: str, measurements: tuple[Measurement, ...] = ()
) -> Finding:
    return Finding(
        component=f"ipu/partition:{name}", verdict=verdict, reason=reason, message=message, measurements=measurements
    )


def _tag(name: str) -> str:
    return f":{name}" if _IN_A_REASON.fullmatch(name) else ""


def _speed(gbit_per_s: float, least: float | None) -> Measurement:
    return Measurement("ipu_traffic", gbit_per_s, "Gbit/s", least)


def _lowest(channels: Sequence[IpuLinkChannel]) -> tuple[Measurement, ...]:
    merits = [one.lowest_fom for one in channels if one.lowest_fom is not None]
    tries = [one.tries for one in channels if one.tries is not None]
    return (
        Measurement("ipu_link_channels", float(len(channels)), "channels"),
        *((Measurement("ipu_link_lowest_figure_of_merit", min(merits), ""),) if merits else ()),
        *((Measurement("ipu_link_most_tries", max(tries), ""),) if tries else ()),
    )


def _is_less(value: float | None, least: float | None) -> bool:
    return value is not None and least is not None and value < least


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _pass(ipu: str, reason: str, message: str, measurements: tuple[Measurement, ...] = ()) -> Finding:
    return Finding(component=ipu, verdict=Verdict.PASS, reason=reason, message=message, measurements=measurements)


def _fail(ipu: str, reason: str, message: str, measurements: tuple[Measurement, ...] = ()) -> Finding:
    return Finding(
        component=ipu,
        verdict=Verdict.FAIL,
        reason=reason,
        message=message,
        fault_class=FaultClass.QUARANTINE,
        measurements=measurements,
    )


def _unknown(ipu: str, reason: str, message: str) -> Finding:
    return Finding(component=ipu, verdict=Verdict.UNKNOWN, reason=reason, message=message)
