"""Reads units from `systemctl show` and judges them.

Format: systemctl(1), `show`: KEY=VALUE lines, one blank line between units; a unit that does not exist is printed, too,
with LoadState=not-found.
"""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer
from muster_checks.base.counter_history import Rise
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.services import ServicesParameters

# what a node cannot do its work without: a failure asks for a person (fabric manager: NVLink of an NVSwitch machine
# is down without it, NVIDIA Fabric Manager user guide)
VITAL = ("kubelet.service", "containerd.service", "crio.service", "docker.service", "nvidia-fabricmanager.service")
# what only makes a node worse or blind
KNOWN = (*VITAL, "nvidia-persistenced.service", "nvidia-dcgm.service", "chrony.service", "chronyd.service",
         "systemd-timesyncd.service", "rdma-ndd.service", "openibd.service")  # fmt: skip
TEXT_LIMIT_BYTES = 1 << 20
_ASKED = "Id,LoadState,ActiveState,SubState,Result,NRestarts,UnitFileState"
_ENABLED = ("enabled", "enabled-runtime")


class SystemdUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One unit as systemd has it. restarts: by systemd itself (Restart=) since the unit was loaded; None: not told."""

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    file_state: str = ""
    restarts: int | None = None


async def probe(node: NodeView, parameters: ServicesParameters) -> list[Finding]:
    if not node.path("/run/systemd/system").exists():
        raise NotHere("systemd does not run this node (no /run/systemd/system)", "NoSystemd")
    named = _words(parameters.units)
    output = await node.commands.run(
        ["systemctl", "show", f"--property={_ASKED}", "--", *(named or KNOWN)], timeout_s=10.0
    )
    if output.missing:
        raise ToolMissing("systemctl", "systemd")
    if not output.ok:
        raise CannotTell(output.trouble, "SystemdNotAnswering")
    units = parse(output.stdout)
    # of what runs or has failed alone: `units` may be any names, and those of templates are endless
    started = [unit for unit in units if unit.active != "inactive"]
    node.history.note("services", {unit.name: unit.restarts for unit in started if unit.restarts is not None})
    rises = {name: series.rise(parameters.window_s) for name, series in node.history.of("services").items()}
    return judge(units, rises, named, parameters.max_restarts)


def judge_recorded(text: bytes, parameters: ServicesParameters) -> list[Finding] | None:
    if b"LoadState=" not in text:
        return None
    return judge(parse(text), {}, _words(parameters.units), parameters.max_restarts)


def parse(text: bytes) -> list[SystemdUnit]:
    """The units in what `systemctl show` printed; blocks without an Id are passed over. Raises Unreadable."""
    if len(text) > TEXT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB: expected at most 1 MiB from systemctl show")
    units = []
    for block in text.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            units.append(
                SystemdUnit(
                    name=values["Id"].strip()[:120],
                    load=values.get("LoadState", ""),
                    active=values.get("ActiveState", ""),
                    sub=values.get("SubState", ""),
                    result=values.get("Result", ""),
                    file_state=values.get("UnitFileState", ""),
                    restarts=integer(values.get("NRestarts")),
                )
            )
    return units


def judge(
    units: Sequence[SystemdUnit], rises: Mapping[str, Rise], named: Sequence[str], max_restarts: int
) -> list[Finding]:
    """One finding for each unit that should run. Without ``named`` those are the enabled ones: a unit that its operator
    has turned off is no fault."""
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
    said = f"{unit.active} ({unit.sub})"
    if not unit.load and not unit.active:
        verdict, reason, said = Verdict.UNKNOWN, "UnitNotTold", "systemctl says nothing of it"
    elif unit.load != "loaded":
        verdict, reason, said = _bad(vital), "UnitMissing", f"{unit.load or 'not loaded'}: install or unmask it"
    elif unit.active in ("failed", "inactive"):
        verdict, reason = _bad(vital), "NotRunning"
        said += f", result {unit.result}" if unit.result not in ("", "success") else ""
    elif unit.sub == "auto-restart":
        verdict, reason, said = Verdict.WARN, "Restarting", "has ended, and systemd is about to start it again"
    elif restarts > max_restarts:
        verdict, reason = Verdict.WARN, "RestartsOften"
        said = f"{restarts:g} restarts in {rise.over_s if rise else 0:.0f} s, more than {max_restarts}"
    if verdict is Verdict.FAIL:
        fault_class = FaultClass.CONTACT
    return Finding(
        component=f"service/{unit.name.removesuffix('.service')}"[:128],
        verdict=verdict,
        reason=reason,
        message=shorten(f"{unit.name}: {said}; see journalctl -u {unit.name}"),
        fault_class=fault_class,
        measurements=(Measurement("restarts", restarts, "", float(max_restarts)),),
    )


def _bad(vital: bool) -> Verdict:
    return Verdict.FAIL if vital else Verdict.WARN


def _words(text: str) -> list[str]:
    words = [word for part in text.split(",") if (word := part.strip())]
    # systemctl takes "-x" for an option even where a name should stand
    return [word if "." in word else f"{word}.service" for word in words if not word.startswith("-")]
