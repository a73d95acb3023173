"""Repairs tainted nodes while this process leads: executes the steps of :mod:`muster_tainter.repair.repair_plan`.

One write at a time, each bound to the version of the Node that the step was based on.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
)
from muster_kube.api.objects import Node
from muster_kube.controller.backoff import Backoff
from muster_tainter.faults.messages import Notice, describe_fault
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    NodeRecord,
    RepairAttempt,
    encode_record,
    fit_record,
    read_record,
)
from muster_tainter.fleet.interface import FIELD_MANAGER, NODES_PATH, Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.repair import LABEL as REPAIR_LABEL
from muster_tainter.policy.repair import REPAIRED, Remedy
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.evictor import Evictor
from muster_tainter.repair.object_template import RenderedObject
from muster_tainter.repair.object_writer import ObjectNotMade, ObjectWriter, is_job
from muster_tainter.repair.repair_plan import (
    RepairAction,
    RepairStage,
    RepairStep,
    active_attempt,
    has_place,
    label_of,
    next_step,
)
from muster_tainter.task_rounds import Rounds, finish_write

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
POLL_JOB_S = 10.0
LEFT_ALONE_S = 60.0  # for a node whose object could not be created, or with a write of unknown outcome
_REFUSED = (Conflict, Forbidden, Invalid, NotFound, TooManyRequests)  # the server did not apply the write


class RepairExecutor:
    """evictor: knows which nodes have no pods left that a repair waits for; interval_s: between two rounds"""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        registry: CollectorRegistry,
        *,
        evictor: Evictor,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._objects = ObjectWriter(client, replica.repairs_in or replica.namespace)
        self._evictor = evictor
        self._interval_s = interval_s
        self.rounds = Rounds("repairs", fleet.taints_idle, least_s=interval_s, backoff=Backoff(interval_s, 60.0))
        self._steps: dict[str, RepairStep] = {}
        self._under_way: dict[str, str] = {}  # nodes under repair, and their objects
        self._unsure: dict[str, float] = {}  # begin with unknown outcome: they keep their place, until then (monotonic)
        self._left_alone: dict[str, float] = {}
        self._failed_jobs: dict[str, str] = {}  # by node, the failed Job
        self._poll_at = 0.0
        self._attempts = Counter(
            "muster_tainter_repair_attempts", "Attempts to repair a node, by class and result",
            ["class", "result"], registry=registry,
        )  # fmt: skip
        for each in REPAIRED:
            self._attempts.labels(each, "gave-up")  # an alert uses its increase
        gauge = Gauge("muster_tainter_nodes_under_repair", "Nodes with a repair attempt in progress", registry=registry)
        gauge.set_function(lambda: len(self._under_way))

    def note(self, name: str) -> None:
        """This node has changed."""
        self.rounds.note(name)

    def look_at_all(self) -> None:
        """The policy or the pause may have changed."""
        self._left_alone.clear()
        self.rounds.changed.update(self._fleet.nodes)
        self.rounds.wake()

    async def run(self) -> None:
        """Runs until cancelled; a write in progress is finished, so that the next leader finds its result."""
        if self._replica.dry_run:
            return
        try:
            await self.begin()
            await self.rounds.run(self._once)
        finally:
            for known in (self._steps, self._under_way, self._unsure, self._left_alone, self._failed_jobs):
                known.clear()

    async def begin(self) -> None:
        """Call this first."""
        await self.rounds.list_marked(self._client, NODES_PATH, Node, REPAIR_LABEL, self._fleet.observe_node)
        self.look_at_all()

    async def _once(self) -> float:
        try:
            look_at = await self.look()
        except Exception:
            self.rounds.changed.update(self._steps)
            raise
        return min(look_at - self._replica.now(), self._next_look_s())

    async def look(self) -> float:
        """Process all changes once: each node advances by one step. Returns when time alone triggers the next one, in
        seconds since the epoch. Raises ApiError."""
        look_at = self._note_steps()
        await self._poll_jobs()
        for name in sorted(self._steps, key=self._urgency):
            await self._carry_out(name)
        return look_at

    def _next_look_s(self) -> float:
        at = self._replica.clock()
        times = [*self._left_alone.values(), *self._unsure.values()]
        if self._jobs():
            times.append(self._poll_at)
        return min(times, default=float("inf")) - at

    def _note_steps(self) -> float:
        """Plan the steps of changed and due nodes. Returns when time alone changes a step."""
        policy, now, at = self._fleet.policy(), self._replica.now(), self._replica.clock()
        self.rounds.changed.update(name for name, step in self._steps.items() if step.look_at <= now)
        self.rounds.changed.update(name for name, until in self._left_alone.items() if until <= at)
        self._left_alone = {name: until for name, until in self._left_alone.items() if at < until}
        self._unsure = {name: until for name, until in self._unsure.items() if at < until}
        while self.rounds.changed:
            self._look_at(self.rounds.changed.pop(), policy, now)
        return min((step.look_at for step in self._steps.values()), default=float("inf"))

    def _look_at(self, name: str, policy: Policy, now: float) -> None:
        self._steps.pop(name, None)
        node = self._fleet.node(name)
        if node is None:
            self._under_way.pop(name, None)
            return
        meta = node.metadata
        if ANNOTATION not in meta.annotations and REPAIR_LABEL not in meta.labels and name not in self._under_way:
            return
        memory = read_record(node)
        under_way = active_attempt(memory)
        if under_way is None and name in self._under_way:
            # somebody removed or overwrote our annotation: end the attempt and delete its object
            self._steps[name] = RepairStep(
                RepairAction.END, attempts=memory.attempts, why="the record of the attempt was removed"
            )
            return
        if under_way is not None:
            self._unsure.pop(name, None)
            self._under_way[name] = under_way[1].ref
            if self._failed_jobs.get(name) != under_way[1].ref:
                self._failed_jobs.pop(name, None)
        step = next_step(node, policy, now, job_failed=name in self._failed_jobs)
        if step.kind is not RepairAction.NOTHING or step.look_at != float("inf"):
            self._steps[name] = step

    def _urgency(self, name: str) -> tuple[int, str]:
        """Steps that end something first; then by name."""
        return (0 if self._steps[name].kind is not RepairAction.BEGIN else 1), name

    def _jobs(self) -> list[str]:
        return [name for name, ref in self._under_way.items() if is_job(ref) and name not in self._failed_jobs]

    async def _poll_jobs(self) -> None:
        """Look for failed Jobs: a finished Job proves nothing, but waiting for a failed one is useless."""
        if self._replica.clock() < self._poll_at:
            return
        self._poll_at = self._replica.clock() + POLL_JOB_S
        for name in self._jobs():
            ref = self._under_way[name]
            if await self._objects.has_failed(ref):
                self._failed_jobs[name] = ref
                self._look_at(name, self._fleet.policy(), self._replica.now())

    async def _carry_out(self, name: str) -> None:
        """Raises ApiError if the server cannot be reached or rejects the request."""
        step = self._steps.get(name)
        if step is None or step.kind is RepairAction.NOTHING or name in self._left_alone:
            return
        try:
            await finish_write(self._write(name, step))
        except (Conflict, NotFound):
            self.rounds.note(name)  # the watch delivers the current state
        except Exception:
            self._left_alone[name] = self._replica.clock() + LEFT_ALONE_S / 6
            raise

    async def _write(self, name: str, step: RepairStep) -> None:
        node = self._fleet.node(name)
        if node is None or not self._replica.may_write():
            return
        if step.kind is RepairAction.BEGIN:
            await self._begin(node, step)
        elif step.kind is RepairAction.MAKE:
            await self._make(node, step)
        else:
            await self._end(node, step)

    # begin of an attempt

    async def _begin(self, node: Node, step: RepairStep) -> None:
        name = node.metadata.name
        if self._fleet.withheld() or not self._evictor.is_empty(name) or not self._has_place(name):
            return
        remedy = self._remedy(node, step.fault_class)
        if remedy is None or step.attempts is None:
            return
        made = await self._rendered(node, step, remedy, step.attempts[step.fault_class])
        if made is None or not await self._evictor.look_anew(name):
            return
        attempt = msgspec.structs.replace(step.attempts[step.fault_class], ref=made.ref)
        if not made.path:
            attempt = msgspec.structs.replace(attempt, stage=RepairStage.RUNNING)
        self._unsure[name] = self._replica.clock() + LEFT_ALONE_S
        try:
            after = {**step.attempts, step.fault_class: attempt}
            await self._remember(node, after, made.annotations)
        except _REFUSED:
            self._unsure.pop(name, None)
            raise
        self._unsure.pop(name, None)
        self._under_way[name] = made.ref
        self._attempts.labels(step.fault_class, "begun").inc()
        what = f"{step.fault_class}, attempt {attempt.n} of {remedy.attempts}, {made.words}"
        fault = f": {describe_fault(step.fault)}" if step.fault is not None else ""
        log.warning("node %s: repair begun: %s%s", name, what, fault)
        self._report(node, "RepairBegun", f"{what}{fault}", warning=False)

    def _has_place(self, name: str) -> bool:
        taken = {*self._under_way, *self._unsure} - {name}
        return has_place(name, taken, self._fleet.nodes, self._fleet.node, self._fleet.policy())

    def _remedy(self, node: Node, fault_class: str) -> Remedy | None:
        pool = self._fleet.policy().pool_of(node.metadata.labels)
        return pool.repair.of(fault_class) if pool is not None and pool.repair is not None else None

    async def _rendered(
        self, node: Node, step: RepairStep, remedy: Remedy, attempt: RepairAttempt
    ) -> RenderedObject | None:
        """None if the template cannot be rendered, which is reported."""
        if step.fault is None:
            return None
        try:
            return await self._objects.rendered(node, step.fault, step.fault_class, remedy, attempt.n)
        except ObjectNotMade as error:
            self._refuse(node, "RepairNotPossible", str(error))
            return None

    # creation of its object

    async def _make(self, node: Node, step: RepairStep) -> None:
        remedy = self._remedy(node, step.fault_class)
        attempt = (step.attempts or {}).get(step.fault_class)
        if remedy is None or attempt is None or self._fleet.withheld():
            return
        for fault in step.faults:
            made = await self._rendered(node, replace(step, fault=fault), remedy, attempt)
            if made is None or made.ref != attempt.ref:
                continue  # it was begun for another fault, or the policy has changed
            try:
                there = await self._objects.make(made, node)
            except ObjectNotMade as error:
                self._refuse(node, "RepairNotMade", str(error))
                return
            if there:
                await self._remember(node, step.attempts or {}, {})
            else:
                self._left_alone[node.metadata.name] = self._replica.clock() + self._interval_s
            return

    # end of an attempt

    async def _end(self, node: Node, step: RepairStep) -> None:
        name = node.metadata.name
        before = active_attempt(read_record(node))
        ref = before[1].ref if before is not None else self._under_way.get(name, "")
        gone = await self._clean_up(ref, node)
        await self._remember(node, step.attempts or {}, gone)
        self._failed_jobs.pop(name, None)
        self._under_way.pop(name, None)
        if step.kind is RepairAction.GIVE_UP:
            self._attempts.labels(step.fault_class, "gave-up").inc()
            fault = f": {describe_fault(step.fault)}" if step.fault is not None else ""
            log.error("node %s: repair given up: %s%s", name, step.why, fault)
            self._report(node, "RepairGaveUp", f"{step.why}; manual repair needed{fault}")
        elif step.kind is RepairAction.END:
            failed = step.fault is not None
            self._attempts.labels(step.fault_class or "none", "failed" if failed else "done").inc()
            log.info("node %s: %s ended: %s", name, step.fault_class or "repair", step.why)
            self._report(node, "RepairFailed" if failed else "RepairEnded",
                         f"{step.fault_class or 'repair'}: {step.why}", warning=failed)  # fmt: skip

    async def _clean_up(self, ref: str, node: Node) -> dict[str, str | None]:
        """Delete an attempt's object, unless it is a finished Job, whose log is useful. Returns the Node's annotations
        to remove."""
        if ref.startswith("annotate "):
            return dict.fromkeys(ref.split()[1:])
        if ref:
            await self._objects.delete(ref, node)
        return {}

    async def _remember(
        self, node: Node, attempts: Mapping[str, RepairAttempt], annotations: Mapping[str, str | None]
    ) -> None:
        """One PATCH of the Node. Raises ApiError; Conflict if the Node has changed since the decision."""
        memory: NodeRecord = msgspec.structs.replace(read_record(node), attempts=dict(attempts))
        body = {
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                "labels": {REPAIR_LABEL: label_of(attempts)},
                "annotations": {**annotations, ANNOTATION: encode_record(fit_record(memory))},
            }
        }
        path = f"{NODES_PATH}/{node.metadata.name}"
        answer = await self._client.patch(path, body, type=Node, params={"fieldManager": FIELD_MANAGER})
        self._fleet.observe_node(answer)
        self.rounds.note(node.metadata.name)

    def _refuse(self, node: Node, reason: str, text: str) -> None:
        name = node.metadata.name
        log.warning("node %s cannot be repaired now: %s", name, text)
        self._report(node, reason, text)
        self._left_alone[name] = self._replica.clock() + LEFT_ALONE_S

    def _report(self, node: Node, reason: str, text: str, *, warning: bool = True) -> None:
        self._fleet.notify(node, Notice(reason, shorten(text, 800), "repair", warning=warning))
