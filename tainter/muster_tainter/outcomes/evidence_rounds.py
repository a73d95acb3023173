"""Kinds that a tenant may cause: which of an owner's pods fail first, compared with its other pods.

A *round* is a set of an owner's pods, one per node, that were all created before the first of them ended.
So nobody, neither the scheduler nor the owner, had seen a result when these pods were placed. Retries are
in a later round.

Without a cause on node n, the result of n's pod could as well have been that of any other pod of the round
(exchangeability). The pods of the round that failed are sorted by time. When k of the r pods that had not
failed yet fail at once, n's pod is one of these k with the chance k / r. If a failure is ``theta`` times as
likely on n as elsewhere, its chance is larger; the likelihood ratio, up to a constant, is theta. Its mean
is 1 + (theta - 1) k / r, hence the factor

    f = product, over the failures until n's pod fails, of  theta ** [n's pod is one of them] / (1 + (theta - 1) k / r)

which has expectation 1 for each theta, whatever the owner's rate of failures is and however it changes
between rounds. This is Cox's partial likelihood with tied failures drawn as a hypergeometric sample; as an
e-value: ter Schure, Perez-Ortiz, Ly and Gruenwald, The anytime-valid logrank test (arXiv 2011.06931). An
owner that fails everywhere gives k = r and so f = 1; if one node fails first and takes the others with it,
the order shows that. If other nodes are worse than n, then n's pod is less likely to be one of the k than k
/ r, and the mean is below 1.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster_tainter.outcomes.evidence import Attempt, EvidenceSettings

ODDS = (3.0, 10.0, 100.0)
"""theta: a node that fails now and then, often, always. Each gets a third of the capital."""

TIED_S = 10.0
"""Failures that follow the first one within this time count as one moment. Nodes' clocks and the whole seconds of
Kubernetes' times (metav1.Time) must not decide which was first."""

PODS = 32
"""A round ends with so many. One pod that always fails first multiplies the value by 100 / (1 + 99 / 32) = 24."""

OPEN = 4
"""Rounds of one owner that wait for the ends of their pods."""

Owner = tuple[str, str]  # namespace, owner


@dataclass(frozen=True, slots=True)
class Record:
    """failed_at: inf if it did not fail. kind: of the failure, else empty."""

    started: float
    pod: str
    failed_at: float = math.inf
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One node in one round, for one kind of failure.

    expected: the share of the round that failed so, with this pod or before it, or at all if this pod did not.
    factors: one for each of ODDS.
    """

    node: str
    kind: str
    failed: bool
    expected: float
    factors: tuple[float, ...]


@dataclass(eq=False, slots=True)
class Round:
    """first_end: pods created before it belong to this round. records: by node."""

    owner: Owner
    first_end: float
    records: dict[str, Record] = field(default_factory=dict)

    def add(self, attempt: Attempt) -> None:
        record = Record(attempt.started, attempt.pod)
        if attempt.failed:
            record = Record(attempt.started, attempt.pod, attempt.at, attempt.kind)
        known = self.records.get(attempt.node)
        if known is None or (record.started, record.pod) < (known.started, known.pod):
            self.records[attempt.node] = record


def compare(records: Mapping[str, Record]) -> Iterator[Comparison]:
    """For each kind of failure in the round, one for each node; none where all fail at once.

    A pod that fails in another way leaves the comparison at that time: it cannot fail in this way any more.
    """
    moments = [list(tied) for tied in _moments(records)]
    for kind in sorted({records[node].kind for tied in moments for node in tied}):
        yield from _compare_kind(records, moments, kind)


def _compare_kind(records: Mapping[str, Record], moments: Sequence[list[str]], kind: str) -> Iterator[Comparison]:
    total = left = len(records)
    product, failed = (1.0,) * len(ODDS), 0
    gone: set[str] = set()
    for tied in moments:
        so = [node for node in tied if records[node].kind == kind]
        if so and len(so) < left:
            product = tuple(p / (1 + (theta - 1) * len(so) / left) for p, theta in zip(product, ODDS, strict=True))
            higher = tuple(p * theta for p, theta in zip(product, ODDS, strict=True))
        else:
            higher = product
        failed += len(so)
        for node in tied:
            own = records[node].kind == kind
            if product != (1.0,) * len(ODDS):
                yield Comparison(node, kind, own, failed / total, higher if own else product)
        gone.update(tied)
        left -= len(tied)
    if product != (1.0,) * len(ODDS):
        for node in records.keys() - gone:
            yield Comparison(node, kind, False, failed / total, product)


def _moments(records: Mapping[str, Record]) -> Iterator[list[str]]:
    """The nodes whose pods failed at about the same time, in order."""
    failed = sorted((record.failed_at, node) for node, record in records.items() if record.kind)
    tied: list[str] = []
    begin = -math.inf
    for at, node in failed:
        if tied and at - begin > TIED_S:
            yield tied
            tied = []
        if not tied:
            begin = at
        tied.append(node)
    if tied:
        yield tied


class Rounds:
    """The open rounds of all owners. ``add`` and ``due`` return the rounds that have ended."""

    def __init__(self, settings: EvidenceSettings) -> None:
        self.round_s, self.limit = settings.round_s, settings.records
        self.records = 0
        self._open: OrderedDict[Round, float] = OrderedDict()  # round -> since, in this order
        self._by_owner: dict[Owner, list[Round]] = {}
        self._ended: OrderedDict[Owner, float] = OrderedDict()  # owner -> pods created before this come too late

    def add(self, attempt: Attempt) -> list[Round]:
        owner = (attempt.namespace, attempt.owner)
        if attempt.started < self._ended.get(owner, -math.inf):
            return []
        rounds = self._by_owner.setdefault(owner, [])
        place = next((each for each in rounds if attempt.started < each.first_end), None)
        ended = []
        if place is None:
            if len(rounds) >= OPEN:
                ended.append(self._end(rounds[0]))
                rounds = self._by_owner.setdefault(owner, [])
            place = Round(owner, attempt.at)
            rounds.append(place)
            self._open[place] = attempt.at
        self.records -= len(place.records)
        place.add(attempt)
        self.records += len(place.records)
        if len(place.records) >= PODS:
            ended.append(self._end(place))
        while self.records > self.limit:
            ended.append(self._end(next(iter(self._open))))
        return ended

    def due(self, now: float) -> Iterator[Round]:
        while self._open:
            oldest, since = next(iter(self._open.items()))
            if now - since < self.round_s:
                return
            yield self._end(oldest)

    def forget_before(self, time: float) -> None:
        while self._ended and next(iter(self._ended.values())) < time:
            self._ended.popitem(last=False)

    def _end(self, ended: Round) -> Round:
        del self._open[ended]
        rounds = self._by_owner[ended.owner]
        rounds.remove(ended)
        if not rounds:
            del self._by_owner[ended.owner]
        self.records -= len(ended.records)
        latest = max(ended.first_end, self._ended.pop(ended.owner, -math.inf))
        self._ended[ended.owner] = latest
        if len(self._ended) > self.limit:
            self._ended.popitem(last=False)
        return ended
