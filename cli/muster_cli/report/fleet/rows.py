"""A row for each node, made from its Node and its NodeHealth. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from muster_checks.base.vocabulary import Verdict, severity, worst
from muster_cli.report.fleet.answer import GOOD, SHOWN_GOOD, describe_hidden
from muster_cli.report.fleet.spare_counts import SpareCount
from muster_cli.report.quantities import age, plural
from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.devices.device_states import driver_taints
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices
from muster_tainter.faults.desired_state import HEALTH_LABEL, MANAGED_LABEL, is_managed
from muster_tainter.faults.messages import format_taint, withheld_reason
from muster_tainter.faults.record.check_history import TESTING_LABEL
from muster_tainter.faults.record.node_record import DeviceStage, read_record
from muster_tainter.spares.facts import NodeRole

HEAD = ("NODE", "VERDICT", "FAILING", "STATE", "TAINTS", "FOR", "MESSAGE")
NOT_SHOWN = "node.kubernetes.io/"  # prefix of the taints that Kubernetes sets


_NO_ROLES: Mapping[str, NodeRole] = MappingProxyType({})
_NOT_READ: Mapping[str, NodeDevices] = MappingProxyType({})
_TAINTS_SHOWN = 2  # of drivers, in a table


class NodeRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The state of one node.

    verdict: UNKNOWN also if the tainter does not trust the agent; None if no tainter watches the node
    since:   RFC 3339, when this verdict began; empty if not known
    withheld: why a taint that the policy wants is not set
    quarantined: components that are kept out of use alone, without a taint of the node
    role:     of a spare or a replacement
    driver_taints: taints that drivers have set on its devices in ResourceSlices: the device, then the taint
    """

    node: str
    verdict: Verdict | None
    failing: tuple[str, ...] = ()
    message: str = ""
    state: str = ""
    taints: tuple[str, ...] = ()
    idle_since: str = ""
    due: tuple[str, ...] = ()
    testing: str = ""
    since: str = ""
    withheld: str = ""
    role: NodeRole | None = None
    quarantined: tuple[str, ...] = ()
    driver_taints: tuple[str, ...] = ()

    def cells(self, now: float) -> tuple[str, ...]:
        """The columns of :data:`HEAD`."""
        return (
            self.node,
            self.verdict.value if self.verdict else "-",
            ", ".join(self.failing),
            ", ".join(part for part in (str(self.role or ""), self.state) if part),
            ", ".join(self._measures()),
            age(now - seconds(self.since)) if self.since else "",
            "; not tainted: ".join(part for part in (self.message.rstrip("."), self.withheld) if part)
            if self.withheld
            else self.message,
        )

    @property
    def is_special(self) -> bool:
        """Worth a line of its own even if it passes."""
        return bool(self.taints or self.withheld or self.testing or self.role or self.quarantined or self.driver_taints)

    def _measures(self) -> Iterable[str]:
        yield from (taint.replace("=true:", ":") for taint in self.taints)
        yield from (f"{component} quarantined" for component in self.quarantined)
        yield from (f"{taint} by driver" for taint in self.driver_taints[:_TAINTS_SHOWN])
        if len(self.driver_taints) > _TAINTS_SHOWN:
            yield f"{len(self.driver_taints) - _TAINTS_SHOWN} more by drivers"
        if self.withheld:
            yield "withheld"


def node_rows(
    nodes: Iterable[Node],
    healths: Mapping[str, NodeHealth],
    now: float,
    roles: Mapping[str, NodeRole] = _NO_ROLES,
    devices: Mapping[str, NodeDevices] = _NOT_READ,
) -> list[NodeRow]:
    """The worst nodes first. Includes nodes that no tainter watches, and NodeHealths without a Node. roles, devices: by
    node."""
    there = {node.metadata.name: node for node in nodes}
    rows = [
        node_row(name, there.get(name), healths.get(name), now, roles.get(name), devices.get(name, NO_DEVICES))
        for name in there.keys() | healths.keys()
    ]
    return sorted(rows, key=lambda row: (-severity(row.verdict) if row.verdict else 1, row.node))


def node_row(
    name: str,
    node: Node | None,
    health: NodeHealth | None,
    now: float,
    role: NodeRole | None = None,
    devices: NodeDevices = NO_DEVICES,
) -> NodeRow:
    """``now``: seconds since the epoch."""
    row = _node_row(name, node, health, now, role)
    return msgspec.structs.replace(row, driver_taints=driver_taints(devices)) if devices.any_tainted else row


