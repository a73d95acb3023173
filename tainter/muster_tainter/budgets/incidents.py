"""Detects incidents: the same reason of the same check that opened on several nodes, each within a given time of the
next.

The index is updated node by node, so a fleet-wide failure needs no scan of the fleet. Openings form chains: runs
without a longer gap. A chain with enough nodes is an incident, located at the smallest ground that its nodes share: a
failure domain or a job, else the fleet. Outliers are ignored as long as they are too few to form an incident
themselves: one node that failed by chance in another rack does not hide that all others are in one rack.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from muster_kube.api.times import rfc3339, rfc3339_whole, seconds
from muster_tainter.policy.budgets import Incidents

Ground = tuple[str, str]  # what nodes may share: a label and its value, or ("job", its name)
FLEET: Ground = ("", "")
_Kind = tuple[str, str]  # check, reason
_Opening = tuple[float, str]  # since, node


class FaultOpening(NamedTuple):
    """A fault. since: seconds since the epoch when it opened. incident: the id that it got then, if any, so that a new
    leader continues the old leader's incident."""

    check: str
    reason: str
    component: str
    since: float
    incident: str = ""


@dataclass(frozen=True)
class Incident:
    """id: constant for the lifetime of the incident. ground: what all its nodes share, FLEET if nothing. since: seconds
    since the epoch of the first opening. count: nodes whose faults of this incident are open."""

    id: str
    check: str
    reason: str
    ground: Ground
    since: float
    count: int

    @property
    def text(self) -> str:
        where = "the fleet" if self.ground == FLEET else f"{self.ground[0]}={self.ground[1]}"
        since = rfc3339_whole(self.since)
        return f"incident: {self.check} {self.reason} on {self.count} nodes of {where} since {since}"


class _Chain:
    """first: earliest time of all its openings ever; nodes: openings per node; grounds: nodes per ground."""

    __slots__ = ("first", "grounds", "nodes", "openings")

    def __init__(self) -> None:
        self.first = float("inf")
        self.openings: set[_Opening] = set()
        self.nodes: Counter[str] = Counter()
        self.grounds: Counter[Ground] = Counter()


class _OfKind:
    """The sorted openings of one check and reason, and their chains."""

    __slots__ = ("chain_of", "chains", "openings")

    def __init__(self) -> None:
        self.openings: list[_Opening] = []
        self.chain_of: dict[_Opening, _Chain] = {}
        self.chains: set[_Chain] = set()


class _Known(NamedTuple):
    """The last note of a node. firsts: for each opening, the start of its recorded incident, or its own time."""

    firsts: dict[tuple[_Kind, float], float]
    grounds: tuple[Ground, ...]


_NOTHING = _Known({}, ())


