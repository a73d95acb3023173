"""Queries systemd for the units: `systemctl show`."""

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.hardware.pci import DeviceKind, pci_devices
from muster_checks.services import ServicesParameters
from muster_checks.services.judge import VITAL, judge
from muster_checks.services.parse import parse

# units without which a node only works less well, or is not monitored
KNOWN = (*VITAL, "nvidia-persistenced.service", "nvidia-dcgm.service", "chrony.service", "chronyd.service",
         "systemd-timesyncd.service", "rdma-ndd.service", "openibd.service")  # fmt: skip
_PROPERTIES = "Id,LoadState,ActiveState,SubState,Result,NRestarts,UnitFileState"


async def probe(node: NodeView, parameters: ServicesParameters) -> list[Finding]:
    if not node.path("/run/systemd/system").exists():
        raise NotHere("systemd does not run this node (no /run/systemd/system)", "NoSystemd")
    named = _words(parameters.units)
    output = await node.commands.run(
        ["systemctl", "show", f"--property={_PROPERTIES}", "--", *(named or KNOWN)], timeout_s=10.0
    )
    if output.missing:
        raise ToolMissing("systemctl", "systemd")
    if not output.ok:
        raise CannotTell(output.trouble, "SystemdNotAnswering")
    units = parse(output.stdout)
    # only for units that run or have failed: `units` may contain any names, and template instances are unlimited
    started = [unit for unit in units if unit.active != "inactive"]
    node.history.note("services", {unit.name: unit.restarts for unit in started if unit.restarts is not None})
    rises = {name: series.rise(parameters.window_s) for name, series in node.history.of("services").items()}
    devices = await in_thread(node, pci_devices, node)
    has_switches = any(device.kind is DeviceKind.NVSWITCH for device in devices)
    return judge(units, rises, named, parameters.max_restarts, has_switches=has_switches)


def judge_recorded(text: bytes, parameters: ServicesParameters) -> list[Finding] | None:
    if b"LoadState=" not in text:
        return None
    return judge(parse(text), {}, _words(parameters.units), parameters.max_restarts)


def _words(text: str) -> list[str]:
    words = [word for part in text.split(",") if (word := part.strip())]
    # systemctl reads "-x" as an option even in the place of a name
    return [word if "." in word else f"{word}.service" for word in words if not word.startswith("-")]
