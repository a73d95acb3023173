"""What the books say about a time: sums, shares, times between failures, and the worst nodes. Pure.

The same values for the command line, for programs and for the fleet page.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from muster_kube.api.times import rfc3339_whole
from muster_tainter.goodput.books import Figure, Row, split_account
from muster_tainter.goodput.causes import INTERRUPTS, LOST, OF_WORK, Cause, Side
from muster_tainter.goodput.lemons import Entry
from muster_tainter.goodput.state import Gap, State

HOUR_S = 3600.0
LEMONS_SHOWN = 10


class By(StrEnum):
    POOL = "pool"
    MODEL = "model"
    CAUSE = "cause"
    TEAM = "team"


class _Shown(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Sums(_Shown, frozen=True):
    """Accelerator-hours. work: while pods held accelerators, by cause; nodes: while none did. through_peers: the part
    of ``work`` whose cause only another pod of the owner shows. goodput: kept work as a share of all; None: no hours.
    """

    name: str
    work: dict[str, float]
    nodes: dict[str, float]
    through_peers: float
    total: float
    lost: float
    goodput: float | None


class Failures(_Shown, frozen=True):
    """mtbf: mean node-hours between the beginnings of two outages. mttr: mean hours from the first fault of an outage
    until no fault is open. mtbi: mean hours that jobs ran between two interruptions. None: there were none."""

    pool: str
    model: str
    outages: int
    mtbf: float | None
    mttr: float | None
    interruptions: dict[str, int]
    mtbi: float | None


class Event(_Shown, frozen=True):
    at: str
    what: str
    lost: float


class Lemon(_Shown, frozen=True):
    """lost: accelerator-hours, of its outages and of the jobs that it interrupted; history: oldest first."""

    node: str
    outages: int
    interruptions: int
    lost: float
    history: tuple[Event, ...]


class Unobserved(_Shown, frozen=True):
    """A time without a leader. vanished: accelerator-hours of pods that were gone after it, booked to unknown."""

    begin: str
    end: str
    seconds: float
    vanished: float


class Report(_Shown, frozen=True):
    """begin, end: RFC 3339; begin is that of the first hour or day that is counted. at_risk: accelerator-hours that
    pods hold and that are not booked yet: work since the last checkpoint, and the last minutes."""

    begin: str
    end: str
    accelerators: int
    pods: int
    total: Sums
    by: str
    rows: tuple[Sums, ...]
    failures: tuple[Failures, ...]
    lemons: tuple[Lemon, ...]
    at_risk: float
    unobserved: tuple[Unobserved, ...]
    uncounted_pods: int


def make_report(state: State, begin: float, by: By = By.POOL) -> Report:
    """begin: seconds since the epoch; hours and days that contain it count as a whole."""
    chosen = [each for each in state.buckets if each.start + each.length > begin]
    places: dict[tuple[str, str], Row] = {}
    teams: dict[str, Row] = {}
    for bucket in chosen:
        for row in bucket.rows:
            places.setdefault((row.pool, row.model), Counter()).update(row.sums)
        for each in bucket.teams:
            teams.setdefault(each.team, Counter()).update(each.sums)
    whole: Row = Counter()
    for row_of in places.values():
        whole.update(row_of)
    first = max(state.since, min((each.start for each in chosen), default=state.at))
    return Report(
        begin=rfc3339_whole(first),
        end=rfc3339_whole(state.at),
        accelerators=state.accelerators,
        pods=state.pods,
        total=_sums("all", whole),
        by=by,
        rows=_rows(by, places, teams),
        failures=tuple(_failures(pool, model, row) for (pool, model), row in sorted(places.items())),
        lemons=_lemons(state.lemons, first),
        at_risk=_hours(sum(each.at_risk for each in state.risk)),
        unobserved=tuple(_unobserved(gap) for gap in state.gaps if gap.end > first),
        uncounted_pods=state.dropped,
    )


def _rows(by: By, places: Mapping[tuple[str, str], Row], teams: Mapping[str, Row]) -> tuple[Sums, ...]:
    grouped: dict[str, Row] = {}
    match by:
        case By.TEAM:
            grouped = dict(teams)
        case By.POOL | By.MODEL:
            for (pool, model), row in places.items():
                grouped.setdefault(pool if by is By.POOL else model, Counter()).update(row)
        case By.CAUSE:
            return ()
    rows = [_sums(name, row) for name, row in grouped.items()]
    return tuple(sorted(rows, key=lambda row: (-row.lost, row.name)))


def _sums(name: str, row: Row) -> Sums:
    work: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    peers = lost = 0.0
    for key, value in row.items():
        parts = split_account(key)
        if parts is None:
            continue
        side, cause, peer = parts
        (work if side is Side.WORK else nodes)[cause] += value
        peers += value if peer else 0.0
        lost += value if cause in LOST else 0.0
    total = sum(work.values()) + sum(nodes.values())
    return Sums(
        name=name,
        work={cause: _hours(work[cause]) for cause in OF_WORK if work[cause]},
        nodes={cause: _hours(nodes[cause]) for cause in Cause if nodes[cause]},
        through_peers=_hours(peers),
        total=_hours(total),
        lost=_hours(lost),
        goodput=round(work[Cause.GOODPUT] / total, 4) if total else None,
    )


def _failures(pool: str, model: str, row: Row) -> Failures:
    outages, ended = round(row[Figure.OUTAGES]), row[Figure.ENDED]
    interruptions = {
        str(cause): round(row[Figure.INTERRUPTIONS + cause])
        for cause in INTERRUPTS
        if row[Figure.INTERRUPTIONS + cause]
    }
    number = sum(interruptions.values())
    return Failures(
        pool=pool,
        model=model,
        outages=outages,
        mtbf=_hours(row[Figure.NODES] / outages) if outages else None,
        mttr=_hours(row[Figure.OUT] / ended) if ended else None,
        interruptions=interruptions,
        mtbi=_hours(row[Figure.JOBS] / number) if number else None,
    )


def _lemons(nodes: Mapping[str, Iterable[Entry]], begin: float) -> tuple[Lemon, ...]:
    found = []
    for node, history in nodes.items():
        entries = sorted((each for each in history if each.at >= begin), key=lambda each: each.at)
        if entries:
            ended = [each for each in entries if each.what.startswith("interrupted")]
            found.append(
                Lemon(
                    node=node,
                    outages=len(entries) - len(ended),
                    interruptions=len(ended),
                    lost=_hours(sum(each.lost for each in entries)),
                    history=tuple(
                        Event(at=rfc3339_whole(each.at), what=each.what, lost=_hours(each.lost)) for each in entries
                    ),
                )
            )
    ranked = sorted(found, key=lambda each: (-each.lost, -each.outages - each.interruptions, each.node))
    return tuple(ranked[:LEMONS_SHOWN])


def _unobserved(gap: Gap) -> Unobserved:
    return Unobserved(
        begin=rfc3339_whole(gap.begin),
        end=rfc3339_whole(gap.end),
        seconds=round(gap.end - gap.begin, 1),
        vanished=_hours(gap.vanished),
    )


def _hours(seconds: float) -> float:
    return round(seconds / HOUR_S, 3)
