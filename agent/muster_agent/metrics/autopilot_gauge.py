"""Autopilot's gauge, so that its dashboards and alerts keep working.

Autopilot numbers GPUs from 0 in the order of their PCI addresses, as nvidia-smi does; so does the label ``deviceid``.
"""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily

from muster_agent.metrics.measurements import MeasuredComponent, label
from muster_checks.base.vocabulary import Verdict

NAME = "autopilot_health_checks"
LABELS = ("health", "node", "cpumodel", "gpumodel", "deviceid")
DEVICES_LIMIT = 64  # series per check
_NAMES = {"gpupower": "power-slowdown"}  # Autopilot's name
_NONE = frozenset({"iperf"})  # without a value in Autopilot
_BY_GPU = frozenset({"pciebw", "remapped", "gpupower"})
_BANDWIDTHS = ("to_device", "from_device")  # Autopilot measures host to device
_JUDGED = frozenset({Verdict.PASS, Verdict.WARN, Verdict.FAIL})


def autopilot_family(
    checks: Iterable[tuple[str, Verdict, Sequence[MeasuredComponent]]], node: str, hardware: Mapping[str, str]
) -> GaugeMetricFamily:
    """For pciebw GB/s of each device, otherwise 0 for good or 1 for bad; no series if the verdict is not known.

    checks: name, verdict and components of the last run
    """
    checks = list(checks)
    gauge = GaugeMetricFamily(NAME, "Autopilot's gauge: 0 good, 1 bad (GB/s for pciebw)", labels=LABELS)
    numbers = gpu_numbers(component.name for _, _, components in checks for component in components)
    for name, verdict, components in checks:
        if name in _NONE:
            continue
        values = _values(name, verdict, components, numbers)
        for device, value in list(values.items())[:DEVICES_LIMIT]:
            labels = [_NAMES.get(name, name), node, hardware.get("cpumodel", ""), hardware.get("gpumodel", ""), device]
            gauge.add_metric(labels, value)
    return gauge


def gpu_numbers(components: Iterable[str]) -> dict[str, str]:
    """The number of each ``gpu/ADDRESS``, the same for all checks, also if a check has not seen every GPU."""
    return {name: str(number) for number, name in enumerate(sorted({c for c in components if _is_gpu(c)}))}


def _is_gpu(component: str) -> bool:
    # `gpu/0000:3b:00.0`, but neither a MIG slice nor an unreadable address
    kind, _, address = component.partition("/")
    return kind == "gpu" and address.count(":") == 2 and "/" not in address


def _values(
    name: str, verdict: Verdict, components: Sequence[MeasuredComponent], numbers: Mapping[str, str]
) -> dict[str, float]:
    """By deviceid."""
    if name in _BY_GPU:
        values: dict[str, float] = {}
        for component in components:
            value = _bandwidth(component) if name == "pciebw" else _bad(component.verdict)
            if value is not None and component.verdict in _JUDGED and component.name != "host":
                values[numbers.get(component.name, label(component.name))] = value
        return values
    if name == "ping":
        return _pings(components)
    bad = _bad(verdict)
    return {} if bad is None else {"": bad}


def _pings(components: Sequence[MeasuredComponent]) -> dict[str, float]:
    values: dict[str, float] = {}
    for component in components:
        kind, _, peer = component.name.partition("/")
        if kind == "peer" and component.verdict in _JUDGED:
            values[label(peer)] = 1.0 if component.findings[0].reason == "NoAnswer" else 0.0
        elif component.name == "host" and component.verdict is Verdict.FAIL:
            values[""] = 1.0  # in this case no peer is bad, and no other series shows the failure
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _bad(verdict: Verdict) -> float | None:
    return (1.0 if verdict is Verdict.FAIL else 0.0) if verdict in _JUDGED else None


def _bandwidth(component: MeasuredComponent) -> float | None:
    figures = {m.name: m.value for finding in component.findings for m in finding.measurements if m.unit == "GB/s"}
    return next((figures[name] for name in _BANDWIDTHS if name in figures), None)
