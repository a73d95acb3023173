"""Judges systemd units: those that should run do run, and do not restart repeatedly."""

from collections.abc import Mapping, Sequence

from muster_checks.base.counter_history import Rise
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.services.parse import SystemdUnit

# units that a node cannot work without: their failure needs a person
FABRIC_MANAGER = "nvidia-fabricmanager.service"
DOCKER, OTHER_RUNTIMES = "docker.service", ("containerd.service", "crio.service")
VITAL = ("kubelet.service", *OTHER_RUNTIMES, DOCKER, FABRIC_MANAGER)
_ENABLED = ("enabled", "enabled-runtime")


def judge(
    units: Sequence[SystemdUnit],
    rises: Mapping[str, Rise],
    named: Sequence[str],
    max_restarts: int,
    *,
    has_switches: bool = True,
) -> list[Finding]:
    """One finding for each unit that should run. Without ``named`` these are the enabled ones: a unit that the operator
    disabled is not a fault.

    has_switches: NVSwitches are on the PCI bus. Without the fabric manager their NVLinks are down; elsewhere it exits,
        as it has nothing to do (NVIDIA Fabric Manager user guide). Where GPUs need a fabric that has no switch on the
        bus, the check gpufabric fails without it.
    """
    known = {unit.name: unit for unit in units}
    if not units:
        raise CannotTell("systemctl printed no unit", "Unreadable")
    wanted = [known.get(name) or SystemdUnit(name=name) for name in named] or [
        unit for unit in units if unit.load == "loaded" and unit.file_state in _ENABLED
    ]
    if not wanted:
        raise NotHere("none of the known services is enabled on this node", "NoServices")
    spared = set() if has_switches else {FABRIC_MANAGER}
    if any(unit.active == "active" for unit in units if unit.name in OTHER_RUNTIMES):
        spared.add(DOCKER)  # not what the kubelet's pods run in
    vital = set(named or VITAL) - (set() if named else spared)
    return [_judge(unit, rises.get(unit.name), max_restarts, vital=unit.name in vital) for unit in wanted]


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
