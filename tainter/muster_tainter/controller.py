"""Watches Nodes and NodeHealths and makes each Node carry the taints that its faults require.

Data flow: :class:`muster_tainter.fleet.watched_fleet.WatchedFleet` delivers a change, the controller queues its node,
:class:`muster_tainter.node_decider.NodeDecider` decides, :class:`muster_tainter.node_writer.NodeWriter` writes, and
:mod:`muster_tainter.events` and :mod:`muster_tainter.background` do the rest.

Each node is one key, handled by one worker at a time, so decisions about a node never overlap. Changes that may concern
a taint have a separate queue, so a new failure does not wait for healthy nodes, however many there are.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.errors import Conflict, NotFound
from muster_kube.api.objects import Node
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_kube.nodehealth import NodeHealth
from muster_tainter.background import BackgroundTasks
from muster_tainter.budgets.incident_tracker import IncidentTracker
from muster_tainter.budgets.reservations import BudgetReservations, worst_first
from muster_tainter.canary.task import CanaryTask
from muster_tainter.devices.quarantine import DeviceQuarantine
from muster_tainter.events.latency import HopLatency
from muster_tainter.events.pod_notifier import PodNotifier
from muster_tainter.events.recorder import EventRecorder
from muster_tainter.faults.desired_state import Decision, is_managed, may_carry_ours
from muster_tainter.faults.event_only import EventOnlyHistory
from muster_tainter.faults.logs import audit_log
from muster_tainter.faults.logs.dry_run_log import DryRunLog
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.node_report import UnusableHealth, read_report
from muster_tainter.fleet.replica import AgentPodSelector, Connections, Replica
from muster_tainter.fleet.watched_fleet import WatchedFleet
from muster_tainter.goodput.feed import GoodputFeed
from muster_tainter.metrics import TainterMetrics
from muster_tainter.node_decider import NodeDecider, inputs_changed
from muster_tainter.node_writer import NodeWriter
from muster_tainter.policy.rules import SILENT, Policy
from muster_tainter.settings import ACCELERATORS
from muster_tainter.spares.roles import SpareRoles
from muster_tainter.task_rounds import yield_to_taints

URGENT_WORKERS = 24
ROUTINE_WORKERS = 4
CONFLICT_TRIES = 8
IN_HAND_RETRY_S = 0.005
LOOKS_A_TURN = 500  # nodes of a new leader's fleet, about 5 ms: the first taints are written meanwhile


class Tainter:
    """One replica. ``policy``: returns the active policy.

    agents: None: agent liveness is not watched
    accelerators: prefixes of resources whose holders get an Event about their node's faults
    """

    def __init__(
        self,
        connections: Connections,
        policy: Callable[[], Policy],
        replica: Replica,
        metrics: TainterMetrics,
        *,
        agents: AgentPodSelector | None = None,
        accelerators: tuple[str, ...] = ACCELERATORS,
    ) -> None:
        client = self._client = connections.taints
        self._replica = replica
        self._metrics = metrics
        self._accelerators = accelerators
        fleet = self.fleet = WatchedFleet(client, policy, self, replica.timing)
        fleet.notify = self._notify
        self.budgets = BudgetReservations(fleet.policy, self._add, now=replica.now, clock=replica.clock)
        self.incidents = IncidentTracker(fleet.policy, fleet.health_of, self._add, now=replica.now)
        self.spares = SpareRoles(fleet, replica, self._add)
        self.devices = DeviceQuarantine(client, fleet, replica, metrics, self._add)
        self.blind: Callable[[], str] = lambda: ""  # why this process cannot see a pause
        self.wait_pause_known: Callable[[], Coroutine[Any, Any, None]] = _no_pause
        self.on_news: Callable[[str], None] = lambda _: None  # called when a Node, its NodeHealth or its devices change
        self.devices.on_devices = self._devices_changed
        self._latency = HopLatency(metrics, replica.now)
        self._decider = NodeDecider(
            client, fleet, replica, metrics, self.budgets, self.incidents, self.spares, self.devices
        )
        self._writer = NodeWriter(client, fleet, replica, metrics, self.budgets, self._latency, self.devices)
        self._event_only = EventOnlyHistory()
        self._in_hand: set[str] = set()
        self._logged = DryRunLog()
        self._urgent: WorkQueue[str] | None = None  # set while leading
        self._routine: WorkQueue[str] | None = None
        self._recorder: EventRecorder | None = None
        self._pod_notifier: PodNotifier | None = None
        self._background = BackgroundTasks(fleet, replica, connections, metrics, agents, self.devices, accelerators)
        self._canary = CanaryTask(
            connections.plan,
            fleet,
            replica,
            metrics,
            shortage=self.budgets.shortage,
            has_agent=self._background.has_agent,
        )
        metrics.watch_store(fleet.node_watch.store.values, self._depths)
        metrics.watch_budgets(self.budgets.usage, self.incidents.all)
        metrics.watch_spares(self.spares.groups)

    @property
    def goodput(self) -> GoodputFeed:
        return self._background.goodput

    async def watch(self) -> None:
        """Keep the caches current, leading or not. Runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fleet.run())
            group.create_task(self._background.watch())
            group.create_task(self.devices.watch())

    async def lead(self) -> None:
        """Decide and write until cancelled."""
        async with asyncio.TaskGroup() as group:  # in a large fleet each takes a second or more
            listed = group.create_task(self.fleet.read_tainted())
            group.create_task(self.wait_pause_known())
            group.create_task(self.fleet.wait_synced())
            group.create_task(self._background.wait_looked())
            group.create_task(self.devices.wait_known())
        took_over_at = listed.result()
        urgent, routine = WorkQueue[str](), WorkQueue[str]()
        recorder, pod_notifier = self._make_reporters(routine)
        self._event_only.clear()
        self._logged.clear()
        self.fleet.external_findings.reset(kept=(SILENT[0],))  # every replica watches the agents' pods
        self._urgent, self._routine, self._recorder, self._pod_notifier = urgent, routine, recorder, pod_notifier
        self.fleet.taints_idle.set()
        self._metrics.leader.set(1)
        try:
            self._take_over(took_over_at)
            async with asyncio.TaskGroup() as group:
                group.create_task(run_workers(urgent, self._handle_urgent, workers=URGENT_WORKERS))
                group.create_task(run_workers(routine, self._handle_routine, workers=ROUTINE_WORKERS))
                group.create_task(self._look_at_fleet())
                group.create_task(recorder.run())
                group.create_task(pod_notifier.run())
                group.create_task(self._canary.run())
                group.create_task(self.devices.lead())
                group.create_task(self._background.lead())
        finally:
            self._metrics.leader.set(0)
            self._urgent = self._routine = self._recorder = self._pod_notifier = None

    def _take_over(self, at: str) -> None:
        """Count what the leader before may still write, and queue the nodes that need budget. at: as ``read_tainted``
        returns it."""
        worst = self._worst_first()
        if self._replica.follows_another():
            self.budgets.take_over(at, map(self.fleet.nodes.__getitem__, worst))
            self._writer.begin_term()
            self.fleet.begin_term()
        self._replica.took_over()
        self.spares.look_at_all()
        audit_log.log_initial_states(self.fleet.healths.values(), self._replica.now())
        for name in worst:
            self._add(name)

    async def _look_at_fleet(self) -> None:
        """Decide about every node for the first time."""
        for number, name in enumerate(self.fleet.names(), 1):
            self._add(name)
            if not number % LOOKS_A_TURN:
                await asyncio.sleep(0)
        self._canary.look_at_all()
        self._background.look_at_all()

    def _make_reporters(self, routine: WorkQueue[str]) -> tuple[EventRecorder, PodNotifier]:
        """What tells others about decisions, after the taints."""
        recorder = EventRecorder(self._client, self.fleet, self._replica, self._metrics, look_again=routine.add)
        pod_notifier = PodNotifier(
            self._client,
            self.fleet,
            self._replica,
            self._metrics,
            accelerators=self._accelerators,
            on_jobs=lambda name, jobs: self.incidents.note_jobs(name, jobs, self.fleet.node(name)),
        )
        return recorder, pod_notifier

    def look_at_all(self) -> None:
        """Decide about every node again, starting with those that need budget, the worst first."""
        self.spares.look_at_all()
        for name in [*self._worst_first(), *self.fleet.names()]:
            self._add(name)
        self._canary.look_at_all()
        self._background.look_at_all()

    def _worst_first(self) -> list[str]:
        """Nodes that would get their first taint of ours."""
        if self._urgent is None:
            return []
        failing = [
            (node, health)
            for name, health in self.fleet.healths.items()
            if health.status.verdict == Verdict.FAIL and (node := self.fleet.node(name)) is not None
        ]
        return worst_first(failing, self.fleet.policy(), self._replica.now())

    def policy_changed(self) -> None:
        self.fleet.fetch_labels()
        self.budgets.policy_changed(self.fleet.labelled_nodes)
        self.incidents.policy_changed(self.fleet.labelled_nodes)
        self.devices.policy_changed()
        self.look_at_all()

    def pause_changed(self) -> None:
        """Decide again, unless all decisions were made under the same pause: some nodes may have been decided under the
        new one before this was called."""
        if self._decider.decided_under - {self.fleet.withheld()}:
            self._decider.decided_under.clear()
            self.look_at_all()

    def not_ready(self) -> list[str]:
        """Why this replica could not take over now; empty if it could."""
        reasons = self.fleet.not_ready()
        blind = self.blind()
        return [*reasons, blind] if blind else reasons

    # changes from the watches

    def node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        self.on_news(name)
        self._decider.note(name, old, new)
        self.budgets.note(name, new)
        self.spares.note(name)
        self.devices.node_changed(name, old, new)
        self.incidents.note(name, self.fleet.node(name), self.fleet.health_of(name))
        if new is None:
            self._event_only.forget(name)
            self.fleet.external_findings.forget(name)
            self._logged.forget(name)
            self._writer.forget(name)
        elif name != self._writer.taking_in and inputs_changed(old, new):
            self._add(name)
        self._canary.node_changed(name, old, new)
        self._background.node_changed(name, old, new)

    def health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        self.devices.health_changed(name)
        if _fails(old) or _fails(new):
            self.incidents.note(name, self.fleet.node(name), new)
        self.on_news(name)
        self.spares.note(name)
        self._canary.health_changed(name, old, new)
        if self._urgent is not None:
            if new is not None and (old is None or old.status != new.status or old.spec != new.spec):
                audit_log.log_transitions(old, new, self._replica.now())
            if new is not None and new.status.observed_at and new.status.verdict != "PASS":
                self._latency.delivered(name)
        self._add(name)
        self._background.health_changed(name, old, new)

    def health_unusable(self, name: str | None) -> None:
        self._metrics.unusable.inc()
        if name is not None:
            self.on_news(name)
            self._add(name)

    def _devices_changed(self, name: str) -> None:
        self.on_news(name)

    def findings_changed(self, name: str) -> None:
        self._add(name)
        self._background.findings_changed(name)

    def _add(self, name: str) -> None:
        if self._urgent is None or self._routine is None:
            return
        health, node = self.fleet.healths.get(name), self.fleet.nodes.get(name)
        if (
            (health is not None and any(check.findings for check in health.status.checks))
            or (node is not None and may_carry_ours(node))
            or self.fleet.external_findings.of(name) != _NOTHING
            or self._canary.is_pending(name)
        ):
            self.fleet.taints_idle.clear()
            self._urgent.add(name)
        else:
            self._routine.add(name)

    # decisions

    async def _handle_urgent(self, name: str) -> None:
        queue = self._urgent
        assert queue is not None  # noqa: S101 - called by its worker
        try:
            await self._handle(name, queue)
        finally:
            if not len(queue) and queue.in_hand <= 1:
                self.fleet.taints_idle.set()

    async def _handle_routine(self, name: str) -> None:
        queue = self._routine
        assert queue is not None  # noqa: S101 - called by its worker
        await yield_to_taints(self.fleet.taints_idle)
        await self._handle(name, queue)

    async def _handle(self, name: str, queue: WorkQueue[str]) -> None:
        if name in self._in_hand:
            queue.add_after(name, IN_HAND_RETRY_S)  # the other queue's worker handles it
            return
        self._in_hand.add(name)
        try:
            node = self.fleet.node(name)
            if node is None:
                return
            urgent = queue is self._urgent
            if urgent:
                self._canary.decide(name)
            if not urgent and self.fleet.health_of(name) is None:
                await self._writer.create_health(node)
            done = await self._reconcile(node, only_urgent=urgent)
            if urgent and (not done or self.fleet.health_of(name) is None) and self._routine is not None:
                self._routine.add(name)
        finally:
            self._in_hand.discard(name)
            self.spares.settle(name)

    async def _reconcile(self, node: Node, *, only_urgent: bool) -> bool:
        """Write the decision; decide again after each conflict.

        only_urgent: write only taints and faults; returns False if something else remains.
        """
        name = node.metadata.name
        for _ in range(CONFLICT_TRIES):
            self._report_made(node)
            node, decision = await self._decider.decide(node)
            self._report_made(node)  # it may have been read again
            if self._replica.dry_run:
                self._logged.log(name, decision)
                return True
            self._look_again(name, decision.again_at)
            if not decision.writes:
                self._latency.forget(name)
                self._publish(node, decision)
                return True
            if only_urgent and not decision.urgent:
                return False
            try:
                node = await self._writer.write(node, decision)
            except Conflict:
                self._metrics.conflicts.inc()
                node = await self._writer.refresh(name)
            except NotFound:
                return True  # deleted in the meantime
            else:
                self._publish(node, decision)
                return True
        raise RuntimeError(f"node {name}: {CONFLICT_TRIES} write conflicts in a row")

    def _report_made(self, node: Node) -> None:
        made = self._writer.report_made(node)
        if made is not None:
            self._publish(node, made)

    def _look_again(self, name: str, at: float) -> None:
        if at != _NEVER and self._urgent is not None:
            self._urgent.add_after(name, max(at - self._replica.now(), 0.0) + 0.01)

    # reports, after the taints

    def _publish(self, node: Node, decision: Decision) -> None:
        """Events, the condition, and the metrics."""
        recorder = self._recorder
        if recorder is None:
            return
        name = node.metadata.name
        for notice in decision.notices:
            recorder.record(node, notice)
        for change in decision.changes:
            self._metrics.transitions.labels(change.step.value, change.fault.check).inc()
        for taint_change in decision.taint_changes:
            self._metrics.taint_changes.labels("set" if taint_change.added else "removed").inc()
        recorder.set_condition(node, decision.condition)
        if self._pod_notifier is not None:
            self._pod_notifier.note(name, decision)
        if is_managed(node):
            health = self.fleet.health_of(name)
            external, _ = self.fleet.external_findings.of(name)
            if _passes(health) and not external and name not in self._event_only:
                return
            report = read_report(health)
            if external:
                report = replace(report, findings={**(report.findings or {}), **external})
            for notice in self._event_only.new_notices(name, report, self.fleet.policy(), self._replica.now()):
                recorder.record(node, notice)

    def _notify(self, node: Node, notice: Notice) -> None:
        if self._recorder is not None:
            self._recorder.record(node, notice)

    def _depths(self) -> dict[str, int]:
        return {
            "urgent": len(self._urgent) if self._urgent is not None else 0,
            "routine": len(self._routine) if self._routine is not None else 0,
            "events": len(self._recorder) if self._recorder is not None else 0,
        }


async def _no_pause() -> None:
    """There is none to wait for."""


_NEVER = float("inf")
_NOTHING: tuple[dict[object, object], dict[object, object]] = ({}, {})


def _passes(health: NodeHealth | UnusableHealth | None) -> bool:
    """Nothing to report."""
    return isinstance(health, NodeHealth) and health.status.verdict == Verdict.PASS


def _fails(health: NodeHealth | None) -> bool:
    return health is not None and health.status.verdict == Verdict.FAIL
