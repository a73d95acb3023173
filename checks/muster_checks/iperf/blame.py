"""Finds the NIC that is at fault for bad pairs.

A NIC is at fault if most of its pairs are bad, with several other nodes, and most of those nodes are fine in pairs
without it. If two racks are slow towards each other, no NIC is at fault: the peers also have bad pairs without it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from muster_checks.iperf.pair import NicPair, NicPlace

_End = tuple[str, str, str]  # node, NIC, direction: "sends", "receives" or "" for both
_Ends = Callable[[NicPair], tuple[_End, _End]]

AT_MOST = 0.4  # of the nodes: of two halves that are slow towards each other, neither can be blamed
STANDS_OUT = 6.0  # simulated: two halves of a fabric slow towards each other, against a rack of a quarter of all nodes


class Culprit(msgspec.Struct, frozen=True):
    """The NICs of one node that are at fault for ``pairs`` (all their measured pairs, bad or not).

    direction: ``sends`` or ``receives`` if only that direction is bad
    """

    node: str
    nics: tuple[str, ...]
    direction: str
    pairs: tuple[NicPair, ...]


def find_culprits(pairs: Sequence[NicPair], bad: Collection[NicPair]) -> list[Culprit]:
    """Finds whole NICs first, then one direction of a NIC (a dirty fibre); a node's NICs together are one culprit."""
    found: dict[_End, list[NicPair]] = {}
    for ends in (_both_ways, _one_way):
        explained = {pair for theirs in found.values() for pair in theirs}
        found |= _search([pair for pair in pairs if pair not in explained], bad, ends)
    nics: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        for node, nic in (pair.sender.place, pair.receiver.place):
            nics[node].add(nic)
    blamed: dict[NicPlace, list[_End]] = defaultdict(list)
    for end in found:
        blamed[end[:2]].append(end)
    whole = {node for node, theirs in nics.items() if all((node, nic) in blamed for nic in theirs)}
    together: dict[tuple[str, str | None], list[_End]] = defaultdict(list)
    for (node, nic), theirs in blamed.items():
        together[node, None if node in whole else nic] += theirs
    return [_culprit(node, theirs, found) for (node, _), theirs in together.items()]


def _culprit(node: str, ends: Sequence[_End], found: Mapping[_End, Sequence[NicPair]]) -> Culprit:
    directions = {direction for _, _, direction in ends}
    return Culprit(
        node=node,
        nics=tuple(sorted({nic for _, nic, _ in ends})),
        direction=directions.pop() if len(directions) == 1 else "",
        pairs=tuple(pair for end in ends for pair in found[end]),
    )


class _Ledger:
    """The pairs not yet explained, by end, and how many of them are bad. Pairs are kept by number: hashing them would
    dominate the run time, and there are tens of thousands."""

    def __init__(self, pairs: Sequence[NicPair], bad: Collection[NicPair], ends: _Ends) -> None:
        self.ends = [ends(pair) for pair in pairs]
        self.bad = [pair in bad for pair in pairs]
        self.of: dict[_End, set[int]] = defaultdict(set)
        self.bad_of: dict[_End, int] = defaultdict(int)
        self._with: dict[tuple[_End, str], list[int]] = defaultdict(
            lambda: [0, 0]
        )  # [bad, all], by the node at the other end
        for number in range(len(pairs)):
            self.put(number)

    def put(self, number: int) -> None:
        self._count(number, 1)

    def take(self, number: int) -> None:
        self._count(number, -1)

    def _count(self, number: int, change: int) -> None:
        one, other = self.ends[number]
        bad = self.bad[number]
        for end in {one, other}:
            if (number in self.of[end]) == (change > 0):
                continue
            (self.of[end].add if change > 0 else self.of[end].discard)(number)
            self.bad_of[end] += change * bad
            for node in {one[0], other[0]}:
                counts = self._with[end, node]
                counts[0] += change * bad
                counts[1] += change

    def share(self, end: _End) -> float:
        return self.bad_of[end] / len(self.of[end]) if self.of[end] else 0.0

    def victims(self, end: _End) -> set[_End]:
        """The ends on other nodes of this end's bad pairs."""
        return {
            other for number in self.of[end] if self.bad[number] for other in self.ends[number] if other[0] != end[0]
        }

    def without(self, victim: _End, node: str) -> tuple[int, int]:
        """Of the pairs that ``victim`` has with nodes other than ``node``: (bad, all)."""
        bad, all_ = self._with.get((victim, node), (0, 0))
        return self.bad_of[victim] - bad, len(self.of[victim]) - all_


def _search(pairs: Sequence[NicPair], bad: Collection[NicPair], ends: _Ends) -> dict[_End, list[NicPair]]:
    """The ends at fault, each with its pairs. Once found, an end is excluded from the rest of the search, so that its
    victims are not blamed; there are at most as many rounds as ends."""
    ledger = _Ledger(pairs, bad, ends)
    all_of = {end: sorted(numbers) for end, numbers in ledger.of.items()}
    found: dict[_End, list[int]] = {}
    while (worst := _worst(ledger)) is not None:
        for number in all_of[worst]:
            ledger.take(number)
        found[worst] = all_of[worst]
    # needs the full list: in a bisected fabric every node has bad pairs, some by chance more than their peers
    while doubtful := [end for end in found if not _stands_out(end, found, ledger)]:
        for end in doubtful:
            numbers = found.pop(end)
            for number in numbers:
                if not any(each in found for each in ledger.ends[number]):
                    ledger.put(number)
    if len({end[0] for end in found}) > AT_MOST * len({end[0] for end in ledger.of}):
        return {}
    return {end: [pairs[number] for number in numbers] for end, numbers in found.items()}


def _worst(ledger: _Ledger) -> _End | None:
    """The end at fault with the largest share of bad pairs. Tried in this order, because the test is expensive."""
    suspects = [end for end in ledger.of if ledger.share(end) > 0.5]
    suspects.sort(key=lambda end: (ledger.share(end), len(ledger.of[end]), end), reverse=True)
    return next((end for end in suspects if _is_guilty(end, ledger)), None)


def _is_guilty(end: _End, ledger: _Ledger) -> bool:
    victims = ledger.victims(end)
    fine = 0
    for victim in victims:
        bad, all_ = ledger.without(victim, end[0])
        fine += bad < 0.5 * all_
    return len({victim[0] for victim in victims}) >= 2 and 2 * fine > len(victims)


def _stands_out(end: _End, found: Mapping[_End, Sequence[int]], ledger: _Ledger) -> bool:
    """True if several times as many of its pairs with innocent nodes are bad as of those nodes' other pairs, which are
    what remains in ``ledger``."""
    own = [number for number in found[end] if all(each == end or each not in found for each in ledger.ends[number])]
    if not own:
        return True
    share = sum(ledger.bad[number] for number in own) / len(own)
    victims = {each for number in own if ledger.bad[number] for each in ledger.ends[number] if each[0] != end[0]}
    counts = [ledger.without(victim, end[0]) for victim in victims]
    others = sum(all_ for _, all_ in counts)
    return not others or sum(bad for bad, _ in counts) / others <= share / STANDS_OUT


def _both_ways(pair: NicPair) -> tuple[_End, _End]:
    return (*pair.sender.place, ""), (*pair.receiver.place, "")


def _one_way(pair: NicPair) -> tuple[_End, _End]:
    return (*pair.sender.place, "sends"), (*pair.receiver.place, "receives")
