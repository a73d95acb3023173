"""Keeps a local copy of the objects at one API path current: lists once, then watches.

To limit the load on a large API server: the first list comes from the server's cache (resourceVersion 0). After a watch
ends, the next one continues at the same resourceVersion without a list; bookmarks keep that version recent. If the
server no longer knows it, a list follows at once. Attempts that fail back off, less so while the server is away
(:class:`Outage`); so do watches that end early. A watch that is silent for longer than the server's limit is closed.
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
from muster_kube.controller.backoff import Backoff, Outage
from muster_kube.controller.clock import SYSTEM_CLOCK, Clock
from muster_kube.controller.watch_events import Bookmark, EventReader, ObjectChanged, ObjectRemoved

T = TypeVar("T", bound=Object)

OnChange = Callable[[str, T | None, T | None], None]
OnUndecodable = Callable[[str | None, bytes, str], None]

log = logging.getLogger(__name__)

WATCH_S = (300.0, 600.0)  # requested of the server: a random time in this range
SILENCE_MARGIN_S = 30.0  # a watch that is silent for this much longer is closed
HEALTHY_S = 30.0  # a watch that lasted this long did not end early
LIST_SILENCE_S = 60.0  # a server may encode the list of a large fleet for many seconds before the first byte
CAUGHT_UP_S = 0.001  # whoever waits longer for an event has read all that had come
MANY = 64  # as many events without a wait are a burst, which is read without rests
_ANY_VERSION = "0"  # the state of the server's cache


class Reflector(Generic[T]):
    """Keeps ``store`` equal to the objects at ``path`` and reports every change.

    type:            the projection of each object; must have ``metadata``
    on_change:       called as (key, old, new) after the store has changed. old None: new object; new None: deleted
                     (both None: deleted, and it was never decodable). It must return quickly, for example after a work
                     queue's ``add``; an exception from it ends ``run``.
    on_undecodable:  called as (key or None, raw JSON, error) for an object that does not match ``type``; the store
                     keeps the previous value of that key
    params:          labelSelector, fieldSelector
    transform:       applied to each object before it is stored, to save memory
    objects:         the store; one of the caller's may keep fewer objects. on_change is called for those that it does
                     not keep as for new ones, at each change and list, and not when they are deleted
    newest:          the first list is read from etcd: the cache may be older than what another process has written. For
                     callers that decide something once, by what they see first; cheap only for a few objects
    rest_s:          when all events are read, do not read for this long, so that those which come one by one are read
                     together: that takes a third less CPU time. For watches with hundreds of events a second
    Keys are ``name``, or ``namespace/name``.
    """

    def __init__(  # the same parameters as client-go's reflector; most have defaults
        self,
        client: KubeClient,
        path: str,
        type: type[T],
        *,
        on_change: OnChange[T],
        on_undecodable: OnUndecodable | None = None,
        params: Params | None = None,
        transform: Callable[[T], T] | None = None,
        objects: dict[str, T] | None = None,
        newest: bool = False,
        rest_s: float = 0.0,
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
        self._rest_s = rest_s
        self._backoff = backoff
        self._clock = clock
        self._objects: dict[str, T] = {} if objects is None else objects
        self._version = _ANY_VERSION  # where the next watch continues
        self._listed = False
        self._list_newest = newest
        self._unreadable: set[str] = set()  # keys of existing objects that do not match the type
        self._failures = 0  # attempts in a row without a watch
        self._early_ends = 0  # watches in a row that ended early
        self._gone = False  # the last attempt ended because our resourceVersion was too old
        self._outage = Outage(clock.monotonic)
        self._synced = asyncio.Event()
        self._connected = False
        self._opened = False  # by the current attempt
        self._error = ""

    @property
    def store(self) -> Mapping[str, T]:
        """The objects by key; a live, read-only view."""
        return MappingProxyType(self._objects)

    @property
    def synced(self) -> bool:
        """The first list is in the store, and on_change has been called for all of it."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    @property
    def connected(self) -> bool:
        """A watch is open."""
        return self._connected

    @property
    def error(self) -> str:
        """Why it is not connected, for people; empty if it is."""
        return self._error

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await self._clock.sleep(await self._list_and_watch())
        finally:
            self._connected = False

    async def _list_and_watch(self) -> float:
        """List if necessary, then watch until the watch ends; returns the seconds to wait before the next attempt."""
        began = self._clock.monotonic()
        self._opened = False
        gone = False
        failure: ApiError | ConfigError | None = None
        try:
            if not self._listed:
                await self._list()
            began = self._clock.monotonic()
            await self._watch()
            if self._lasted(began):
                # the server ends every watch after a while: this is no error, and `connected` stays true
                self._early_ends, self._gone = 0, False
                return self._clock.rng.uniform(0.0, 0.1)
            self._log_error("the server closed it immediately")
        except Gone as error:
            # our resourceVersion is too old: list again, but not from a cache that may be as old
            self._listed, self._list_newest, gone = False, True, True
            self._log_error(str(error))
        except (ApiError, ConfigError) as error:
            if isinstance(error, ApiError) and error.reason == "ResourceVersionTooLarge":
                # this server's cache is behind what we have seen, or etcd was restored from a backup
                self._listed, self._list_newest = False, True
            failure = error
            self._log_error(str(error))
        self._connected = False
        again, self._gone = self._gone, gone
        if gone and not again:
            return 0.0  # a list answers it; only a server that does not know its own version is met with pauses
        return self._pause_s(failure, lasted=self._lasted(began))

    def _lasted(self, began: float) -> bool:
        return self._opened and self._clock.monotonic() - began >= HEALTHY_S

    def _pause_s(self, failure: Exception | None, *, lasted: bool) -> float:
        """Seconds to wait after an attempt that failed, or a watch that ended early."""
        rng = self._clock.rng
        if self._opened:
            self._early_ends = 0 if lasted else self._early_ends
            delay_s = self._backoff.delay_s(self._early_ends, rng)
            self._early_ends += 1
        else:
            delay_s = self._outage.pause_s(self._backoff.delay_s(self._failures, rng), failure, rng)
            self._failures += 1
        return max(delay_s, failure.retry_after_s) if isinstance(failure, TooManyRequests) else delay_s

    def observe(self, obj: T) -> None:
        """Store the object that a write returned, so that the next decision sees the new state.

        Ignored if the store or the watch is already as recent: a late response to a write must not restore a deleted
        object.
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
        """Fill the store from a list, and report changed, new and deleted objects."""
        params = dict(self._params)
        if not self._list_newest:
            # From the cache, which ignores the limit; a server without a cache obeys it. Any other version together
            # with a limit would mean exactly that version, and 410 after a compaction.
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
        # a quorum read older than what we have seen: etcd was restored from a backup, so our objects are invalid
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
                    listed.add(item.key)  # it exists, even if it is not decodable
                self._report_undecodable(item)
        for key in sorted(self._unreadable - listed - self._objects.keys()):
            self._drop(key)
        for key in [key for key in self._objects if key not in listed]:
            held = _number(self._objects[key].metadata.resource_version)
            if not history_changed and at is not None and held is not None and held > at:
                continue  # one of our writes created it after this list
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
            self._connected = self._opened = True
            self._failures = 0
            self._error = ""
            handled_at, at_once = self._clock.monotonic(), 0
            async for lines in batches:
                waited_s = self._clock.monotonic() - handled_at
                for line in lines:
                    self._handle_line(line)
                if self._rest_s and waited_s > CAUGHT_UP_S:
                    if at_once < MANY:
                        await self._clock.sleep(self._rest_s)
                    at_once = 0
                at_once += len(lines)
                handled_at = self._clock.monotonic()

    def _handle_line(self, line: bytes) -> None:
        try:
            event = self._events.read(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # its object is unknown: the next watch continues from the last event that was read
            raise BadAnswer(200, f"not a watch event: {error}: {line[:120]!r}", self._path) from error
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
            return  # the store already holds the result of one of our writes
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
            return  # a list, or the event of our own write: nothing has changed
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
            log.warning("%s: cannot decode object %s: %s", self._path, item.key or "(no name)", item.error)

    def _log_error(self, text: str) -> None:
        if text != self._error:  # log each new reason once, not every attempt
            log.warning("cannot watch %s: %s", self._path, text)
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
    """resourceVersions are etcd revisions. If they are not numbers, only the order of the watch counts."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else None
