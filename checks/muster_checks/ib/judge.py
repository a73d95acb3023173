"""Judges InfiniBand and RoCE ports. Pure: takes readings, earlier readings and limits; returns findings."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import ceil

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, severity, shorten
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.hardware.link_state import GRACE_S, PortLink, describe_down_link, find_best_before, find_lone_odd
from muster_checks.ib import IbParameters
from muster_checks.ib.sysfs import IbPort
from muster_checks.ib.thresholds import CounterRow, ModelRow

MANY_PORTS = 4  # a node with this many InfiniBand ports is expected to use at least one
SOME = 1e-6  # tolerance for "more than zero": a rise cut at the edge of a window is not a whole number

Seen = Mapping[str, CounterSeries]


def counters(ports: Sequence[IbPort]) -> dict[str, float]:
    """The values to remember from a reading, by the names that :func:`judge` looks up."""
    values: dict[str, float] = {}
    for port in ports:
        values |= {f"{port.key} {name}": float(value) for name, value in port.counters.items()}
        if port.state is not None:
            values[f"{port.key} up"] = float(port.active)
        if port.active and port.rate_gb_per_s is not None:
            values[f"{port.key} rate"] = port.rate_gb_per_s
    return values


def judge(
    ports: Sequence[IbPort],
    seen: Seen,
    rows: Sequence[CounterRow],
    models: ModelTable[ModelRow],
    limits: IbParameters,
    *,
    now: float,
    up_for_s: float | None,
) -> list[Finding]:
    """``now``: by the clock of ``seen``; ``up_for_s``: how long the node has been up, if known."""
    links = {
        port.key: PortLink(
            name=port.key,
            group=f"{port.model} {port.layer} {port.number}",
            up=port.active,
            used=bool(port.received or port.counters.get("link_downed")),
        )
        for port in ports
        if port.state is not None
    }
    rates = _rates_of_equals(ports)
    findings: list[Finding] = []
    for port in ports:
        if port.state is None:
            findings.append(_finding(port, Verdict.UNKNOWN, "NotReadable", f"{port.key}: its state cannot be read"))
            continue
        trouble = [*_state(port, links, seen, now, up_for_s), *_counters(port, seen, rows)]
        if port.active:
            trouble += _rate(port, rates, seen, models, limits)
            findings += trouble or [_sound(port, seen, rows, models, limits)]
        else:
            findings += trouble
    findings += _host(ports, limits, up_for_s)
    return findings


def _state(
    port: IbPort, links: Mapping[str, PortLink], seen: Seen, now: float, up_for_s: float | None
) -> Iterable[Finding]:
    if port.layer == "Ethernet" and port.interface:
        return  # the check nic knows whether the interface should be up
    found = describe_down_link(links[port.key], list(links.values()), seen.get(f"{port.key} up"), now, up_for_s)
    if found is not None:
        verdict, why = found
        advice = (
            "the subnet manager has not activated it"
            if "LinkUp" in port.says
            else "check cable, transceiver, switch port"
        )
        yield _finding(port, verdict, "PortDown", f"{port.key} is {port.says}, {why}: {advice}", FaultClass.CONTACT)


def _counters(port: IbPort, seen: Seen, rows: Sequence[CounterRow]) -> Iterable[Finding]:
    for counter, group in groupby(rows, key=lambda row: row.counter):
        series = seen.get(f"{port.key} {counter}")
        if series is None or counter not in port.counters:
            continue
        held = [
            (row, rise.amount) for row in group if (rise := series.rise(row.within_s)).amount > row.more_than + SOME
        ]
        if held:
            row, amount = max(held, key=lambda one: severity(one[0].verdict))
            yield _finding(
                port,
                row.verdict,
                row.reason,
                f"{port.key} {row.says}: {counter} rose by {ceil(amount - SOME)} (limit {row.more_than:g}) within "
                f"{_span(row.within_s)}: {row.advice}",
                row.fault_class,
                Measurement(counter, amount, "", row.more_than),
            )


def _rate(
    port: IbPort,
    rates: Mapping[str, Mapping[str, float]],
    seen: Seen,
    models: ModelTable[ModelRow],
    limits: IbParameters,
) -> Iterable[Finding]:
    rate = port.rate_gb_per_s
    if rate is None:
        yield _finding(port, Verdict.UNKNOWN, "NotReadable", f"{port.key}: its rate cannot be read")
        return
    row = models.of(port.model) or ModelRow("")
    floor = limits.min_rate_gb_per_s or row.min_rate_gb_per_s
    before = find_best_before(seen, f"{port.key} rate", rate)
    common = find_lone_odd(rates[_equals(port)], port.key)
    lanes = f" over {port.lanes} lanes" if port.lanes else ""
    verdict, limit, why = Verdict.PASS, 0.0, ""
    if floor is not None and rate < floor:
        verdict, limit, why = Verdict.FAIL, floor, f"expected at least {floor:g}"
    elif before is not None:
        verdict, limit, why = Verdict.FAIL, before, f"earlier {before:g}"
    elif common is not None and rate < common:
        verdict, limit, why = Verdict.WARN, common, f"all its siblings here run at {common:g}"
    elif row.rate_gb_per_s is not None and rate < row.rate_gb_per_s and port.layer == "InfiniBand":
        verdict, limit, why = Verdict.WARN, row.rate_gb_per_s, f"{row.name} supports {row.rate_gb_per_s:g}"
    if verdict is not Verdict.PASS:
        yield _finding(
            port,
            verdict,
            "LowRate",
            f"{port.key} runs at {rate:g} Gb/s{lanes}, {why}: check cable, transceiver and switch port",
            FaultClass.CONTACT,
            Measurement("rate", rate, "Gb/s", limit),
        )


def _host(ports: Sequence[IbPort], limits: IbParameters, up_for_s: float | None) -> Iterable[Finding]:
    active = sum(port.active for port in ports)
    waiting = up_for_s is not None and up_for_s < GRACE_S
    measured = Measurement("active ports", active, "", limits.expected_ports)
    if any(port.state is None for port in ports):
        return  # an unreadable port may be active
    if limits.expected_ports is not None and active < limits.expected_ports:
        yield Finding(
            component="host",
            verdict=Verdict.WARN if waiting else Verdict.FAIL,
            reason="FewerPorts",
            message=f"{active} of {len(ports)} ports are active, expected {limits.expected_ports}: see which are down",
            fault_class=FaultClass.CONTACT,
            measurements=(measured,),
        )
    elif not active and sum(port.layer == "InfiniBand" for port in ports) >= MANY_PORTS and not waiting:
        yield Finding(
            component="host",
            verdict=Verdict.WARN,
            reason="NoPortActive",
            message=f"none of {len(ports)} InfiniBand ports is active: check cables, switch and subnet manager",
            fault_class=FaultClass.CONTACT,
            measurements=(measured,),
        )


def _sound(
    port: IbPort, seen: Seen, rows: Sequence[CounterRow], models: ModelTable[ModelRow], limits: IbParameters
) -> Finding:
    row = models.of(port.model) or ModelRow("")
    measured = [
        Measurement(
            "rate",
            port.rate_gb_per_s or 0.0,
            "Gb/s",
            limits.min_rate_gb_per_s or row.min_rate_gb_per_s or row.rate_gb_per_s,
        )
    ]
    for counter, group in groupby(rows, key=lambda row: row.counter):
        series, strictest = seen.get(f"{port.key} {counter}"), min(group, key=lambda row: row.more_than)
        if series is not None:
            measured.append(Measurement(counter, series.rise(strictest.within_s).amount, "", strictest.more_than))
    full = sorted(
        {row.counter for row in rows if row.full_at is not None and port.counters.get(row.counter) == row.full_at}
    )
    blind = f"; at maximum, cannot rise: {', '.join(full)} (clear with perfquery -R)" if full else ""
    return _finding(
        port,
        Verdict.PASS,
        "Ok",
        f"{row.name or port.model} {port.layer} at {port.rate_gb_per_s:g} Gb/s{blind}",
        FaultClass.NONE,
        *measured,
    )


def _rates_of_equals(ports: Sequence[IbPort]) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, float]] = {}
    for port in ports:
        if port.active and port.rate_gb_per_s is not None:
            rates.setdefault(_equals(port), {})[port.key] = port.rate_gb_per_s
    return rates


def _equals(port: IbPort) -> str:
    return f"{port.model} {port.layer}"


def _span(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"


def _finding(
    port: IbPort,
    verdict: Verdict,
    reason: str,
    message: str,
    fault_class: FaultClass = FaultClass.NONE,
    *measured: Measurement,
) -> Finding:
    return Finding(
        component=port.component,
        verdict=verdict,
        reason=reason,
        message=shorten(message),
        fault_class=fault_class,
        measurements=measured,
    )
