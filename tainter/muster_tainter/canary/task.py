"""Sends and follows canaries while this process leads.

The only writes are of NodeHealths' ``spec.canary``: the period, once for each node that joins or leaves the choice, and
the result of a canary that a person has requested. The agents write the canaries: one a period and node.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient, PatchKind
from muster_kube.api.errors import Invalid, NotFound
from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.controller.backoff import Backoff
from muster_kube.nodehealth import PATH, CanaryRequest, NodeHealth
from muster_tainter.canary.journeys import Journeys, State, choose_nodes
from muster_tainter.canary.trial import Arrival, try_canary
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.fleet.interface import FIELD_MANAGER, Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import HOP_BUCKETS, TainterMetrics
from muster_tainter.task_rounds import Rounds

INTERVAL_S = 1.0
_CANARY = "/spec/canary"


class CanaryTask:
    """shortage: why the budgets have no room for the node, or empty. has_agent: whether a ready agent is on the node;
    None: unknown."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        *,
        shortage: Callable[[str], str],
        has_agent: Callable[[str], bool | None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._shortage = shortage
        self._has_agent = has_agent
        self._journeys = Journeys()
        self._rounds = Rounds("canaries", fleet.taints_idle, least_s=interval_s, backoff=Backoff(interval_s, 60.0))
        self._nodes_changed = True
        self._leading = False
        self._hop = Histogram(
            "muster_tainter_canary_hop_seconds",
            "Time of each hop of a canary, from the agent to the decision",
            ["hop"],
            buckets=HOP_BUCKETS,
            registry=metrics.registry,
        )
        for hop in ("sent_to_delivered", "delivered_to_decided"):
            self._hop.labels(hop)
        metrics.registry.register(_States(self._states))

    # changes from the watches

    def node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            self._journeys.forget(name)
        if old is None or new is None or is_managed(old) != is_managed(new):
            self._nodes_changed = True
            self._rounds.note(name)

    def health_changed(self, name: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        if new is not None and self._leading and self._journeys.deliver(name, old, new, self._replica.clock()):
            sent = seconds(new.status.canary.at)
            self._hop.labels("sent_to_delivered").observe(max(0.0, self._replica.now() - sent))
        if new is not None and (old is None or old.spec.canary != new.spec.canary):
            self._rounds.note(name)

    def is_pending(self, name: str) -> bool:
        """Whether a canary of the node waits for :meth:`decide`."""
        return self._journeys.is_pending(name)

    def decide(self, name: str) -> None:
        """The node's turn in the queue of possible taints has come."""
        node, health, known = self._fleet.node(name), self._fleet.healths.get(name), self._journeys.last(name)
        if node is None or health is None or known is None or known.outcome is not None:
            return
        outcome = try_canary(
            node,
            health,
            self._fleet.policy(),
            self._replica.now(),
            paused=self._fleet.withheld(),
            shortage=lambda: self._shortage(name),
        )
        now = self._replica.clock()
        self._hop.labels("delivered_to_decided").observe(max(0.0, now - known.undecided_since))
        self._journeys.decide(name, outcome, now)
        if known.id:
            self._rounds.note(name)

    # writes

    def look_at_all(self) -> None:
        """The policy may have changed."""
        self._nodes_changed = True
        self._rounds.wake()

    async def run(self) -> None:
        """Runs until cancelled."""
        self._journeys.reset()
        self._leading = self._nodes_changed = True
        try:
            if not self._replica.dry_run:
                await self._rounds.run(self._once)
        finally:
            self._leading = False
            self._rounds.changed.clear()

    async def _once(self) -> float:
        if self._nodes_changed:
            self._nodes_changed = False
            self._choose()
            self._rounds.changed.update(self._fleet.healths)
        while self._rounds.changed:
            name = self._rounds.changed.pop()
            health = self._fleet.healths.get(name)
            if health is not None:
                try:
                    await self._bring_up_to_date(name, health.spec.canary)
                except BaseException:
                    self._rounds.changed.add(name)
                    raise
        return float("inf")

    def _choose(self) -> None:
        managed = [name for name, node in self._fleet.nodes.items() if is_managed(node)]
        number = self._fleet.policy().canary.nodes.of(len(managed))
        self._journeys.expect(choose_nodes(managed, number) if number else (), self._replica.clock())

    async def _bring_up_to_date(self, name: str, request: CanaryRequest) -> None:
        period = int(self._fleet.policy().canary.period) if name in self._journeys.expected else 0
        if request.period_seconds != period:
            await self._write(name, {"spec": {"canary": {"periodSeconds": period or None}}}, "merge")
        known = self._journeys.last(name)
        if not request.id or request.result or known is None or known.id != request.id or known.outcome is None:
            return
        answer = {"result": known.outcome.arrival.value, "message": shorten(known.outcome.text)}
        still = {"op": "test", "path": f"{_CANARY}/id", "value": request.id}
        changes = [{"op": "add", "path": f"{_CANARY}/{key}", "value": value} for key, value in answer.items()]
        try:
            await self._write(name, [still, *changes], "json")
        except Invalid:
            found = await self._client.get(f"{PATH}/{name}", type=NodeHealth)
            if found.spec.canary.id == request.id:
                raise
            self._fleet.observe_health(found)  # another canary has been requested since

    async def _write(self, name: str, body: object, kind: PatchKind) -> None:
        if not self._replica.may_write():
            return
        try:
            written = await self._client.patch(
                f"{PATH}/{name}", body, kind=kind, type=NodeHealth, params={"fieldManager": FIELD_MANAGER}
            )
        except NotFound:
            return
        self._metrics.writes.labels("canary").inc()
        self._fleet.observe_health(written)

    # metrics

    def _states(self) -> Mapping[State | Arrival, int] | None:
        """Nodes by the state of their canaries; None if this replica expects none."""
        if not self._leading or not self._journeys.expected:
            return None
        now, period_s = self._replica.clock(), self._fleet.policy().canary.period
        return Counter(
            self._journeys.state(name, period_s, now, reports=self._reports(name), unread=self._unread(name))
            for name in self._journeys.expected
        )

    def _reports(self, name: str) -> bool:
        """Whether an agent reports for the node. One that was killed keeps its claim on the NodeHealth."""
        health = self._fleet.healths.get(name)
        return health is not None and bool(health.status.agent.pod_uid) and self._has_agent(name) is not False

    def _unread(self, name: str) -> bool:
        health = self._fleet.healths.get(name)
        return health is not None and bool(health.status.canary.unread)


class _States(Collector):
    def __init__(self, states: Callable[[], Mapping[State | Arrival, int] | None]) -> None:
        self._states = states

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "muster_tainter_canaries", "Nodes that send canaries, by how or where the last one ended", labels=("state",)
        )
        states = self._states()
        if states is not None:
            for state in (*State, *Arrival):
                family.add_metric([state.value], states.get(state, 0))
        yield family
