"""Keeps the books in the ConfigMap ``muster-goodput`` of the tainter's namespace."""

import asyncio
import base64
import logging
from collections.abc import Mapping

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, NotFound
from muster_kube.api.objects import Api, Metadata
from muster_tainter.fleet.interface import FIELD_MANAGER
from muster_tainter.goodput.state import (
    KEY,
    NAME,
    UNREADABLE_KEY,
    UNREADABLE_LIMIT,
    BadState,
    State,
    read_state,
    write_state,
)
from muster_tainter.pause import config_maps

log = logging.getLogger(__name__)

ABOUT = 'Compressed JSON. "muster goodput" shows it.'


class GoodputMap(Api, frozen=True):
    metadata: Metadata
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)

    def state(self, now: float) -> State:
        """Raises BadState."""
        try:
            data = base64.b64decode(self.binary_data.get(KEY, ""), validate=True)
        except ValueError as error:
            raise BadState(f"binaryData.{KEY} is not base64: {error}") from error
        return read_state(data, now)


class GoodputStore:
    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._path = config_maps(namespace)
        self._exists = False

    async def load(self, now: float) -> State | None:
        """None: there are none yet, or they cannot be read; these are kept aside, and a warning is logged. Raises
        ApiError."""
        try:
            found = await self._client.get(f"{self._path}/{NAME}", type=GoodputMap)
        except NotFound:
            self._exists = False
            return None
        self._exists = True
        try:
            return found.state(now)
        except BadState as error:
            log.warning(
                "ConfigMap %s: cannot read the books: %s; they are kept as %s, and new ones begin",
                NAME,
                error,
                UNREADABLE_KEY,
            )
        text = found.binary_data.get(KEY, "")
        if text and len(text) * 3 // 4 <= UNREADABLE_LIMIT:
            await self._patch({"binaryData": {UNREADABLE_KEY: text}})
        return None

    async def save(self, state: State) -> None:
        """One write. Raises ApiError."""
        data = await asyncio.to_thread(write_state, state)
        body = {"data": {"about": ABOUT}, "binaryData": {KEY: base64.b64encode(data).decode()}}
        if self._exists:
            try:
                await self._patch(body)
            except NotFound:
                self._exists = False
            else:
                return
        try:
            await self._client.create(self._path, {"metadata": {"name": NAME}, **body}, type=msgspec.Raw)
        except AlreadyExists:
            await self._patch(body)
        self._exists = True

    async def _patch(self, body: Mapping[str, object]) -> None:
        params = {"fieldManager": FIELD_MANAGER}
        await self._client.patch(f"{self._path}/{NAME}", body, type=msgspec.Raw, params=params)
