"""Executes the plan of heavy checks while this process leads: at most one plan a second, triggered by changes.

It has separate connections and a lower priority than faults, so it never delays a taint. It keeps no state that a new
leader needs.
"""

import asyncio
import logging
from collections import deque
from dataclasses import replace
from functools import lru_cache
from importlib import import_module

from muster_checks.base.declaration import Check
from muster_checks.registry import SHIPPED
from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from muster_kube.controller.backoff import Backoff
from muster_kube.nodehealth import CheckRequest, NodeHealth
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.record.check_history import TESTING_LABEL, note_answer, read_history
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import PlanFigures, TainterMetrics
from muster_tainter.policy.rules import STARTUP_KEY, Policy
from muster_tainter.task_rounds import Rounds
from muster_tainter.verification.fleet_plan import (
    EXPIRES_S,
    SLICE,
    FleetPlan,
    NodeTestState,
    PlanStep,
    node_test_state,
    plan_by_slices,
    suspicions_of,
)
from muster_tainter.verification.plan_requests import PlanRequests

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
WRITERS = 4
_SHOWN = 5  # names in a log message
_UNSURE_S = 2 * EXPIRES_S  # by then the watch has shown a write whose answer was lost, or it never arrived
_REFUSED_S = 60.0
_UNKNOWN_CHECK_S = 3600.0


