"""Plans which nodes measure with each other, so that few rounds identify slow nodes. Pure.

A round is a set of disjoint pairs, so that no node's link is shared. All pairs of n nodes would take n - 1 rounds.
Instead, each node meets ceil(log2 n) + 1 random others: a slow node is slow with all of them, and they are fast with
others. Nodes that remain in doubt meet healthy ones in at most :data:`FURTHER` more rounds.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

FURTHER = 3  # two with healthy nodes, one between slow nodes, which may share a switch
DOUBTFUL = 0.25  # share of bad meetings, too high for one or two slow peers to explain
SLOW = 0.5  # share above which blame.py names a node as slow


class Meeting(msgspec.Struct, frozen=True):
    """Two nodes that measure with each other, in both directions."""

    client: str
    server: str

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((self.client, self.server))


Round = list[Meeting]


def meetings_each(nodes: int) -> int:
    """Minimum of other nodes that each node meets in the first rounds: ceil(log2 n) + 1, or all of them."""
    return max(0, min(nodes - 1, (nodes - 1).bit_length() + 1))


def rounds_at_most(nodes: int) -> int:
    """Maximum of rounds of a measurement, including those for nodes in doubt."""
    if nodes < 2:
        return 0
    first = meetings_each(nodes) + nodes % 2
    return first + FURTHER


def first_rounds(nodes: Collection[str], rng: random.Random) -> list[Round]:
    """Rounds in which every node meets :func:`meetings_each` different others. An odd number of nodes takes one round
    more, because each round leaves one node out, each time another one."""
    if len(nodes) < 2:
        return []
    order: list[str | None] = [*sorted(nodes), *[None] * (len(nodes) % 2)]
    rng.shuffle(order)
    # The circle method of round-robin tournaments: in round r, nodes whose places add up to r (mod n - 1) meet, so no
    # pair meets twice. A few random rounds of it mix well (a random Cayley graph is an expander).
    circle = len(order) - 1
    chosen = rng.sample(range(circle), min(circle, meetings_each(len(nodes)) + len(nodes) % 2))
    return [_arrange(_pairs(order, number), rng) for number in chosen]


def further_round(tally: Mapping[str, tuple[int, int]], met: Collection[frozenset[str]], rng: random.Random) -> Round:
    """Nodes in doubt meet nodes that they have not met, the healthiest first; empty if none is in doubt.

    tally: by node, its bad meetings and all its meetings
    """
    share = {node: bad / all_ for node, (bad, all_) in tally.items() if all_}
    doubtful = _shuffled((node for node in share if share[node] >= DOUBTFUL), rng)
    others = sorted(_shuffled(share, rng), key=share.__getitem__)
    return _arrange(_match(sorted(doubtful, key=share.__getitem__, reverse=True), others, met), rng)


def round_of_the_slow(
    tally: Mapping[str, tuple[int, int]], met: Collection[frozenset[str]], rng: random.Random
) -> Round:
    """Slow nodes meet each other. If they are fast with each other, a switch that they share is slow."""
    slow = _shuffled((node for node, (bad, all_) in tally.items() if bad > SLOW * all_), rng)
    return _arrange(_match(slow, slow, met), rng)


def tally_of(meetings: Iterable[Meeting], bad: Collection[frozenset[str]]) -> dict[str, tuple[int, int]]:
    """By node, its bad meetings and all its meetings. bad: pairs of nodes with a bad direction."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for meeting in meetings:
        for node in meeting.nodes:
            counts[node][0] += meeting.nodes in bad
            counts[node][1] += 1
    return {node: (bad_ones, all_) for node, (bad_ones, all_) in counts.items()}


def _pairs(order: Sequence[str | None], number: int) -> list[tuple[str, str]]:
    circle = len(order) - 1
    pairs = []
    for place in range(circle):
        other = (number - place) % circle
        # the node whose doubled place is the sum meets the node outside the circle
        one, two = order[place], order[circle if other == place else other]
        if other >= place and one is not None and two is not None:
            pairs.append((one, two))
    return pairs


def _match(ones: Sequence[str], others: Sequence[str], met: Collection[frozenset[str]]) -> list[tuple[str, str]]:
    """Disjoint pairs of nodes that have not met, chosen greedily."""
    pairs = []
    taken: set[str] = set()
    for one in ones:
        if one in taken:
            continue
        for other in others:
            if other != one and other not in taken and frozenset((one, other)) not in met:
                pairs.append((one, other))
                taken |= {one, other}
                break
    return pairs


def _shuffled(nodes: Iterable[str], rng: random.Random) -> list[str]:
    found = sorted(nodes)
    rng.shuffle(found)
    return found


def _arrange(pairs: Iterable[tuple[str, str]], rng: random.Random) -> Round:
    """Choose the server of each pair at random, so that no node is always the server."""
    return [Meeting(*(pair if rng.random() < 0.5 else pair[::-1])) for pair in pairs]
