"""Runs ipmitool: the system event log, the BMC's clock and the sensors."""

from muster_checks.base.bounded_read import names_in
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import Finding, Verdict, shorten
from muster_checks.ipmi import IpmiParameters
from muster_checks.ipmi.judge import judge_log, judge_sensors
from muster_checks.ipmi.parse import TEXT_LIMIT_BYTES, newest, parse_log, parse_sensors, read_time


async def probe(node: NodeView, parameters: IpmiParameters) -> list[Finding]:
    if not any(name.startswith("ipmi") and name[4:].isdecimal() for name in names_in(node.path("/dev"))):
        raise NotHere("no management controller (no /dev/ipmi0; its kernel module is ipmi_devintf)", "NoBmc")
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
        findings.append(_not_readable("sel", log.trouble))
    if sensors.ok and (read := parse_sensors(sensors.stdout)):
        findings += judge_sensors(read)
    else:
        findings.append(_not_readable("sensors", sensors.trouble or "ipmitool sensor: no sensor in its output"))
    if all(finding.verdict is Verdict.UNKNOWN for finding in findings):
        raise CannotTell("; ".join(finding.message for finding in findings), "BmcNotAnswering")
    return findings


def judge_recorded(text: bytes, parameters: IpmiParameters) -> list[Finding] | None:
    """`ipmitool sel elist` or `ipmitool sensor`, `ipmi-sel` or `ipmi-sensors`, distinguished by their columns."""
    if len(text) > TEXT_LIMIT_BYTES:
        return None  # too long for these tools; may be a kernel log, which another check reads
    if entries := parse_log(text):
        return judge_log(entries, newest(entries), parameters.window_s)
    sensors = parse_sensors(text)
    return judge_sensors(sensors) if sensors else None


def _not_readable(component: str, trouble: str) -> Finding:
    return Finding(component=component, verdict=Verdict.UNKNOWN, reason="NotReadable", message=shorten(trouble))
