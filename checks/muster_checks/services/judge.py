"""Judges systemd units: those that should run do run, and do not restart repeatedly."""

from collections.abc import Mapping, Sequence

from muster_checks.base.counter_history import Rise
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.services.parse import SystemdUnit

# units that a node cannot work without: their failure needs a person (fabric manager: without it NVLink of an NVSwitch
# machine is down, NVIDIA Fabric Manager user guide)
VITAL = ("kubelet.service", "containerd.service", "crio.service", "docker.service", "nvidia-fabricmanager.service")
_ENABLED = ("enabled", "enabled-runtime")


def judge(
    units: Sequence[SystemdUnit], rises: Mapping[str, Rise], named: Sequence[str], max_restarts: int
) -> list[Finding]:
    """One finding for each unit that should run. Without ``named`` these are the enabled ones: a unit that the operator
    disabled is not a fault."""
    known = {unit.name: unit for unit in units}
    if not units:
        raise CannotTell("systemctl printed no unit", "Unreadable")
    wanted = [known.get(name) or SystemdUnit(name=name) for name in named] or [
        unit for unit in units if unit.load == "loaded" and unit.file_state in _ENABLED
    ]
    if not wanted:
        raise NotHere("none of the known services is enabled on this node", "NoServices")
    return [
        _judge(unit, rises.get(unit.name), max_restarts, vital=bool(named) or unit.name in VITAL) for unit in wanted
    ]


def _judge(unit: SystemdUnit, rise: Rise | None, max_restarts: int, *, vital: bool) -> Finding:
    restarts = rise.amount if rise is not None else 0.0
    verdict, reason, fault_class = Verdict.PASS, "Running", FaultClass.NONE
    state = f"{unit.active} ({unit.sub})"
    if not unit.load and not unit.active:
        verdict, reason, state = Verdict.UNKNOWN, "UnitNotTold", "systemctl does not report it"
    elif unit.load != "loaded":
        verdict, reason, state = _bad(vital), "UnitMissing", f"{unit.load or 'not loaded'}: install or unmask it"
    elif unit.active in ("failed", "inactive"):
        verdict, reason = _bad(vital), "NotRunning"
        state += f", result {unit.result}" if unit.result not in ("", "success") else ""
    elif unit.sub == "auto-restart":
        verdict, reason, state = Verdict.WARN, "Restarting", "exited, and systemd is about to restart it"
    elif restarts > max_restarts:
        verdict, reason = Verdict.WARN, "RestartsOften"
        state = f"{restarts:g} restarts in {rise.over_s if rise else 0:.0f} s (limit {max_restarts})"
    if verdict is Verdict.FAIL:
        fault_class = FaultClass.CONTACT
    return Finding(
        component=f"service/{unit.name.removesuffix('.service')}"[:128],
        verdict=verdict,
        reason=reason,
        message=shorten(
            f"{unit.name}: {state}" + ("" if verdict is Verdict.PASS else f"; see journalctl -u {unit.name}")
        ),
        fault_class=fault_class,
        measurements=(Measurement("restarts", restarts, "", float(max_restarts)),),
    )


def _bad(vital: bool) -> Verdict:
    return Verdict.FAIL if vital else Verdict.WARN
