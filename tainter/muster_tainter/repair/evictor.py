"""Drains tainted nodes while this process leads, as planned by :mod:`muster_tainter.repair.drain_plan`. It uses the
eviction API, so the API server enforces PodDisruptionBudgets.

A node's pods are listed when the node changes, and again while pods are left: seconds after an eviction, at growing
intervals while a PodDisruptionBudget blocks it, and every half minute (less often if many nodes wait) while pods run to
completion. There is no watch of all pods of the fleet, because only few nodes are drained.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.controller.backoff import Backoff
from muster_tainter.faults.messages import Notice, describe_fault
from muster_tainter.faults.node_record import ANNOTATION
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.repair.drain_plan import DrainOrder, DrainPod, SortedPods, find_drain_order, sort_pods
from muster_tainter.repair.pod_eviction import PodEviction
from muster_tainter.task_rounds import Rounds

log = logging.getLogger(__name__)

LEAST_S = 0.1  # changes within this time are handled together
AFTER_EVICTION_S = 2.0
WHILE_THEY_RUN_S = 30.0
LISTS_PER_S = 4.0  # maximum, over all nodes whose pods are only waited for
AT_ONCE = 8  # evictions
_BLOCKED = Backoff(AFTER_EVICTION_S, 60.0)
_SHOWN = 3


@dataclass
class _Draining:
    """One node. look_at: monotonic; blocked: consecutive looks with a refused eviction; last_event: reason of the last
    Event; empty: at the last look, no pod was left to wait for."""

    order: DrainOrder
    look_at: float = 0.0
    blocked: int = 0
    waiting: bool = False
    last_event: str = ""
    empty: bool = False


class Evictor:
    """on_empty: called when the last pod that a repair waits for has left a node"""

    def __init__(self, client: KubeClient, fleet: Fleet, replica: Replica, registry: CollectorRegistry) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self.on_empty: Callable[[str], None] = lambda _: None
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self.rounds = Rounds("drains", fleet.taints_idle, least_s=LEAST_S, backoff=_BLOCKED)
        self._nodes: dict[str, _Draining] = {}
        evictions = Counter(
            "muster_tainter_evictions", "Evictions from tainted nodes, by result", ["result"], registry=registry
        )
        self._eviction = PodEviction(client, evictions)
        gauge = Gauge("muster_tainter_nodes_draining", "Tainted nodes that wait for pods to end", registry=registry)
        gauge.set_function(lambda: sum(not each.empty for each in self._nodes.values()))

    def note(self, name: str) -> None:
        """This node, or the pods on it, have changed."""
        self.rounds.note(name)

    def look_at_all(self) -> None:
        """The policy or the pause may have changed."""
        self.rounds.changed.update(self._fleet.nodes)
        self.rounds.wake()

    def is_empty(self, name: str) -> bool:
        """At the last look, no pod was left that a repair has to wait for."""
        known = self._nodes.get(name)
        return known is not None and known.empty

    async def look_anew(self, name: str) -> bool:
        """The same, read from the server now. Raises ApiError."""
        known = self._nodes.get(name)
        if known is None:
            return False
        pods = sort_pods(await self._pods_of(name, fresh=True), known.order, self._replica.now())
        if pods.left:
            known.empty = False
            self.note(name)
        return not pods.left

    async def run(self) -> None:
        """Runs until cancelled."""
        if self._replica.dry_run:
            return
        self.look_at_all()
        try:
            await self.rounds.run(self._once)
        finally:
            self._nodes.clear()

    async def _once(self) -> float:
        return await self.look() - self._replica.clock()

    async def look(self) -> float:
        """Visit every node that is due. Returns when the next one is due, monotonic."""
        while self.rounds.changed:
            self._look_at(self.rounds.changed.pop())
        for name in [name for name, each in self._nodes.items() if each.look_at <= self._replica.clock()]:
            try:
                await self._visit(name)
            except (ApiError, ConfigError) as error:
                self._failed(name, error)
            except Exception as error:  # an error here must not end the leadership, which sets taints
                log.warning("drain of %s: %s: %s", name, type(error).__name__, error, exc_info=error)
                self._failed(name, error)
            await asyncio.sleep(0)
        return min((each.look_at for each in self._nodes.values()), default=float("inf"))

    def _look_at(self, name: str) -> None:
        node = self._fleet.node(name)
        order = None
        if node is not None and ANNOTATION in node.metadata.annotations:
            order = find_drain_order(node, self._fleet.policy(), self._replica.now())
        if order is None:
            self._nodes.pop(name, None)
            return
        known = self._nodes.get(name)
        if known is None:
            self._nodes[name] = _Draining(order)
        else:
            known.order = order
            known.look_at = min(known.look_at, self._replica.clock() + (AFTER_EVICTION_S if known.blocked else 0.0))

    async def _visit(self, name: str) -> None:
        known = self._nodes[name]
        pods = sort_pods(await self._pods_of(name), known.order, self._replica.now())
        refused = ""
        if pods.evict and not self._fleet.withheld():
            refused = await self._evict(name, known, pods)
        self._plan_next(known, pods, refused)
        self._report(name, known, pods, refused)

    def _plan_next(self, known: _Draining, pods: SortedPods, refused: str) -> None:
        at = self._replica.clock()
        known.blocked = known.blocked + 1 if refused else 0
        known.waiting = bool(pods.left) and not pods.evict
        if refused:
            known.look_at = at + _BLOCKED.delay_s(known.blocked, self._rng)
        elif pods.evict and not self._fleet.withheld():
            known.look_at = at + AFTER_EVICTION_S
        elif pods.left:
            waiting = sum(each.waiting for each in self._nodes.values())
            known.look_at = at + max(WHILE_THEY_RUN_S, waiting / LISTS_PER_S)
            if any(pod.metadata.deletion_timestamp for pod in pods.left):
                known.look_at = at + AFTER_EVICTION_S
        else:
            known.look_at = float("inf")
        if pods.look_at != float("inf"):
            known.look_at = min(known.look_at, at + max(0.0, pods.look_at - self._replica.now()))

    def _failed(self, name: str, error: Exception) -> None:
        log.warning("could not list or evict the pods of node %s: %s; will retry", name, error)
        known = self._nodes.get(name)
        if known is not None:
            known.blocked += 1
            known.look_at = self._replica.clock() + _BLOCKED.delay_s(known.blocked, self._rng)

    async def _pods_of(self, name: str, *, fresh: bool = False) -> list[DrainPod]:
        """The node's pods, from the server's cache or (fresh) its current state."""
        params: dict[str, str | int | bool] = {"fieldSelector": f"spec.nodeName={name}"}
        if not fresh:
            params["resourceVersion"] = "0"
        page = await self._client.list_page("/api/v1/pods", DrainPod, params=params)
        return page.items

    async def _evict(self, name: str, known: _Draining, pods: SortedPods) -> str:
        """The refusals, as text; empty if there were none."""
        await self._eviction.version()  # once, not in each of the evictions at once
        if known.order.by_policy and not known.last_event:
            text = f"evicting {_count(pods.evict)}: {describe_fault(known.order.faults[0])}"
            self._report_once(name, known, Notice("NodeDraining", shorten(text, 800), "drain", warning=False))
        places = asyncio.Semaphore(AT_ONCE)
        refusals: list[str] = []

        async def evict(pod: DrainPod) -> None:
            async with places:
                if not self._still(name):
                    return
                refusal = await self._eviction.evict(pod.metadata, pod.spec.node_name)
                if refusal:
                    refusals.append(f"{pod.key}: {refusal}")

        ends = await asyncio.gather(*map(evict, pods.evict), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return "; ".join(refusals[:_SHOWN]) + (f"; and {len(refusals) - _SHOWN} more" if len(refusals) > _SHOWN else "")

    def _still(self, name: str) -> bool:
        """Before each eviction: the fault may have closed, Muster may be paused, another replica may lead."""
        node = self._fleet.node(name)
        if node is None or self._fleet.withheld() or not self._replica.may_write():
            return False
        order = find_drain_order(node, self._fleet.policy(), self._replica.now())
        return order is not None and order.evict_at <= self._replica.now()

    def _report(self, name: str, known: _Draining, pods: SortedPods, refused: str) -> None:
        if refused:
            text = shorten(f"eviction refused, will retry: {refused}", 800)
            self._report_once(name, known, Notice("DrainBlocked", text, "drain"))
        if pods.left:
            known.empty = False
            return
        if known.last_event and known.order.by_policy:
            self._report_once(
                name, known, Notice("NodeDrained", "all pods to wait for have left the node", "drain", warning=False)
            )
        if not known.empty:
            known.empty = True
            self.on_empty(name)

    def _report_once(self, name: str, known: _Draining, notice: Notice) -> None:
        node = self._fleet.node(name)
        if known.last_event != notice.reason and node is not None:
            known.last_event = notice.reason
            self._fleet.notify(node, notice)


def _count(pods: tuple[DrainPod, ...]) -> str:
    shown = ", ".join(pod.key for pod in pods[:_SHOWN])
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    return f"{len(pods)} pod{'' if len(pods) == 1 else 's'} ({shown}{more})"
