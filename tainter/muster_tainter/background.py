"""Runs everything with a lower priority than taints: heavy checks, verification, drains, repairs, the quarantine of
IPUs, external sources, pod outcomes, the goodput ledger, and the watch of the agents.

Each task is notified of relevant changes of Nodes and NodeHealths, and works while no taint is waiting.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.agents.watcher import AgentWatch
from muster_tainter.devices.holders.drains import DeviceDrains
from muster_tainter.devices.quarantine import DeviceQuarantine
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import AgentPodSelector, Connections, Replica
from muster_tainter.goodput.feed import GoodputFeed
from muster_tainter.goodput.metrics import GoodputMetrics
from muster_tainter.metrics import TainterMetrics
from muster_tainter.node_decider import inputs_changed
from muster_tainter.outcomes.feed import OutcomeFeed
from muster_tainter.outcomes.metrics import OutcomeMetrics
from muster_tainter.repair.evictor import Evictor, drain_evictions
from muster_tainter.repair.ipu_quarantine_writer import IpuQuarantineWriter
from muster_tainter.repair.node_drains import NodeDrains
from muster_tainter.repair.pod_eviction import PodEviction
from muster_tainter.repair.repair_executor import RepairExecutor
from muster_tainter.sources.device_health.feed import DeviceHealthFeed
from muster_tainter.sources.feeds import SourceFeeds
from muster_tainter.sources.loki.pod_nodes import PodNodeCache
from muster_tainter.sources.source_status import SourceMetrics
from muster_tainter.step_times.feed import StepTimesFeed
from muster_tainter.verification.fleet_plan_executor import FleetPlanExecutor
from muster_tainter.verification.verifier import Verifier


class BackgroundTask(Protocol):
    async def run(self) -> None:
        """Runs until cancelled."""

    def look_at_all(self) -> None:
        """The policy or the pause may have changed, or this replica became the leader."""

    @property
    def note(self) -> Callable[[str], None]:
        """Called with a changed node."""


log = logging.getLogger(__name__)

AGAIN_S = 10.0


class TriggeredTask(NamedTuple):
    """node_matters, health_matters: whether the change of a Node or NodeHealth is relevant for the task."""

    task: BackgroundTask
    node_matters: Callable[[Node | None, Node | None], bool]
    health_matters: Callable[[NodeHealth | None, NodeHealth | None], bool]


class BackgroundTasks:
    """agents: None: agent liveness is not watched. accelerators: prefixes of their resources."""

    def __init__(
        self,
        fleet: Fleet,
        replica: Replica,
        connections: Connections,
        metrics: TainterMetrics,
        agents: AgentPodSelector | None,
        devices: DeviceQuarantine,
        accelerators: tuple[str, ...],
    ) -> None:
        registry, plan, repair = metrics.registry, connections.plan, connections.repair
        eviction = PodEviction(repair, drain_evictions(registry))
        evictor = Evictor(NodeDrains(repair, fleet, replica.now), eviction, fleet, replica, registry)
        device_evictor = Evictor(devices.drains, eviction, fleet, replica, registry)
        devices.on_rules = device_evictor.note
        verifier = Verifier(plan, fleet, replica, metrics, idle_devices=_idle_devices(devices.drains, device_evictor))
        device_evictor.on_empty = verifier.note
        executor = RepairExecutor(repair, fleet, replica, registry, evictor=evictor)
        evictor.on_empty = executor.note
        node_of_pod = PodNodeCache(plan, replica.clock)
        answering = SourceMetrics(registry)
        sources = SourceFeeds(fleet, replica, answering, node_of_pod=node_of_pod)
        step_times = StepTimesFeed(plan, fleet, replica, metrics, answering)
        self.goodput = GoodputFeed(plan, fleet, replica, GoodputMetrics(registry), accelerators)
        self._plan = FleetPlanExecutor(plan, fleet, replica, metrics)
        # each task, the changes of a Node that concern it, and those of a NodeHealth
        self._leading = (
            TriggeredTask(self._plan, _plan_inputs_changed, _always),
            TriggeredTask(verifier, inputs_changed, _always),
            TriggeredTask(evictor, inputs_changed, _idleness_changed),
            TriggeredTask(device_evictor, inputs_changed, _idleness_changed),
            TriggeredTask(executor, inputs_changed, _never),
            TriggeredTask(IpuQuarantineWriter(repair, fleet, replica, registry), inputs_changed, _never),
            TriggeredTask(sources, _always, _never),
            TriggeredTask(
                OutcomeFeed(plan, fleet, replica, OutcomeMetrics(registry), answering),
                _annotations_changed,
                _boot_changed,
            ),
            TriggeredTask(step_times, _never, _never),
            TriggeredTask(self.goodput, _always, _findings_changed),
            TriggeredTask(DeviceHealthFeed(plan, fleet, replica, answering, devices.of), _never, _never),
        )
        self._agents = None if agents is None else AgentWatch(connections.taints, fleet, replica, registry, agents)
        always = () if self._agents is None else (TriggeredTask(self._agents, _always, _first_report),)
        self._all = (*self._leading, *always)

    async def watch(self) -> None:
        """Runs forever, leading or not."""
        if self._agents is not None:
            await self._agents.run()

    async def wait_looked(self) -> None:
        """Wait for what a leader must know before it decides."""
        if self._agents is not None:
            await self._agents.wait_looked()

    def has_agent(self, name: str) -> bool | None:
        """Whether a ready agent is on the node; None: that is not watched."""
        return None if self._agents is None else self._agents.has_agent(name)

    async def lead(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._leading:
                group.create_task(run_again(each.task))

    def look_at_all(self) -> None:
        for each in self._all:
            each.task.look_at_all()

    def node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        for each in self._all:
            if each.node_matters(old, new):
                each.task.note(name)

    def findings_changed(self, name: str) -> None:
        """Findings of external sources about this node have changed."""
        self._plan.note(name)

    def health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        for each in self._all:
            if each.health_matters(old, new):
                each.task.note(name)


def _idle_devices(drains: DeviceDrains, evictor: Evictor) -> Callable[[str], dict[str, tuple[str, ...]]]:
    """Of a node: the quarantined devices that no pod holds, with digests of their names."""

    def idle_devices(name: str) -> dict[str, tuple[str, ...]]:
        found = drains.digests(name)
        return {component: each for component, each in found.items() if evictor.is_empty(name, component)}

    return idle_devices


def _always(_old: Any, _new: Any) -> bool:
    return True


def _never(_old: Any, _new: Any) -> bool:
    return False


def _plan_inputs_changed(old: Node | None, new: Node | None) -> bool:
    return old is None or new is None or _plan_inputs(old) != _plan_inputs(new)


def _plan_inputs(node: Node) -> tuple[object, ...]:
    """The inputs of the plan of heavy checks."""
    return node.spec.taints, node.metadata.labels, node.metadata.deletion_timestamp


def _idleness_changed(old: NodeHealth | None, new: NodeHealth | None) -> bool:
    """The pods on the node may have changed."""
    return old is not None and new is not None and old.status.idle_since != new.status.idle_since


def _annotations_changed(old: Node | None, new: Node | None) -> bool:
    """Its record of faults may have changed."""
    return old is None or new is None or old.metadata.annotations != new.metadata.annotations


def _boot_changed(old: NodeHealth | None, new: NodeHealth | None) -> bool:
    return old is None or new is None or _boot(old) != _boot(new)


def _boot(health: NodeHealth) -> tuple[str, str]:
    return health.status.boot_id, health.status.verdict


def _findings_changed(old: NodeHealth | None, new: NodeHealth | None) -> bool:
    return old is None or new is None or old.status.checks != new.status.checks


def _first_report(old: NodeHealth | None, new: NodeHealth | None) -> bool:
    return _has_reported(old) != _has_reported(new)


def _has_reported(health: NodeHealth | None) -> bool | None:
    return None if health is None else bool(health.status.verdict)


async def run_again(task: BackgroundTask) -> None:
    """Runs until cancelled. An error in one task must end neither the others nor the leadership, which sets taints."""
    while True:
        try:
            await task.run()
        except Exception as error:
            if (this := asyncio.current_task()) is not None and this.cancelling():
                # before Python 3.13, a TaskGroup that is cancelled while a child fails raises the child's error alone
                raise asyncio.CancelledError from error
            what = type(task).__name__
            log.warning("%s: %s: %s; begins again", what, type(error).__name__, error, exc_info=error)
        await asyncio.sleep(AGAIN_S)
