"""Reads and judges the system event log and the sensors, as ipmitool prints them.

``sel elist``: ``ID | MM/DD/YYYY | HH:MM:SS[ ZONE] | sensor type and name | event | Asserted [| reading]``; entries
from before the clock was set say ``Pre-Init`` for a date. ``sensor``: ``name | value | unit | status | six limits``.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files

import msgspec
import yaml

from muster_checks.base.bounded_read import Unreadable, names_in, number
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, severity, shorten
from muster_checks.ipmi import IpmiParameters

TEXT_LIMIT_BYTES = 4 << 20
SENSOR_STATES = ("ok", "nc", "cr", "nr", "na", "ns")


class SelEntry(msgspec.Struct, frozen=True):
    """One line of the event log. at: the BMC's own clock; None before it was set. asserted: False when it went."""

    at: datetime | None
    sensor: str
    event: str
    asserted: bool


class Sensor(msgspec.Struct, frozen=True):
    """status: ok, nc (non-critical), cr (critical), nr (non-recoverable)."""

    name: str
    value: float | None
    unit: str
    status: str


class SelRule(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    sensor: str
    event: str
    verdict: Verdict
    fault_class: FaultClass = msgspec.field(default=FaultClass.NONE, name="class")


async def probe(node: NodeView, parameters: IpmiParameters) -> list[Finding]:
    if not any(name.startswith("ipmi") and name[4:].isdecimal() for name in names_in(node.path("/dev"))):
        raise NotHere("no management controller (no /dev/ipmi0; the module is ipmi_devintf)", "NoBmc")
    run = node.commands.run
    log = await run(["ipmitool", "sel", "elist", "last", str(parameters.entries)], timeout_s=30.0)
    if log.missing:
        raise ToolMissing("ipmitool", "ipmitool")
    clock = await run(["ipmitool", "sel", "time", "get"], timeout_s=15.0)
    sensors = await run(["ipmitool", "sensor"], timeout_s=40.0)
    findings: list[Finding] = []
    if log.ok:
        entries = parse_log(log.stdout)
        findings += judge_log(entries, read_time(clock.stdout) or newest(entries), parameters.window_s)
    else:
        findings.append(_unread("sel", log.trouble))
    if sensors.ok and (read := parse_sensors(sensors.stdout)):
        findings += judge_sensors(read)
    else:
        findings.append(_unread("sensors", sensors.trouble or "ipmitool sensor printed none"))
    if all(finding.verdict is Verdict.UNKNOWN for finding in findings):
        raise CannotTell(f"{log.trouble}; {sensors.trouble}", "BmcNotAnswering")
    return findings


def judge_recorded(text: bytes, parameters: IpmiParameters) -> list[Finding] | None:
    """`ipmitool sel elist` or `ipmitool sensor`, told apart by their columns."""
    if len(text) > TEXT_LIMIT_BYTES:
        return None  # a kernel log, say: what is too long for ipmitool is another check's to read
    if entries := parse_log(text):
        return judge_log(entries, newest(entries), parameters.window_s)
    sensors = parse_sensors(text)
    return judge_sensors(sensors) if sensors else None


def parse_log(text: bytes) -> list[SelEntry]:
    """Lines that are no entries are passed over. Raises Unreadable for more text than a log can hold."""
    entries = []
    for columns in _rows(text):
        if len(columns) < 5 or not _is_identifier(columns[0]):
            continue
        pre = columns[1].lower().startswith("pre-init")
        at = None if pre else read_time(f"{columns[1]} {columns[2]}".encode())
        if at is None and not pre:
            continue
        asserted = len(columns) < 6 or not columns[5].lower().startswith("deassert")
        entries.append(SelEntry(at, columns[3], columns[4], asserted))
    return entries


def parse_sensors(text: bytes) -> list[Sensor]:
    """Threshold sensors only: what a discrete one's bits mean differs from vendor to vendor."""
    return [
        Sensor(columns[0][:64], number(columns[1]), columns[2][:32], columns[3])
        for columns in _rows(text)
        if len(columns) == 10 and columns[0] and columns[3] in SENSOR_STATES
    ]


def read_time(text: bytes) -> datetime | None:
    """``11/21/2026 09:12:13``, with or without a zone behind; no zone is applied, as the BMC keeps only one."""
    words = text.decode("utf-8", "replace").split()
    if len(words) < 2:
        return None
    try:
        moment = datetime.strptime(f"{words[0]} {words[1]}", "%m/%d/%Y %H:%M:%S")  # noqa: DTZ007 - compared with its own kind
    except ValueError:
        return None
    return moment + timedelta(hours=12) if "PM" in words[2:3] and moment.hour < 12 else moment


def newest(entries: Sequence[SelEntry]) -> datetime | None:
    return max((entry.at for entry in entries if entry.at is not None), default=None)


def judge_log(entries: Sequence[SelEntry], now: datetime | None, window_s: float) -> list[Finding]:
    """The worst of each (sensor, reason) within the window. What was deasserted later is over."""
    open_entries: dict[tuple[str, str], tuple[SelRule, int, SelEntry]] = {}
    for entry in entries:
        if entry.at is None or now is None or (now - entry.at).total_seconds() > window_s:
            continue
        rule = _rule(entry)
        if rule is None:
            continue
        key = (entry.sensor, rule.reason)
        if entry.asserted:
            count = open_entries[key][1] + 1 if key in open_entries else 1
            open_entries[key] = (rule, count, entry)
        else:
            open_entries.pop(key, None)
    findings = [
        Finding(
            component=f"sel/{sensor.replace(' ', '_')}"[:128],
            verdict=rule.verdict,
            reason=rule.reason,
            message=shorten(f"{sensor}: {entry.event} at {entry.at} (BMC time), {count} times; ipmitool sel elist"),
            fault_class=rule.fault_class,
            measurements=(Measurement("entries", count),),
        )
        for (sensor, _), (rule, count, entry) in open_entries.items()
    ]
    quiet = Finding(
        component="sel",
        verdict=Verdict.PASS,
        reason="NothingBad",
        message="no entry of the window asks for anything",
        measurements=(Measurement("entries", len(entries)),),
    )
    return sorted(findings, key=lambda finding: -severity(finding.verdict)) or [quiet]


def judge_sensors(sensors: Sequence[Sensor]) -> list[Finding]:
    bad = [
        Finding(
            component=f"sensor/{sensor.name.replace(' ', '_')}"[:128],
            verdict=Verdict.WARN,
            reason="SensorNonRecoverable" if sensor.status == "nr" else "SensorCritical",
            message=shorten(
                f"{sensor.name} is {_told(sensor)}, which the board calls {sensor.status}; see ipmitool sensor"
            ),
            fault_class=FaultClass.CONTACT,
            measurements=() if sensor.value is None else (Measurement(sensor.name, sensor.value, sensor.unit),),
        )
        for sensor in sensors
        if sensor.status in ("cr", "nr")
    ]
    sound = sum(sensor.status in ("ok", "nc") for sensor in sensors)
    within = Finding(
        component="sensors",
        verdict=Verdict.PASS,
        reason="WithinLimits",
        message=f"{sound} sensors within their limits",
        measurements=(Measurement("sensors", sound),),
    )
    return bad or [within]


@cache
def load_rules() -> tuple[SelRule, ...]:
    text = files("muster_checks").joinpath("ipmi/rules.yaml").read_bytes()
    return tuple(msgspec.convert(yaml.safe_load(text), list[SelRule]))


def _rule(entry: SelEntry) -> SelRule | None:
    sensor, event = entry.sensor.casefold(), f" {entry.event.casefold()}"
    return next((rule for rule in load_rules() if rule.sensor in sensor and rule.event in event), None)


def _rows(text: bytes) -> list[list[str]]:
    if len(text) > TEXT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB: expected at most 4 MiB from ipmitool")
    lines = text.decode("utf-8", "replace").splitlines()
    return [[column.strip() for column in line.split("|")] for line in lines if "|" in line]


def _is_identifier(text: str) -> bool:
    return 0 < len(text) <= 8 and all(c in "0123456789abcdefABCDEF" for c in text)


def _told(sensor: Sensor) -> str:
    return "without a reading" if sensor.value is None else f"at {sensor.value:g} {sensor.unit}"


def _unread(component: str, trouble: str) -> Finding:
    return Finding(component=component, verdict=Verdict.UNKNOWN, reason="NotReadable", message=shorten(trouble))
