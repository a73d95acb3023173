"""Watches Nodes and NodeHealths and makes each Node carry what its faults ask for.

Every node is handled under one key, and by one worker at a time: two decisions about a node never overlap. What may
concern a taint goes through a queue of its own, so that a new failure waits for no healthy node, however many those
are. Nothing is written without asking first whether this process leads.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from muster_checks.base.vocabulary import Verdict
from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from muster_kube.api.objects import ManagedNode, Node
from muster_kube.controller.fencing import NotLeading
from muster_kube.controller.reflector import Reflector
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_kube.nodehealth import NodeHealth
from muster_tainter.background import Behind, carries
from muster_tainter.budgets.allocator import Severity
from muster_tainter.budgets.incident_tracker import IncidentTracker
from muster_tainter.budgets.reservations import BudgetReservations, severity
from muster_tainter.events.latency import HopLatency
from muster_tainter.events.pod_notifier import PodNotifier
from muster_tainter.events.recorder import EventRecorder
from muster_tainter.faults import audit_log
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, Notice, decide, is_managed, may_carry_ours, missing_taints
from muster_tainter.faults.event_only import EventOnlyHistory
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.node_record import OurTaint, highest_closed, read_record
from muster_tainter.faults.node_report import UnusableHealth, read_report
from muster_tainter.faults.taint_drift import find_removers
from muster_tainter.faults.taint_history import TaintHistory
from muster_tainter.metrics import TainterMetrics
from muster_tainter.periodic import yield_to_taints
from muster_tainter.policy.label_backfill import LabelBackfill
from muster_tainter.policy.rules import SILENT, Policy
from muster_tainter.fleet.projection import slim_health, slim_node
from muster_tainter.settings import ACCELERATORS

log = logging.getLogger(__name__)

NODES_PATH = "/api/v1/nodes"
FIELD_MANAGER = "muster-tainter"
URGENT_WORKERS = 24
ROUTINE_WORKERS = 4
CONFLICT_TRIES = 8
IN_HAND_RETRY_S = 0.005
PAGE_SIZE = 500


class Tainter:
    """One replica. ``policy``: the one in force now. ``may_write``: are we the leader at this moment?

    planning: connections of the plan of heavy checks; None: ``client``'s
    agents: namespace and label selector of the agents' pods; None: nobody looks whether they are silent
    namespace: its own; repairing: connections of drains, repairs and the quarantine of IPUs; None: ``client``'s
    led_until: when a leader last lived before this one, seconds since the epoch; None: there was none
    accelerators: how the names of resources begin whose holders are told of their node's faults
    now: seconds since the epoch; clock: monotonic seconds
    """

    def __init__(
        self,
        client: KubeClient,
        policy: Callable[[], Policy],
        metrics: TainterMetrics,
        *,
        may_write: Callable[[], bool],
        dry_run: bool = False,
        planning: KubeClient | None = None,
        agents: tuple[str, str] | None = None,
        namespace: str = "default",
        repairing: KubeClient | None = None,
        accelerators: tuple[str, ...] = ACCELERATORS,
        led_until: Callable[[], float | None] = lambda: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._late_labels = LabelBackfill(client, NODES_PATH, policy, self.policy_changed)
        self._policy = self._late_labels.policy
        self._metrics = metrics
        self._may_write = may_write
        self._dry_run = dry_run
        self._accelerators = accelerators
        self._now = now
        self._clock = clock
        self.nodes: Reflector[Node] = Reflector(
            client, NODES_PATH, Node, on_change=self._node_changed, transform=self._slim
        )
        self.healths: Reflector[NodeHealth] = Reflector(
            client,
            nodehealth.PATH,
            NodeHealth,
            on_change=self._health_changed,
            on_undecodable=self._health_undecodable,
            transform=slim_health,
        )
        self.outside = ExternalFindings(self._add)
        self.places = BudgetReservations(self._policy, self._add, now=now, clock=clock)
        self.alike = IncidentTracker(self._policy, self.health_of, self._add, now=now)
        self.withholding: Callable[[], str] = lambda: ""  # why nothing new is to be tainted at all
        self.decided_under = ""  # the last of that that a decision was made under
        self.blind: Callable[[], str] = lambda: ""  # why this process would not hear of a change of that
        self.on_news: Callable[[str], None] = lambda _: None  # a Node or NodeHealth of that name is another one
        self._unusable: dict[str, UnusableHealth] = {}
        self._seen = TaintHistory(clock)
        self._hops = HopLatency(metrics, now)
        self._said = EventOnlyHistory()
        self._in_hand: set[str] = set()
        self._written = ""  # the node whose own write is being taken in
        self._logged: dict[str, object] = {}  # dry run: what has been told of a node already
        self.idle = asyncio.Event()
        self._urgent: WorkQueue[str] | None = None  # there while leading
        self._routine: WorkQueue[str] | None = None
        self._announcer: EventRecorder | None = None
        self._telling: PodNotifier | None = None
        self._behind = Behind(
            self,
            client,
            metrics,
            may_write=may_write,
            dry_run=dry_run,
            planning=planning or client,
            repairing=repairing or client,
            agents=agents,
            namespace=namespace,
            led_until=led_until,
            now=now,
            clock=clock,
        )
        metrics.watch_store(self.nodes.store.values, self._depths)
        metrics.watch_budgets(self.places.usage, self.alike.all)

    async def watch(self) -> None:
        """Keep the caches warm, leading or not; for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self.healths.run())
            group.create_task(self._late_labels.run())
            group.create_task(self._behind.watch(self._synced))

    async def _synced(self) -> None:
        await self.nodes.wait_synced()
        await self.healths.wait_synced()

    async def lead(self) -> None:
        """Decide and write, until cancelled."""
        await self._synced()
        await self._behind.wait_looked()
        urgent, routine = WorkQueue[str](), WorkQueue[str]()
        announcer = EventRecorder(
            self._client,
            self._metrics,
            may_write=self._may_write,
            observe=self.nodes.observe,
            look_again=routine.add,
            idle=self.idle,
            now=self._now,
            clock=self._clock,
        )
        telling = PodNotifier(
            self._client,
            self._policy,
            self._metrics,
            accelerators=self._accelerators,
            node=self.nodes.store.get,
            may_write=self._may_write,
            idle=self.idle,
            now=self._now,
            on_jobs=lambda name, jobs: self.alike.jobs(name, jobs, self.node(name)),
        )
        self._said.clear()
        self._logged.clear()
        self.outside.begin(kept=(SILENT[0],))  # every replica watches the agents' pods all the time
        self._urgent, self._routine, self._announcer, self._telling = urgent, routine, announcer, telling
        self.idle.set()
        self._metrics.leader.set(1)
        try:
            self.look_at_all()
            for health in self.healths.store.values():
                if health.status.verdict not in ("", "PASS"):  # whoever replays the log must know what was there
                    audit_log.log_transitions(None, health, self._now())
            async with asyncio.TaskGroup() as group:
                group.create_task(run_workers(urgent, self._handle_urgent, workers=URGENT_WORKERS))
                group.create_task(run_workers(routine, self._handle_routine, workers=ROUTINE_WORKERS))
                group.create_task(announcer.run())
                group.create_task(telling.run())
                group.create_task(self._behind.lead())
        finally:
            self._metrics.leader.set(0)
            self._urgent = self._routine = self._announcer = self._telling = None

    def look_at_all(self) -> None:
        """Decide about every node again, those first that budgets are for, the worst of them first."""
        for name in [*self._worst_first(), *self.nodes.store, *(set(self.healths.store) - set(self.nodes.store))]:
            self._add(name)
        self._behind.look_at_all()

    def _worst_first(self) -> list[str]:
        """Nodes that would get their first taint of ours."""
        if self._urgent is None:
            return []
        policy, now = self._policy(), self._now()
        found: list[tuple[Severity, str]] = []
        for name, health in self.healths.store.items():
            node = self.node(name) if health.status.verdict == Verdict.FAIL else None
            if node is not None:
                decision = decide(node, health, policy, now)
                if decision.takes_a_place:
                    found.append((severity(decision), name))
        return [name for _, name in sorted(found, reverse=True)]

    def policy_changed(self) -> None:
        self._late_labels.look()
        self.places.policy_changed(self._known_nodes)
        self.alike.policy_changed(self._known_nodes)
        self._behind.policy_changed()
        self.look_at_all()

    def _known_nodes(self) -> list[Node]:
        return [self._late_labels.completed(node) for node in self.nodes.store.values()]

    async def all_nodes(self) -> AsyncIterator[Node]:
        """As they are now, with all that the policy looks at."""
        params: dict[str, str | int | bool] = {"limit": PAGE_SIZE}
        while True:
            page = await self._client.list_page(NODES_PATH, Node, params=params, transform=self._slim)
            for node in page.items:
                yield node
            if not page.continue_:
                return
            params = {"limit": PAGE_SIZE, "continue": page.continue_}

    @property
    def nodes_known(self) -> Mapping[str, Node]:
        return self.nodes.store

    @property
    def healths_known(self) -> Mapping[str, NodeHealth]:
        return self.healths.store

    def observe_node(self, node: Node) -> None:
        self.nodes.observe(node)

    def observe_health(self, health: NodeHealth) -> None:
        self.healths.observe(health)

    def withheld(self) -> str:
        """Why nothing new is to be tainted at all; empty: it may be."""
        return self.withholding()

    def policy(self) -> Policy:
        """The one in force, as far as the labels that it looks at are known."""
        return self._policy()

    def node(self, name: str) -> Node | None:
        """As it is known, with the labels that the policy looks at."""
        node = self.nodes.store.get(name)
        return None if node is None else self._late_labels.completed(node)

    def _slim(self, node: Node | ManagedNode) -> Node:
        return slim_node(node, self._late_labels.kept, self._policy().sources.condition_types)

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None:
        """None also for the one of an older Node of that name, which is collected with it: another machine may have
        the name now, and what is still so its agent says anew."""
        health = self._unusable.get(name) or self.healths.store.get(name)
        node = self.nodes.store.get(name)
        if node is not None and isinstance(health, NodeHealth) and _is_of_older(health, node):
            return None
        return health

    def not_ready(self) -> list[str]:
        """Why this replica could not take over now; empty when it could."""
        reasons = []
        for what, reflector in (("nodes", self.nodes), ("nodehealths", self.healths)):
            if not reflector.synced:
                reasons.append(f"{what}: not listed yet {reflector.error}".strip())
            elif not reflector.connected:
                reasons.append(f"{what}: the watch is down {reflector.error}".strip())
        blind = self.blind()
        return [*reasons, blind] if blind else reasons

    # what the watches bring

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        self.on_news(name)
        self._seen.note(name, old, new)
        self._late_labels.came(name)
        self.places.note(name, new)
        self.alike.note(name, self.node(name), self.health_of(name))
        if new is None:
            self._said.forget(name)
            self.outside.forget(name)
            self._logged.pop(name, None)
        elif name != self._written and (old is None or carries(old) != carries(new)):
            self._add(name)
        self._behind.node_changed(name, old, new)

    def _health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        self._unusable.pop(name, None)
        if _fails(old) or _fails(new):
            self.alike.note(name, self.node(name), new)
        self.on_news(name)
        if self._urgent is not None:
            if new is not None and (old is None or old.status != new.status or old.spec != new.spec):
                audit_log.log_transitions(old, new, self._now())
            if new is not None and new.status.observed_at and new.status.verdict != "PASS":
                self._hops.delivered(name)
        self._add(name)
        self._behind.health_changed(name, old, new)

    def _health_undecodable(self, name: str | None, _raw: bytes, error: str) -> None:
        self._metrics.unusable.inc()
        if name is None:
            log.warning("a NodeHealth without a name cannot be read: %s", error)
            return
        self._unusable[name] = UnusableHealth(error)
        self.on_news(name)
        self._add(name)

    def _add(self, name: str) -> None:
        if self._urgent is None or self._routine is None:
            return
        health, node = self.healths.store.get(name), self.nodes.store.get(name)
        if (
            (health is not None and any(check.findings for check in health.status.checks))
            or (node is not None and may_carry_ours(node))
            or self.outside.of(name) != _NOTHING
        ):
            self.idle.clear()
            self._urgent.add(name)
        else:
            self._routine.add(name)

    # what is done about it

    async def _handle_urgent(self, name: str) -> None:
        queue = self._urgent
        assert queue is not None  # noqa: S101 - its own worker
        try:
            await self._handle(name, queue)
        finally:
            if not len(queue) and queue.in_hand <= 1:
                self.idle.set()

    async def _handle_routine(self, name: str) -> None:
        queue = self._routine
        assert queue is not None  # noqa: S101 - its own worker
        await yield_to_taints(self.idle)
        await self._handle(name, queue)

    async def _handle(self, name: str, queue: WorkQueue[str]) -> None:
        if name in self._in_hand:
            queue.add_after(name, IN_HAND_RETRY_S)  # by the other queue's worker
            return
        self._in_hand.add(name)
        try:
            node = self.node(name)
            if node is None:
                return
            urgent = queue is self._urgent
            if not urgent and self.health_of(name) is None:
                await self._create_health(node)
            done = await self._settle(node, only_urgent=urgent)
            if urgent and (not done or self.health_of(name) is None) and self._routine is not None:
                self._routine.add(name)
        finally:
            self._in_hand.discard(name)

    async def _settle(self, node: Node, *, only_urgent: bool) -> bool:
        """Write what has to be written, decided again as long as others write in between.

        only_urgent: what is not about taints or faults is left; False then says that something was.
        """
        name = node.metadata.name
        for _ in range(CONFLICT_TRIES):
            node, decision = await self._decide(node)
            if self._dry_run:
                self._tell_dry(name, decision)
                return True
            self._look_again(name, decision.again_at)
            if not decision.writes:
                self._hops.forget(name)
                self._tell(node, decision)
                return True
            if only_urgent and not decision.urgent:
                return False
            try:
                node = await self._write(node, decision)
            except Conflict:
                self._metrics.conflicts.inc()
                node = self._slim(await self._client.get(f"{NODES_PATH}/{name}", type=Node))
                self.nodes.observe(node)
            except NotFound:
                return True  # deleted meanwhile
            else:
                self._tell(node, decision)
                return True
        raise RuntimeError(f"node {name} was written by others {CONFLICT_TRIES} times in between")

    async def _decide(self, node: Node) -> tuple[Node, Decision]:
        policy = self._policy()
        released: dict[OurTaint, str] = {}
        missing = missing_taints(node, policy)
        if missing and not self._dry_run:
            full = await self._client.get(f"{NODES_PATH}/{node.metadata.name}", type=ManagedNode)
            node = self._slim(full)
            missing = missing_taints(node, policy)
            seen = self._seen.removal(node.metadata.name)
            released = find_removers(missing, seen, full, policy, FIELD_MANAGER)
            self._metrics.put_back.inc(len(missing) - len(released))
        name = node.metadata.name
        health, now = self.health_of(name), self._now()
        outside, over = self.outside.of(name)
        others, incident = self.alike.around(node, health, outside)
        self.decided_under = self.withholding()
        around = DecisionContext(
            withhold=self.decided_under, others=others, incident=incident, outside=outside, over=over
        )
        decision = decide(node, health, policy, now, released, around)
        if not self._dry_run:
            shortage = self.places.ask(name, decision)
            if shortage is not None:
                decision = decide(node, health, policy, now, released, replace(around, withhold=shortage.reason))
        return node, decision

    def _look_again(self, name: str, at: float) -> None:
        if at != _NEVER and self._urgent is not None:
            self._urgent.add_after(name, max(at - self._now(), 0.0) + 0.01)

    async def _write(self, node: Node, decision: Decision) -> Node:
        name = node.metadata.name
        if not self._may_write():
            self.places.not_sent(name)
            raise NotLeading(f"{NODES_PATH}/{name}")
        path = f"{NODES_PATH}/{name}"
        body = decision.patch(node.metadata.resource_version)
        try:
            answer = await self._client.patch(path, body, type=Node, params={"fieldManager": FIELD_MANAGER})
        except BaseException as error:
            self.places.failed(name, node.metadata.resource_version, error)
            if isinstance(error, ApiError) and not isinstance(error, Conflict):
                self._metrics.write_errors.labels("node", error.reason).inc()
            raise
        self._metrics.writes.labels("node").inc()
        answer = self._slim(answer)
        if carries(answer) == carries(decision.applied(node)):
            self._written = node.metadata.name  # as decided: there is nothing to decide again
        self.nodes.observe(answer)
        self._written = ""
        self.places.written(name)
        self._hops.patched(node.metadata.name, decision, self.healths.store.get(node.metadata.name))
        audit_log.log_taints(node.metadata.name, decision, dry_run=False)
        return answer

    def _tell(self, node: Node, decision: Decision) -> None:
        """Behind the taints: Events and the condition."""
        announcer = self._announcer
        if announcer is None:
            return
        for notice in decision.notices:
            announcer.tell(node, notice)
        for change in decision.changes:
            self._metrics.transitions.labels(change.step.value, change.fault.check).inc()
        for taint_change in decision.taint_changes:
            self._metrics.taint_changes.labels("set" if taint_change.added else "removed").inc()
        announcer.show(node, decision.condition)
        if self._telling is not None:
            self._telling.note(node.metadata.name, decision)
        if is_managed(node):
            name = node.metadata.name
            health = self.health_of(name)
            if _is_silent(health) and name not in self._said:
                return
            for notice in self._said.news(name, read_report(health), self._policy(), self._now()):
                announcer.tell(node, notice)

    def tell(self, node: Node, notice: Notice) -> None:
        if self._announcer is not None:
            self._announcer.tell(node, notice)

    def _tell_dry(self, name: str, decision: Decision) -> None:
        told = (decision.taints, decision.taint_changes)
        if self._logged.get(name, (None, ())) != told:
            self._logged[name] = told
            audit_log.log_taints(name, decision, dry_run=True)

    async def _create_health(self, node: Node) -> None:
        name = node.metadata.name
        if not self._may_write():
            raise NotLeading(f"{nodehealth.PATH}/{name}")
        body = {
            "apiVersion": f"{nodehealth.GROUP}/{nodehealth.VERSION}",
            "kind": "NodeHealth",
            "metadata": {
                "name": name,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}],
            },
            "spec": {"clear": highest_closed(read_record(node))},
        }
        try:
            made = await self._client.create(nodehealth.PATH, body, type=NodeHealth)
        except AlreadyExists:
            return  # the watch brings it, and tells when it is collected with an older Node of that name
        except ApiError as error:
            self._metrics.write_errors.labels("nodehealth", error.reason).inc()
            raise
        self._metrics.writes.labels("nodehealth").inc()
        self.healths.observe(made)

    def _depths(self) -> dict[str, int]:
        return {
            "urgent": len(self._urgent) if self._urgent is not None else 0,
            "routine": len(self._routine) if self._routine is not None else 0,
            "announcer": len(self._announcer) if self._announcer is not None else 0,
        }


_NEVER = float("inf")
_NOTHING: tuple[dict[object, object], dict[object, object]] = ({}, {})


def _is_silent(health: NodeHealth | UnusableHealth | None) -> bool:
    """It passes, and so has nothing to be said."""
    return isinstance(health, NodeHealth) and health.status.verdict == Verdict.PASS


def _fails(health: NodeHealth | None) -> bool:
    return health is not None and health.status.verdict == Verdict.FAIL


def _is_of_older(health: NodeHealth, node: Node) -> bool:
    return any(owner.kind == "Node" and owner.uid != node.metadata.uid for owner in health.metadata.owner_references)
