"""Judges the attributes and health that IPUs report."""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.counter_history import Rise
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.graphcore.models import IpuModel
from muster_checks.graphcore.probe import IpuHealth, IpuReading
from muster_checks.graphcore.tools.attributes import IpuAttributes
from muster_checks.graphcore.tools.health import UnhealthyIpu
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.hardware.siblings import share_of_others

NO_ERRORS = "no errors"
FEWEST_ERRORS = 10  # in the few seconds of a first run, one error would look like thousands an hour
_FAILED = {
    "device": "has failed: the IPU, an RNIC or another part of its IPU-Machine",
    "connection": "cannot be reached over the network: check RNIC, cabling and switch of its IPU-Machine",
}


class IpuLimits(msgspec.Struct, frozen=True):
    """``expected``: by board type; ``max_link_errors_per_hour``: of corrected errors."""

    expected: ModelTable[IpuModel]
    max_link_errors_per_hour: float


def counters(attributes: IpuAttributes) -> dict[str, float]:
    """The counters whose rise is judged. The session's counter is used if there is no total."""
    link = attributes.link_errors if attributes.link_errors is not None else attributes.link_errors_session
    both = {"link_errors": link, "host_link_errors": attributes.host_link_errors}
    return {name: value for name, value in both.items() if value is not None}


def judge(readings: Sequence[IpuReading], rises: Mapping[str, Mapping[str, Rise]], limits: IpuLimits) -> list[Finding]:
    """Judges every IPU by its attributes. ``rises``: by component, then counter."""
    speeds: dict[str, dict[str, float]] = {}
    for reading in readings:
        attributes = reading.attributes
        if attributes is not None and attributes.link_gt_per_s is not None and attributes.link_width is not None:
            speed = attributes.link_gt_per_s * attributes.link_width
            speeds.setdefault(attributes.board, {})[reading.device.component] = speed
    shares = {component: share for board in speeds.values() for component, share in share_of_others(board).items()}
    findings: list[Finding] = []
    for reading in readings:
        component = reading.device.component
        if reading.attributes is None:
            findings.append(_unknown(component, "NotReadable", reading.trouble))
            continue
        numbers = _measurements(reading.attributes)
        found = [
            *_error_state(component, reading.attributes),
            *_link(component, reading.attributes, limits, shares.get(component)),
            *_rates(component, reading.attributes, rises.get(component, {}), limits),
            *_sensors(component, reading.attributes, limits),
        ]
        findings += [_with(finding, numbers) for finding in found]
        if not found:
            findings.append(_pass(component, reading.attributes.error_state or "no errors reported", numbers))
    return findings


def judge_health(health: IpuHealth, components: Mapping[str, str]) -> list[Finding]:
    """Judges the library's report. ``components``: of the IPUs that gc-info lists, by device id."""
    if health.trouble:
        return [_unknown("host", "HealthNotRead", health.trouble)]
    findings = [_unhealthy(ipu, components) for ipu in health.unhealthy]
    unseen = (
        []
        if health.monitored is None
        else [name for device, name in components.items() if device not in health.monitored]
    )
    return findings + [
        Finding(
            component=component,
            verdict=Verdict.WARN,
            reason="NotMonitored",
            message="gc-info lists this IPU, but gc-monitor does not show it",
        )
        for component in unseen
    ]


def judge_unlisted(components: Sequence[str]) -> list[Finding]:
    """IPUs on the PCI bus that the driver does not offer. The additional UNKNOWN keeps their open findings open."""
    message = "on the PCI bus, but not listed by gc-info: check that Graphcore's driver is loaded (dmesg)"
    return [
        finding
        for component in components
        for finding in (
            Finding(component=component, verdict=Verdict.WARN, reason="NotListed", message=message),
            _unknown(component, "NotReadable", message),
        )
    ]


def _with(finding: Finding, numbers: tuple[Measurement, ...]) -> Finding:
    has = {measured.name for measured in finding.measurements}
    more = tuple(measured for measured in numbers if measured.name not in has)
    return msgspec.structs.replace(finding, measurements=finding.measurements + more)


def _unhealthy(ipu: UnhealthyIpu, components: Mapping[str, str]) -> Finding:
    # an address identifies more than the id, which is unique only within a partition; only a card has no address
    listed = components.get(ipu.device_id, ipu.component)
    component = ipu.component if _is_address(ipu.component) and _is_address(listed) else listed
    where = f" (device {ipu.device_id}, partition {ipu.partition or 'unknown'})"
    if ipu.error not in _FAILED:
        return _unknown(component, "HealthNotRead", f"gcipuinfo reports an unknown error, {ipu.error!r}{where}")
    return Finding(
        component=component,
        verdict=Verdict.FAIL,
        reason=f"Unhealthy:{ipu.error}",
        message=f"IPU {_FAILED[ipu.error]}{where}",
        fault_class=FaultClass.QUARANTINE,
    )


def _is_address(component: str) -> bool:
    return component.count("/") == 2  # ipu/<IPU-Machine>/<index>


