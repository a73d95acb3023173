"""Requests verification of faulty nodes while this process leads: at most one round a second, triggered by changes.

Taints have priority. It keeps no state that a new leader needs. One write at a time is enough, because proofs run for
minutes.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.backoff import Backoff
from muster_kube.nodehealth import CheckRequest, NodeHealth
from muster_kube.nodehealth_requests import Requester, RequestWriter
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.record.node_record import ANNOTATION as FAULTS
from muster_tainter.faults.record.verification_attempts import ANNOTATION, encode_attempts
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.check_facts import is_heavy
from muster_tainter.policy.recovery import MANAGER
from muster_tainter.policy.rules import Policy
from muster_tainter.task_rounds import Rounds, finish_write
from muster_tainter.verification.fleet_plan_executor import time_limit_s
from muster_tainter.verification.node_plan import (
    LABEL,
    CheckCosts,
    NodePlan,
    ProofToRequest,
    choose_nodes,
    is_ours,
    plan_node,
)

log = logging.getLogger(__name__)

VERIFIER = Requester(MANAGER, LABEL, is_ours, ANNOTATION)
INTERVAL_S = 1.0
_SLICE = 100  # nodes
_LEFT_ALONE_S = 60.0  # for a NodeHealth that rejects our writes, or with a write of unknown outcome


COSTS = CheckCosts(time_limit_s, is_heavy)


class _Unsure(NamedTuple):
    """until: when the watch would have shown it, seconds since the epoch; version: of the NodeHealth written."""

    until: float
    version: str


class Verifier:
    """costs: of checks used as proof; interval_s: between two rounds; idle_devices: of a node: the quarantined devices
    that no pod holds, see :func:`plan_node`"""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        *,
        costs: CheckCosts = COSTS,
        interval_s: float = INTERVAL_S,
        idle_devices: Callable[[str], Mapping[str, tuple[str, ...]]] = lambda _: {},
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._requests = RequestWriter(client, VERIFIER, fleet.observe_health)
        self._costs = costs
        self._idle_devices = idle_devices
        self.rounds = Rounds("proofs", fleet.taints_idle, least_s=interval_s, backoff=Backoff(interval_s, 60.0))
        self._plans: dict[str, NodePlan] = {}
        self._unsure: dict[str, _Unsure] = {}  # requests of unknown outcome: they keep their slot
        self._refused: dict[str, float] = {}  # NodeHealths that reject our writes: skipped until then
        self._decided_by: Policy | None = None

    def note(self, name: str) -> None:
        """This node has changed."""
        self.rounds.note(name)

    def look_at_all(self) -> None:
        """The policy may have changed."""
        self.rounds.wake()

    async def run(self) -> None:
        """Runs until cancelled; a write in progress is finished, so that the next leader finds its result."""
        if self._replica.dry_run:
            return  # a dry run records nothing at the Nodes
        try:
            await self.rounds.list_marked(self._client, nodehealth.PATH, NodeHealth, LABEL, self._fleet.observe_health)
            self._decided_by = None
            await self.rounds.run(self._once)
        finally:
            for known in (self._plans, self.rounds.changed, self._unsure, self._refused):
                known.clear()

    async def _once(self) -> float:
        look_at = await self._look()
        await self._write_all()
        return look_at - self._replica.now()

    async def _look(self) -> float:
        """Plan changed and due nodes. Returns when time alone changes something."""
        policy, now = self._fleet.policy(), self._replica.now()
        if policy is not self._decided_by:
            self._decided_by = policy
            self.rounds.changed.update(self._fleet.healths)
        self.rounds.changed.update(name for name, each in self._plans.items() if each.look_at <= now)
        latest = now + _LEFT_ALONE_S  # limits the effect of a clock that was set back
        self._refused = {name: until for name, until in self._refused.items() if now < until <= latest}
        self._unsure = {name: each for name, each in self._unsure.items() if now < each.until <= latest}
        looked_at = 0
        while self.rounds.changed:
            self._look_at(self.rounds.changed.pop(), policy, now)
            looked_at += 1
            if looked_at % _SLICE == 0:
                await asyncio.sleep(0)  # let taints be written
        times = [each.look_at for each in self._plans.values()]
        times += [*self._refused.values(), *(each.until for each in self._unsure.values())]
        return min(times, default=float("inf"))

    def _look_at(self, name: str, policy: Policy, now: float) -> None:
        node, health = self._fleet.node(name), self._fleet.health_of(name)
        unsure = self._unsure.get(name)
        if unsure is not None and isinstance(health, NodeHealth) and health.metadata.resource_version != unsure.version:
            del self._unsure[name]
        faulty = node is not None and FAULTS in node.metadata.annotations
        if not faulty and not (isinstance(health, NodeHealth) and _is_marked(health)):
            self._plans.pop(name, None)
            return
        made = plan_node(node, health, policy, now, self._costs, self._idle_devices(name))
        if made.matters:
            self._plans[name] = made
        else:
            self._plans.pop(name, None)

    async def _write_all(self) -> None:
        """Raises ApiError if the server cannot be reached or rejects the request."""
        left_alone = self._unsure.keys() | self._refused.keys()
        waiting: list[tuple[str, frozenset[str]]] = []
        able: list[NodePlan] = []
        for name, each in self._plans.items():
            if each.writes and name not in self._refused:
                waiting.append((name, frozenset()))
            able.append(replace(each, asks=()) if name in left_alone else each)
        # the limit of the plan, because both load a rack of idle nodes in the same way
        cap = max(1, self._fleet.policy().testing.at_once.of(len(self._fleet.healths)))
        for name, asks in choose_nodes(able, cap - len(self._unsure)).items():
            waiting.append((name, frozenset(ask.proof.digest for ask in asks)))
        for name, digests in waiting:
            if not self._replica.may_write():
                return
            await finish_write(self._write(name, digests))

    async def _write(self, name: str, digests: Collection[str]) -> None:
        """Raises ApiError. Plans again with the current state, to which the write is bound."""
        node, health = self._fleet.node(name), self._fleet.health_of(name)
        if not isinstance(health, NodeHealth):
            return
        now = self._replica.now()
        made = plan_node(node, health, self._fleet.policy(), now, self._costs, self._idle_devices(name))
        try:
            if made.writes:
                await self._requests.delete(health, encode_attempts(made.tried), keep=made.keep, clear=made.clear)
                self._report(node, made)
            else:
                asks = [ask for ask in made.asks if ask.proof.digest in digests]
                if not asks:
                    return
                await self._ask(health, made.keep, [ask.request(now) for ask in asks], asks)
        except (Conflict, NotFound):
            self.rounds.changed.add(name)  # the watch delivers the current state
        except Invalid as error:  # a problem of this object, such as 16 requests of others: continue with other nodes
            self._metrics.write_errors.labels("proof", error.reason).inc()
            log.warning("node %s: no proof can be requested for %g s: %s", name, _LEFT_ALONE_S, error)
            self._refused[name] = now + _LEFT_ALONE_S
        except ApiError as error:
            self._metrics.write_errors.labels("proof", error.reason).inc()
            raise
        else:
            self._metrics.writes.labels("proof").inc()

    async def _ask(
        self,
        health: NodeHealth,
        standing: Iterable[CheckRequest],
        requests: list[CheckRequest],
        asks: Iterable[ProofToRequest],
    ) -> None:
        name = health.metadata.name
        # assume that it was requested, unless the error shows that it was not
        self._unsure[name] = _Unsure(self._replica.now() + _LEFT_ALONE_S, health.metadata.resource_version)
        try:
            await self._requests.ask(health, [*standing, *requests])
        except (Conflict, NotFound, Forbidden, Invalid, TooManyRequests):
            self._unsure.pop(name, None)
            raise
        self._unsure.pop(name, None)
        for request, ask in zip(requests, asks, strict=True):
            log.info(
                "node %s: requested proof for %d fault%s: %s by %s",
                name, ask.faults, "" if ask.faults == 1 else "s", ", ".join(request.checks), request.id,
            )  # fmt: skip

    def _report(self, node: Node | None, made: NodePlan) -> None:
        for ended in made.ended:
            if not ended.result:
                continue
            what = ", ".join(ended.request.checks)
            again = f"next attempt not before {rfc3339_whole(ended.again_at)}"
            log.info("node %s: proof not passed: %s: %s; %s", made.name, what, ended.result, again)
            if node is not None and ended.failed:
                self._fleet.notify(node, Notice("ProofNotPassed", f"{what}: {ended.result}; {again}", f"proof {what}"))


def _is_marked(health: NodeHealth) -> bool:
    """It has requests or attempts of ours."""
    return ANNOTATION in health.metadata.annotations or any(map(is_ours, health.spec.requests))
