"""The fleet from two watches, of Nodes and of NodeHealths, kept current by every replica, leading or not."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol

from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.api.objects import ManagedNode, Node
from muster_kube.controller.backoff import Backoff, Outage
from muster_kube.controller.clock import SYSTEM_CLOCK, Clock
from muster_kube.controller.reflector import LIST_SILENCE_S, Reflector
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.desired_state import FAULTY_LABEL
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.fleet.interface import NODES_PATH
from muster_tainter.fleet.label_backfill import LabelBackfill
from muster_tainter.fleet.projection import slim_health, slim_node
from muster_tainter.policy.rules import Policy

log = logging.getLogger(__name__)

_TAINTED = {"labelSelector": f"{FAULTY_LABEL}=true"}
# of the first, second and each later attempt; a list of 15,000 nodes takes 1 s to 4 s, by the API server's load
LIST_TIMEOUTS_S = (15.0, 30.0, LIST_SILENCE_S)
_RETRY = Backoff(base_s=0.5, cap_s=10.0)


class FleetListener(Protocol):
    """Receives changes. ``old``, ``new``: None if the object did not exist."""

    def node_changed(self, name: str, old: Node | None, new: Node | None) -> None: ...

    def health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None: ...

    def health_unusable(self, name: str | None) -> None:
        """name: None if the NodeHealth does not even have a name."""

    def findings_changed(self, name: str) -> None:
        """Findings from a source other than the agent."""

    def policy_changed(self) -> None:
        """The labels that the policy uses are known now."""


class WatchedFleet:
    """The :class:`muster_tainter.fleet.interface.Fleet` of a running replica. ``policy``: the active one."""

    def __init__(
        self,
        client: KubeClient,
        policy: Callable[[], Policy],
        listener: FleetListener,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._listener = listener
        self._clock = clock
        self._labels = LabelBackfill(client, NODES_PATH, policy, listener.policy_changed)
        self.policy = self._labels.policy
        self.node_watch: Reflector[Node] = Reflector(
            client, NODES_PATH, Node, on_change=self._node_changed, transform=self.slim, clock=clock
        )
        self.health_watch: Reflector[NodeHealth] = Reflector(
            client,
            nodehealth.PATH,
            NodeHealth,
            on_change=self._health_changed,
            on_undecodable=self._health_undecodable,
            transform=slim_health,
            clock=clock,
        )
        self.external_findings = ExternalFindings(listener.findings_changed)
        self.taints_idle = asyncio.Event()
        self.withheld: Callable[[], str] = lambda: ""
        self.notify: Callable[[Node, Notice], None] = lambda _node, _notice: None
        self._unusable: dict[str, UnusableHealth] = {}
        self._verified: set[str] = set()  # nodes whose NodeHealth was read from etcd in this term

    async def run(self) -> None:
        """Runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node_watch.run())
            group.create_task(self.health_watch.run())
            group.create_task(self._labels.run())

    async def wait_synced(self) -> None:
        await self.node_watch.wait_synced()
        await self.health_watch.wait_synced()

    async def read_tainted(self) -> str:
        """Observe which Nodes have taints of ours at this moment: our watch may not have delivered the previous
        leader's last writes, which budgets have to count. Retries until it succeeds; returns once synced.

        Returns the API server's resourceVersion of the list.
        """
        failures, rng = 0, self._clock.rng
        outage = Outage(self._clock.monotonic)
        while True:
            try:
                # without a resourceVersion, the API server answers from etcd and not from its cache, after it has read
                # every Node there; a longer timeout each time, because the connection may also be dead
                timeout_s = LIST_TIMEOUTS_S[min(failures, len(LIST_TIMEOUTS_S) - 1)]
                page = await self._client.list_page(
                    NODES_PATH, Node, params=_TAINTED, transform=self.slim, timeout_s=timeout_s
                )
                await self.wait_synced()
                await self._read_released({node.metadata.name for node in page.items})
            except (ApiError, ConfigError) as error:
                log.warning("cannot list the tainted nodes, so no node is tainted yet; will retry: %s", error)
                await asyncio.sleep(outage.pause_s(_RETRY.delay_s(failures, rng), error, rng))
                failures += 1
            else:
                for node in page.items:
                    self.observe_node(node)
                return page.resource_version

    def begin_term(self) -> None:
        """Another process has led: what it saw of NodeHealths may be newer than what our watch has delivered."""
        self._verified.clear()

    async def verify_health(self, name: str) -> bool:
        """Read the NodeHealth of a node from etcd, unless that was done in this term. True if it has changed. Raises
        ApiError."""
        if name in self._verified:
            return False
        known = self.healths.get(name)
        self.observe_health(await self._client.get(f"{nodehealth.PATH}/{name}", type=NodeHealth))
        self._verified.add(name)
        return self.healths.get(name) is not known

    async def _read_released(self, tainted: AbstractSet[str]) -> None:
        """Nodes whose last taint was removed, which our watch has not delivered either. Raises ApiError."""
        for name in [name for name, node in self.nodes.items() if FAULTY_LABEL in node.metadata.labels]:
            if name not in tainted:
                with suppress(NotFound):
                    self.observe_node(self.slim(await self._client.get(f"{NODES_PATH}/{name}", type=Node)))

    @property
    def synced(self) -> bool:
        return self.node_watch.synced and self.health_watch.synced

    def not_ready(self) -> list[str]:
        """Why this replica could not take over now; empty if it could."""
        reasons = []
        for what, reflector in (("nodes", self.node_watch), ("nodehealths", self.health_watch)):
            if not reflector.synced:
                reasons.append(f"{what}: not listed yet {reflector.error}".strip())
            elif not reflector.connected:
                reasons.append(f"{what}: the watch is down {reflector.error}".strip())
        return reasons

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self.node_watch.store

    @property
    def healths(self) -> Mapping[str, NodeHealth]:
        return self.health_watch.store

    def names(self) -> list[str]:
        """All nodes, and those that only a NodeHealth names."""
        nodes = self.nodes
        return [*nodes, *(name for name in self.healths if name not in nodes)]

    def node(self, name: str) -> Node | None:
        node = self.nodes.get(name)
        return None if node is None else self._labels.completed(node)

    def labelled_nodes(self) -> list[Node]:
        """All Nodes, with the labels that the policy uses."""
        return [self._labels.completed(node) for node in self.nodes.values()]

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None:
        """None also for the NodeHealth of an older Node with that name: another machine may have the name now, and its
        agent will report what still holds."""
        health = self._unusable.get(name) or self.healths.get(name)
        node = self.nodes.get(name)
        if node is not None and isinstance(health, NodeHealth) and _is_of_older(health, node):
            return None
        return health

    def observe_node(self, node: Node) -> None:
        self.node_watch.observe(node)

    def observe_health(self, health: NodeHealth) -> None:
        self.health_watch.observe(health)

    def fetch_labels(self) -> None:
        """The policy may have changed and use labels that are not stored."""
        self._labels.look()

    def slim(self, node: Node | ManagedNode) -> Node:
        """The stored part of a Node."""
        return slim_node(node, self._labels.kept, self.policy().sources.condition_types)

    async def list_nodes(self) -> AsyncIterator[Node]:
        """With everything that the policy uses."""
        async for page in self._client.list_pages(NODES_PATH, Node, transform=self.slim):
            for node in page.items:
                yield node

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        self._labels.came(name)
        self._listener.node_changed(name, old, new)

    def _health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        self._unusable.pop(name, None)
        self._listener.health_changed(name, old, new)

    def _health_undecodable(self, name: str | None, _raw: bytes, error: str) -> None:
        if name is None:
            log.warning("cannot read a NodeHealth that has no name: %s", error)
        else:
            self._unusable[name] = UnusableHealth(error)
        self._listener.health_unusable(name)


def _is_of_older(health: NodeHealth, node: Node) -> bool:
    return any(owner.kind == "Node" and owner.uid != node.metadata.uid for owner in health.metadata.owner_references)