class FleetPlanExecutor:
    """interval_s: between two plans"""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._requests = PlanRequests(client, fleet.observe_health)
        self.rounds = Rounds("heavy checks", fleet.taints_idle, least_s=interval_s, backoff=Backoff(interval_s, 60.0))
        self._states: dict[str, NodeTestState] = {}
        self._unsure: dict[str, tuple[CheckRequest, float]] = {}  # requests of unknown outcome, and until when
        self._refused: dict[str, float] = {}  # NodeHealths that reject our writes: skipped until then
        self._planned_by: Policy | None = None
        self._was_short = False
        self._dry_run_logged = False

    def note(self, name: str) -> None:
        """This node has changed."""
        self.rounds.note(name)

    def look_at_all(self) -> None:
        """The policy may have changed."""
        self.rounds.wake()

    async def run(self) -> None:
        """Runs until cancelled; a write in progress is finished, so that the next leader finds its result."""
        try:
            await self.rounds.list_marked(
                self._client, nodehealth.PATH, NodeHealth, TESTING_LABEL, self._fleet.observe_health
            )
            self._planned_by = None
            await self.rounds.run(self._once)
        finally:
            self._states.clear()
            self.rounds.changed.clear()
            self._unsure.clear()
            self._refused.clear()
            self._metrics.set_plan(PlanFigures())

    async def _once(self) -> float:
        made = await self._make()
        await self._carry_out(made)
        return made.look_again_at - self._replica.now()

    async def _make(self) -> FleetPlan:
        policy = self._fleet.policy()
        if policy is not self._planned_by:
            self._planned_by = policy
            self.rounds.changed.update(self._states)
            self.rounds.changed.update(self._fleet.healths)
        self._forget_unsure()
        looked_at = 0
        while self.rounds.changed:
            self._look_at(self.rounds.changed.pop(), policy)
            looked_at += 1
            if looked_at % SLICE == 0:
                await asyncio.sleep(0)
        now = self._replica.now()
        planning = plan_by_slices(self._states.values(), policy, now, time_limit_s)
        while True:
            try:
                next(planning)
            except StopIteration as end:
                made: FleetPlan = end.value
                break
            await asyncio.sleep(0)  # let taints be written
        self._metrics.set_plan(
            PlanFigures(
                running=made.running,
                waiting=made.waiting,
                oldest_s={check: now - since for check, since in made.oldest.items()},
                cap=made.cap,
                beyond=made.beyond,
                short=made.short,
            )
        )
        self._report_short(made, policy)
        return made

    def _look_at(self, name: str, policy: Policy) -> None:
        health = self._fleet.healths.get(name)
        if health is None:
            self._states.pop(name, None)
            return
        suspicions = suspicions_of(self._fleet.external_findings.of(name)[0], policy)
        standing = node_test_state(self._fleet.node(name), health, policy, suspicions)
        if name in self._unsure:
            if standing.request is None:
                standing = replace(standing, request=self._unsure[name][0])
            else:
                del self._unsure[name]
        if name in self._refused:
            standing = replace(standing, taken=max(standing.taken, self._refused[name]))
        self._states[name] = standing

    def _forget_unsure(self) -> None:
        now = self._replica.now()
        for name in [name for name, (_, until) in self._unsure.items() if until < now]:
            del self._unsure[name]
            self.rounds.changed.add(name)
        for name in [name for name, until in self._refused.items() if until < now]:
            del self._refused[name]
            self.rounds.changed.add(name)

    def _report_short(self, made: FleetPlan, policy: Policy) -> None:
        if bool(made.short) != self._was_short:
            self._was_short = bool(made.short)
            if made.short:
                log.warning(
                    "%d idle nodes have not been tested for %.3g days and have no slot: raise testing.atOnce (now %d "
                    "nodes) or testing.coverage",
                    made.short,
                    policy.testing.coverage / 86_400,
                    made.cap,
                )
            else:
                log.info("all idle nodes are tested within testing.coverage again")

    async def _carry_out(self, made: FleetPlan) -> None:
        """Raises ApiError if the server cannot be reached or rejects the request."""
        if self._replica.dry_run:
            self._report_dry_run(made)
            return
        waiting = deque(made.steps)
        failed: list[Exception] = []
        stop = asyncio.Event()

        async def writer() -> None:
            while waiting and not stop.is_set() and not failed and self._replica.may_write():
                try:
                    await self._write(waiting.popleft())
                except Exception as error:
                    failed.append(error)

        writers = [asyncio.create_task(writer()) for _ in range(min(WRITERS, len(waiting)))]
        if not writers:
            return
        try:
            await asyncio.wait(writers)
        finally:
            stop.set()
            await asyncio.wait(writers)  # the client limits each call
        if failed:
            raise failed[0]

    async def _write(self, step: PlanStep) -> None:
        """Raises ApiError; steps based on an outdated state are planned again."""
        health = self._fleet.healths.get(step.node)
        if health is None:
            return
        try:
            if step.check:
                await self._ask(health, step.check)
            elif step.end is not None:
                await self._end(health, step, step.end)
        except (Conflict, NotFound):
            self._metrics.plan_conflicts.inc()
            self.rounds.changed.add(step.node)  # the watch delivers the current state
        except Invalid as error:  # a problem of this object, such as 16 requests of others: continue with other nodes
            self._metrics.write_errors.labels("request", error.reason).inc()
            log.warning("node %s: no check can be requested for %g s: %s", step.node, _REFUSED_S, error)
            self._refused[step.node] = self._replica.now() + _REFUSED_S
            self.rounds.changed.add(step.node)
        except ApiError as error:
            self._metrics.write_errors.labels("request", error.reason).inc()
            raise
        else:
            self._metrics.writes.labels("request").inc()

    async def _ask(self, health: NodeHealth, check: str) -> None:
        name = health.metadata.name
        request = self._requests.make(check, self._replica.now())
        # assume that it was requested, unless the error shows that it was not
        self._unsure[name] = (request, self._replica.now() + _UNSURE_S)
        self.rounds.changed.add(name)
        try:
            await self._requests.ask(health, request)
        except (Conflict, NotFound, Forbidden, Invalid, TooManyRequests):
            del self._unsure[name]
            raise
        self._unsure.pop(name, None)
        self._metrics.tests_asked.labels(self._metrics.bounded(check)).inc()
        log.debug("node %s: requested %s: %s", name, check, request.id)

    async def _end(self, health: NodeHealth, step: PlanStep, request: CheckRequest) -> None:
        policy, node = self._fleet.policy(), self._fleet.node(step.node)
        check, answer = request.checks[0], step.answer
        pool = policy.pool_of(node.metadata.labels) if node is not None else None
        new = (
            node is not None
            and pool is not None
            and check in pool.testing.pre_flight
            and any(taint.key == STARTUP_KEY for taint in node.spec.taints)
        )
        past = read_history(health)
        if step.noted:
            now = self._replica.now()
            past = note_answer(past, health, request, answer, pause_s=policy.testing.pause, now=now, new=new)
        await self._requests.delete(health, past)
        if not step.noted:
            return
        verdict = answer.verdict if answer is not None else "none"
        self._metrics.tests_answered.labels(self._metrics.bounded(check), verdict).inc()
        if answer is None or verdict not in ("PASS", "SKIP"):
            result = f"{answer.reason} {answer.message}".strip() if answer is not None else "the agent has not answered"
            log.info("node %s: planned check %s: %s %s", step.node, check, verdict, result)
        if node is not None and answer is None:
            text = f"{check} was requested, but the agent has not answered"
            self._fleet.notify(node, Notice("TestUnanswered", text, check))
        elif node is not None and new and verdict != "PASS" and answer is not None:
            text = f"{check} must pass before the first job: {verdict} {answer.reason}".rstrip()
            self._fleet.notify(node, Notice("PreFlightNotPassed", text, check))

    def _report_dry_run(self, made: FleetPlan) -> None:
        asks = [f"{step.node} {step.check}" for step in made.steps if step.check]
        if asks and not self._dry_run_logged:
            self._dry_run_logged = True
            more = f" and {len(asks) - _SHOWN} more" if len(asks) > _SHOWN else ""
            log.info("dry run: would request heavy checks: %s%s", ", ".join(asks[:_SHOWN]), more)


@lru_cache(maxsize=256)
def time_limit_s(check: str) -> float:
    """Maximum duration of a run, from the check's declaration; an hour for checks of plug-ins."""
    place = SHIPPED.get(check)
    if place is None:
        return _UNKNOWN_CHECK_S
    module, _, name = place.partition(":")
    declared: Check = getattr(import_module(module), name)
    return declared.timeout_s
