"""Judges recorded output of Graphcore's tools; the tool is recognised from the text itself."""

import re

from muster_checks.base.vocabulary import Finding, Measurement, Verdict
from muster_checks.graphcore import UNNAMED
from muster_checks.graphcore.models import ipu_models
from muster_checks.graphcore.probe import IpuHealth, IpuReading
from muster_checks.graphcore.tools import attributes, device_list, health, monitor, poplar
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.graphcore.tools.monitor import MonitorRow
from muster_checks.ipu import IpuParameters
from muster_checks.ipu.judge import IpuLimits, judge, judge_health

LOOKED_AT_BYTES = 1 << 20
# matches within one line: \s would also match newlines, and backtrack over all empty lines of a large file
_ATTRIBUTES = re.compile(rb"^[ \t]*Device(?: Info)?:[ \t]*\r?$", re.M)
_FRAME, _TITLE = re.compile(rb"^\+---", re.M), re.compile(rb"^\|.*(?:gc-monitor|ttached)", re.M)
_HEALTH = re.compile(rb'\s*\{\s*(?:\}|"hosts"\s*:)')


def judge_recorded(text: bytes, parameters: IpuParameters) -> list[Finding] | None:
    beginning = text[:LOOKED_AT_BYTES]
    if _ATTRIBUTES.search(beginning):
        limits = IpuLimits(ipu_models(parameters.expected), parameters.max_link_errors_per_hour)
        parsed = attributes.parse(text)
        return judge([IpuReading(IpuDevice(one.component, ""), one) for one in parsed], {}, limits)
    if _HEALTH.match(beginning):
        unhealthy = IpuHealth(unhealthy=tuple(health.parse(text)))
        return judge_health(unhealthy, {}) or [_pass("host", "gcipuinfo reports no unhealthy IPU")]
    if b"device listing" in beginning or b"-+- Id:" in beginning:
        return [_pass(device.component, "listed by gc-info") for device in device_list.parse(text)]
    if _FRAME.search(beginning) and _TITLE.search(beginning):
        return [_pass(row.component, "shown by gc-monitor", _sensors(row)) for row in monitor.parse(text)]
    if errors := poplar.parse(text):
        return [poplar.judge(error, f"ipu/{error.device_id}" if error.device_id else UNNAMED) for error in errors]
    return None


def _sensors(row: MonitorRow) -> tuple[Measurement, ...]:
    values = (
        ("die_temperature", row.die_temp_c, "C"),
        ("board_temperature", row.board_temp_c, "C"),
        ("board_power", row.board_power_w, "W"),
        ("clock", row.clock_mhz, "MHz"),
    )
    return tuple(Measurement(name, value, unit) for name, value, unit in values if value is not None)


def _pass(component: str, message: str, measurements: tuple[Measurement, ...] = ()) -> Finding:
    return Finding(
        component=component, verdict=Verdict.PASS, reason="Healthy", message=message, measurements=measurements
    )
