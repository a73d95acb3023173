"""Drains nodes, or single devices of nodes, while this process leads: whatever its ``drains`` order, such as
:mod:`muster_tainter.repair.node_drains`. It uses the eviction API, so the API server enforces PodDisruptionBudgets.

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
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.controller.backoff import Backoff
from muster_tainter.faults.messages import Notice, describe_fault
from muster_tainter.faults.record.node_record import ANNOTATION
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.repair.drain_plan import DrainOrder, DrainPod, SortedPods
from muster_tainter.repair.node_drains import Drains
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

DrainKey = tuple[str, str]  # node, and component; empty: the whole node


def drain_evictions(registry: CollectorRegistry) -> Counter:
    """Counts the evictions of all drains."""
    return Counter(
        "muster_tainter_evictions",
        "Evictions from tainted nodes, and of pods that hold a quarantined device, by result",
        ["result"],
        registry=registry,
    )


@dataclass
class _Draining:
    """One node or device. look_at: monotonic; blocked: consecutive looks with a refused eviction; last_event: reason of
    the last Event; empty: at the last look, no pod was left to wait for."""

    order: DrainOrder
    look_at: float = 0.0
    blocked: int = 0
    waiting: bool = False
    last_event: str = ""
    empty: bool = False


class Evictor:
    """on_empty: called with a node when the last pod to wait for has left it, or its device"""

    def __init__(
        self, drains: Drains, eviction: PodEviction, fleet: Fleet, replica: Replica, registry: CollectorRegistry
    ) -> None:
        self._drains = drains
        self._fleet = fleet
        self._replica = replica
        self.on_empty: Callable[[str], None] = lambda _: None
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self.rounds = Rounds(drains.task, fleet.taints_idle, least_s=LEAST_S, backoff=_BLOCKED)
        self._known: dict[DrainKey, _Draining] = {}
        self._eviction = eviction
        gauge = Gauge(*drains.gauge, registry=registry)
        gauge.set_function(lambda: sum(not each.empty for each in self._known.values()))

    def note(self, name: str) -> None:
        """This node, or the pods on it, have changed."""
        self.rounds.note(name)

    def look_at_all(self) -> None:
        """The policy or the pause may have changed."""
        self.rounds.changed.update(self._fleet.nodes)
        self.rounds.wake()

    def is_empty(self, name: str, component: str = "") -> bool:
        """At the last look, no pod was left to wait for on the node, or its device."""
        known = self._known.get((name, component))
        return known is not None and known.empty

    async def look_anew(self, name: str, component: str = "") -> bool:
        """The same, read from the server now. Raises ApiError."""
        known = self._known.get((name, component))
        if known is None:
            return False
        pods = await self._drains.pods(name, component, known.order, fresh=True)
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
            self._known.clear()

    async def _once(self) -> float:
        return await self.look() - self._replica.clock()

    async def look(self) -> float:
        """Visit every node and device that is due. Returns when the next one is due, monotonic."""
        while self.rounds.changed:
            self._look_at(self.rounds.changed.pop())
        for key in [key for key, each in self._known.items() if each.look_at <= self._replica.clock()]:
            try:
                await self._visit(key)
            except (ApiError, ConfigError) as error:
                self._failed(key, error)
            except Exception as error:  # an error here must not end the leadership, which sets taints
                log.warning("drain of %s: %s: %s", key[0], type(error).__name__, error, exc_info=error)
                self._failed(key, error)
            await asyncio.sleep(0)
        return min((each.look_at for each in self._known.values()), default=float("inf"))

    def _look_at(self, name: str) -> None:
        node = self._fleet.node(name)
        orders = self._drains.orders(node) if node is not None and ANNOTATION in node.metadata.annotations else {}
        for key in [key for key in self._known if key[0] == name and key[1] not in orders]:
            del self._known[key]
        for component, order in orders.items():
            known = self._known.get((name, component))
            if known is None:
                self._known[name, component] = _Draining(order)
            else:
                known.order = order
                pause_s = AFTER_EVICTION_S if known.blocked else 0.0
                known.look_at = min(known.look_at, self._replica.clock() + pause_s)

    async def _visit(self, key: DrainKey) -> None:
        known = self._known[key]
        pods = await self._drains.pods(*key, known.order)
        refused = ""
        if pods.evict and not self._fleet.withheld():
            refused = await self._evict(key, known, pods)
        self._plan_next(known, pods, refused)
        self._report(key, known, pods, refused)

    def _plan_next(self, known: _Draining, pods: SortedPods, refused: str) -> None:
        at = self._replica.clock()
        known.blocked = known.blocked + 1 if refused else 0
        known.waiting = bool(pods.left) and not pods.evict
        if refused:
            known.look_at = at + _BLOCKED.delay_s(known.blocked, self._rng)
        elif pods.evict and not self._fleet.withheld():
            known.look_at = at + AFTER_EVICTION_S
        elif pods.left:
            waiting = sum(each.waiting for each in self._known.values())
            known.look_at = at + max(WHILE_THEY_RUN_S, waiting / LISTS_PER_S)
            if any(pod.metadata.deletion_timestamp for pod in pods.left):
                known.look_at = at + AFTER_EVICTION_S
        else:
            # a pod that was bound just before the taint may be missing in the API server's cache: look twice
            known.look_at = float("inf") if known.empty else at + WHILE_THEY_RUN_S
        if pods.look_at != float("inf"):
            known.look_at = min(known.look_at, at + max(0.0, pods.look_at - self._replica.now()))

    def _failed(self, key: DrainKey, error: Exception) -> None:
        log.warning("could not list or evict the pods of node %s: %s; will retry", " ".join(key).rstrip(), error)
        known = self._known.get(key)
        if known is not None:
            known.blocked += 1
            known.look_at = self._replica.clock() + _BLOCKED.delay_s(known.blocked, self._rng)

    async def _evict(self, key: DrainKey, known: _Draining, pods: SortedPods) -> str:
        """The refusals, as text; empty if there were none."""
        await self._eviction.version()  # once, not in each of the evictions at once
        if known.order.by_policy and not known.last_event:
            text = f"evicting {_count(pods.evict)}: {describe_fault(known.order.faults[0])}"
            self._report_once(key, known, self._drains.begun, text, warning=False)
        places = asyncio.Semaphore(AT_ONCE)
        refusals: list[str] = []

        async def evict(pod: DrainPod) -> None:
            async with places:
                if not self._still(key):
                    return
                refusal = await self._eviction.evict(pod.metadata, pod.spec.node_name)
                if refusal:
                    refusals.append(f"{pod.key}: {refusal}")

        ends = await asyncio.gather(*map(evict, pods.evict), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return "; ".join(refusals[:_SHOWN]) + (f"; and {len(refusals) - _SHOWN} more" if len(refusals) > _SHOWN else "")

    def _still(self, key: DrainKey) -> bool:
        """Before each eviction: the fault may have closed, Muster may be paused, another replica may lead."""
        node = self._fleet.node(key[0])
        if node is None or self._fleet.withheld() or not self._replica.may_write():
            return False
        order = self._drains.orders(node).get(key[1])
        return order is not None and order.evict_at <= self._replica.now()

    def _report(self, key: DrainKey, known: _Draining, pods: SortedPods, refused: str) -> None:
        if refused:
            self._report_once(key, known, self._drains.blocked, f"eviction refused, will retry: {refused}")
        if pods.left:
            known.empty = False
            return
        if known.last_event and known.order.by_policy:
            self._report_once(key, known, self._drains.done, "all pods to wait for have ended or left", warning=False)
        if not known.empty:
            known.empty = True
            self.on_empty(key[0])

    def _report_once(self, key: DrainKey, known: _Draining, reason: str, text: str, *, warning: bool = True) -> None:
        name, component = key
        node = self._fleet.node(name)
        if known.last_event != reason and node is not None:
            known.last_event = reason
            text = f"{component}: {text}" if component else text
            self._fleet.notify(node, Notice(reason, shorten(text, 800), component or "drain", warning=warning))


def _count(pods: tuple[DrainPod, ...]) -> str:
    shown = ", ".join(pod.key for pod in pods[:_SHOWN])
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    return f"{len(pods)} pod{'' if len(pods) == 1 else 's'} ({shown}{more})"
