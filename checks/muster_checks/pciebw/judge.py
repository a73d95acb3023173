"""Judges the bandwidth between the host and each accelerator. Pure: figures in, findings out."""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.hardware.siblings import share_of_others
from muster_checks.pciebw.bandwidth import Bandwidth, HostLink

UNKNOWN_WAY = HostLink()


class PciebwLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Below a ``min_…`` it fails, below a ``warn_…`` it warns. Shares are from 0 to 1."""

    min_bandwidth_gb_per_s: float
    min_ipu_bandwidth_gb_per_s: float
    min_share_of_link: float
    warn_share_of_link: float
    min_share_of_others: float
    warn_share_of_others: float


class _Bound(msgspec.Struct, frozen=True):
    verdict: Verdict
    gb_per_s: float
    what: str


def judge(samples: Sequence[Bandwidth], ways: Mapping[str, HostLink], limits: PciebwLimits) -> list[Finding]:
    """One finding per sample. ``ways``: by component."""
    shares_to = _shares(samples, ways, {s.component: s.to_device_gb_per_s for s in samples})
    shares_from = _shares(samples, ways, {s.component: s.from_device_gb_per_s for s in samples})
    return [
        _judge_one(
            sample,
            ways.get(sample.component, UNKNOWN_WAY),
            limits,
            shares_to.get(sample.component),
            shares_from.get(sample.component),
        )
        for sample in samples
    ]


def _judge_one(
    sample: Bandwidth, way: HostLink, limits: PciebwLimits, share_to: float | None, share_from: float | None
) -> Finding:
    directions = (
        ("to device", sample.to_device_gb_per_s, way.expected_to_device_gb_per_s, share_to),
        ("from device", sample.from_device_gb_per_s, way.expected_from_device_gb_per_s, share_from),
    )
    measurements, broken = [], []
    for name, value, expected, share in directions:
        if value is None:
            continue
        bounds = _bounds(_floor(sample, limits), value, way, limits, expected, share)
        floor = max(bound.gb_per_s for bound in bounds if bound.verdict is Verdict.FAIL)
        measurements.append(Measurement(name.replace(" ", "_"), round(value, 2), "GB/s", round(floor, 2)))
        broken += [(bound, name, value) for bound in bounds if value < bound.gb_per_s]
    if not measurements:
        return _finding(sample, Verdict.UNKNOWN, "NotMeasured", sample.trouble or "no bandwidth was measured")
    if not broken:
        return _finding(sample, Verdict.PASS, "Measured", _figures(directions), measurements)
    worst = max(broken, key=lambda one: (one[0].verdict is Verdict.FAIL, one[0].gb_per_s - one[2]))
    bound, name, value = worst
    figure = f"{name} {value:.1f} GB/s, below {bound.gb_per_s:.1f} ({bound.what})"
    if way.busy:
        return _finding(sample, Verdict.UNKNOWN, "InUse", f"{figure}; not conclusive: {way.busy}", measurements)
    advice = "check the link's speed and width (lspci -vv), reseat or move the card"
    fault_class = _asks(sample) if bound.verdict is Verdict.FAIL else FaultClass.NONE
    return _finding(sample, bound.verdict, "LowBandwidth", f"{figure}; {advice}", measurements, fault_class)


def _is_ipu(sample: Bandwidth) -> bool:
    return sample.component.startswith("ipu/")


def _asks(sample: Bandwidth) -> FaultClass:
    # a slow IPU is kept out of partitions; its host can serve the others
    return FaultClass.QUARANTINE if _is_ipu(sample) else FaultClass.CONTACT


def _floor(sample: Bandwidth, limits: PciebwLimits) -> _Bound:
    if _is_ipu(sample):
        return _Bound(Verdict.FAIL, limits.min_ipu_bandwidth_gb_per_s, "min_ipu_bandwidth_gb_per_s")
    return _Bound(Verdict.FAIL, limits.min_bandwidth_gb_per_s, "min_bandwidth_gb_per_s")


def _bounds(
    floor: _Bound, value: float, way: HostLink, limits: PciebwLimits, expected: float | None, share: float | None
) -> list[_Bound]:
    bounds = [floor]
    if way.link_gb_per_s is not None:
        link = way.link_gb_per_s
        # four lanes of PCIe 3.0 carry at most 3.9 GB/s, which is not the card's fault
        if floor.gb_per_s > limits.warn_share_of_link * link:
            bounds = [_Bound(Verdict.FAIL, 0.0, floor.what)]
        for verdict, part in ((Verdict.FAIL, limits.min_share_of_link), (Verdict.WARN, limits.warn_share_of_link)):
            bounds.append(_Bound(verdict, part * link, f"{part:.0%} of the {link:.1f} that its PCIe links carry"))
    if expected is not None:
        bounds.append(_Bound(Verdict.WARN, expected, f"expected of {way.name}"))
    if share is not None and share > 0:
        others = value / share
        for verdict, part in ((Verdict.FAIL, limits.min_share_of_others), (Verdict.WARN, limits.warn_share_of_others)):
            bounds.append(_Bound(verdict, part * others, f"{part:.0%} of its siblings' {others:.1f}"))
    return bounds


def _shares(
    samples: Sequence[Bandwidth], ways: Mapping[str, HostLink], values: Mapping[str, float | None]
) -> dict[str, float]:
    """Each value as a share of the median of its siblings: same kind and name, slots of the same speed and width."""
    groups: dict[tuple[str, str, float | None], dict[str, float]] = {}
    for sample in samples:
        value = values[sample.component]
        if value is not None:
            kind = sample.component.partition("/")[0]
            way = ways.get(sample.component, UNKNOWN_WAY)
            groups.setdefault((kind, way.name, way.link_gb_per_s), {})[sample.component] = value
    return {component: share for group in groups.values() for component, share in share_of_others(group).items()}


def _figures(directions: Sequence[tuple[str, float | None, float | None, float | None]]) -> str:
    return ", ".join(f"{name} {value:.1f} GB/s" for name, value, _, _ in directions if value is not None)


def _finding(
    sample: Bandwidth,
    verdict: Verdict,
    reason: str,
    message: str,
    measurements: Sequence[Measurement] = (),
    fault_class: FaultClass = FaultClass.NONE,
) -> Finding:
    return Finding(
        component=sample.component,
        verdict=verdict,
        reason=reason,
        message=message,
        fault_class=fault_class,
        measurements=tuple(measurements),
    )
