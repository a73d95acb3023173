"""Judges Ethernet interfaces. Pure: takes readings, earlier readings and limits; returns findings."""

from collections.abc import Iterable, Mapping, Sequence

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.hardware.link_state import GRACE_S, PortLink, describe_down_link, find_best_before, find_lone_odd
from muster_checks.nic import NicParameters
from muster_checks.nic.sysfs import NicInterface, matches_globs

LEAST_ERRORS = 10  # below this a share is meaningless, e.g. one bad frame in a quiet minute
SOME = 1e-6

Seen = Mapping[str, CounterSeries]


def counters(interfaces: Sequence[NicInterface]) -> dict[str, float]:
    """The values to remember from a reading, by the names that :func:`judge` looks up."""
    values: dict[str, float] = {}
    for nic in interfaces:
        values |= {f"{nic.name} {name}": float(value) for name, value in nic.counters.items()}
        if nic.link_downs is not None:
            values[f"{nic.name} downs"] = float(nic.link_downs)
        if nic.link is not None:
            values[f"{nic.name} link"] = float(nic.link)
        if nic.link and nic.speed_mbit_per_s is not None:
            values[f"{nic.name} speed"] = float(nic.speed_mbit_per_s)
    return values


def judge(
    interfaces: Sequence[NicInterface], seen: Seen, limits: NicParameters, *, now: float, up_for_s: float | None
) -> list[Finding]:
    """``now``: by the clock of ``seen``; ``up_for_s``: how long the node has been up, if known."""
    links = {
        nic.name: PortLink(
            name=nic.name,
            group=nic.model,
            up=nic.link,
            used=nic.used,
            wanted=bool(limits.required) and matches_globs(nic.name, limits.required),
        )
        for nic in interfaces
        if nic.link is not None
    }
    findings: list[Finding] = []
    for nic in interfaces:
        if nic.link is None:
            findings.append(
                _finding(nic, Verdict.UNKNOWN, "NotReadable", f"{nic.name} is up, but its carrier cannot be read")
            )
            continue
        trouble = [*_link(nic, interfaces, links, seen, now, up_for_s), *_judge_counters(nic, seen, limits)]
        if nic.link:
            trouble += [*_speed(nic, interfaces, seen, limits), *_settings(nic, interfaces)]
            findings += trouble or [_sound(nic, seen, limits)]
        else:
            findings += trouble
    findings += _missing(interfaces, limits, up_for_s)
    return findings


def _link(
    nic: NicInterface,
    interfaces: Sequence[NicInterface],
    links: Mapping[str, PortLink],
    seen: Seen,
    now: float,
    up_for_s: float | None,
) -> Iterable[Finding]:
    partners = [other for other in interfaces if nic.bond and other.bond == nic.bond and other is not nic]
    alive = any(other.link and other.slave_up is not False for other in partners)
    if nic.link and nic.slave_up is not False:
        return
    if nic.link:
        yield _finding(
            nic,
            Verdict.WARN,
            "BondSlaveDown",
            f"{nic.name} has a link, but {nic.bond or 'its bond'} treats it as down: see /proc/net/bonding",
            FaultClass.CONTACT,
        )
        return
    found = describe_down_link(links[nic.name], list(links.values()), seen.get(f"{nic.name} link"), now, up_for_s)
    if found is None:
        return
    verdict, why = found
    if alive and not links[nic.name].wanted:
        yield _finding(
            nic,
            Verdict.WARN,
            "BondSlaveDown",
            f"{nic.name} is {why}; {nic.bond} continues without it: check cable, transceiver and switch port",
            FaultClass.CONTACT,
        )
    else:
        yield _finding(
            nic,
            verdict,
            "LinkDown",
            f"{nic.name} is {why}: check cable, transceiver and switch port",
            FaultClass.CONTACT,
        )


def _missing(interfaces: Sequence[NicInterface], limits: NicParameters, up_for_s: float | None) -> Iterable[Finding]:
    waiting = up_for_s is not None and up_for_s < GRACE_S
    there = {nic.name for nic in interfaces}
    for glob in filter(None, (part.strip() for part in limits.required.split(","))):
        if not any(matches_globs(name, glob) for name in there):
            yield Finding(
                component=f"nic/{glob}",
                verdict=Verdict.WARN if waiting else Verdict.FAIL,
                reason="Missing",
                message=shorten(f"the required interface {glob} does not exist or is administratively down"),
                fault_class=FaultClass.CONTACT,
            )


def _judge_counters(nic: NicInterface, seen: Seen, limits: NicParameters) -> Iterable[Finding]:
    downs = seen.get(f"{nic.name} downs")
    amount = downs.rise(limits.flaps_window_s).amount if downs else 0.0
    if amount > limits.max_link_downs + SOME:
        yield _finding(
            nic,
            Verdict.WARN,
            "LinkFlaps",
            f"{nic.name} lost its link {amount:.0f} times (limit {limits.max_link_downs}) within "
            f"{limits.flaps_window_s / 3600:g} h: check cable, transceiver and switch port",
            FaultClass.CONTACT,
            Measurement("link downs", amount, "", limits.max_link_downs),
        )
    for counter, packets, reason, limit, advice in (
        ("rx_crc_errors", "rx_packets", "CrcErrors", limits.max_crc_share, "clean or replace cable and transceiver"),
        ("rx_errors", "rx_packets", "ReceiveErrors", limits.max_error_share, "check cable, transceiver and MTU"),
        ("rx_missed_errors", "rx_packets", "ReceiveMissed", limits.max_error_share, "add or enlarge receive rings"),
        ("tx_errors", "tx_packets", "TransmitErrors", limits.max_error_share, "see the kernel log and ethtool -S"),
        ("tx_dropped", "tx_packets", "TransmitDropped", limits.max_error_share, "see tc -s qdisc and ethtool -S"),
    ):
        errors, share = _share(nic, counter, packets, seen, limits)
        if errors >= LEAST_ERRORS and share > limit:
            yield _finding(
                nic,
                Verdict.WARN,
                reason,
                f"{nic.name}: {counter} rose by {errors:.0f} within {limits.errors_window_s / 60:g} min, {share:.2g} "
                f"of all packets (limit {limit:g}): {advice}",
                FaultClass.CONTACT if counter == "rx_crc_errors" else FaultClass.NONE,
                Measurement(f"{counter} share", share, "", limit),
            )


