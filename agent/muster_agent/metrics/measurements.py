"""Measurements of checks as metric families in base units, with one family per unit.

The number of series is bounded, because a node may have thousands of components, and a fleet 15,000 nodes.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
from prometheus_client.core import GaugeMetricFamily

from muster_checks.base.vocabulary import Finding, Measurement, Verdict, severity

MEASURED_LIMIT = 1000  # series of measurements per node, the worst components first
COMPONENT_LIMIT = 500  # series of component verdicts per node
LABEL_LIMIT = 128  # characters of a component, a reason, a measurement or a unit

PREFIX = "muster_agent_measured"
LABELS = ("check", "component", "measurement")
OTHER = "other"

FAMILIES = {
    "": "Measurements of the last run of each check: counts and other dimensionless numbers",
    "ratio": "As muster_agent_measured: ratios",
    "seconds": "As muster_agent_measured: durations",
    "celsius": "As muster_agent_measured: temperatures",
    "bytes": "As muster_agent_measured: sizes",
    "bytes_per_second": "As muster_agent_measured: bandwidths",
    "transfers_per_second": "As muster_agent_measured: transfer rates of PCIe links (1 GT/s is 1e9)",
    "flops": "As muster_agent_measured: floating-point operations per second",
    "per_second": "As muster_agent_measured: events per second",
    "hertz": "As muster_agent_measured: clock frequencies",
    "watts": "As muster_agent_measured: power",
    "volts": "As muster_agent_measured: voltages",
    "amperes": "As muster_agent_measured: currents",
    OTHER: "As muster_agent_measured: values of plug-ins and sensors in other units, unconverted",
}
"""Help text by suffix of the family. The family ``other`` has the additional label ``unit``."""

_COUNTED = ("", "errors", "CPUs", "processes", "events", "pages", "disks", "IPUs", "channels", "lanes", "entries")
_SCALES: dict[str, dict[str, float]] = {
    "": dict.fromkeys(_COUNTED, 1.0),
    "ratio": {"%": 0.01},
    "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "celsius": {"°C": 1.0, "C": 1.0, "degrees C": 1.0},
    "bytes": {"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    | {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    "bytes_per_second": {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
    | {"bit/s": 1 / 8, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6, "Gb/s": 125e6},
    "transfers_per_second": {"GT/s": 1e9},
    "flops": {"GFLOP/s": 1e9},
    "per_second": {"/s": 1.0, "/min": 1 / 60, "1/h": 1 / 3600},
    "hertz": {"Hz": 1.0, "MHz": 1e6, "GHz": 1e9},
    "watts": {"W": 1.0, "mW": 1e-3, "Watts": 1.0},
    "volts": {"V": 1.0, "mV": 1e-3, "Volts": 1.0},
    "amperes": {"A": 1.0, "mA": 1e-3, "Amps": 1.0},
}
UNITS = {unit: (suffix, factor) for suffix, units in _SCALES.items() for unit, factor in units.items()}
"""Family and factor by unit of the measurement."""


class MeasuredComponent(msgspec.Struct, frozen=True):
    """A component of a check: its worst verdict, and its findings, the worst first."""

    check: str
    name: str
    verdict: Verdict
    findings: Sequence[Finding]


def measured_components(check: str, findings: Iterable[Finding]) -> list[MeasuredComponent]:
    """``findings`` grouped by component, in order of first appearance."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.component, []).append(finding)
    found = []
    for name, on_it in by_name.items():
        on_it.sort(key=lambda finding: -severity(finding.verdict))
        found.append(MeasuredComponent(check, name, on_it[0].verdict, on_it))
    return found


def measurement_families(every: Iterable[MeasuredComponent]) -> Iterator[GaugeMetricFamily]:
    """Verdicts and measurements of ``every``, the worst first, and the number of series beyond the limits."""
    verdicts = GaugeMetricFamily(
        "muster_agent_component_verdict",
        "1 for the current verdict of a component",
        labels=["check", "component", "verdict"],
    )
    ranked = sorted(every, key=lambda component: -severity(component.verdict))
    # truncated names may be equal
    shown = {(c.check, label(c.name), c.verdict.value): None for c in ranked[:COMPONENT_LIMIT]}
    for labels in shown:
        verdicts.add_metric(labels, 1.0)
    measured = {
        suffix: GaugeMetricFamily(
            f"{PREFIX}_{suffix}" if suffix else PREFIX, text, labels=[*LABELS, "unit"] if suffix == OTHER else LABELS
        )
        for suffix, text in FAMILIES.items()
    }
    seen: set[tuple[str, ...]] = set()
    left_out = 0
    for component in ranked:
        if len(seen) >= MEASURED_LIMIT:
            left_out += len(_measurements(component.findings))
            continue
        for measurement in _measurements(component.findings):
            suffix, factor = UNITS.get(measurement.unit, (OTHER, 1.0))
            place = [component.check, label(component.name), label(measurement.name)]
            if suffix == OTHER:
                place.append(label(measurement.unit))
            key = (suffix, *place)
            if key in seen:
                continue
            if len(seen) >= MEASURED_LIMIT:
                left_out += 1
                continue
            seen.add(key)
            measured[suffix].add_metric(place, measurement.value * factor)
    yield verdicts
    yield from measured.values()
    rest = GaugeMetricFamily(
        "muster_agent_series_left_out",
        "Series omitted because of the limits, from components with the best verdicts",
        labels=["family"],
    )
    rest.add_metric(["muster_agent_component_verdict"], max(0, len(ranked) - COMPONENT_LIMIT))
    rest.add_metric([PREFIX], left_out)
    yield rest


def _measurements(findings: Sequence[Finding]) -> Collection[Measurement]:
    """Each measurement once, although several findings may carry it: Prometheus rejects a scrape with duplicate
    series."""
    found: dict[tuple[str, str], Measurement] = {}
    for finding in findings:
        for measurement in finding.measurements:
            if math.isfinite(measurement.value):
                found.setdefault((measurement.name, measurement.unit), measurement)
    return found.values()


def label(text: str) -> str:
    """``text`` as a label of limited length and valid UTF-8; invalid UTF-8 would fail the whole scrape."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LABEL_LIMIT else text[: LABEL_LIMIT - 1] + "…"
