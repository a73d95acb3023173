"""Faults that a fleet has had, from several sources that may overlap and lie, as rows of a fault file.

Intervals of one component that overlap or touch are one fault, from the first begin to the last end, with the heaviest
class: several checks report one fault. A time in which the node was not Ready belongs to a fault that it overlaps: the
repair, usually. What cannot be simulated is left out and counted.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from muster_tainter.simulation.scenario.fault_file import CLASSES, UNTIL_REPAIRED, FaultRow
from muster_tainter.simulation.scenario.fleet_file import CHECK, NO_CHECKS

FAULTS_LIMIT = 500_000  # in memory: 300 bytes each
FAULTS_A_NODE = 1_000  # an agent that lies, or flaps each minute, must not crowd out the others
UNKNOWN_CLASS = "contact"  # what a fault of unknown cause takes is a person
NOT_READY = ("host", "dmesg", "NotReady")  # component, check, reason: a silent node, as a fault that its agent reports
TOUCHING_S = 300.0  # a reboot follows its fault within minutes; the lookback of Prometheus is as long

_NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?")
_KIND = re.compile(r"[a-z]{1,60}")
_NOT_IN_COMPONENTS = re.compile(r"[^A-Za-z0-9:._-]")
_NOT_IN_REASONS = re.compile(r"[^A-Za-z0-9_]")


class PastFault(NamedTuple):
    """fault_class: empty if the source does not know it. start, end: seconds since the epoch; end UNTIL_REPAIRED: it
    still lasts."""

    node: str
    component: str
    check: str
    reason: str
    fault_class: str
    start: float
    end: float


@dataclass
class PastFaults:
    """begin, end: of the time that is asked about, in seconds since the epoch. left_out: faults by cause:

    ``no repair`` (they ask for none), ``other sources`` (no agent reports them), ``too many`` of a node, ``invalid``
    labels, ``maintenance``: not Ready after a person cordoned the node
    """

    begin: float
    end: float
    left_out: Counter[str] = field(default_factory=Counter)
    _by_component: dict[tuple[str, str], list[PastFault]] = field(default_factory=dict)
    _not_ready: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _numbers: Counter[str] = field(default_factory=Counter)
    _held: int = 0

    def add(self, fault: PastFault) -> None:
        component, reason = component_of(fault.component), _NOT_IN_REASONS.sub("_", fault.reason)[:63]
        if fault.end <= self.begin or fault.start >= self.end:
            return
        if not component or not _NODE.fullmatch(fault.node) or not re.fullmatch(CHECK, fault.check):
            self.left_out["invalid"] += 1
        elif fault.check in NO_CHECKS:
            self.left_out["other sources"] += 1
        elif self._has_room(fault.node):
            start, end = _whole(max(fault.start, self.begin), fault.end)
            taken = fault._replace(component=component, reason=reason, start=start, end=end)
            self._by_component.setdefault((fault.node, component), []).append(taken)

    def add_not_ready(self, node: str, start: float, end: float) -> None:
        if end <= self.begin or start >= self.end:
            return
        if not _NODE.fullmatch(node):
            self.left_out["invalid"] += 1
        elif self._has_room(node):
            self._not_ready[node].append(_whole(max(start, self.begin), end))

    def _has_room(self, node: str) -> bool:
        if self._numbers[node] >= FAULTS_A_NODE or self._held >= FAULTS_LIMIT:
            self.left_out["too many"] += 1
            return False
        self._numbers[node] += 1
        self._held += 1
        return True

    def rows(self) -> "PastRows":
        """In the order of start, whole seconds, numbered from 1."""
        known: defaultdict[str, list[PastFault]] = defaultdict(list)
        unknown_class = 0
        left_out = Counter(self.left_out)
        for (node, _), faults in self._by_component.items():
            for fault, classes in _joined(faults):
                if classes and not classes & {*CLASSES}:
                    left_out["no repair"] += 1
                    continue
                unknown_class += not classes
                known[node].append(fault)
        not_ready = [
            PastFault(node, *NOT_READY, "reboot", start, end)
            for node, spans in self._not_ready.items()
            for start, end in _alone(spans, known[node])
        ]
        found = [fault for faults in known.values() for fault in faults]
        rows = [_row(fault) for fault in (*found, *not_ready)]
        rows.sort(key=lambda row: (row.start, row.node, row.component))
        return PastRows(
            [row._replace(number=number) for number, row in enumerate(rows, 1)],
            unknown_class=unknown_class,
            not_ready=len(not_ready),
            began_before=sum(row.start <= self.begin for row in rows),
            lasting=sum(row.end == UNTIL_REPAIRED for row in rows),
            left_out=+left_out,
        )


@dataclass(frozen=True)
class PastRows:
    """unknown_class: rows whose class is UNKNOWN_CLASS because no source knows it. not_ready: rows that no agent
    reported. began_before: rows that were there at the begin. lasting: rows without an end."""

    rows: list[FaultRow]
    unknown_class: int
    not_ready: int
    began_before: int
    lasting: int
    left_out: Counter[str]

    def of_nodes(self, names: frozenset[str]) -> "PastRows":
        """Without the rows of other nodes, which are counted as ``other nodes``."""
        kept = [row for row in self.rows if row.node in names]
        left_out = self.left_out + Counter({"other nodes": len(self.rows) - len(kept)})
        return replace(
            self,
            rows=[row._replace(number=number) for number, row in enumerate(kept, 1)],
            left_out=left_out,
        )


def component_of(text: str) -> str:
    """A component as fault files have it: ``ipu/10.1.5.6/3`` -> ``ipu/10.1.5.6_3``; empty if it is none."""
    kind, _, name = text.partition("/")
    if not _KIND.fullmatch(kind):
        return ""
    name = _NOT_IN_COMPONENTS.sub("_", name)[:60]
    return f"{kind}/{name}" if name else kind


def _joined(faults: list[PastFault]) -> Iterable[tuple[PastFault, set[str]]]:
    """Faults of one component: each with the classes that are known of it."""
    current: PastFault | None = None
    classes: set[str] = set()
    for fault in sorted(faults, key=lambda each: (each.start, each.end)):
        if current is not None and fault.start <= current.end:
            heavier = max(current, fault, key=_weight)
            current = heavier._replace(start=current.start, end=max(current.end, fault.end))
        else:
            if current is not None:
                yield _classed(current), classes
            current, classes = fault, set()
        classes |= {fault.fault_class} - {""}
    if current is not None:
        yield _classed(current), classes


def _classed(fault: PastFault) -> PastFault:
    return fault if fault.fault_class in CLASSES else fault._replace(fault_class=UNKNOWN_CLASS)


def _weight(fault: PastFault) -> tuple[int, bool]:
    """A class that asks for a repair is heavier than one that does not; and a known reason than none."""
    place = CLASSES.index(fault.fault_class) if fault.fault_class in CLASSES else -1
    return place, bool(fault.reason)


def _alone(spans: list[tuple[float, float]], faults: list[PastFault]) -> Iterable[tuple[float, float]]:
    """Times in which the node was not Ready, without those that belong to a fault of the node: that one then lasts as
    long, unless another one of its component is in the way."""
    for start, end in sorted(spans):
        places = (
            place for place, fault in enumerate(faults)
            if fault.start - TOUCHING_S <= end and start <= fault.end + TOUCHING_S
        )  # fmt: skip
        place = next(places, None)
        if place is None:
            yield start, end
            continue
        fault = faults[place]
        others = [each for each in faults if each.component == fault.component and each is not fault]
        first = max([start, *(each.end for each in others if each.end <= fault.start)])
        last = min([end, *(each.start for each in others if each.start >= fault.end)])
        faults[place] = fault._replace(start=min(fault.start, first), end=max(fault.end, last))


def _whole(start: float, end: float) -> tuple[float, float]:
    """Whole seconds, at least one."""
    first = float(int(start))
    return first, end if end == UNTIL_REPAIRED else max(float(int(end)), first + 1.0)


def _row(fault: PastFault) -> FaultRow:
    return FaultRow(
        0, fault.node, fault.start, fault.end, fault.fault_class, fault.component, fault.check, fault.reason
    )
