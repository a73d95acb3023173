"""What a NUMA node's figures are worth as a verdict: one on what it keeps, one on how fast it is."""

from collections.abc import Sequence

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.hardware.siblings import share_of_others
from muster_checks.membw import MembwParameters
from muster_checks.membw.worker import MemoryReport

LEAST_CPU_SHARE = 0.9  # a thread that had to wait longer measured the others' load, or its container's limit
LEAST_LOCAL_SHARE = 0.95
LIKE = 0.9  # nodes whose memory differs by more are not equipped alike


class NumaSample(msgspec.Struct, frozen=True):
    """One NUMA node. ``report`` is None where it was not measured; then ``reason`` and ``trouble`` say why."""

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
        message = f"{report.patterns} patterns were kept"
        return Finding(component=name, verdict=Verdict.PASS, reason="PatternsKept", message=message)
    text = f"memory does not keep what is written: {report.wrong_chunks} chunks of 1 MiB came back wrong"
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
        # corrected and uncorrected errors name the DIMM, where there is ECC
        message=f"{text}. Take the node out; EDAC or the BMC may name the DIMM",
        fault_class=FaultClass.REPLACE,
        measurements=(Measurement("wrong_chunks", report.wrong_chunks, "", 0),),
    )


def _speed(name: str, report: MemoryReport, share: float | None, limits: MembwParameters) -> Finding:
    text = f"copies {report.gb_per_s:.1f} GB/s with {report.threads} threads"
    verdict, reason, fault_class = Verdict.PASS, "Bandwidth", FaultClass.NONE
    if limits.min_bandwidth_gb_per_s is not None and report.gb_per_s < limits.min_bandwidth_gb_per_s:
        verdict, reason, fault_class = Verdict.FAIL, "LowBandwidth", FaultClass.CONTACT
        text += f", expected {limits.min_bandwidth_gb_per_s:g}: are all DIMMs there and at speed (dmidecode -t memory)?"
    elif share is not None and share < limits.min_share_of_siblings:
        # never more than a warning: how many channels of each node are filled is not known here
        verdict, reason = Verdict.WARN, "SlowerThanSiblings"
        text += f", {share:.0%} of the NUMA nodes with as much memory: is a DIMM missing or slow (dmidecode -t memory)?"
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
    """Why the bandwidth says nothing; empty where it does."""
    if report.cpu_share < LEAST_CPU_SHARE:
        return (
            f"a thread had a CPU for {report.cpu_share:.0%} of the time: the node is busy, or a CPU limit is in force"
        )
    if report.local_share is not None and report.local_share < LEAST_LOCAL_SHARE:
        return (
            f"only {report.local_share:.0%} of the memory could be had at this NUMA node; mbind may need CAP_SYS_NICE"
        )
    return ""


def _are_similar(one: NumaSample, other: NumaSample) -> bool:
    smaller, larger = sorted((one.memory_bytes, other.memory_bytes))
    return smaller >= LIKE * larger
