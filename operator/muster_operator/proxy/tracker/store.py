"""The only writer of the tracker: decide from the current state, write, and decide again on a conflict.

Changes that arrive during a write are combined in the next one. Each PATCH carries the resourceVersion that the
decision is based on, so no concurrent change is overwritten.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from muster_kube.controller.backoff import Backoff
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.tracker.config_map import TrackerConfigMap, TrackerObject
from muster_operator.proxy.tracker.entries import TrackedEntries, parse_entries
from muster_operator.proxy.tracker.patch import EntryDecision, TrackerPatch

log = logging.getLogger(__name__)

BATCH_LIMIT = 256  # changes in one write


@dataclass(eq=False)
class _PendingChange:
    name: str
    decide: EntryDecision
    done: "asyncio.Future[PartitionEntry | None]"
    outcome: PartitionEntry | Exception | None = None


@dataclass
class _Snapshot:
    version: str
    data: Mapping[str, str]
    tracked: TrackedEntries = field(default_factory=TrackedEntries)


class TrackerStore:
    """on_change: called with the names of entries that this or another client changed; it must not block.

    Entries whose keys vanish without a write of this store are kept as ``lost``. The reconciler asks V-IPU and either
    restores them (by any change) or forgets them.
    """

    def __init__(
        self,
        config_map: TrackerConfigMap,
        metrics: ProxyMetrics,
        *,
        on_change: Callable[[set[str]], None],
        wall: Callable[[], float] = time.time,
        backoff: Backoff = Backoff(0.2, 10.0),  # noqa: B008 - frozen
    ) -> None:
        self._config_map = config_map
        self._label = f"{config_map.namespace}/{config_map.name}"  # for log messages
        self._on_change = on_change
        self._wall = wall
        self._backoff = backoff
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._snapshot: _Snapshot | None = None
        self._lost: dict[str, PartitionEntry] = {}
        self._readable: dict[str, PartitionEntry] = {}  # last valid entry of each existing key
        self._reported: dict[str, str] = {}
        self._pending: deque[_PendingChange] = deque()
        self._wake = asyncio.Event()
        self._loaded = asyncio.Event()
        self.error = "the tracker has not been read yet"
        self._metrics = metrics

    @property
    def name(self) -> str:
        return self._config_map.name

    # -- state

    @property
    def entries(self) -> Mapping[str, PartitionEntry]:
        """By name, including lost entries that are not settled yet."""
        known = self._snapshot.tracked.entries if self._snapshot is not None else {}
        return {**self._lost, **known} if self._lost else known

    @property
    def lost(self) -> Mapping[str, PartitionEntry]:
        return self._lost

    @property
    def unreadable(self) -> Mapping[str, str]:
        return self._snapshot.tracked.unreadable if self._snapshot is not None else {}

    def find_entry(self, name: str) -> PartitionEntry | None:
        if self._snapshot is not None and (found := self._snapshot.tracked.entries.get(name)) is not None:
            return found
        return self._lost.get(name)

    async def wait_loaded(self) -> None:
        await self._loaded.wait()

    @property
    def is_loaded(self) -> bool:
        return self._loaded.is_set()

    # -- changes

    async def change(self, name: str, decide: EntryDecision) -> PartitionEntry | None:
        """Returns the entry after the write; nothing is written if ``decide`` returns its argument.

        ``decide`` may raise: then its change is not written, and the exception is raised here. It may be called several
        times and may see its own earlier result, because a response can be lost. Raises TrackerFull, EntryUnreadable.
        Waits while the API server does not respond; a caller that gives up does not know whether the change will be
        written.
        """
        change = _PendingChange(name, decide, asyncio.get_running_loop().create_future())
        self._pending.append(change)
        self._wake.set()
        return await change.done

    def forget(self, name: str) -> None:
        """A lost entry that V-IPU does not have either."""
        self._lost.pop(name, None)
        self._readable.pop(name, None)

    # -- background tasks

    async def run(self, watching: KubeClient | None) -> None:
        """Runs until cancelled. watching: connections of the watch; None: there are no other writers (tests)."""
        await self._load()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_for_ever())
            if watching is not None:
                group.create_task(self._config_map.watch(watching, self._receive))

    async def _load(self) -> None:
        failures = 0
        while True:
            try:
                await self._read_or_create()
            except (ApiError, ConfigError) as error:
                await self._wait_after(error, failures)
                failures += 1
            else:
                return

    async def _read_or_create(self) -> None:
        try:
            self._accept(await self._config_map.read())
        except NotFound:
            with suppress(AlreadyExists):
                await self._create({})
                return
            self._accept(await self._config_map.read())

    async def _create(self, data: Mapping[str, str]) -> None:
        created = await self._config_map.create(data)
        self._metrics.writes.inc()
        self._accept(created)

    async def _write_for_ever(self) -> None:
        failures = conflicts = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                try:
                    await self._write()
                    failures = conflicts = 0
                    self.error = ""
                except Conflict:
                    self._metrics.conflicts.inc()
                    if conflicts:
                        await asyncio.sleep(self._backoff.delay_s(conflicts - 1, self._rng))
                    conflicts += 1
                    await self._read_again()
                except (ApiError, ConfigError) as error:
                    # it may have been written: read the current state and decide again
                    await self._wait_after(error, failures)
                    failures += 1
                    await self._read_again()

    async def _read_again(self) -> None:
        before = self._snapshot
        with suppress(ApiError, ConfigError):
            try:
                found = await self._config_map.read()  # from etcd
                # one that is older than what the watch has not changed meanwhile: etcd was restored from a backup
                self._accept(found, even_if_older=before is self._snapshot)
            except NotFound:
                self._handle_deletion()

    async def _wait_after(self, error: ApiError | ConfigError, failures: int) -> None:
        wait_s = self._backoff.delay_s(failures, self._rng)
        if self.error != str(error):
            log.warning("tracker %s: %s; retrying in %.1f s", self._label, error, wait_s)
        self.error = str(error)
        await asyncio.sleep(wait_s)

    async def _write(self) -> None:
        batch = [change for change in self._pending if not change.done.done()][:BATCH_LIMIT]
        patch = TrackerPatch(self._snapshot.data if self._snapshot is not None else {}, self.name)
        for change in batch:
            name = change.name
            change.outcome = patch.apply(name, change.decide, self._lost.get(name), self._wall())
            if change.outcome is None:
                self.forget(name)
        if patch.changes:
            await self._send(patch)
        written = set(map(id, batch))
        self._pending = deque(c for c in self._pending if id(c) not in written and not c.done.done())
        for change in batch:
            if change.done.done():
                continue
            if isinstance(change.outcome, Exception):
                change.done.set_exception(change.outcome)
            else:
                change.done.set_result(change.outcome)

    async def _send(self, patch: TrackerPatch) -> None:
        if self._snapshot is None:
            try:
                await self._create(patch.data)
            except AlreadyExists as error:
                raise Conflict(409, "Conflict", error.message, error.path) from error
            return
        try:
            written = await self._config_map.patch(self._snapshot.version, patch.changes)
        except NotFound as error:
            self._handle_deletion()
            raise Conflict(409, "Conflict", "the ConfigMap no longer exists", error.path) from error
        self._metrics.writes.inc()
        # keys that this write removes are not lost
        for name, text in patch.changes.items():
            if text is None:
                self._readable.pop(name, None)
        self._accept(written)

    # -- incoming changes

    def _receive(self, new: TrackerObject | None) -> None:
        if new is None:
            self._handle_deletion()
        else:
            self._accept(new)

    def _handle_deletion(self) -> None:
        """The whole ConfigMap was deleted."""
        if self._snapshot is None:
            return
        log.warning("tracker ConfigMap %s was deleted: it will be created again", self._label)
        self._snapshot = None
        names = set(self._readable)
        self._lost |= self._readable
        self._readable = {}
        if names:
            self._on_change(names)

    def _accept(self, new: TrackerObject, *, even_if_older: bool = False) -> None:
        version = new.metadata.resource_version
        known = self._snapshot
        if known is not None and (
            version == known.version or (_is_older(version, known.version) and not even_if_older)
        ):
            return
        before = known.tracked.entries if known is not None else {}
        tracked = parse_entries(new.data, (known.data, known.tracked) if known is not None else None)
        self._snapshot = _Snapshot(version, new.data, tracked)
        changed = {n for n in before.keys() | tracked.entries.keys() if before.get(n) != tracked.entries.get(n)}
        for name, entry in self._readable.items():
            if name not in tracked.entries:
                # removed by a person, or by another proxy that completed the removal: the reconciler asks V-IPU
                self._lost[name] = entry
                changed.add(name)
        self._readable = dict(tracked.entries)
        for name in [name for name in self._lost if name in tracked.entries]:
            del self._lost[name]
        self._report_unreadable(tracked)
        self._loaded.set()
        self.error = ""
        if changed:
            self._on_change(changed)

    def _report_unreadable(self, tracked: TrackedEntries) -> None:
        for name, problem in tracked.unreadable.items():
            if self._reported.get(name) != problem:
                log.error(
                    "tracker %s: entry %s is ignored, because it cannot be decoded: %s", self.name, name[:200], problem
                )
        self._reported = dict(tracked.unreadable)
        self._metrics.unreadable.set(len(tracked.unreadable))
        self._metrics.count_entries(tracked.entries)


def _is_older(version: str, known: str) -> bool:
    """resourceVersions are etcd revisions; other formats are taken in the order of arrival."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)
