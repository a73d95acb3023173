"""Books the time of nodes while no pod holds their accelerators, and their outages. Pure: the clock is a parameter."""

from collections.abc import Iterator

from muster_tainter.goodput.books import Books, Figure, account
from muster_tainter.goodput.causes import Side
from muster_tainter.goodput.lemons import Lemons
from muster_tainter.goodput.observed_node import ObservedNode, Outage
from muster_tainter.goodput.outages import outages_after
from muster_tainter.goodput.pods.attribution import GONE, NOTHING, NodeEvidence

GAP_S = 300.0
"""A new leader assumes that nodes were for so long what they are now. A longer gap is not booked to nodes."""


class _Node:
    """state: of accelerators without a pod, since ``mark``. used: accelerators that pods hold. outage: the present one.
    counted: outages that ended until then are counted. Times in seconds since the epoch."""

    __slots__ = ("capacity", "counted", "evidence", "mark", "outage", "place", "state", "used")

    def __init__(self, observed: ObservedNode, used: int, mark: float, counted: float) -> None:
        self.place, self.capacity, self.state = observed.place, observed.capacity, observed.state
        self.evidence = observed.evidence
        self.used = used
        self.mark = mark
        self.counted = counted
        self.outage: Outage | None = None


class NodeBooks:
    """since: nothing before is booked. resumed_from: when a former leader booked last; 0: there was none."""

    def __init__(self, books: Books, lemons: Lemons, since: float, resumed_from: float) -> None:
        self._books = books
        self._lemons = lemons
        self._since = since
        self._resumed_from = resumed_from
        self._before = resumed_from or since  # what began or ended until then is not counted again
        self._nodes: dict[str, _Node] = {}
        self._unplaced: dict[str, int] = {}  # accelerators in use on nodes that are not known

    def evidence(self, name: str) -> NodeEvidence:
        known = self._nodes.get(name)
        return NOTHING if known is None else known.evidence

    def changed(self, name: str, observed: ObservedNode, now: float) -> None:
        node = self._nodes.get(name)
        if node is None:
            self._appear(name, observed, now)
            return
        self._book(node, now)
        self._follow_outages(name, node, observed, node.counted, now)
        node.place, node.capacity, node.state = observed.place, observed.capacity, observed.state
        node.evidence = observed.evidence

    def _appear(self, name: str, observed: ObservedNode, now: float) -> None:
        resumes = self._resumed_from and now - self._resumed_from <= GAP_S
        mark = self._resumed_from if resumes else now
        node = self._nodes[name] = _Node(observed, self._unplaced.pop(name, 0), mark, self._before)
        self._follow_outages(name, node, observed, self._since, now)

    def gone(self, name: str, now: float) -> NodeEvidence:
        """Returns what it shows about the ends of its pods."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._book(node, now)
            if node.used:
                self._unplaced[name] = node.used
        return GONE

    def use(self, name: str, devices: int, now: float) -> None:
        """devices: that a pod holds from now on; negative: no longer."""
        node = self._nodes.get(name)
        if node is not None:
            self._book(node, now)
            node.used += devices
            return
        self._unplaced[name] = self._unplaced.get(name, 0) + devices
        if not self._unplaced[name]:
            del self._unplaced[name]

    def advance(self, now: float) -> Iterator[None]:
        """Book all nodes until ``now``; yields after each."""
        for node in list(self._nodes.values()):
            self._book(node, now)
            yield

    def accelerators(self) -> int:
        return sum(node.capacity for node in self._nodes.values())

    def _book(self, node: _Node, now: float) -> None:
        begin, node.mark = node.mark, max(node.mark, now)
        if now <= begin or not node.capacity:
            return
        self._books.book(node.place, None, Figure.NODES, begin, now, 1.0)
        free = node.capacity - node.used
        if free > 0:
            self._books.book(node.place, None, account(Side.NODE, node.state), begin, now, free)

    def _follow_outages(self, name: str, node: _Node, observed: ObservedNode, earliest: float, now: float) -> None:
        """Count what has begun and ended since the last look. earliest: see :func:`outages_after`."""
        for outage in outages_after(observed, node.counted, earliest, now):
            present = node.outage or self._begin_outage(name, node, outage, now)
            if outage.until <= now:
                self._end_outage(name, node, present, outage.until, now)
        if observed.outage is None and node.outage is not None:  # its record does not say when it ended
            self._end_outage(name, node, node.outage, now, now)

    def _begin_outage(self, name: str, node: _Node, outage: Outage, now: float) -> Outage:
        node.outage = outage
        node.counted = max(node.counted, outage.since)
        if outage.since > self._before:
            self._books.count(node.place, Figure.OUTAGES, now)
            self._lemons.add(name, outage.since, outage.reason, 0.0)
        return outage

    def _end_outage(self, name: str, node: _Node, outage: Outage, until: float, now: float) -> None:
        node.outage = None
        node.counted = max(node.counted, until)
        lasted = max(0.0, until - outage.since)
        self._books.count(node.place, Figure.ENDED, now)
        self._books.count(node.place, Figure.OUT, now, lasted)
        self._lemons.add(name, outage.since, outage.reason, lasted * node.capacity)
