"""A local, always fresh copy of the objects at one API path: list once, then watch.

Rules that make it safe beside a large API server: the first list comes from the server's cache (resourceVersion 0); a
watch that ends goes on where it was, without a list (bookmarks keep that place fresh); every reconnect waits, longer
each time, until a watch has lived for a while; a watch that stays silent beyond what the server promised is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from muster_kube.api.client import KubeClient, Params
from muster_kube.api.errors import ApiError, ApiFailure, BadAnswer, ConfigError, Gone, TooManyRequests
from muster_kube.api.list_decoder import ListPage, UndecodableObject, object_key
from muster_kube.api.objects import Object
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.clock import SYSTEM_CLOCK, Clock
from muster_kube.controller.watch_events import Bookmark, EventReader, ObjectChanged, ObjectRemoved

T = TypeVar("T", bound=Object)

OnChange = Callable[[str, T | None, T | None], None]
OnUndecodable = Callable[[str | None, bytes, str], None]

log = logging.getLogger(__name__)

WATCH_S = (300.0, 600.0)  # asked of the server, a random time between
SILENCE_MARGIN_S = 30.0  # beyond it, a watch that said nothing is dead
HEALTHY_S = 30.0  # a watch that lived so long starts the back-off anew
LIST_SILENCE_S = 60.0  # a server encodes the list of a large fleet for seconds before its first byte
_ANY_VERSION = "0"  # whatever the server's cache holds


class Reflector(Generic[T]):
    """Keeps ``store`` equal to the objects at ``path`` and tells of every change.

    type:            what is kept of each object; must have ``metadata``
    on_change:       called as (key, old, new) after the store has changed; old None: new to us; new None: gone (both
                     None: gone, and it could never be read). Called while reading, so it only takes notes (a work
                     queue's ``add``); what it raises stops ``run``.
    on_undecodable:  called as (key or None, raw JSON, error) for an object that is there but does not fit ``type``;
                     the store keeps what it had for that key
    params:          labelSelector, fieldSelector
    transform:       applied to each object before it is stored (leave out or share what costs memory)
    Keys are ``name``, or ``namespace/name``.
    """

    def __init__(  # what is watched, who is told, and how: client-go's reflector takes the same; most have defaults
        self,
        client: KubeClient,
        path: str,
        type: type[T],
        *,
        on_change: OnChange[T],
        on_undecodable: OnUndecodable | None = None,
        params: Params | None = None,
        transform: Callable[[T], T] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._path = path
        self._type = type
        self._events: EventReader[T] = EventReader(type)
        self._on_change = on_change
        self._on_undecodable = on_undecodable
        self._params: dict[str, str | int | bool] = dict(params or {})
        self._transform = transform
        self._backoff = backoff
        self._clock = clock
        self._objects: dict[str, T] = {}
        self._version = _ANY_VERSION  # where the watch goes on
        self._listed = False
        self._list_newest = False
        self._unreadable: set[str] = set()  # keys that are there and do not fit the type
        self._failures = 0
        self._synced = asyncio.Event()
        self._connected = False
        self._error = ""

    @property
    def store(self) -> Mapping[str, T]:
        """The objects by key; a live, read-only view."""
        return MappingProxyType(self._objects)

    @property
    def synced(self) -> bool:
        """The first list is in the store, and all its changes have been told."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    @property
    def connected(self) -> bool:
        """A watch is open."""
        return self._connected

    @property
    def error(self) -> str:
        """Why it is not connected, for people; empty when all is well."""
        return self._error

    async def run(self) -> None:
        """Forever; cancel to stop."""
        try:
            while True:
                await self._clock.sleep(await self._list_and_watch())
        finally:
            self._connected = False

    async def _list_and_watch(self) -> float:
        """List if need be, watch until that ends; returns the seconds to wait before the next try."""
        opened_at = None
        wait_at_least_s = 0.0
        try:
            if not self._listed:
                await self._list()
            opened_at = self._clock.monotonic()
            await self._watch()
            if self._clock.monotonic() - opened_at >= HEALTHY_S:
                # the server ends every watch after a while: nothing is wrong, and `connected` does not flap
                self._failures = 0
                return self._clock.rng.uniform(0.0, 0.1)
            self._log_error("the server closed it at once")
        except Gone as error:
            # our place is too old: only a new list helps, and not one from a cache that may be as old
            self._listed, self._list_newest = False, True
            self._log_error(str(error))
        except (ApiError, ConfigError) as error:
            if isinstance(error, ApiError) and error.reason == "ResourceVersionTooLarge":
                # this server's cache is behind what we have seen, or etcd was restored from the past
                self._listed, self._list_newest = False, True
            if isinstance(error, TooManyRequests):
                wait_at_least_s = error.retry_after_s
            self._log_error(str(error))
        self._connected = False
        if opened_at is not None and self._clock.monotonic() - opened_at >= HEALTHY_S:
            self._failures = 0
        delay_s = self._backoff.delay_s(self._failures, self._clock.rng)
        self._failures += 1
        return max(delay_s, wait_at_least_s)

    def observe(self, obj: T) -> None:
        """Take in what a write returned, so that the next decision does not look at the state before it.

        Ignored when the store or the watch is already as new: then it is no news, or it is the past (a write answered
        after the object was deleted must not bring it back).
        """
        key = self._key(obj)
        version = _number(obj.metadata.resource_version)
        if version is None or not self.synced:
            return
        known = self._objects.get(key)
        if version <= max(self._newest_version(), (known and _number(known.metadata.resource_version)) or 0):
            return
        self._put(key, self._transform_object(obj))

    async def _list(self) -> None:
        """Fill the store from a list, telling of what changed, what is new and what is gone."""
        params = dict(self._params)
        if not self._list_newest:
            # From the cache, which sends all at once and ignores the limit; a server without a cache heeds it. Any
            # other version beside a limit would mean exactly that version, and 410 after a compaction.
            params["resourceVersion"] = _ANY_VERSION
        newest = self._list_newest
        listed = self._client.list_pages(
            self._path,
            self._type,
            params=params,
            transform=self._transform,
            timeout_s=LIST_SILENCE_S,
        )
        pages = [page async for page in listed]
        self._store_list(pages, newest)
        self._listed, self._list_newest = True, False
        self._synced.set()

    def _store_list(self, pages: list[ListPage[T]], newest: bool) -> None:
        version = pages[-1].resource_version
        at = _number(version)
        # a quorum read older than what we have seen: etcd was restored from a backup, and what we hold never was
        history_changed = newest and at is not None and at < self._newest_version()
        listed: set[str] = set()
        for page in pages:
            for obj in page.items:
                key = self._key(obj)
                listed.add(key)
                if history_changed:
                    self._put(key, obj, even_if_same=True)
                elif not self._is_older(obj, self._objects.get(key)):
                    self._put(key, obj)
            for item in page.undecodable:
                if item.key is not None:
                    listed.add(item.key)  # it is there, if unreadable: not gone
                self._report_undecodable(item)
        for key in sorted(self._unreadable - listed - self._objects.keys()):
            self._drop(key)
        for key in [key for key in self._objects if key not in listed]:
            held = _number(self._objects[key].metadata.resource_version)
            if not history_changed and at is not None and held is not None and held > at:
                continue  # a write of ours made it after this list
            self._drop(key)
        self._version = version

    async def _watch(self) -> None:
        timeout_s = round(self._clock.rng.uniform(*WATCH_S))
        params: dict[str, str | int | bool] = {
            **self._params,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": timeout_s,
        }
        async with self._client.watch(self._path, params, silence_s=timeout_s + SILENCE_MARGIN_S) as batches:
            self._connected = True
            self._error = ""
            async for lines in batches:
                for line in lines:
                    self._handle_line(line)

    def _handle_line(self, line: bytes) -> None:
        try:
            event = self._events.read(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # what it was about is lost: the next watch goes on from what was read before
            raise BadAnswer(200, f"no watch event: {error}: {line[:120]!r}", self._path) from error
        match event:
            case ObjectChanged():
                self._handle_change(event)
            case Bookmark():
                self._version = event.resource_version
            case ApiFailure():
                self._raise_failure(event)
            case UndecodableObject():
                self._report_undecodable(event)
            case ObjectRemoved():
                self._drop(event.key)

    def _handle_change(self, event: ObjectChanged[T]) -> None:
        obj = event.object
        key = self._key(obj)
        self._version = obj.metadata.resource_version
        known = self._objects.get(key)
        if self._is_older(obj, known):
            return  # the store holds what a write of ours returned
        if event.type == "DELETED":
            if known is not None or key in self._unreadable:
                self._drop(key)
        else:
            self._put(key, self._transform_object(obj))

    def _transform_object(self, obj: T) -> T:
        return obj if self._transform is None else self._transform(obj)

    def _raise_failure(self, failure: ApiFailure) -> None:
        message = failure.message or "no message"
        if failure.code == 410 or failure.reason in ("Gone", "Expired"):
            raise Gone(410, failure.reason or "Expired", message, self._path)
        reason = "ResourceVersionTooLarge" if failure.has_cause("ResourceVersionTooLarge") else failure.reason
        raise ApiError(failure.code or 500, reason or "Unknown", message, self._path)

    def _put(self, key: str, obj: T, *, even_if_same: bool = False) -> None:
        old = self._objects.get(key)
        self._unreadable.discard(key)
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version and not even_if_same:
            return  # a list, or the echo of a write: nothing has changed
        self._objects[key] = obj
        self._on_change(key, old, obj)

    def _drop(self, key: str) -> None:
        self._unreadable.discard(key)
        self._on_change(key, self._objects.pop(key, None), None)

    def _report_undecodable(self, item: UndecodableObject) -> None:
        if item.key is not None:
            self._unreadable.add(item.key)
        if self._on_undecodable is not None:
            self._on_undecodable(item.key, item.raw, item.error)
        else:
            log.warning("%s: object %s cannot be read: %s", self._path, item.key or "without a name", item.error)

    def _log_error(self, text: str) -> None:
        if text != self._error:  # once for each new reason, not for each try
            log.warning("watch of %s is down: %s", self._path, text)
        self._error = text

    def _newest_version(self) -> int:
        return _number(self._version) or 0

    @staticmethod
    def _key(obj: T) -> str:
        return object_key(obj.metadata.namespace, obj.metadata.name)

    @staticmethod
    def _is_older(obj: T, known: T | None) -> bool:
        if known is None:
            return False
        new, old = _number(obj.metadata.resource_version), _number(known.metadata.resource_version)
        return new is not None and old is not None and new < old


def _number(resource_version: str) -> int | None:
    """resourceVersions are etcd revisions; where they are something else, the watch's order alone is trusted."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else None