def _share(nic: NicInterface, counter: str, packets: str, seen: Seen, limits: NicParameters) -> tuple[float, float]:
    """(errors, their share of all packets, good or bad)."""
    wrong, all_of = seen.get(f"{nic.name} {counter}"), seen.get(f"{nic.name} {packets}")
    if wrong is None or all_of is None:
        return 0.0, 0.0
    errors = wrong.rise(limits.errors_window_s).amount
    good = all_of.rise(limits.errors_window_s).amount
    return errors, errors / (errors + good) if errors > SOME else 0.0


def _speed(
    nic: NicInterface, interfaces: Sequence[NicInterface], seen: Seen, limits: NicParameters
) -> Iterable[Finding]:
    speed = nic.speed_mbit_per_s
    if speed is None:
        return
    floor = limits.min_speed_mbit_per_s if matches_globs(nic.name, limits.min_speed_of) else None
    before = find_best_before(seen, f"{nic.name} speed", speed)
    equals = {
        other.name: float(other.speed_mbit_per_s)
        for other in interfaces
        if other.link and other.model == nic.model and other.speed_mbit_per_s is not None
    }
    common = find_lone_odd(equals, nic.name)
    verdict, limit, why = Verdict.PASS, 0.0, ""
    if floor is not None and speed < floor:
        verdict, limit, why = Verdict.FAIL, floor, f"expected at least {floor:g}"
    elif before is not None:
        verdict, limit, why = Verdict.FAIL, before, f"earlier {before:g}"
    elif common is not None and speed < common:
        verdict, limit, why = Verdict.WARN, common, f"all its siblings here run at {common:g}"
    if verdict is not Verdict.PASS:
        yield _finding(
            nic,
            verdict,
            "LowSpeed",
            f"{nic.name} runs at {speed:g} Mbit/s, {why}: check cable, transceiver and switch port",
            FaultClass.CONTACT,
            Measurement("speed", speed, "Mbit/s", limit),
        )


def _settings(nic: NicInterface, interfaces: Sequence[NicInterface]) -> Iterable[Finding]:
    if nic.duplex == "half":
        yield _finding(
            nic,
            Verdict.WARN,
            "HalfDuplex",
            f"{nic.name} runs at half duplex: one end does not negotiate; configure both ends alike",
            FaultClass.CONTACT,
        )
    # storage and management networks may use other settings than compute: only siblings of equal speed are compared
    equals = {
        other.name: float(other.mtu)
        for other in interfaces
        if other.link and other.mtu and (other.model, other.speed_mbit_per_s) == (nic.model, nic.speed_mbit_per_s)
    }
    common = find_lone_odd(equals, nic.name)
    if common is not None and nic.mtu is not None:
        yield _finding(
            nic,
            Verdict.WARN,
            "MtuDiffers",
            f"{nic.name} has an MTU of {nic.mtu}, but all its siblings here have {common:g}: configure them alike",
            FaultClass.CONTACT,
            Measurement("mtu", nic.mtu, "", common),
        )


def _sound(nic: NicInterface, seen: Seen, limits: NicParameters) -> Finding:
    measured = []
    if nic.speed_mbit_per_s is not None:
        floor = limits.min_speed_mbit_per_s if matches_globs(nic.name, limits.min_speed_of) else None
        measured.append(Measurement("speed", nic.speed_mbit_per_s, "Mbit/s", floor))
    if nic.mtu is not None:
        measured.append(Measurement("mtu", nic.mtu))
    if (downs := seen.get(f"{nic.name} downs")) is not None:
        measured.append(Measurement("link downs", downs.rise(limits.flaps_window_s).amount, "", limits.max_link_downs))
    for counter, packets in (("rx_errors", "rx_packets"), ("tx_errors", "tx_packets")):
        _, share = _share(nic, counter, packets, seen, limits)
        measured.append(Measurement(f"{counter} share", share, "", limits.max_error_share))
    speed = f" at {nic.speed_mbit_per_s} Mbit/s" if nic.speed_mbit_per_s is not None else ""
    return _finding(nic, Verdict.PASS, "Ok", f"{nic.name} has a link{speed}", FaultClass.NONE, *measured)


def _finding(
    nic: NicInterface,
    verdict: Verdict,
    reason: str,
    message: str,
    fault_class: FaultClass = FaultClass.NONE,
    *measured: Measurement,
) -> Finding:
    return Finding(
        component=nic.component,
        verdict=verdict,
        reason=reason,
        message=shorten(message),
        fault_class=fault_class,
        measurements=measured,
    )
