"""Fetches labels that a new policy uses for Nodes that were stored without them.

Only a few labels of each Node are stored. When the pools of a changed policy use another label, its values are listed
once; from then on the watch delivers them.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.objects import Metadata, Node
from muster_kube.controller.backoff import Backoff
from muster_tainter.policy.rules import Policy

log = logging.getLogger(__name__)


class _Labelled(msgspec.Struct, frozen=True):
    metadata: Metadata


class LabelBackfill:
    """path: of Nodes. policy: the active one. on_labels: called when the labels that it uses are known."""

    def __init__(
        self, client: KubeClient, path: str, policy: Callable[[], Policy], on_labels: Callable[[], None]
    ) -> None:
        self._client = client
        self._path = path
        self._live = policy
        self._on_labels = on_labels
        self._former = {"pools": policy().pools, "goodput": policy().goodput}
        self._mixed: tuple[Policy, Policy] | None = None
        self.kept = policy().label_keys
        """The stored labels. The set never shrinks, so a policy that returns finds its labels."""
        self._have = self.kept
        self._late: dict[str, dict[str, str]] = {}
        self._fresh: set[str] | None = None  # nodes that the watch delivered during a list
        self._wake = asyncio.Event()

    def look(self) -> None:
        """The policy may have changed."""
        self.kept |= self._keys()
        self._wake.set()

    def policy(self) -> Policy:
        """The active policy, with the previous pools until the labels of the new ones are known. Otherwise nodes would
        be in no pool, and would be tainted beyond its budget and get jobs before its checks. The ledger waits too."""
        live = self._live()
        if self._keys() <= self._have:
            self._former = {"pools": live.pools, "goodput": live.goodput}
            return live
        if self._mixed is None or self._mixed[0] is not live:
            self._mixed = live, live.model_copy(update=self._former)
        return self._mixed[1]

    def _keys(self) -> frozenset[str]:
        return self._live().label_keys

    def came(self, name: str) -> None:
        """The watch or a write delivered the Node, with all its labels."""
        self._late.pop(name, None)
        if self._fresh is not None:
            self._fresh.add(name)

    def completed(self, node: Node) -> Node:
        late = self._late.get(node.metadata.name)
        if not late:
            return node
        labels = {**late, **node.metadata.labels}
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))

    async def run(self) -> None:
        """Runs forever."""
        failures = 0
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        while True:
            await self._wake.wait()
            self._wake.clear()
            missing = self._keys() - self._have
            if not missing:
                continue
            self._fresh = set()
            try:
                await self._fetch(missing, self._fresh)
            except (ApiError, ConfigError) as error:
                delay_s = Backoff().delay_s(failures, rng)
                failures += 1
                log.warning(
                    "could not list node labels %s: %s; retry in %.1f s", ", ".join(sorted(missing)), error, delay_s
                )
                await asyncio.sleep(delay_s)
                self._wake.set()
            else:
                failures = 0
                self._have |= missing
                self._on_labels()
            finally:
                self._fresh = None

    async def _fetch(self, keys: AbstractSet[str], fresh: AbstractSet[str]) -> None:
        def slim(node: _Labelled) -> _Labelled:
            meta = node.metadata
            return _Labelled(Metadata(name=meta.name, labels={k: v for k, v in meta.labels.items() if k in keys}))

        async for page in self._client.list_pages(self._path, _Labelled, transform=slim):
            for node in page.items:
                name, labels = node.metadata.name, node.metadata.labels
                if labels and name not in fresh:
                    self._late[name] = {**self._late.get(name, {}), **labels}
