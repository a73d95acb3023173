"""What runs behind the taints: the plan of heavy checks, proof, drains and repairs, silent agents, sources of others.

Each is told of every Node and NodeHealth that changes, and works when nothing is about a taint.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.agents.watcher import AgentWatch
from muster_tainter.faults.desired_state import Notice
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.node_record import ANNOTATION, NodeRecord, read_record
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.rules import Policy
from muster_tainter.remediation import Aftercare
from muster_tainter.sources.feeds import SourceFeeds
from muster_tainter.sources.loki_feed import SourceMetrics, World
from muster_tainter.sources.pod_nodes import PodNodeCache
from muster_tainter.verification.fleet_planner import FleetPlanner
from muster_tainter.verification.verifier import Verifier

_NO_MEMORY = NodeRecord()


class Fleet(Protocol):
    """What the controller knows and takes. tell: an Event on the Node; idle: nothing is about a taint now."""

    @property
    def nodes_known(self) -> Mapping[str, Node]: ...

    @property
    def healths_known(self) -> Mapping[str, NodeHealth]: ...

    @property
    def outside(self) -> ExternalFindings: ...

    @property
    def idle(self) -> asyncio.Event: ...

    def policy(self) -> Policy: ...

    def node(self, name: str) -> Node | None: ...

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None: ...

    def withheld(self) -> str: ...

    def observe_node(self, node: Node) -> None: ...

    def observe_health(self, health: NodeHealth) -> None: ...

    def tell(self, node: Node, notice: Notice) -> None: ...

    def all_nodes(self) -> AsyncIterator[Node]: ...


class Behind:
    """planning: connections of the plan and of proof; repairing: of drains, repairs and the quarantine of IPUs
    agents: namespace and label selector of the agents' pods; None: nobody looks whether they are silent
    namespace: the tainter's own; led_until: see :class:`muster_tainter.controller.Tainter`
    """

    def __init__(
        self,
        fleet: Fleet,
        client: KubeClient,
        metrics: TainterMetrics,
        *,
        may_write: Callable[[], bool],
        dry_run: bool,
        planning: KubeClient,
        repairing: KubeClient,
        agents: tuple[str, str] | None,
        namespace: str,
        led_until: Callable[[], float | None],
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._planner = FleetPlanner(
            planning,
            fleet.policy,
            metrics,
            node=fleet.node,
            healths=lambda: fleet.healths_known,
            observe=fleet.observe_health,
            tell=fleet.tell,
            may_write=may_write,
            idle=fleet.idle,
            dry_run=dry_run,
            now=now,
        )
        self._agents = agents and AgentWatch(
            client,
            *agents,
            fleet.policy,
            metrics.registry,
            node=fleet.node,
            nodes=lambda: fleet.nodes_known,
            health=fleet.health_of,
            found=fleet.outside.found,
            over=fleet.outside.over,
            may_tell=lambda: may_write() and not dry_run,
            now=now,
            clock=clock,
        )
        self._prover = Verifier(
            planning,
            fleet.policy,
            metrics,
            node=fleet.node,
            health=fleet.health_of,
            names=fleet.healths_known.keys,
            observe=fleet.observe_health,
            tell=fleet.tell,
            may_write=may_write,
            idle=fleet.idle,
            dry_run=dry_run,
            now=now,
        )
        self._aftercare = Aftercare(
            repairing,
            fleet.policy,
            metrics.registry,
            namespace=namespace,
            node=fleet.node,
            names=fleet.nodes_known.keys,
            withheld=fleet.withheld,
            observe=fleet.observe_node,
            tell=fleet.tell,
            may_write=may_write,
            idle=fleet.idle,
            dry_run=dry_run,
            now=now,
            clock=clock,
        )
        world = World(
            memory=self._memory_of,
            known=lambda name: name in fleet.nodes_known,
            found=fleet.outside.found,
            over=fleet.outside.over,
            node_of_pod=PodNodeCache(planning, clock),
            nodes=fleet.all_nodes,
            led_until=led_until,
            now=now,
        )
        self._feeds = SourceFeeds(lambda: fleet.policy().sources, world, SourceMetrics(metrics.registry))

    async def watch(self, synced: Callable[[], Awaitable[object]]) -> None:
        """Leading or not, for ever."""
        if self._agents is not None:
            await self._agents.run(synced)

    async def wait_looked(self) -> None:
        """What a leader has to know before it decides."""
        if self._agents is not None:
            await self._agents.wait_looked()

    async def lead(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._planner.run())
            group.create_task(self._prover.run())
            group.create_task(self._aftercare.run())
            group.create_task(self._feeds.run(lambda: self._fleet.nodes_known))

    def look_at_all(self) -> None:
        self._planner.look()
        self._prover.policy_changed()
        self._aftercare.look_at_all()
        if self._agents is not None:
            self._agents.look_at_all()

    def policy_changed(self) -> None:
        self._feeds.policy_changed()

    def node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        self._feeds.node_changed(name, new)
        if old is None or new is None or _planned_by(old) != _planned_by(new):
            self._planner.note(name)
        if old is None or new is None or carries(old) != carries(new):
            self._prover.note(name)
            self._aftercare.note(name)
        if self._agents is not None:
            self._agents.look(name)

    def health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        self._planner.note(name)
        self._prover.note(name)
        if old is not None and new is not None and old.status.idle_since != new.status.idle_since:
            self._aftercare.note_pods(name)
        if self._agents is not None and _has_reported(old) != _has_reported(new):
            self._agents.look(name)

    def _memory_of(self, name: str) -> NodeRecord:
        node = self._fleet.nodes_known.get(name)
        return _NO_MEMORY if node is None or ANNOTATION not in node.metadata.annotations else read_record(node)


def _has_reported(health: NodeHealth | None) -> bool | None:
    return None if health is None else bool(health.status.verdict)


def _planned_by(node: Node) -> tuple[object, ...]:
    """What the plan of heavy checks looks at."""
    return node.spec.taints, node.metadata.labels, node.metadata.deletion_timestamp


def carries(node: Node) -> tuple[object, ...]:
    """What a decision looks at; all else may change without one."""
    return node.spec.taints, node.metadata.labels, node.metadata.annotations, node.status.conditions
