"""Whose fault bad pairs are.

A NIC is to blame when most of its pairs are bad, with several others, and most of those are fine without it. Where two
racks are slow towards each other nobody is: all have the same share of bad pairs.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from muster_checks.iperf.pair import Pair, Place

_End = tuple[str, str, str]  # node, NIC, direction: "sends", "receives" or "" for both
_Ends = Callable[[Pair], tuple[_End, _End]]


class Culprit(msgspec.Struct, frozen=True):
    """NICs of one node that are to blame for ``pairs`` (all of theirs that were looked at, bad or not).

    direction: ``sends`` or ``receives`` where only that is bad
    """

    node: str
    nics: tuple[str, ...]
    direction: str
    pairs: tuple[Pair, ...]


def culprits(pairs: Sequence[Pair], bad: Collection[Pair]) -> list[Culprit]:
    """First whole NICs, then one direction of a NIC (a dirty fibre) are found; all NICs of a node are one culprit."""
    found: dict[_End, list[Pair]] = {}
    for ends in (_both_ways, _one_way):
        explained = {pair for theirs in found.values() for pair in theirs}
        found |= _search([pair for pair in pairs if pair not in explained], bad, ends)
    nics: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        for node, nic in (pair.sender.place, pair.receiver.place):
            nics[node].add(nic)
    blamed: dict[Place, list[_End]] = defaultdict(list)
    for end in found:
        blamed[end[:2]].append(end)
    whole = {node for node, theirs in nics.items() if all((node, nic) in blamed for nic in theirs)}
    together: dict[tuple[str, str | None], list[_End]] = defaultdict(list)
    for (node, nic), theirs in blamed.items():
        together[node, None if node in whole else nic] += theirs
    return [_culprit(node, theirs, found) for (node, _), theirs in together.items()]


def _culprit(node: str, ends: Sequence[_End], found: Mapping[_End, Sequence[Pair]]) -> Culprit:
    directions = {direction for _, _, direction in ends}
    return Culprit(
        node=node,
        nics=tuple(sorted({nic for _, nic, _ in ends})),
        direction=directions.pop() if len(directions) == 1 else "",
        pairs=tuple(pair for end in ends for pair in found[end]),
    )


def _search(pairs: Sequence[Pair], bad: Collection[Pair], ends: _Ends) -> dict[_End, list[Pair]]:
    """Who is to blame, each with its pairs. Whoever has been found is left out of what follows, so that its victims are
    not blamed for it; at most as many rounds as there are ends."""
    found: dict[_End, list[Pair]] = {}
    left = list(pairs)
    while True:
        of: dict[_End, list[Pair]] = defaultdict(list)
        for pair in left:
            for end in set(ends(pair)):
                of[end].append(pair)
        guilty = [end for end in of if _is_guilty(end, of, bad, ends)]
        if not guilty:
            return found
        worst = max(guilty, key=lambda end: (_share(of[end], bad), len(of[end]), end))
        found[worst] = [pair for pair in pairs if worst in ends(pair)]
        left = [pair for pair in left if worst not in ends(pair)]


def _is_guilty(end: _End, of: Mapping[_End, Sequence[Pair]], bad: Collection[Pair], ends: _Ends) -> bool:
    if _share(of[end], bad) <= 0.5:
        return False
    node = end[0]
    victims = {other for pair in of[end] if pair in bad for other in ends(pair) if other[0] != node}
    fine = 0
    for victim in victims:
        without = [pair for pair in of[victim] if node not in (pair.sender.node, pair.receiver.node)]
        fine += bool(without) and _share(without, bad) < 0.5
    return len({victim[0] for victim in victims}) >= 2 and 2 * fine > len(victims)


def _share(pairs: Sequence[Pair], bad: Collection[Pair]) -> float:
    return sum(pair in bad for pair in pairs) / len(pairs)


def _both_ways(pair: Pair) -> tuple[_End, _End]:
    return (*pair.sender.place, ""), (*pair.receiver.place, "")


def _one_way(pair: Pair) -> tuple[_End, _End]:
    return (*pair.sender.place, "sends"), (*pair.receiver.place, "receives")
