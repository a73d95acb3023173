"""Collects the inputs of a decision about one node, and decides what the Node should carry.

The decision itself is :func:`muster_tainter.faults.desired_state.decide`; this module adds the other nodes (incidents),
budgets, the pause, and the watch's evidence about missing taints.
"""

from dataclasses import replace

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import ManagedNode, Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.incident_tracker import IncidentTracker
from muster_tainter.budgets.reservations import BudgetReservations
from muster_tainter.devices.quarantine import DeviceQuarantine
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, decide, missing_taints
from muster_tainter.faults.lifecycle import BY_ABSENCE
from muster_tainter.faults.record.node_record import OurTaint
from muster_tainter.faults.taint_drift import find_removers
from muster_tainter.faults.taint_history import TaintHistory
from muster_tainter.fleet.interface import FIELD_MANAGER, NODES_PATH
from muster_tainter.fleet.replica import Replica
from muster_tainter.fleet.watched_fleet import WatchedFleet
from muster_tainter.metrics import TainterMetrics
from muster_tainter.spares.roles import SpareRoles


class NodeDecider:
    def __init__(
        self,
        client: KubeClient,
        fleet: WatchedFleet,
        replica: Replica,
        metrics: TainterMetrics,
        budgets: BudgetReservations,
        incidents: IncidentTracker,
        spares: SpareRoles,
        devices: DeviceQuarantine,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._budgets = budgets
        self._incidents = incidents
        self._spares = spares
        self._devices = devices
        self._taints = TaintHistory(replica.clock, fleet.policy)
        self.decided_under: set[str] = set()
        """Why new taints were withheld ("" if they were not) at the decisions since the last look at all nodes."""

    def note(self, name: str, old: Node | None, new: Node | None) -> None:
        """Record each change of a Node: evidence for who removed a taint."""
        self._taints.note(name, old, new)

    async def decide(self, node: Node) -> tuple[Node, Decision]:
        """Returns the Node that the decision is based on; it is read again if taints of ours are missing. Reserves
        places in the budgets, and a role among the spares, for the decision. Raises ApiError."""
        policy = self._fleet.policy()
        released: dict[OurTaint, str] = {}
        missing = missing_taints(node, policy)
        if missing and not self._replica.dry_run:
            full = await self._client.get(f"{NODES_PATH}/{node.metadata.name}", type=ManagedNode)
            node = self._fleet.slim(full)
            missing = missing_taints(node, policy)
            removal = self._taints.removal(node.metadata.name)
            released = find_removers(missing, removal, full, policy, FIELD_MANAGER)
            self._metrics.put_back.inc(len(missing) - len(released))
        name = node.metadata.name
        health, now = self._fleet.health_of(name), self._replica.now()
        external, over = self._fleet.external_findings.of(name)
        others, incident = self._incidents.find_related(node, health, external)
        withheld = self._fleet.withheld()
        self.decided_under.add(withheld)
        context = DecisionContext(
            withhold=withheld,
            others=others,
            incident=incident,
            external=external,
            over=over,
            devices=self._devices.context(node, withheld),
        )
        decision = decide(node, health, policy, now, released, context)
        if not self._replica.dry_run:
            # the leader before us may have opened the fault for a report that our watch has not delivered yet; what is
            # closed stays closed. Without a report nothing ends by absence, though a source can end what still waits
            absent = isinstance(health, NodeHealth) and any(change.how in BY_ABSENCE for change in decision.changes)
            if absent and await self._fleet.verify_health(name):
                return await self.decide(node)
            shortage = self._budgets.reserve(name, decision)
            fence = self._budgets.fence(name)
            if shortage is not None or fence:
                withhold = context.withhold if shortage is None else shortage.reason
                context = replace(context, withhold=withhold, fence=fence)
                decision = decide(node, health, policy, now, released, context)
            no_room = self._devices.reserve(node, decision)
            if no_room is not None:
                context = replace(context, devices=replace(context.devices, withhold=no_room))
                decision = decide(node, health, policy, now, released, context)
            role = self._spares.assign(node, decision)
            if role is not None:
                decision = decide(node, health, policy, now, released, replace(context, spare=role))
        return node, decision


def inputs_changed(old: Node | None, new: Node | None) -> bool:
    """Whether an input of the decision changed; other fields do not matter."""
    return old is None or new is None or decision_inputs(old) != decision_inputs(new)


def decision_inputs(node: Node) -> tuple[object, ...]:
    return node.spec.taints, node.metadata.labels, node.metadata.annotations, node.status.conditions