def _error_state(component: str, attributes: IpuAttributes) -> list[Finding]:
    if attributes.error_state is None or attributes.error_state.lower() == NO_ERRORS:
        return []
    if not attributes.error_state:
        return [_unknown(component, "ErrorStateNotRead", "gc-info prints no error state for this IPU")]
    return [
        Finding(
            component=component,
            verdict=Verdict.FAIL,
            reason="IpuErrorState",
            message=f"IPU error state: {attributes.error_state} (expected {NO_ERRORS}): run gc-reset when it is idle; "
            "if that fails, replace it",
            fault_class=FaultClass.QUARANTINE,
        )
    ]


def _link(component: str, attributes: IpuAttributes, limits: IpuLimits, share: float | None) -> list[Finding]:
    row = limits.expected.of(attributes.board) or IpuModel(model="")
    for value, expected, what, unit in (
        (attributes.link_width, row.link_width, "width", "lanes"),
        (attributes.link_gt_per_s, row.link_gt_per_s, "speed", "GT/s"),
    ):
        if value is not None and expected is not None and value < expected:
            message = (
                f"link {what} {value:g} {unit}, expected {expected:g} ({attributes.board}): reseat it, check its slot"
            )
            measured = Measurement(f"link_{what}", value, unit, expected)
            return [_warn(component, "LinkDegraded", message, measured)]
    if share is not None and share < 1.0:
        message = (
            f"link at {attributes.link_gt_per_s:g} GT/s x {attributes.link_width:g}: {share:.0%} of the other IPUs' "
            "speed on this node"
        )
        return [_warn(component, "LinkBelowSiblings", message, Measurement("link_share_of_siblings", share, "", 1.0))]
    return []


def _rates(component: str, attributes: IpuAttributes, rises: Mapping[str, Rise], limits: IpuLimits) -> list[Finding]:
    findings = []
    most = limits.max_link_errors_per_hour
    for counter in counters(attributes):
        rise = rises.get(counter, Rise(0.0, 0.0))
        rate = rise.per(3600.0)
        if rise.amount < FEWEST_ERRORS or rate <= most:
            continue
        what, reason = ("host link", "HostLinkErrors") if counter == "host_link_errors" else ("link", "LinkErrors")
        message = (
            f"{rate:.0f} corrected {what} errors/hour, limit {most:.0f} ({rise.amount:.0f} in {rise.over_s:.0f} s): "
            "reseat it, check its cable or slot"
        )
        findings.append(_warn(component, reason, message, Measurement(f"{counter}_per_hour", rate, "1/h", most)))
    return findings


def _sensors(component: str, attributes: IpuAttributes, limits: IpuLimits) -> list[Finding]:
    row = limits.expected.of(attributes.board) or IpuModel(model="")
    return [
        _warn(
            component,
            reason,
            f"{what} {value:g} {unit}, limit {most:g}: check cooling",
            Measurement(name, value, unit, most),
        )
        for value, most, reason, what, name, unit in (
            (attributes.die_temp_c, row.max_die_temp_c, "DieHot", "die temperature", "die_temperature", "C"),
            (attributes.board_temp_c, row.max_board_temp_c, "BoardHot", "board temperature", "board_temperature", "C"),
            (attributes.board_power_w, row.max_board_power_w, "BoardPower", "board power", "board_power", "W"),
        )
        if value is not None and most is not None and value > most
    ]


def _measurements(attributes: IpuAttributes) -> tuple[Measurement, ...]:
    values = (
        ("link_speed", attributes.link_gt_per_s, "GT/s"),
        ("link_width", attributes.link_width, "lanes"),
        ("link_errors", attributes.link_errors, "errors"),
        ("link_errors_session", attributes.link_errors_session, "errors"),
        ("host_link_errors", attributes.host_link_errors, "errors"),
        ("parity_initialised", attributes.parity_initialised, ""),
        ("parity_error_threshold", attributes.parity_threshold, "errors"),
        ("parity_error_interval", attributes.parity_interval_s, "s"),
        ("die_temperature", attributes.die_temp_c, "C"),
        ("board_temperature", attributes.board_temp_c, "C"),
        ("ipu_power", attributes.ipu_power_w, "W"),
        ("board_power", attributes.board_power_w, "W"),
        ("clock", attributes.clock_mhz, "MHz"),
    )
    return tuple(Measurement(name, value, unit) for name, value, unit in values if value is not None)


def _pass(component: str, message: str, numbers: tuple[Measurement, ...]) -> Finding:
    return Finding(component=component, verdict=Verdict.PASS, reason="Healthy", message=message, measurements=numbers)


def _warn(component: str, reason: str, message: str, measured: Measurement) -> Finding:
    return Finding(component=component, verdict=Verdict.WARN, reason=reason, message=message, measurements=(measured,))


def _unknown(component: str, reason: str, message: str) -> Finding:
    return Finding(component=component, verdict=Verdict.UNKNOWN, reason=reason, message=message)
