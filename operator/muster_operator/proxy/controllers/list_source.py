"""Where the list of controllers comes from, and how a change of it gets in: a flag, a file, or a watched ConfigMap.

A list that cannot be read keeps the last one; bad entries are told once and skipped.
"""

import asyncio
import logging
from pathlib import Path

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Api, Metadata
from muster_kube.controller.reflector import Reflector
from muster_operator.proxy.controllers.list_syntax import LIST_LIMIT, parse_controller_list
from muster_operator.proxy.controllers.registry import ControllerRegistry

log = logging.getLogger(__name__)

KEY = "controllers.yaml"  # the original's
AGAIN_S = 5.0  # the original promises a minute; a kubelet may take most of it to bring a mounted ConfigMap up to date


class _ListMap(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class ControllerListSource:
    def __init__(self, reaching: ControllerRegistry) -> None:
        self._reaching = reaching
        self._text: str | None = None
        self._told = ""

    def take(self, text: str, source: str) -> None:
        """The list is this from now on."""
        if text == self._text:
            return
        self._text = text
        places, complaints = parse_controller_list(text)
        for complaint in complaints:
            log.error("controllers, %s: %s: skipped", source, complaint)
        named = ", ".join(place.address for place in places) or "none"
        log.info("V-IPU controllers, from %s: %s", source, named)
        self._reaching.set(places, len(complaints))

    def read(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                text = opened.read(4 * LIST_LIMIT).decode()
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != self._told:
                log.warning("controllers, %s: %s: the list stays as it is", file, error)
            self._told = str(error)
            return
        self._told = ""
        self.take(text, str(file))

    async def follow(self, file: Path, again_s: float = AGAIN_S) -> None:
        """Until cancelled."""
        while True:
            self.read(file)
            await asyncio.sleep(again_s)

    async def watch(self, client: KubeClient, namespace: str, name: str) -> None:
        """Until cancelled. A ConfigMap that is deleted leaves the list as it is."""

        def changed(_key: str, _old: _ListMap | None, new: _ListMap | None) -> None:
            if new is None or KEY not in new.data:
                log.error("controllers: ConfigMap %s/%s has no %s: the list stays as it is", namespace, name, KEY)
            else:
                self.take(new.data[KEY], f"ConfigMap {namespace}/{name}")

        path, only = f"/api/v1/namespaces/{namespace}/configmaps", {"fieldSelector": f"metadata.name={name}"}
        await Reflector(client, path, _ListMap, on_change=changed, params=only).run()
