"""The brake: while the ConfigMap ``muster-pause`` exists, no new taint, drain or repair begins; recovery goes on.

It is one object, watched by its name, so that a replica which takes over knows of it before it decides anything:
until the first look it is taken for there.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.objects import Api, Event, EventMetadata, EventSource, Metadata, ObjectReference
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.controller.reflector import Reflector

log = logging.getLogger(__name__)

NAME = "muster-pause"
COMPONENT = "muster-tainter"  # whom Events name as their source
_TEXT_LIMIT = 200  # bytes of a reason: it stands in every withheld node's condition
_BY_LIMIT = 80


class PauseMap(Api, frozen=True):
    """The ConfigMap. data: by, at (RFC 3339), reason; anybody may make it, so each may be missing or nonsense."""

    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def by(self) -> str:
        return shorten(self.data.get("by", ""), _BY_LIMIT) or "somebody"

    @property
    def since(self) -> float:
        """Seconds since the epoch; 0 where nobody knows."""
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
    """Follows the ConfigMap in ``namespace``. on_change: called when ``reason`` has become another one.

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
        self._on_change = on_change
        self._gauge = Gauge("muster_tainter_paused", "1 while nothing new is tainted (muster pause)", registry=registry)
        self._said = ""
        self._watch: Reflector[PauseMap] = Reflector(
            client,
            config_maps(namespace),
            PauseMap,
            on_change=self._changed,
            on_undecodable=self._undecodable,
            params={"fieldSelector": f"metadata.name={NAME}"},
        )

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run())
            group.create_task(self._begin())

    async def _begin(self) -> None:
        await self._watch.wait_synced()
        if not self._said:
            self._on_change()  # nothing is there: from here on faults may be tainted

    async def wait_synced(self) -> None:
        await self._watch.wait_synced()

    @property
    def not_ready(self) -> str:
        """Why this replica would not hear of a pause now; empty when it would."""
        if not self._watch.synced:
            return f"configmap {NAME}: not looked for yet {self._watch.error}".strip()
        return "" if self._watch.connected else f"configmap {NAME}: the watch is down {self._watch.error}".strip()

    @property
    def reason(self) -> str:
        """Why nothing new may be tainted: empty: it may. Begins with ``paused``."""
        if not self._watch.synced:
            return f"paused until it is known whether somebody has paused: ConfigMap {NAME} is not read yet"
        return self._said

    def _changed(self, _key: str, _old: PauseMap | None, new: PauseMap | None) -> None:
        self._say("" if new is None else describe_pause(new))

    def _undecodable(self, _key: str | None, _raw: bytes, error: str) -> None:
        log.warning("ConfigMap %s cannot be read, and pauses all the same: %s", NAME, error)
        self._say(f"paused: ConfigMap {NAME} is there, and cannot be read")

    def _say(self, reason: str) -> None:
        if reason == self._said:
            return
        self._said = reason
        self._gauge.set(1 if reason else 0)
        log.warning("%s", reason or "not paused any more")
        self._on_change()


async def record_pause_event(client: KubeClient, reason: str, *, namespace: str, now: float) -> None:
    """An Event about a pause (empty ``reason``: about its end), on the namespace the tainter runs in."""
    event = Event(
        metadata=EventMetadata(generate_name="muster-pause.", namespace=namespace),
        involved_object=ObjectReference(kind="Namespace", name=namespace, namespace=namespace, api_version="v1"),
        reason="TainterPaused" if reason else "TainterResumed",
        message=f"{reason}; nothing new is tainted, recovery goes on" if reason else "new faults are tainted again",
        type="Warning" if reason else "Normal",
        source=EventSource(component=COMPONENT),
        first_timestamp=rfc3339_whole(now),
        last_timestamp=rfc3339_whole(now),
    )
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/events", event, type=Event)
    except (ApiError, ConfigError) as failure:
        log.warning("no Event about the pause: %s", failure)
