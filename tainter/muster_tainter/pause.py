"""Pause: while the ConfigMap ``muster-pause`` exists, no new taint, drain or repair begins; recovery continues.

It is one object, watched by name, so that a new leader knows about it before its first decision. Until the first list
completes, Muster counts as paused.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.api.objects import Api, Event, EventMetadata, EventSource, Metadata, ObjectReference
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.controller.reflector import Reflector

log = logging.getLogger(__name__)

NAME = "muster-pause"
COMPONENT = "muster-tainter"  # whom Events name as their source
_TEXT_LIMIT = 200  # bytes of a reason: it is part of every withheld node's condition
_BY_LIMIT = 80


class PauseMap(Api, frozen=True):
    """The ConfigMap. data: by, at (RFC 3339), reason; each may be missing or invalid, as users may create it."""

    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def by(self) -> str:
        return shorten(self.data.get("by", ""), _BY_LIMIT) or "an unnamed user"

    @property
    def since(self) -> float:
        """Seconds since the epoch; 0 if unknown."""
        return seconds(self.data.get("at", "")) or seconds(self.metadata.creation_timestamp)

    @property
    def text(self) -> str:
        return shorten(self.data.get("reason", ""), _TEXT_LIMIT)


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def describe_pause(pause: PauseMap) -> str:
    """``paused by ada since 2026-01-01T03:00:00Z: switch maintenance``."""
    since = f" since {rfc3339_whole(pause.since)}" if pause.since else ""
    return f"paused by {pause.by}{since}{f': {pause.text}' if pause.text else ''}"


class Pause:
    """Watches the ConfigMap in ``namespace``. on_change: called when ``reason`` changes.

    registry: gets ``muster_tainter_paused``, 1 while it is paused
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        on_change: Callable[[], None],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._path = config_maps(namespace)
        self._on_change = on_change
        self._gauge = Gauge(
            "muster_tainter_paused", "1 while the tainter sets no new taints (muster pause)", registry=registry
        )
        self._reason = ""
        self._watch: Reflector[PauseMap] = Reflector(
            client,
            self._path,
            PauseMap,
            on_change=self._changed,
            on_undecodable=self._undecodable,
            params={"fieldSelector": f"metadata.name={NAME}"},
            newest=True,  # a tainter that starts taints nothing after a pause
        )

    async def run(self) -> None:
        """Runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run())
            group.create_task(self._begin())

    async def _begin(self) -> None:
        await self._watch.wait_synced()
        if not self._reason:
            self._on_change()  # not paused: the tainter may start to set taints

    async def wait_synced(self) -> None:
        await self._watch.wait_synced()

    async def read_newest(self) -> None:
        """For a replica that takes over: our watch may not have delivered the pause that the leader before us saw. An
        end of the pause is left to the watch."""
        try:
            self._watch.observe(await self._client.get(f"{self._path}/{NAME}", type=PauseMap))
        except NotFound:
            pass
        except (ApiError, ConfigError) as error:
            log.warning("cannot read ConfigMap %s: %s; continuing with what the watch has delivered", NAME, error)

    @property
    def not_ready(self) -> str:
        """Why this replica cannot see a pause now; empty if it can."""
        if not self._watch.synced:
            return f"configmap {NAME}: not read yet {self._watch.error}".strip()
        return "" if self._watch.connected else f"configmap {NAME}: the watch is down {self._watch.error}".strip()

    @property
    def reason(self) -> str:
        """Why no new taint may be set; empty if it may. Begins with ``paused``."""
        if not self._watch.synced:
            return f"paused until the tainter has read ConfigMap {NAME}"
        return self._reason

    def _changed(self, _key: str, _old: PauseMap | None, new: PauseMap | None) -> None:
        self._set_reason("" if new is None else describe_pause(new))

    def _undecodable(self, _key: str | None, _raw: bytes, error: str) -> None:
        log.warning("cannot read ConfigMap %s: %s; it pauses Muster all the same", NAME, error)
        self._set_reason(f"paused: ConfigMap {NAME} exists but cannot be read")

    def _set_reason(self, reason: str) -> None:
        if reason == self._reason:
            return
        self._reason = reason
        self._gauge.set(1 if reason else 0)
        log.warning("%s", reason or "no longer paused")
        self._on_change()


async def record_pause_event(client: KubeClient, reason: str, *, namespace: str, now: float) -> None:
    """Create an Event about a pause (empty ``reason``: about its end) on the tainter's namespace."""
    event = Event(
        metadata=EventMetadata(generate_name="muster-pause.", namespace=namespace),
        involved_object=ObjectReference(kind="Namespace", name=namespace, namespace=namespace, api_version="v1"),
        reason="TainterPaused" if reason else "TainterResumed",
        message=f"{reason}; no new taints, recovery continues" if reason else "resumed: new faults are tainted again",
        type="Warning" if reason else "Normal",
        source=EventSource(component=COMPONENT),
        first_timestamp=rfc3339_whole(now),
        last_timestamp=rfc3339_whole(now),
    )
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/events", event, type=Event)
    except (ApiError, ConfigError) as failure:
        log.warning("could not create the Event about the pause: %s", failure)
