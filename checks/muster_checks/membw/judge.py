"""Judges each NUMA node twice: whether its memory keeps its contents, and how fast it is."""

from collections.abc import Sequence

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.hardware.siblings import share_of_others
from muster_checks.membw import MembwParameters
from muster_checks.membw.worker import MemoryReport

LEAST_CPU_SHARE = 0.9  # below it, threads waited for a CPU: the figure shows other load, or the container's limit
LEAST_LOCAL_SHARE = 0.95
LIKE = 0.9  # nodes whose memory sizes differ more than this are not equipped alike


class NumaSample(msgspec.Struct, frozen=True):
    """One NUMA node. If it was not measured, ``report`` is None, and ``reason`` and ``trouble`` say why."""

    number: int
    memory_bytes: int
    report: MemoryReport | None = None
    reason: str = ""
    trouble: str = ""
    verdict: Verdict = Verdict.UNKNOWN


def judge(samples: Sequence[NumaSample], limits: MembwParameters) -> list[Finding]:
    findings = []
    speeds = {
        sample: sample.report.gb_per_s
        for sample in samples
        if sample.report and not _describe_disturbance(sample.report)
    }
    for sample in samples:
        name = f"numa/{sample.number}"
        if sample.report is None:
            message = shorten(f"NUMA node {sample.number}: {sample.trouble}")
            findings.append(Finding(component=name, verdict=sample.verdict, reason=sample.reason, message=message))
            continue
        findings.append(_judge_contents(name, sample.report))
        if trouble := _describe_disturbance(sample.report):
            findings.append(Finding(component=name, verdict=Verdict.UNKNOWN, reason="Disturbed", message=trouble))
        else:
            like = {str(other.number): speed for other, speed in speeds.items() if _are_similar(sample, other)}
            findings.append(_speed(name, sample.report, share_of_others(like, 1).get(str(sample.number)), limits))
    return findings


def _judge_contents(name: str, report: MemoryReport) -> Finding:
    if not report.wrong_chunks:
        message = f"{report.patterns} patterns verified"
        return Finding(component=name, verdict=Verdict.PASS, reason="PatternsKept", message=message)
    text = f"memory does not keep its contents: {report.wrong_chunks} chunks of 1 MiB were read back wrong"
    if report.mismatches:
        first = report.mismatches[0]
        bits = first.expected ^ first.actual
        for mismatch in report.mismatches:
            bits |= mismatch.expected ^ mismatch.actual
        where = f"physical 0x{first.physical:x}" if first.physical is not None else f"offset 0x{first.offset:x}"
        text += f"; first at {where}, bits 0x{bits:x} differ (pattern {first.pattern})"
    return Finding(
        component=name,
        verdict=Verdict.FAIL,
        reason="MemoryMismatch",
        # with ECC, corrected and uncorrected errors name the DIMM
        message=f"{text}. Take the node out of service; EDAC or the BMC may name the DIMM",
        fault_class=FaultClass.REPLACE,
        measurements=(Measurement("wrong_chunks", report.wrong_chunks, "", 0),),
    )


def _speed(name: str, report: MemoryReport, share: float | None, limits: MembwParameters) -> Finding:
    text = f"copies {report.gb_per_s:.1f} GB/s with {report.threads} threads"
    verdict, reason, fault_class = Verdict.PASS, "Bandwidth", FaultClass.NONE
    if limits.min_bandwidth_gb_per_s is not None and report.gb_per_s < limits.min_bandwidth_gb_per_s:
        verdict, reason, fault_class = Verdict.FAIL, "LowBandwidth", FaultClass.CONTACT
        text += f", expected {limits.min_bandwidth_gb_per_s:g}: check DIMM count and speed (dmidecode -t memory)"
    elif share is not None and share < limits.min_share_of_siblings:
        # never more than a WARN: the number of filled channels per node is unknown here
        verdict, reason = Verdict.WARN, "SlowerThanSiblings"
        text += f", {share:.0%} of the NUMA nodes with as much memory: check for a missing or slow DIMM (dmidecode)"
    figures = [Measurement("bandwidth", report.gb_per_s, "GB/s", limits.min_bandwidth_gb_per_s)]
    if share is not None:
        figures.append(Measurement("share_of_siblings", share, "", limits.min_share_of_siblings))
    return Finding(
        component=name,
        verdict=verdict,
        reason=reason,
        message=text,
        fault_class=fault_class,
        measurements=tuple(figures),
    )


def _describe_disturbance(report: MemoryReport) -> str:
    """Why the bandwidth figure is meaningless; empty if it is valid."""
    if report.cpu_share < LEAST_CPU_SHARE:
        return f"a thread had a CPU for {report.cpu_share:.0%} of the time: the node is busy, or a CPU limit applies"
    if report.local_share is not None and report.local_share < LEAST_LOCAL_SHARE:
        return f"only {report.local_share:.0%} of the memory is at this NUMA node; mbind may need CAP_SYS_NICE"
    return ""


def _are_similar(one: NumaSample, other: NumaSample) -> bool:
    smaller, larger = sorted((one.memory_bytes, other.memory_bytes))
    return smaller >= LIKE * larger
