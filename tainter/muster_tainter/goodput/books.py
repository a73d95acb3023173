"""The books: accelerator-seconds by cause in rows of hours and days. Pure, bounded.

Each second of an accelerator is booked once to a place (pool and model); time that a pod held is also booked to its
team. Hours become days after a week, and days are forgotten after three months.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from muster_tainter.goodput.causes import OF_NODES, OF_WORK, Cause, Side, Via

HOUR_S, DAY_S = 3600, 86_400
HOURS_KEPT = 8 * 24  # ``--since 7d`` is exact to the hour
DAYS_KEPT = 92
PLACES_LIMIT = 64  # pools times models; further ones are OTHER
PLACES_OF_NODE = 4  # that one node may add: a kubelet can change the labels of its own Node
TEAMS_LIMIT = 32
OTHER = "other"

Account = str
"""``work/CAUSE``, ``work/CAUSE/peer``, ``node/CAUSE``, or a figure: see :class:`Figure`."""


class Figure:
    """Sums that are not accelerator-seconds. Of places only.

    NODES, JOBS: node-seconds and job-seconds observed. OUTAGES, ENDED, OUT: outages that began, outages that ended,
    and how many seconds these took. INTERRUPTIONS: of jobs, by cause.
    """

    NODES = "nodes"
    JOBS = "jobs"
    OUTAGES = "outages"
    ENDED = "ended"
    OUT = "out"
    INTERRUPTIONS = "interruptions/"


@dataclass(frozen=True, order=True)
class Place:
    pool: str
    model: str


def account(side: Side, cause: Cause, via: Via = Via.NODE) -> Account:
    return f"{side}/{cause}/{Via.PEER}" if via is Via.PEER else f"{side}/{cause}"


def split_account(name: Account) -> tuple[Side, Cause, bool] | None:
    """(side, cause, whether only a peer shows it); None: a figure."""
    side, _, rest = name.partition("/")
    if side not in (Side.WORK, Side.NODE):
        return None
    cause, _, via = rest.partition("/")
    return Side(side), Cause(cause), via == Via.PEER


ACCOUNTS = frozenset(
    [account(Side.WORK, cause, via) for cause in OF_WORK for via in (Via.NODE, Via.PEER)]
    + [account(Side.NODE, cause) for cause in OF_NODES]
    + [Figure.NODES, Figure.JOBS, Figure.OUTAGES, Figure.ENDED, Figure.OUT]
    + [Figure.INTERRUPTIONS + cause for cause in Cause]
)

Row = Counter[Account]
"""Float values: seconds, or numbers of a figure."""


@dataclass
class Bucket:
    """start, length: seconds since the epoch, seconds. rows: by place; teams: by team, of work only."""

    start: int
    length: int
    rows: dict[Place, Row] = field(default_factory=dict)
    teams: dict[str, Row] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.length

    def add(self, other: "Bucket") -> None:
        for place, row in other.rows.items():
            self.rows.setdefault(place, Counter()).update(row)
        for team, row in other.teams.items():
            self.teams.setdefault(team, Counter()).update(row)


class Books:
    """places, teams: names of the rows, by the index that pods and nodes carry. by_place, by_team: sums of what was
    booked by this process, for metrics."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.teams: list[str] = []
        self.by_place: Counter[tuple[int, Account]] = Counter()
        self.by_team: Counter[tuple[int, Account]] = Counter()
        self._place_of: dict[Place, int] = {}
        self._added_by: Counter[str] = Counter()  # by node, how many places
        self._team_of: dict[str, int] = {}
        self._hours: dict[int, Bucket] = {}
        self._days: dict[int, Bucket] = {}
        self._last: Bucket | None = None

    def place(self, pool: str, model: str, node: str = "") -> int:
        """node: whose pool and model these are; empty: books of a former leader."""
        place = Place(pool, model)
        known = self._place_of.get(place)
        if known is None:
            if len(self.places) >= PLACES_LIMIT - 1 or self._added_by[node] >= PLACES_OF_NODE:
                place = Place(OTHER, OTHER)
            elif node:
                self._added_by[node] += 1
            known = self._place_of.get(place)
            if known is None:
                known = self._place_of[place] = len(self.places)
                self.places.append(place)
        return known

    def team(self, name: str) -> int:
        known = self._team_of.get(name)
        if known is None:
            name = OTHER if len(self.teams) >= TEAMS_LIMIT - 1 else name
            known = self._team_of.get(name)
            if known is None:
                known = self._team_of[name] = len(self.teams)
                self.teams.append(name)
        return known

    def book(self, place: int, team: int | None, name: Account, begin: float, end: float, each: float) -> None:
        """``each``: accelerators, or whatever is counted per second. Divided over the hours that it touches."""
        while begin < end:
            bucket = self._hour(begin)
            until = min(end, bucket.end)
            self._add(bucket, place, team, name, (until - begin) * each)
            begin = until

    def count(self, place: int, name: Account, at: float, number: float = 1.0) -> None:
        self._add(self._hour(at), place, None, name, number)
        self.by_place[place, name] += 0.0  # type: ignore[assignment] # a metric also at zero: an outage may last no second

    def _add(self, bucket: Bucket, place: int, team: int | None, name: Account, value: float) -> None:
        if not value:
            return
        bucket.rows.setdefault(self.places[place], Counter())[name] += value  # type: ignore[assignment]
        self.by_place[place, name] += value  # type: ignore[assignment]
        if team is not None:
            self.by_team[team, name] += value  # type: ignore[assignment]
            bucket.teams.setdefault(self.teams[team], Counter())[name] += value  # type: ignore[assignment]

    def _hour(self, at: float) -> Bucket:
        last = self._last
        if last is not None and last.start <= at < last.end:
            return last
        start = int(at // HOUR_S) * HOUR_S
        day = self._days.get(start // DAY_S * DAY_S)
        bucket = self._hours.get(start)
        if bucket is None and day is not None:
            return day  # a late booking into hours that are a day already
        if bucket is None:
            bucket = self._hours[start] = Bucket(start, HOUR_S)
        self._last = bucket
        return bucket

    # keeping it small

    def roll_up(self, now: float, hours: int = HOURS_KEPT, days: int = DAYS_KEPT) -> None:
        """Merge hours of days that ended more than ``hours`` ago, and forget days that ended more than ``days`` ago."""
        self._last = None
        for start in sorted(self._hours):
            first = start // DAY_S * DAY_S
            if first + DAY_S <= now - hours * HOUR_S:
                day = self._days.setdefault(first, Bucket(first, DAY_S))
                day.add(self._hours.pop(start))
        for start in [each for each in self._days if each + DAY_S <= now - days * DAY_S]:
            del self._days[start]

    def buckets(self) -> Iterator[Bucket]:
        """Oldest first."""
        yield from (each for _, each in sorted(self._days.items()))
        yield from (each for _, each in sorted(self._hours.items()))

    def load(self, bucket: Bucket) -> None:
        """A bucket of a former leader."""
        for place in bucket.rows:
            self.place(place.pool, place.model)
        for team in bucket.teams:
            self.team(team)
        kept = self._hours if bucket.length == HOUR_S else self._days
        kept.setdefault(bucket.start, Bucket(bucket.start, bucket.length)).add(bucket)
        self._last = None
