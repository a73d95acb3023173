"""Writes the decision about one node: the PATCH of the Node, and a missing NodeHealth.

Before each write it verifies that this process still leads.
"""

import asyncio

from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Conflict, is_outcome_unknown
from muster_kube.api.objects import Node
from muster_kube.controller.leader_client import NotLeading
from muster_kube.controller.unanswered_writes import UnansweredWrites
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.reservations import BudgetReservations
from muster_tainter.devices.quarantine import DeviceQuarantine
from muster_tainter.events.latency import HopLatency
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.logs import audit_log
from muster_tainter.faults.record.node_record import highest_closed, read_record
from muster_tainter.fleet.interface import FIELD_MANAGER, NODES_PATH
from muster_tainter.fleet.replica import Replica
from muster_tainter.fleet.watched_fleet import WatchedFleet
from muster_tainter.metrics import TainterMetrics
from muster_tainter.node_decider import decision_inputs


class NodeWriter:
    """latency: notified when a taint is on its Node"""

    def __init__(
        self,
        client: KubeClient,
        fleet: WatchedFleet,
        replica: Replica,
        metrics: TainterMetrics,
        budgets: BudgetReservations,
        latency: HopLatency,
        devices: DeviceQuarantine,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._budgets = budgets
        self._latency = latency
        self._devices = devices
        self._unanswered: UnansweredWrites[Decision] = UnansweredWrites()
        self.taking_in = ""
        """The node whose own write is being observed: it is as decided, so no new decision is needed."""

    async def write(self, node: Node, decision: Decision) -> Node:
        """Bound to the version of ``node``. Raises NotLeading, ApiError; Conflict if others wrote in between."""
        name, version = node.metadata.name, node.metadata.resource_version
        path = f"{NODES_PATH}/{name}"
        if not self._replica.may_write():
            self._budgets.release(name)
            raise NotLeading(path)
        body, params = decision.patch(version), {"fieldManager": FIELD_MANAGER}
        applied = decision.applied(node)
        self._devices.patch_begins(applied, decision)
        try:
            if decision.isolates and decision.taints is None:
                # the requests for the rules go first: they keep the device out, the record only says so
                await asyncio.sleep(0)
            answer = await self._client.patch(path, body, type=Node, params=params)
        except BaseException as error:
            self._devices.patch_ended(name, done=False)
            self._budgets.handle_failure(name, version, error)
            if isinstance(error, ApiError) and not isinstance(error, Conflict):
                self._metrics.write_errors.labels("node", error.reason).inc()
            if is_outcome_unknown(error) and name in self._fleet.nodes:
                self._unanswered.note(name, version, decision)
            raise
        answer = self._fleet.slim(answer)
        if decision_inputs(answer) == decision_inputs(applied):
            self.taking_in = name
        self._fleet.observe_node(answer)
        self.taking_in = ""
        self._devices.patch_ended(name, done=True)
        self._budgets.confirm(name)
        self._unanswered.forget(name)  # none of them was made
        self._report(name, decision)
        return answer

    def report_made(self, node: Node) -> Decision | None:
        """Log and count a write that was not answered, if ``node`` shows it. Returns its decision."""
        name = node.metadata.name
        made = self._unanswered.take_made(name, node.metadata.resource_version, lambda each: _shows(node, each))
        if made is not None:
            self._report(name, made)
        return made

    def begin_term(self) -> None:
        """Another process has led: what was written before is its predecessor's."""
        self._unanswered.clear()

    def forget(self, name: str) -> None:
        """The Node was deleted."""
        self._unanswered.forget(name)

    def _report(self, name: str, decision: Decision) -> None:
        self._metrics.writes.labels("node").inc()
        self._latency.patched(name, decision, self._fleet.healths.get(name))
        audit_log.log_taints(name, decision, dry_run=False)

    async def refresh(self, name: str) -> Node:
        """The Node's current state on the server. Raises ApiError."""
        node = self._fleet.slim(await self._client.get(f"{NODES_PATH}/{name}", type=Node))
        self._fleet.observe_node(node)
        return node

    async def create_health(self, node: Node) -> None:
        """Raises NotLeading, ApiError."""
        name = node.metadata.name
        if not self._replica.may_write():
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
            return  # the watch delivers it; one of an older Node with that name is garbage-collected
        except ApiError as error:
            self._metrics.write_errors.labels("nodehealth", error.reason).inc()
            raise
        self._metrics.writes.labels("nodehealth").inc()
        self._fleet.observe_health(made)


def _shows(node: Node, decision: Decision) -> bool:
    """Others may have changed the rest of the Node since."""
    written = ((node.metadata.labels, decision.labels), (node.metadata.annotations, decision.annotations))
    return all(has.get(key) == value for has, wanted in written for key, value in wanted.items()) and all(
        change.added == (change.taint in node.spec.taints) for change in decision.taint_changes
    )
