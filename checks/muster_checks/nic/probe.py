"""Reads the interfaces of a node (twice on the first run, then once) and judges them against earlier readings."""

from collections.abc import Mapping, Sequence

from muster_checks.base.counter_history import read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import NotHere
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.hardware.link_state import uptime_s
from muster_checks.nic import NicParameters
from muster_checks.nic.judge import counters, judge
from muster_checks.nic.sysfs import NicInterface, read_interfaces

NAME = "nic"


async def probe(node: NodeView, parameters: NicParameters) -> Sequence[Finding]:
    interfaces: list[NicInterface] = []

    async def read() -> Mapping[str, float]:
        nonlocal interfaces
        # a card that does not answer its driver blocks every read of its speed
        interfaces = await in_thread(node, read_interfaces, node, parameters.interfaces)
        return counters(interfaces)

    seen = await read_series(node.history, NAME, read, parameters.first_interval_s)
    findings = judge(interfaces, seen, parameters, now=node.history.clock(), up_for_s=uptime_s(node))
    return _or_not_here(interfaces, findings)


def judge_recorded(text: bytes, parameters: NicParameters) -> Sequence[Finding] | None:
    """A tar of a node's /sys. Without an earlier reading, links and speeds are judged, counters are not."""
    from muster_checks.hardware.recorded_tree import lay_out_tree  # an agent never needs its tar archives

    with lay_out_tree(text) as root:
        if root is None or not (root / "sys/class/net").is_dir():
            return None
        interfaces = read_interfaces(NodeView(root), parameters.interfaces)
        return _or_not_here(interfaces, judge(interfaces, {}, parameters, now=0.0, up_for_s=None))


def _or_not_here(interfaces: Sequence[NicInterface], findings: Sequence[Finding]) -> Sequence[Finding]:
    if not findings and interfaces:
        names = ", ".join(nic.name for nic in interfaces[:8])
        raise NotHere(f"no interface has or had a link ({names}); set required if one must be up", "NotInUse")
    if not findings:
        raise NotHere("no Ethernet interface on the PCI bus is up")
    return findings
