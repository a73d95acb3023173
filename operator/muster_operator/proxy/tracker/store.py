"""The tracker ConfigMap, and the one way to change it: decide on what is there, write, decide anew if it had moved.

Changes that wait while a write is under way go together in the next one. What was decided is never written over
something else: each PATCH carries the resourceVersion it was decided on.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from muster_kube.api.objects import Api, Metadata
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.reflector import Reflector
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.tracker import entries as tracker
from muster_operator.proxy.tracker.entries import ASIDE, Tracked

log = logging.getLogger(__name__)

FIELD_MANAGER = "muster-vipu-proxy"
TOGETHER_LIMIT = 256  # changes in one write
_LABELS = {"app.kubernetes.io/managed-by": "muster-vipu-proxy"}


class TrackerMap(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Full(Exception):
    """No room for another entry; nothing was written."""


class Unreadable(Exception):
    """A person made this entry unreadable; the message says what is wrong."""


class Client(Protocol):
    """What of KubeClient is used here."""

    async def get(self, path: str, *, type: type[TrackerMap]) -> TrackerMap: ...

    async def create(self, path: str, body: object, *, type: type[TrackerMap]) -> TrackerMap: ...

    async def patch(self, path: str, body: object, *, type: type[TrackerMap], params: dict[str, str]) -> TrackerMap: ...


Decide = Callable[[PartitionEntry | None], PartitionEntry | None]


@dataclass(eq=False)
class _Change:
    """decide: from the entry that is there to the one that shall be; called again whenever what is there has moved."""

    name: str
    decide: Decide
    done: "asyncio.Future[PartitionEntry | None]"
    outcome: PartitionEntry | Exception | None = None


@dataclass
class _Seen:
    version: str
    data: Mapping[str, str]
    tracked: Tracked = field(default_factory=Tracked)


class Store:
    """on_change: told the names whose entries are not what they were, by whomever; it only takes notes.

    Known entries whose keys vanish without our doing are kept as ``lost``: whoever can ask V-IPU says whether they are
    put back (any change of them does it) or forgotten.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        metrics: Metrics,
        *,
        on_change: Callable[[set[str]], None],
        wall: Callable[[], float] = time.time,
        backoff: Backoff = Backoff(0.2, 10.0),  # noqa: B008 - frozen
    ) -> None:
        self._client = client
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._namespace = namespace
        self.name = name
        self._on_change = on_change
        self._wall = wall
        self._backoff = backoff
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._seen: _Seen | None = None
        self._lost: dict[str, PartitionEntry] = {}
        self._good: dict[str, PartitionEntry] = {}  # the last readable entry of each key that is there
        self._told: dict[str, str] = {}
        self._cost = 0  # of what the next write will leave there
        self._waiting: deque[_Change] = deque()
        self._wake = asyncio.Event()
        self._loaded = asyncio.Event()
        self.error = "the tracker is not read yet"
        self._metrics = metrics

    # -- what is known

    @property
    def entries(self) -> Mapping[str, PartitionEntry]:
        """By name; with those that were lost and not yet settled."""
        known = self._seen.tracked.entries if self._seen is not None else {}
        return {**self._lost, **known} if self._lost else known

    @property
    def lost(self) -> Mapping[str, PartitionEntry]:
        return self._lost

    @property
    def unreadable(self) -> Mapping[str, str]:
        return self._seen.tracked.unreadable if self._seen is not None else {}

    def entry(self, name: str) -> PartitionEntry | None:
        if self._seen is not None and (found := self._seen.tracked.entries.get(name)) is not None:
            return found
        return self._lost.get(name)

    async def wait_loaded(self) -> None:
        await self._loaded.wait()

    @property
    def loaded(self) -> bool:
        return self._loaded.is_set()

    # -- changing it

    async def change(self, name: str, decide: Decide) -> PartitionEntry | None:
        """The entry as it is once that is written; no write where ``decide`` returns what it was given.

        ``decide`` may raise: then nothing of it is written, and it is raised here. It may be called several times, and
        may find what it decided before, as an answer can be lost. Raises Full, Unreadable. Waits while the API server
        is away; whoever gives up meanwhile does not know whether it will have been written.
        """
        waiting = _Change(name, decide, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._wake.set()
        return await waiting.done

    def forget(self, name: str) -> None:
        """A lost one that V-IPU does not have either."""
        self._lost.pop(name, None)
        self._good.pop(name, None)

    # -- for ever

    async def run(self, watching: KubeClient | None) -> None:
        """Until cancelled. watching: connections of the watch; None: nobody else changes it (tests)."""
        await self._load()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_for_ever())
            if watching is not None:
                there: Reflector[TrackerMap] = Reflector(
                    watching,
                    self._maps,
                    TrackerMap,
                    on_change=lambda _key, _old, new: self._watched(new),
                    params={"fieldSelector": f"metadata.name={self.name}"},
                )
                group.create_task(there.run())

    async def _load(self) -> None:
        failures = 0
        while True:
            try:
                await self._read_or_make()
            except (ApiError, ConfigError) as error:
                await self._failed(error, failures)
                failures += 1
            else:
                return

    async def _read_or_make(self) -> None:
        try:
            self._take(await self._client.get(f"{self._maps}/{self.name}", type=TrackerMap))
        except NotFound:
            with suppress(AlreadyExists):
                await self._make({})
                return
            self._take(await self._client.get(f"{self._maps}/{self.name}", type=TrackerMap))

    async def _make(self, data: dict[str, str]) -> None:
        body = {"metadata": {"name": self.name, "labels": _LABELS}, "data": data}
        made = await self._client.create(self._maps, body, type=TrackerMap)
        self._metrics.writes.inc()
        log.info("tracker ConfigMap %s/%s is made", self._namespace, self.name)
        self._take(made)

    async def _write_for_ever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self._write()
                    failures = 0
                    self.error = ""
                except Conflict:
                    self._metrics.conflicts.inc()
                    await self._read_again()
                except (ApiError, ConfigError) as error:
                    # it may have been written: what is there is read, and decided on anew
                    await self._failed(error, failures)
                    failures += 1
                    await self._read_again()

    async def _read_again(self) -> None:
        with suppress(ApiError, ConfigError):
            try:
                self._take(await self._client.get(f"{self._maps}/{self.name}", type=TrackerMap))
            except NotFound:
                self._gone()

    async def _failed(self, error: ApiError | ConfigError, failures: int) -> None:
        wait_s = self._backoff.delay_s(failures, self._rng)
        if self.error != str(error):
            log.warning("tracker %s/%s: %s; again in %.1f s", self._namespace, self.name, error, wait_s)
        self.error = str(error)
        await asyncio.sleep(wait_s)

    async def _write(self) -> None:
        batch = [change for change in self._waiting if not change.done.done()][:TOGETHER_LIMIT]
        data = dict(self._seen.data) if self._seen is not None else {}
        patch: dict[str, str | None] = {}
        self._cost = tracker.costs(data)
        for change in batch:
            self._decide(change, data, patch)
        if patch:
            await self._put(patch, data)
        taken = set(map(id, batch))
        self._waiting = deque(c for c in self._waiting if id(c) not in taken and not c.done.done())
        for change in batch:
            if change.done.done():
                continue
            if isinstance(change.outcome, Exception):
                change.done.set_exception(change.outcome)
            else:
                change.done.set_result(change.outcome)

    def _decide(self, change: _Change, data: dict[str, str], patch: dict[str, str | None]) -> None:
        """Into ``data``, which is what the ConfigMap will hold, and ``patch``."""
        name = change.name
        there = tracker.read({name: data[name]} if name in data else {})
        known = there.entries.get(name) or self._lost.get(name)
        if name in there.unreadable and known is None:
            change.outcome = Unreadable(f"tracker entry {name} cannot be read: {there.unreadable[name]}")
            return
        try:
            entry = change.decide(known)
        except Exception as error:  # its own answer to whoever asked
            change.outcome = error
            return
        change.outcome = entry
        if entry is None:
            if name in data:
                del data[name]
                patch[name] = None
            self._lost.pop(name, None)
            self._good.pop(name, None)
            return
        if entry == there.entries.get(name):
            return
        if known is None or known.state != entry.state:
            entry = msgspec.structs.replace(entry, since=rfc3339_whole(self._wall()))
        change.outcome = entry
        text = tracker.written(entry)
        if name in data and tracker.size(data) + len(text.encode()) - len(data[name].encode()) > tracker.LIMIT:
            # what a partition is must always fit; why it is so need not
            entry = change.outcome = msgspec.structs.replace(entry, message="")
            text = tracker.written(entry)
            if text == data[name]:
                return
        if name not in data:
            self._cost += tracker.cost(name, text)
            if self._cost > tracker.LIMIT:
                self._cost -= tracker.cost(name, text)
                full = f"tracker {self.name} is full: {len(data)} partitions; a ConfigMap holds 1 MiB"
                change.outcome = Full(full)
                return
        if name in there.unreadable:
            data[name + ASIDE] = patch[name + ASIDE] = data[name]
        data[name] = patch[name] = text

    async def _put(self, patch: dict[str, str | None], data: dict[str, str]) -> None:
        if self._seen is None:
            try:
                await self._make(data)
            except AlreadyExists as error:
                raise Conflict(409, "Conflict", error.message, error.path) from error
            return
        body = {"metadata": {"resourceVersion": self._seen.version}, "data": patch}
        path = f"{self._maps}/{self.name}"
        params = {"fieldManager": FIELD_MANAGER}
        try:
            written = await self._client.patch(path, body, type=TrackerMap, params=params)
        except NotFound as error:
            self._gone()
            raise Conflict(409, "Conflict", "it is not there any more", path) from error
        self._metrics.writes.inc()
        # what is dropped here was dropped by us: it is not lost
        for name, text in patch.items():
            if text is None:
                self._good.pop(name, None)
        self._take(written)

    # -- what comes in

    def _watched(self, new: TrackerMap | None) -> None:
        if new is None:
            self._gone()
        else:
            self._take(new)

    def _gone(self) -> None:
        """The whole ConfigMap was deleted."""
        if self._seen is None:
            return
        log.warning("tracker ConfigMap %s/%s was deleted: it will be made again", self._namespace, self.name)
        self._seen = None
        names = set(self._good)
        self._lost |= self._good
        self._good = {}
        if names:
            self._on_change(names)

    def _take(self, new: TrackerMap) -> None:
        version = new.metadata.resource_version
        seen = self._seen
        if seen is not None and (version == seen.version or _is_older(version, seen.version)):
            return
        before = seen.tracked.entries if seen is not None else {}
        tracked = tracker.read(new.data, (seen.data, seen.tracked) if seen is not None else None)
        self._seen = _Seen(version, new.data, tracked)
        changed = {n for n in before.keys() | tracked.entries.keys() if before.get(n) != tracked.entries.get(n)}
        for name, entry in self._good.items():
            if name not in tracked.entries:
                # by a person, or another proxy that has ended it: V-IPU knows
                self._lost[name] = entry
                changed.add(name)
        self._good = dict(tracked.entries)
        for name in [name for name in self._lost if name in tracked.entries]:
            del self._lost[name]
        self._tell_unreadable(tracked)
        self._loaded.set()
        self.error = ""
        if changed:
            self._on_change(changed)

    def _tell_unreadable(self, tracked: Tracked) -> None:
        for name, problem in tracked.unreadable.items():
            if self._told.get(name) != problem:
                log.error("tracker %s: entry %s is kept aside, it cannot be read: %s", self.name, name[:200], problem)
        self._told = dict(tracked.unreadable)
        self._metrics.unreadable.set(len(tracked.unreadable))
        self._metrics.count(tracked.entries)


def _is_older(version: str, known: str) -> bool:
    """resourceVersions are etcd revisions; where they are something else, the order of arrival is trusted."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)
