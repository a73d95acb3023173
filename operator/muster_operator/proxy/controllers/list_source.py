"""Reads the list of controllers, and follows its changes: a flag, a file, or a watched ConfigMap.

If the list cannot be read, the last one stays in use. Invalid entries are logged once and skipped.
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

KEY = "controllers.yaml"  # the key that the original uses
REREAD_S = 5.0  # the original promises a minute, and a kubelet may need most of it to update a mounted ConfigMap


class ListMap(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class ControllerListSource:
    def __init__(self, controllers: ControllerRegistry) -> None:
        self._controllers = controllers
        self._text: str | None = None
        self._reported = ""

    def apply(self, text: str, source: str) -> None:
        """Use this list from now on."""
        if text == self._text:
            return
        self._text = text
        endpoints, complaints = parse_controller_list(text)
        for complaint in complaints:
            log.error("controllers, %s: skipping %s", source, complaint)
        named = ", ".join(endpoint.address for endpoint in endpoints) or "none"
        log.info("V-IPU controllers, from %s: %s", source, named)
        self._controllers.replace_list(endpoints, len(complaints))

    def read_file(self, file: Path) -> None:
        try:
            with file.open("rb") as stream:
                text = stream.read(4 * LIST_LIMIT).decode()
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != self._reported:
                log.warning("controllers, %s: cannot read the list: %s: the last list stays in use", file, error)
            self._reported = str(error)
            return
        self._reported = ""
        self.apply(text, str(file))

    async def follow_file(self, file: Path, reread_s: float = REREAD_S) -> None:
        """Runs until cancelled."""
        while True:
            self.read_file(file)
            await asyncio.sleep(reread_s)

    def watch_map(self, client: KubeClient, namespace: str, name: str) -> Reflector[ListMap]:
        """A watch, to be run, that applies the list. If the ConfigMap is deleted, the last list stays in use."""

        def changed(_key: str, _old: ListMap | None, new: ListMap | None) -> None:
            if new is None or KEY not in new.data:
                log.error("controllers: ConfigMap %s/%s has no %s: the last list stays in use", namespace, name, KEY)
            else:
                self.apply(new.data[KEY], f"ConfigMap {namespace}/{name}")

        path, only = f"/api/v1/namespaces/{namespace}/configmaps", {"fieldSelector": f"metadata.name={name}"}
        return Reflector(client, path, ListMap, on_change=changed, params=only, newest=True)
