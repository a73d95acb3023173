"""The data of the fleet page: a snapshot, then batches of changes, a few times a second.

Rows are computed from the watches' caches when they are sent; only the names of recently changed nodes are kept, and
only while the page is open somewhere. A client has no queue but a position in that list: a slow client gets the last
state of a node and not every state, and one that reconnects continues from its position or is asked to resync.
"""

import asyncio
import gzip
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import msgspec

from muster_tainter.budgets.incidents import Incident
from muster_tainter.budgets.pool_usage import BudgetUsage
from muster_tainter.controller import Tainter
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.page.rows import row
from muster_tainter.policy.rules import Policy
from muster_tainter.spares.plan import TaintSlot

LISTENERS = 64
BATCH_S = 0.1  # between two messages with rows: a burst of faults is a few messages
BATCH_ROWS = 200
BATCHES = 32  # that are kept for other clients
SHARED_S = 1.0  # for so long
TICK_S = 1.0  # between two reads of budgets, incidents and the lease
BEAT_S = 10.0  # a browser that receives nothing for longer reconnects
AWAKE_S = 60.0  # changes are recorded for this long after the last client left
LOG_LIMIT = 4096  # nodes; a client that is further behind has to resync
SNAPSHOT_S = 2.0  # requests within this time share a snapshot
_SLICE = 200  # rows made at once
_GZIP_LEVEL = 5
_ROWS = 200  # of budgets, and of incidents

_encode = msgspec.json.encode


@dataclass(frozen=True)
class FleetStatus:
    """The state besides the nodes. paused: why no new taints are set, empty if not paused."""

    leading: Callable[[], bool]
    budgets: Callable[[], Iterable[BudgetUsage]] = tuple
    incidents: Callable[[], Iterable[Incident]] = tuple
    paused: Callable[[], str] = str
    dry_run: bool = False


class BudgetRow(msgspec.Struct, frozen=True):
    """See budgets.pool_usage.BudgetUsage."""

    pool: str
    domain: str
    what: str
    used: int
    limit: int | None
    left: int | None
    waiting: int


class IncidentRow(msgspec.Struct, frozen=True):
    """where: what its nodes share, e.g. ``rack h001``; since: seconds since the epoch; nodes: their number."""

    id: str
    check: str
    reason: str
    where: str
    since: int
    nodes: int


class FleetState(msgspec.Struct, frozen=True, rename="camel"):
    """The state besides the nodes. behind: which watches are not up to date; paused: why no new taints are set."""

    leading: bool
    synced: bool
    behind: list[str]
    paused: str
    dry_run: bool
    budgets: list[BudgetRow]
    incidents: list[IncidentRow]


class FleetSnapshot(msgspec.Struct, frozen=True):
    """mark: for ?after= of /api/stream; now: seconds since the epoch; order: of the pools; pools: by pool and domain,
    the name of each passing node, and [name, …] with the row of page.rows.row for every other node."""

    mark: str
    now: float
    order: list[str]
    pools: dict[str, dict[str, list[str | list[str | int]]]]
    state: FleetState


@dataclass(frozen=True)
class _Snapshot:
    mark: str
    made_at: float
    packed: bytes


@dataclass(frozen=True)
class _Batch:
    made_at: float
    end: int
    message: bytes