class IncidentIndex:
    """The open faults of a fleet. marks: numbers of nodes, beside 2 and the rules' own, at which decisions change (a
    rule with ``correlated: k`` adds k + 1)."""

    def __init__(self, rules: Incidents | None = None, marks: Iterable[int] = ()) -> None:
        self._nodes: dict[str, _Known] = {}
        self._kinds: dict[_Kind, _OfKind] = {}
        self.policy(rules or Incidents(), marks)

    def policy(self, rules: Incidents, marks: Iterable[int] = ()) -> None:
        """Use other rules from now on, also for faults that are open already."""
        self._rules = rules
        self._marks = sorted({2, rules.nodes, *marks})
        self._kinds = {}
        for node, known in self._nodes.items():
            for (kind, since), first in known.firsts.items():
                self._open(kind, (since, node), first)

    def note(self, node: str, faults: Iterable[FaultOpening], grounds: Iterable[Ground] = ()) -> set[str]:
        """Replace the open faults of a node. grounds: what it shares with others, smallest first.

        Returns the other nodes that need a new decision: those whose ``others`` passed a mark, or whose incident
        appeared, disappeared or changed its ground or id.
        """
        firsts = {((fault.check, fault.reason), fault.since): _first(fault) for fault in faults}
        known = _Known(firsts, tuple(dict.fromkeys(grounds))) if firsts else _NOTHING
        before = self._nodes.get(node, _NOTHING)
        if known == before:
            return set()
        stays = known.firsts.keys() & before.firsts.keys() if known.grounds == before.grounds else set()
        changed: set[str] = set()
        for kind, since in before.firsts.keys() - stays:
            changed |= self._close(kind, (since, node))
        if known.firsts:
            self._nodes[node] = known
        else:
            del self._nodes[node]
        for (kind, since), first in known.firsts.items():
            if (kind, since) not in stays:
                changed |= self._open(kind, (since, node), first)
            else:
                chain = self._kinds[kind].chain_of[since, node]
                chain.first = min(chain.first, first)
        return changed - {node}

    def others(self, node: str, check: str, reason: str, at: float) -> int:
        """On how many other nodes the same fault opened, in the chain that ``at`` (seconds since the epoch) belongs to
        or would join."""
        of_kind = self._kinds.get((check, reason))
        if of_kind is None:
            return 0
        chains = _near(of_kind, at, self._rules.within)
        if len(chains) == 1:
            nodes = next(iter(chains)).nodes
            return len(nodes) - (node in nodes)
        return len({other for chain in chains for other in chain.nodes} - {node})

    def of(self, node: str, check: str, reason: str, since: float) -> Incident | None:
        """The incident that the node's fault, open since ``since``, belongs to."""
        of_kind = self._kinds.get((check, reason))
        chain = None if of_kind is None else of_kind.chain_of.get((since, node))
        if chain is None:
            return None
        ground = self._ground(chain)
        if ground is None or (ground != FLEET and ground not in self._nodes[node].grounds):
            return None
        return _incident((check, reason), chain, ground)

    def all(self) -> list[Incident]:
        """Oldest first."""
        return sorted((incident for incident, _ in self._all()), key=lambda incident: (incident.since, incident.id))

    def nodes_of(self, id: str) -> list[str]:
        """The nodes of an incident, sorted; empty if the incident no longer exists."""
        found: set[str] = set()
        for incident, chain in self._all():
            if incident.id == id:
                found |= {node for node in chain.nodes if self._belongs(node, incident.ground)}
        return sorted(found)

    # chains

    def _all(self) -> Iterator[tuple[Incident, _Chain]]:
        for kind, of_kind in self._kinds.items():
            for chain in of_kind.chains:
                ground = self._ground(chain)
                if ground is not None:
                    yield _incident(kind, chain, ground), chain

    def _belongs(self, node: str, ground: Ground) -> bool:
        return ground == FLEET or ground in self._nodes[node].grounds

    def _state(self, chain: _Chain) -> tuple[int, Ground | None, float]:
        """When this value changes, all nodes of the chain need a new decision."""
        ground = self._ground(chain)
        return bisect_right(self._marks, len(chain.nodes)), ground, 0.0 if ground is None else chain.first

    def _ground(self, chain: _Chain) -> Ground | None:
        """What the nodes share, ignoring fewer outliers than make an incident; None if the chain is not an incident."""
        nodes, enough = len(chain.nodes), self._rules.nodes
        if nodes < enough:
            return None
        best, best_rank = FLEET, (0, 0)
        for node in islice(chain.nodes, enough):  # at least one of this many nodes has the common ground
            for place, ground in enumerate(self._nodes[node].grounds):
                count = chain.grounds[ground]
                if count >= enough and nodes - count < enough and (count, -place) > best_rank:
                    best, best_rank = ground, (count, -place)
        return best

    def _open(self, kind: _Kind, opening: _Opening, first: float) -> set[str]:
        """Returns the nodes that need a new decision."""
        of_kind = self._kinds.setdefault(kind, _OfKind())
        parts = sorted(
            _near(of_kind, opening[0], self._rules.within), key=lambda part: len(part.openings), reverse=True
        )
        states = [self._state(part) for part in parts]
        chain = parts[0] if parts else _Chain()
        of_kind.chains.add(chain)
        for part in parts[1:]:
            self._move(of_kind, part.openings, chain)
            chain.first = min(chain.first, part.first)
            of_kind.chains.discard(part)
        insort(of_kind.openings, opening)
        self._move(of_kind, (opening,), chain)
        chain.first = min(chain.first, first)
        return set(chain.nodes) if any(state != self._state(chain) for state in states) else set()

    def _close(self, kind: _Kind, opening: _Opening) -> set[str]:
        """Returns the nodes that need a new decision."""
        of_kind = self._kinds[kind]
        chain = of_kind.chain_of.pop(opening)
        state = self._state(chain)
        at = bisect_left(of_kind.openings, opening)
        del of_kind.openings[at]
        self._take_out(chain, opening)
        parts = [chain]
        if not chain.openings:
            of_kind.chains.discard(chain)
            if not of_kind.chains:
                del self._kinds[kind]
        elif self._is_torn(of_kind, at):
            end = at
            while end < len(of_kind.openings) and of_kind.chain_of[of_kind.openings[end]] is chain:
                end += 1
            later = of_kind.openings[at:end]
            for moved in later:
                self._take_out(chain, moved)
            part = _Chain()
            of_kind.chains.add(part)
            self._move(of_kind, later, part)
            part.first = min(self._nodes[node].firsts.get((kind, since), since) for since, node in later)
            parts.append(part)
        news = [part for part in parts if self._state(part) != state]
        return {node for part in news for node in part.nodes}

    def _is_torn(self, of_kind: _OfKind, at: int) -> bool:
        """Whether the openings left and right of ``at`` were in one chain and are now too far apart."""
        if not 0 < at < len(of_kind.openings):
            return False
        left, right = of_kind.openings[at - 1], of_kind.openings[at]
        return of_kind.chain_of[left] is of_kind.chain_of[right] and right[0] - left[0] > self._rules.within

    def _move(self, of_kind: _OfKind, openings: Iterable[_Opening], chain: _Chain) -> None:
        for opening in openings:
            of_kind.chain_of[opening] = chain
            chain.openings.add(opening)
            node = opening[1]
            chain.nodes[node] += 1
            if chain.nodes[node] == 1:
                chain.grounds.update(self._nodes[node].grounds)

    def _take_out(self, chain: _Chain, opening: _Opening) -> None:
        chain.openings.discard(opening)
        node = opening[1]
        chain.nodes[node] -= 1
        if not chain.nodes[node]:
            del chain.nodes[node]
            for ground in self._nodes[node].grounds:
                chain.grounds[ground] -= 1
                if not chain.grounds[ground]:
                    del chain.grounds[ground]


def _near(of_kind: _OfKind, at: float, within: float) -> set[_Chain]:
    """The chains, at most two, that an opening at that time belongs to or joins."""
    place = bisect_left(of_kind.openings, (at, ""))
    around = of_kind.openings[max(place - 1, 0) : place + 1]
    return {of_kind.chain_of[opening] for opening in around if abs(opening[0] - at) <= within}


def _incident(kind: _Kind, chain: _Chain, ground: Ground) -> Incident:
    count = len(chain.nodes) if ground == FLEET else chain.grounds[ground]
    return Incident(_id(*kind, chain.first), *kind, ground, chain.first, count)


@lru_cache(maxsize=256)  # called for each node of an incident
def _id(check: str, reason: str, first: float) -> str:
    return f"{check}/{reason}@{rfc3339(first)}"


def _first(fault: FaultOpening) -> float:
    """When the fault's recorded incident began; the fault's own time if the id is not one of ours."""
    recorded = seconds(fault.incident.rpartition("@")[2])
    is_id = fault.incident and fault.incident == _id(fault.check, fault.reason, recorded)
    return recorded if is_id and 0 < recorded < fault.since else fault.since
