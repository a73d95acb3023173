"""Judges event log entries by rules.yaml, and sensors by their own status."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files

import msgspec
import yaml

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, severity, shorten
from muster_checks.ipmi.parse import SelEntry, Sensor


class SelRule(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    sensor: str
    event: str
    verdict: Verdict
    fault_class: FaultClass = msgspec.field(default=FaultClass.NONE, name="class")


def judge_log(entries: Sequence[SelEntry], now: datetime | None, window_s: float) -> list[Finding]:
    """The worst entry per (sensor, reason) within the window, and one finding for the log as a whole. Entries that were
    deasserted later are ignored."""
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
            message=shorten(
                f"{sensor}: {entry.event} at {entry.at} (BMC time), {count} times; see ipmitool sel elist, and clear "
                "the log (ipmitool sel clear) after a repair"
            ),
            fault_class=rule.fault_class,
            measurements=(Measurement("entries", count),),
        )
        for (sensor, _), (rule, count, entry) in open_entries.items()
    ]
    # the log was read as a whole: what has no finding any more is over, whatever else has one
    read = Finding(
        component="sel",
        verdict=Verdict.PASS,
        reason="NothingBad" if not findings else "Read",
        message=f"no {'other ' if findings else ''}entry within the window indicates a fault",
        measurements=(Measurement("entries", len(entries)),),
    )
    return [*sorted(findings, key=lambda finding: -severity(finding.verdict)), read]


def judge_sensors(sensors: Sequence[Sensor]) -> list[Finding]:
    bad = [
        Finding(
            component=f"sensor/{sensor.name.replace(' ', '_')}"[:128],
            verdict=Verdict.WARN,
            reason="SensorNonRecoverable" if sensor.status == "nr" else "SensorCritical",
            message=shorten(f"{sensor.name} is {_describe(sensor)} with status {sensor.status}; see ipmitool sensor"),
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


def _describe(sensor: Sensor) -> str:
    return "without a reading" if sensor.value is None else f"at {sensor.value:g} {sensor.unit}"
