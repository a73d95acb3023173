"""Counts the nodes that a job's workers could run on, incrementally as nodes change.

There is one count per node selector in use, a handful in most clusters.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster_kube.api.objects import Api, Metadata, NodeCondition, Taint
from muster_operator.job.snapshot import NodeCapacity

FAULTY_LABEL = "muster.dev/faulty"
SPARE_TAINT = "muster.dev/spare"  # of a node that is kept free
ROLE_LABEL = "muster.dev/role"  # accompanies that taint, with the value "spare"
IPUS_FREE, IPUS_TOTAL = "muster.dev/ipus-free", "muster.dev/ipus-total"  # labels or extended resources (visibility)
FAULTS = "muster.dev/faults"  # the tainter's record, written together with its taints
FAULTS_SHOWN = 2
MESSAGE_SHOWN = 160  # characters
TAINTED_SHOWN = 3  # names
SELECTORS_LIMIT = 256  # counts kept; the least recently used one is dropped first

Selector = frozenset[tuple[str, str]]


class FleetNodeSpec(Api, frozen=True):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class FleetNodeStatus(Api, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()
    capacity: dict[str, str] = msgspec.field(default_factory=dict)


class FleetNode(Api, frozen=True):
    """A Node reduced to labels, taints, readiness and advertised IPUs."""

    metadata: Metadata
    spec: FleetNodeSpec = FleetNodeSpec()
    status: FleetNodeStatus = FleetNodeStatus()


class _NodeFault(msgspec.Struct, frozen=True):
    check: str = ""
    component: str = ""
    reason: str = ""
    verdict: str = "FAIL"
    message: str = ""


class _NodeFaults(msgspec.Struct, frozen=True):
    open: tuple[_NodeFault, ...] = ()


_faults = msgspec.json.Decoder(_NodeFaults)


def _describe_faults(node: FleetNode) -> str:
    """The faults that the tainter found on the node, for people; empty if there are none or they cannot be decoded."""
    try:
        found = _faults.decode(node.metadata.annotations.get(FAULTS, "{}")).open
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    worst = [each for each in found if each.verdict == "FAIL"] or list(found)
    details = []
    for each in worst[:FAULTS_SHOWN]:
        where = f" on {each.component}" if each.component not in ("", "host") else ""
        text = f"check {each.check}{where}: {each.reason}"
        details.append(f"{text}: {each.message[:MESSAGE_SHOWN]}" if each.message else text)
    return "; ".join(details) + (f"; and {len(worst) - FAULTS_SHOWN} more" if len(worst) > FAULTS_SHOWN else "")


def project_node(node: FleetNode) -> FleetNode:
    """Drops heartbeats and unused conditions: the ``transform`` of a reflector. For a faulty node it keeps the
    description of the faults."""
    ready = tuple(
        NodeCondition(type=each.type, status=each.status, reason=each.reason if each.status != "True" else "")
        for each in node.status.conditions
        if each.type == "Ready"
    )
    taints = tuple(Taint(key=each.key, effect=each.effect) for each in node.spec.taints)
    meta = node.metadata
    ipus = {key: node.status.capacity[key] for key in (IPUS_FREE, IPUS_TOTAL) if key in node.status.capacity}
    return FleetNode(
        metadata=Metadata(
            name=meta.name,
            resource_version=meta.resource_version,
            labels=meta.labels,
            annotations={FAULTS: details}
            if meta.labels.get(FAULTY_LABEL) == "true" and (details := _describe_faults(node))
            else {},
        ),
        spec=FleetNodeSpec(taints=taints, unschedulable=node.spec.unschedulable),
        status=FleetNodeStatus(conditions=ready, capacity=ipus),
    )


@dataclass
class _Count:
    nodes: int = 0
    spares: int = 0
    tainted: set[str] = field(default_factory=set)

    @property
    def healthy(self) -> int:
        return self.nodes - len(self.tainted)

    def add(self, node: FleetNode, our_taints: frozenset[str], by: int) -> None:
        if is_spare(node):
            self.spares += by
            return
        self.nodes += by
        if not is_healthy(node, our_taints):
            (self.tainted.add if by > 0 else self.tainted.discard)(node.metadata.name)


def takes_pods(node: FleetNode) -> bool:
    """Ready and schedulable."""
    return not node.spec.unschedulable and any(
        each.type == "Ready" and each.status == "True" for each in node.status.conditions
    )


def is_healthy(node: FleetNode, our_taints: frozenset[str]) -> bool:
    """The node has neither one of our taints nor the label that accompanies them, which the pods of jobs avoid."""
    return node.metadata.labels.get(FAULTY_LABEL) != "true" and not any(
        each.key in our_taints and each.effect != "PreferNoSchedule" for each in node.spec.taints
    )


def is_spare(node: FleetNode) -> bool:
    """No pod of a job starts there."""
    return node.metadata.labels.get(ROLE_LABEL) == "spare" or any(each.key == SPARE_TAINT for each in node.spec.taints)


class CapacityIndex:
    """nodes: known nodes by name, the store of a reflector; ``note`` reports its changes.

    on_room: called when a count may have changed
    """

    def __init__(
        self, nodes: Mapping[str, FleetNode], our_taints: tuple[str, ...], on_room: Callable[[], None]
    ) -> None:
        self._nodes = nodes
        self._our_taints = frozenset(our_taints)
        self._on_room = on_room
        self._counts: OrderedDict[Selector, _Count] = OrderedDict()

    def note(self, _name: str, old: FleetNode | None, new: FleetNode | None) -> None:
        """Call after the store has changed."""
        if old is not None and new is not None and self._essence(old) == self._essence(new):
            return
        for selector, count in self._counts.items():
            for node, by in ((old, -1), (new, 1)):
                if node is not None and takes_pods(node) and _matches(selector, node):
                    count.add(node, self._our_taints, by)
        self._on_room()

    def count(self, selector: Mapping[str, str], avoided: Iterable[str] = ()) -> NodeCapacity:
        """Counts the nodes with all these labels. Spares count apart. avoided: names of nodes that do not count as
        healthy."""
        key: Selector = frozenset(selector.items())
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _Count()
            for node in self._nodes.values():
                if takes_pods(node) and _matches(key, node):
                    count.add(node, self._our_taints, 1)
            while len(self._counts) > SELECTORS_LIMIT:
                self._counts.popitem(last=False)
        self._counts.move_to_end(key)
        out = len([name for name in set(avoided) if self._is_healthy_place(name, key)])
        return NodeCapacity(
            nodes=count.nodes,
            healthy=count.healthy - out,
            avoided=out,
            spares=count.spares,
            tainted=tuple(heapq.nsmallest(TAINTED_SHOWN, count.tainted)),
        )

    def _is_healthy_place(self, name: str, selector: Selector) -> bool:
        node = self._nodes.get(name)
        return (
            node is not None
            and takes_pods(node)
            and _matches(selector, node)
            and is_healthy(node, self._our_taints)
            and not is_spare(node)
        )

    def _essence(self, node: FleetNode) -> tuple[object, ...]:
        return node.metadata.labels, takes_pods(node), is_healthy(node, self._our_taints), is_spare(node)


def _matches(selector: Selector, node: FleetNode) -> bool:
    labels = node.metadata.labels
    return all(labels.get(key) == value for key, value in selector)
