"""Who measures with whom, so that few rounds name the slow node: pure.

A round is a set of disjoint pairs: no node's link is shared. In a ring of n nodes n - 1 rounds go by until all have
met. Here each node meets ceil(log2 n) + 1 others, drawn at random: whoever is slow is slow with all of them, and those
are fine with theirs. What that leaves in doubt meets nodes known to be sound, in at most :data:`FURTHER` rounds more.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

FURTHER = 3  # two with sound nodes, one among those that look slow: do they share a switch?
DOUBTFUL = 0.25  # of a node's meetings are bad: more than a slow peer or two explain
SLOW = 0.5  # the share above which blame.py accuses


class Meeting(msgspec.Struct, frozen=True):
    """Two nodes that measure with each other, both ways. The server waits, the client comes."""

    client: str
    server: str

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((self.client, self.server))


Round = list[Meeting]


def meetings_each(nodes: int) -> int:
    """How many others each of ``nodes`` meets at least in the first rounds: ceil(log2 n) + 1, or all there are."""
    return max(0, min(nodes - 1, (nodes - 1).bit_length() + 1))


def rounds_at_most(nodes: int) -> int:
    """Rounds of a whole measurement, those in doubt included."""
    if nodes < 2:
        return 0
    first = meetings_each(nodes) + nodes % 2
    return first + FURTHER


def first_rounds(nodes: Collection[str], rng: random.Random) -> list[Round]:
    """Rounds in which every node meets :func:`meetings_each` different others; one more where their number is odd, as
    each round then leaves one out, never the same one twice."""
    if len(nodes) < 2:
        return []
    order: list[str | None] = [*sorted(nodes), *[None] * (len(nodes) % 2)]
    rng.shuffle(order)
    # The circle of round-robin tournaments: in round r those whose places add up to r (mod n - 1) meet, so no two
    # rounds share a pair. A few of its rounds, drawn at random, mix well (a random Cayley graph is an expander).
    circle = len(order) - 1
    chosen = rng.sample(range(circle), min(circle, meetings_each(len(nodes)) + len(nodes) % 2))
    return [_arrange(_pairs(order, number), rng) for number in chosen]


def further_round(tally: Mapping[str, tuple[int, int]], met: Collection[frozenset[str]], rng: random.Random) -> Round:
    """Those in doubt meet nodes that they have not met, the soundest first; empty where nobody is in doubt.

    tally: by node its bad meetings and all its meetings
    """
    share = {node: bad / all_ for node, (bad, all_) in tally.items() if all_}
    doubtful = _shuffled((node for node in share if share[node] >= DOUBTFUL), rng)
    others = sorted(_shuffled(share, rng), key=share.__getitem__)
    return _arrange(_match(sorted(doubtful, key=share.__getitem__, reverse=True), others, met), rng)


def round_of_the_slow(
    tally: Mapping[str, tuple[int, int]], met: Collection[frozenset[str]], rng: random.Random
) -> Round:
    """Those that look slow meet one another: nodes that are fine among themselves are slow by a switch they share."""
    slow = _shuffled((node for node, (bad, all_) in tally.items() if bad > SLOW * all_), rng)
    return _arrange(_match(slow, slow, met), rng)


def tally_of(meetings: Iterable[Meeting], bad: Collection[frozenset[str]]) -> dict[str, tuple[int, int]]:
    """By node its bad meetings and all its meetings. bad: those of two nodes in which any way was bad."""
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
        # whose double is the sum meets the one who stands outside the circle
        one, two = order[place], order[circle if other == place else other]
        if other >= place and one is not None and two is not None:
            pairs.append((one, two))
    return pairs


def _match(ones: Sequence[str], others: Sequence[str], met: Collection[frozenset[str]]) -> list[tuple[str, str]]:
    """Disjoint pairs of those that have not met, as they come."""
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
    """Who serves is drawn: no node has only ever waited."""
    return [Meeting(*(pair if rng.random() < 0.5 else pair[::-1])) for pair in pairs]