class FleetFeed:
    """now: seconds since the epoch; clock: monotonic seconds."""

    def __init__(
        self,
        tainter: Tainter,
        status: FleetStatus,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tainter = tainter
        self._fleet = tainter.fleet
        self._status = status
        self._now = now
        self._clock = clock
        self._log: dict[str, int] | None = None  # node: number of its last change, oldest first; None: no clients
        self._epoch = ""
        self._seq = 0
        self._floor = 0  # changes up to this number are dropped
        self._shown: Policy | None = None  # the policy by which the rows of this epoch were computed
        self._listeners = 0
        self._awake_until = 0.0
        self._news = asyncio.Event()
        self._snapshot: _Snapshot | None = None
        self._making: asyncio.Task[_Snapshot] | None = None
        self._batches: OrderedDict[tuple[str, int], _Batch] = OrderedDict()  # by epoch and start
        self._state: tuple[float, bytes] = (float("-inf"), b"")
        self._closed = False

    @property
    def listeners(self) -> int:
        return self._listeners

    def changed(self, name: str) -> None:
        """A Node or NodeHealth was added, removed or changed. Costs nothing while there are no clients."""
        log = self._log
        if log is None:
            return
        if not self._listeners and self._clock() > self._awake_until:
            self._log = self._snapshot = None
            return
        self._seq += 1
        log.pop(name, None)
        log[name] = self._seq
        if len(log) > LOG_LIMIT:
            self._floor = log.pop(next(iter(log)))
        self._wake_listeners()

    def close(self) -> None:
        """End all streams: a stopping server waits for them."""
        self._closed = True
        self._wake_listeners()

    def _wake_listeners(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _wake(self) -> None:
        """Record changes from now on; start a new epoch if the policy changed."""
        policy = self._fleet.policy()
        if self._log is None or self._shown is not policy:
            self._log, self._shown = {}, policy
            self._epoch, self._seq, self._floor = secrets.token_hex(4), 0, 0
            self._snapshot = self._making = None
        self._awake_until = self._clock() + AWAKE_S

    # snapshot

    async def fleet(self) -> bytes:
        """The snapshot as gzipped JSON."""
        self._wake()
        known = self._snapshot
        if known is not None and known.mark == self._mark(self._seq) and self._clock() - known.made_at < SNAPSHOT_S:
            return known.packed
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._making.add_done_callback(self._made)
        return (await asyncio.shield(self._making)).packed

    def _made(self, task: "asyncio.Task[_Snapshot]") -> None:
        if self._making is task:
            self._making = None
            if not task.cancelled() and task.exception() is None:
                self._snapshot = task.result()

    async def _make(self) -> _Snapshot:
        mark, made_at = self._mark(self._seq), self._clock()  # changes during the loop are sent again
        policy, now = self._fleet.policy(), self._now()
        pools: dict[str, dict[str, list[str | list[str | int]]]] = {}
        for number, name in enumerate(list(self._fleet.nodes), 1):
            made = self._row(name, policy, now)
            if len(made) > 1:
                _, pool, domain, *rest = made
                nodes = pools.setdefault(str(pool), {}).setdefault(str(domain), [])
                nodes.append(name if len(rest) == 1 else [name, *rest])
            if number % _SLICE == 0:
                await asyncio.sleep(0)  # let taints be written
        fleet = FleetSnapshot(mark, now, [pool.name for pool in policy.pools], pools, self._make_state())
        return _Snapshot(mark, made_at, gzip.compress(_encode(fleet), _GZIP_LEVEL, mtime=0))

    def _row(self, name: str, policy: Policy, now: float) -> list[str | int]:
        """[name, pool, domain, *row]; only the name for a removed node."""
        node = self._fleet.node(name)
        if node is None:
            return [name]
        pool = policy.pool_of(node.metadata.labels)
        place = (pool.name, pool.domain_of(node.metadata.labels)) if pool else ("", "")
        common, devices = self.common_taints(name), self.devices(name)
        return [name, *place, *row(node, self._fleet.health_of(name), policy, now, common, devices)]

    def devices(self, name: str) -> NodeDevices:
        """What ResourceSlices say of the node; nothing while the tainter does not watch them."""
        return self._tainter.devices.of(name)

    def common_taints(self, name: str) -> Collection[TaintSlot]:
        """The taints of others that most nodes of a spare's pool have."""
        return self._tainter.spares.common_taints(name)

    def _mark(self, seq: int) -> str:
        return f"{self._epoch}-{seq}"

    def _state_now(self) -> bytes:
        """Computed once per tick for all clients."""
        at, made = self._state
        if self._clock() - at >= TICK_S:
            made = _encode(self._make_state())
            self._state = (self._clock(), made)
        return made

    def _make_state(self) -> FleetState:
        status = self._status
        return FleetState(
            leading=status.leading(),
            synced=self._fleet.synced,
            behind=self._tainter.not_ready(),
            paused=status.paused(),
            dry_run=status.dry_run,
            budgets=[BudgetRow(*usage) for usage in islice(filter(is_worth_a_row, status.budgets()), _ROWS)],
            incidents=[_incident(each) for each in islice(status.incidents(), _ROWS)],
        )

    # stream

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count a client for the duration of the context."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            self._awake_until = self._clock() + AWAKE_S

    async def events(self, last: str) -> AsyncIterator[bytes]:
        """Server-sent events after the mark ``last``: ``rows`` (a list of rows), ``state``, ``beat``, and ``resync``,
        which ends the stream: the client has to fetch the snapshot again."""
        self._wake()
        epoch, seq = self._place(last)
        state = b""
        sent_at = self._clock()
        yield b"retry: 1000\n\n"
        while not self._closed:
            news = self._news  # taken before the check, so that later changes set it
            if self._lost(epoch, seq):
                yield _event("resync", b"{}")
                return
            sent = False
            if seq < self._seq:
                seq, message = self._rows_after(seq)
                yield message
                sent = True
            now_state = self._state_now()
            if now_state != state:
                state = now_state
                yield _event("state", state)
                sent = True
            if sent:
                sent_at = self._clock()
            elif self._clock() - sent_at >= BEAT_S:
                yield _event("beat", _encode({"now": self._now()}))
                sent_at = self._clock()
            if sent:
                await asyncio.sleep(BATCH_S)
            elif seq == self._seq:
                await _set_within(news, TICK_S)

    def _place(self, mark: str) -> tuple[str, int]:
        epoch, _, number = mark.partition("-")
        return epoch, int(number) if number.isascii() and number.isdigit() and len(number) <= 18 else -1

    def _lost(self, epoch: str, seq: int) -> bool:
        """Changes between that position and now are no longer known."""
        if self._shown is not self._fleet.policy():
            self._wake()
        return epoch != self._epoch or not self._floor <= seq <= self._seq

    def _rows_after(self, seq: int) -> tuple[int, bytes]:
        """The next rows, and the number after them. A batch ends at a multiple of BATCH_ROWS, so that clients that
        begin at different positions share all bytes but those of their first batch."""
        key, at = (self._epoch, seq), self._clock()
        known = self._batches.pop(key, None)
        if known is not None and at - known.made_at < SHARED_S:
            self._batches[key] = known
            return known.end, known.message
        names: list[tuple[str, int]] = []
        for name, number in reversed((self._log or {}).items()):
            if number <= seq:
                break
            names.append((name, number))
        names.reverse()
        if names:
            limit = names[0][1] // BATCH_ROWS * BATCH_ROWS + BATCH_ROWS
            names = [each for each in names[:BATCH_ROWS] if each[1] < limit]
        end = names[-1][1] if names else self._seq
        policy, now = self._fleet.policy(), self._now()
        data = _encode({"now": now, "rows": [self._row(name, policy, now) for name, _ in names]})
        made = self._batches[key] = _Batch(at, end, _event("rows", data, self._mark(end)))
        if len(self._batches) > BATCHES:
            self._batches.popitem(last=False)
        return made.end, made.message


def is_worth_a_row(usage: BudgetUsage) -> bool:
    """Of hundreds of domains, show only those with usage, waiting nodes or no room left."""
    if not usage.domain:
        return True
    return bool(usage.waiting) or usage.left == 0 or (usage.what == "perDomain" and usage.used > 0)


def _incident(incident: Incident) -> IncidentRow:
    label, value = incident.ground
    return IncidentRow(
        id=incident.id,
        check=incident.check,
        reason=incident.reason,
        where=f"{label.rpartition('/')[2]} {value}".strip(),
        since=int(incident.since),
        nodes=incident.count,
    )


def _event(name: str, data: bytes, mark: str = "") -> bytes:
    identity = f"id: {mark}\n" if mark else ""
    return f"{identity}event: {name}\ndata: ".encode() + data + b"\n\n"


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