def _node_row(name: str, node: Node | None, health: NodeHealth | None, now: float, role: NodeRole | None) -> NodeRow:
    labels = node.metadata.labels if node is not None else {}
    taints = tuple(_taints(node)) if node is not None else ()
    testing = labels.get(TESTING_LABEL, "")
    if health is None:
        return NodeRow(
            node=name,
            verdict=None,
            taints=taints,
            testing=testing,
            role=role,
            message="not watched: it has no NodeHealth",
        )
    status = health.status
    if not status.verdict:
        return NodeRow(
            node=name,
            verdict=Verdict.UNKNOWN,
            taints=taints,
            testing=testing,
            role=role,
            message="its agent has not reported yet",
        )
    verdict, message = parse_verdict(status.verdict), status.message
    if labels.get(HEALTH_LABEL) == "unknown" and severity(verdict) < severity(Verdict.UNKNOWN):
        verdict, message = (
            Verdict.UNKNOWN,
            f"its agent is not trusted ({HEALTH_LABEL}=unknown); last report: {status.verdict}",
        )
    if node is None:
        message = f"the Node does not exist; {message}" if message else "the Node does not exist"
    elif not is_managed(node):
        message = f"not managed ({MANAGED_LABEL}=false); {message}".removesuffix("; ")
    return NodeRow(
        node=name,
        verdict=verdict,
        failing=tuple(word for word in status.failing.split(",") if word),
        message=message,
        state=_state(testing, status.idle_since, status.due, now),
        taints=taints,
        idle_since=status.idle_since,
        due=status.due,
        testing=testing,
        since=_since(health),
        withheld=withheld_reason(node) if node is not None else "",
        role=role,
        quarantined=_quarantined(node),
    )


def summary(rows: Sequence[NodeRow]) -> str:
    """``8 nodes: 6 PASS, 2 FAIL; 3 not watched``."""
    watched = [row for row in rows if row.verdict is not None]
    counts = [f"{n} {v.value}" for v in Verdict if (n := sum(row.verdict is v for row in watched))]
    text = f"{plural(len(watched), 'node')}{': ' + ', '.join(counts) if counts else ''}"
    others = len(rows) - len(watched)
    return f"{text}; {others} not watched" if others else text


def select_rows(rows: Sequence[NodeRow], *, every: bool) -> tuple[list[NodeRow], str]:
    """(the rows to show; a line about the others). every: all rows."""
    others = [row for row in rows if row.verdict is None]
    good = [row for row in rows if row.verdict in GOOD and not row.is_special]
    hidden: set[str] = set()
    if not every and len(good) > SHOWN_GOOD:
        hidden |= {row.node for row in good}
    hidden_line = describe_hidden(len(hidden), [row.verdict for row in good if row.verdict])
    if not every and len(others) > SHOWN_GOOD:
        hidden |= {row.node for row in others}
    return [row for row in rows if row.node not in hidden], hidden_line


def worst_verdict(rows: Iterable[NodeRow]) -> Verdict:
    """UNKNOWN if no node is watched."""
    return worst([row.verdict for row in rows if row.verdict is not None], Verdict.UNKNOWN)


def as_json(rows: Sequence[NodeRow], spares: Sequence[SpareCount] = ()) -> dict[str, Any]:
    return {
        "nodes": msgspec.to_builtins(rows),
        "spares": msgspec.to_builtins(spares),
        "verdict": worst_verdict(rows).value,
    }


def parse_verdict(text: str) -> Verdict:
    """UNKNOWN for any other word, as people can edit objects."""
    try:
        return Verdict(text)
    except ValueError:
        return Verdict.UNKNOWN


def _quarantined(node: Node | None) -> tuple[str, ...]:
    if node is None or not is_managed(node):
        return ()
    return tuple(dict.fromkeys(f.component for f in read_record(node).open if f.device == DeviceStage.ALONE))


def _taints(node: Node) -> Iterable[str]:
    if node.spec.unschedulable:
        yield "cordoned"
    for taint in node.spec.taints:
        if not taint.key.startswith(NOT_SHOWN):
            yield format_taint(taint)


def _state(testing: str, idle_since: str, due: Sequence[str], now: float) -> str:
    state = f"testing {testing}" if testing else "busy"
    if not testing and idle_since:
        state = f"idle {age(now - seconds(idle_since))}"
    return f"{state}, {len(due)} due" if due else state


def _since(health: NodeHealth) -> str:
    """When the verdict began: with the first check that has it; of a healthy node, with the last change."""
    times = [check.last_change for check in health.status.checks if check.last_change]
    if health.status.verdict in GOOD:
        return max(times, key=seconds, default="")
    worst_ones = [c.last_change for c in health.status.checks if c.verdict == health.status.verdict and c.last_change]
    return min(worst_ones, key=seconds, default="")
