"""The books as bytes, for the ConfigMap ``muster-goodput``: compressed JSON of bounded size. Pure.

Whoever may write ConfigMaps in the tainter's namespace may write these bytes, so reading bounds and checks everything.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterable

import msgspec

from muster_tainter.goodput.books import ACCOUNTS, DAY_S, HOUR_S, Books, Bucket, Place
from muster_tainter.goodput.ledger import Ledger, Risk
from muster_tainter.goodput.lemons import HISTORY, NODES_LIMIT, Entry

NAME = "muster-goodput"  # of the ConfigMap
KEY = "books"  # in its binaryData
UNREADABLE_KEY = "unreadable"
UNREADABLE_LIMIT = 300_000
VERSION = 1
SIZE_LIMIT = 600_000  # bytes; with the same again of what could not be read, a ConfigMap may have 1 MiB
_PLAIN_LIMIT = 32 << 20
_NAME_LIMIT = 256
_BUCKETS_LIMIT = 1000
GAPS_LIMIT = 64
_LATEST = 253_402_300_799.0  # the end of year 9999


class BadState(Exception):
    """The bytes are not the books of this version. The text says what was found."""


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """A time in which no tainter kept the books, in seconds since the epoch. vanished: accelerator-seconds that pods
    had at risk that were gone after it."""

    begin: float
    end: float
    vanished: float = 0.0


class SavedRow(msgspec.Struct, frozen=True, array_like=True):
    pool: str
    model: str
    sums: dict[str, float]


class SavedTeam(msgspec.Struct, frozen=True, array_like=True):
    team: str
    sums: dict[str, float]


class SavedBucket(msgspec.Struct, frozen=True, array_like=True):
    start: int
    length: int
    rows: tuple[SavedRow, ...] = ()
    teams: tuple[SavedTeam, ...] = ()

    def bucket(self) -> Bucket:
        return Bucket(
            self.start,
            self.length,
            {Place(row.pool, row.model): Counter(row.sums) for row in self.rows},
            {each.team: Counter(each.sums) for each in self.teams},
        )


class SavedRisk(msgspec.Struct, frozen=True, array_like=True):
    pool: str
    model: str
    team: str
    at_risk: float


class State(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """since: when the first leader began; at: when the last one booked. In seconds since the epoch. accelerators: of
    the nodes, pods: runs of pods that are not booked to their end. risk: accelerator-seconds that are not booked."""

    version: int
    since: float
    at: float
    accelerators: int = 0
    pods: int = 0
    dropped: int = 0
    buckets: tuple[SavedBucket, ...] = ()
    risk: tuple[SavedRisk, ...] = ()
    lemons: dict[str, list[Entry]] = {}
    gaps: tuple[Gap, ...] = ()


_decoder = msgspec.json.Decoder(State)


def snapshot(ledger: Ledger, gaps: Iterable[Gap]) -> State:
    books = ledger.books
    return State(
        version=VERSION,
        since=round(ledger.since, 1),
        at=round(ledger.booked_until, 1),
        accelerators=ledger.nodes.accelerators(),
        pods=len(ledger.pods),
        dropped=ledger.pods.dropped,
        buckets=tuple(_save(bucket) for bucket in books.buckets()),
        risk=tuple(
            SavedRisk(books.places[place].pool, books.places[place].model, books.teams[team], round(value, 1))
            for (place, team), value in sorted(ledger.risk.items())
        ),
        lemons=ledger.lemons.all(),
        gaps=tuple(gaps)[-GAPS_LIMIT:],
    )


def _save(bucket: Bucket) -> SavedBucket:
    return SavedBucket(
        bucket.start,
        bucket.length,
        tuple(SavedRow(place.pool, place.model, _round(row)) for place, row in sorted(bucket.rows.items())),
        tuple(SavedTeam(team, _round(row)) for team, row in sorted(bucket.teams.items())),
    )


def _round(row: Counter[str]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in row.items() if value >= 0.05}


def write_state(state: State, limit: int = SIZE_LIMIT) -> bytes:
    """At most ``limit`` bytes: if needed, hours become days, then the oldest days and nodes are left out."""
    data = _compress(state)
    hours = [each for each in state.buckets if each.length == HOUR_S]
    if len(data) > limit and hours:
        state = msgspec.structs.replace(state, buckets=_merged(state.buckets, keep_from=hours[-1].start - DAY_S))
        data = _compress(state)
    while len(data) > limit and (len(state.buckets) > 1 or state.lemons):
        state = msgspec.structs.replace(state, buckets=state.buckets[(len(state.buckets) + 3) // 4 :], lemons={})
        data = _compress(state)
    return data


def _merged(buckets: Iterable[SavedBucket], keep_from: int) -> tuple[SavedBucket, ...]:
    days: dict[int, Bucket] = {}
    kept: list[SavedBucket] = []
    for each in buckets:
        if each.length == HOUR_S and each.start >= keep_from // DAY_S * DAY_S:
            kept.append(each)
        else:
            start = each.start // DAY_S * DAY_S
            days.setdefault(start, Bucket(start, DAY_S)).add(each.bucket())
    return (*(_save(day) for _, day in sorted(days.items())), *kept)


def _compress(state: State) -> bytes:
    return zlib.compress(msgspec.json.encode(state), 6)


def read_state(data: bytes, now: float) -> State:
    """Raises BadState."""
    unpack = zlib.decompressobj()
    try:
        plain = unpack.decompress(data, _PLAIN_LIMIT)
        if not unpack.eof:
            raise BadState(f"more than {_PLAIN_LIMIT >> 20} MiB, or cut off after {len(data)} bytes")
        state = _decoder.decode(plain)
    except (zlib.error, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadState(f"{len(data)} bytes are not a record of accelerator-hours: {error}") from error
    problem = _problem(state, now)
    if problem:
        raise BadState(problem)
    return state


def _problem(state: State, now: float) -> str:
    """Empty: none."""
    if state.version != VERSION:
        return f"version {state.version}: expected {VERSION}"
    if not 0 <= state.since <= state.at <= now + DAY_S:  # a former leader's clock may have been ahead
        return f"since {state.since}, at {state.at}: expected 0 <= since <= at <= now ({now:.0f})"
    if len(state.buckets) > _BUCKETS_LIMIT or len(state.gaps) > GAPS_LIMIT or len(state.lemons) > NODES_LIMIT:
        return "too many hours, gaps or nodes"
    if any(len(history) > HISTORY for history in state.lemons.values()):
        return f"a node has more than {HISTORY} entries"
    for bucket in state.buckets:
        if (
            bucket.length not in (HOUR_S, DAY_S)
            or bucket.start % bucket.length
            or not 0 <= bucket.start <= now + 2 * DAY_S
        ):
            return f"bucket at {bucket.start} of {bucket.length} s: expected a whole hour or day in the past"
        for sums in (*(row.sums for row in bucket.rows), *(each.sums for each in bucket.teams)):
            if unknown := sums.keys() - ACCOUNTS:
                return f'bucket at {bucket.start}: unknown account "{min(unknown)[:64]}"'
            if not all(math.isfinite(value) and 0 <= value <= _LATEST for value in sums.values()):
                return f"bucket at {bucket.start}: a sum is negative or too large"
    names = [name for b in state.buckets for row in b.rows for name in (row.pool, row.model)]
    names += [each.team for bucket in state.buckets for each in bucket.teams] + list(state.lemons)
    names += [name for each in state.risk for name in (each.pool, each.model, each.team)]
    if any(len(name) > _NAME_LIMIT for name in names):
        return f"a name has more than {_NAME_LIMIT} characters"
    if any(not 0 <= each.at_risk <= _LATEST for each in state.risk):
        return "a sum at risk is negative or too large"
    return ""


def resume(state: State, checkpoint: float) -> tuple[Ledger, Risk]:
    """A ledger that goes on from ``state``, and what the former leader's pods had at risk."""
    ledger = Ledger(checkpoint, state.since, state.at)
    books: Books = ledger.books
    for bucket in state.buckets:
        books.load(bucket.bucket())
    ledger.lemons.load(state.lemons)
    risk: Risk = Counter()
    for each in state.risk:
        risk[books.place(each.pool, each.model), books.team(each.team)] += each.at_risk  # type: ignore[assignment]
    return ledger, risk
