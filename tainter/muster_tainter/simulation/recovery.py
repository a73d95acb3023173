"""What the tainter does with a tainted node: verification, drain and repair, by their real plans.

The steps are those of :mod:`muster_tainter.verification.verifier`, :mod:`muster_tainter.repair.evictor` and
:mod:`muster_tainter.repair.repair_executor`, whose plans they carry out in the simulated world.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.objects import Container, ContainerResources, Metadata, Node
from muster_kube.nodehealth import CheckRequest
from muster_tainter.devices.holders.drain_plan import find_device_orders
from muster_tainter.faults.record.check_history import is_ours as is_planned
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    RepairAttempt,
    encode_record,
    fit_record,
    read_record,
)
from muster_tainter.faults.record.verification_attempts import ANNOTATION as PROOFS
from muster_tainter.faults.record.verification_attempts import encode_attempts
from muster_tainter.policy.repair import LABEL as REPAIR_LABEL
from muster_tainter.repair.drain_plan import DrainPod, DrainPodSpec, SortedPods, find_drain_order, sort_pods
from muster_tainter.repair.repair_plan import (
    RepairAction,
    RepairStage,
    RepairStep,
    active_attempt,
    has_place,
    label_of,
    next_step,
)
from muster_tainter.simulation.devices.counted import simulated_rule
from muster_tainter.simulation.event_queue import NEVER, Turn
from muster_tainter.simulation.hardware import Hardware
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.node_agent import annotated
from muster_tainter.simulation.placement import Placement
from muster_tainter.simulation.world import Machine, World
from muster_tainter.verification.node_plan import NodePlan, choose_nodes, plan_node
from muster_tainter.verification.verifier import COSTS

_STEPS = 16  # writes for one node at one moment; more would mean that two plans contradict each other
_WITH_ACCELERATOR = Container(name="job", resources=ContainerResources(limits={"example.com/accelerator": "1"}))
_POD = DrainPod(
    metadata=Metadata(name="job", namespace="simulated"), spec=DrainPodSpec(containers=(_WITH_ACCELERATOR,))
)


class Recovery:
    def __init__(self, world: World, placement: Placement, hardware: Hardware) -> None:
        self._world = world
        self._placement = placement
        self._hardware = hardware
        self._plans: dict[str, NodePlan] = {}
        self._slots: dict[str, NodePlan] = {}  # of these, those that have or want a slot for a proof
        self._under_repair: dict[str, None] = {}
        self._waiting: dict[str, None] = {}  # for a place among the repairs of their pool

    def look(self) -> bool:
        """Plan and carry out what the changes of this moment require; whether there were any."""
        world = self._world
        if not world.changed:
            return False
        names, world.changed = sorted(world.changed), {}
        for name in names:
            machine = world.machines[name]
            machine.look_at = NEVER
            if ANNOTATION in world.loop.nodes[name].metadata.annotations or name in self._plans:
                self._verify(machine)
                self._drain(machine)
                self._drain_devices(machine)
                self._repair(machine)
            else:
                self._forget(name)
            if machine.look_at < NEVER:
                world.events.at(machine.look_at, Turn.LOOK, partial(self._due, machine, machine.look_at))
        self._request()
        return True

    def _due(self, machine: Machine, at: float) -> None:
        if machine.look_at == at:
            self._world.changed[machine.name] = None

    def _forget(self, name: str) -> None:
        for known in (self._plans, self._slots, self._waiting):
            known.pop(name, None)

    # verification

    def _verify(self, machine: Machine) -> None:
        world, agent, name = self._world, machine.agent, machine.name
        for _ in range(_STEPS):
            idle: dict[str, tuple[str, ...]] = {each: () for each in machine.alone if not machine.is_held(each)}
            node, health = world.loop.nodes[name], world.loop.healths.get(name)
            made = plan_node(node, health, world.policy, world.now, COSTS, idle)
            if not made.writes:
                break
            agent.requests = (*made.keep, *filter(is_planned, agent.requests))
            agent.annotations = annotated(agent.annotations, PROOFS, encode_attempts(made.tried))
            if made.clear is not None:
                agent.clears = made.clear
                agent.drop_cleared()
            world.publish(machine)
        else:
            raise RuntimeError(f"the verification of node {name} at {world.now} does not settle")
        if made.matters:
            self._plans[name] = made
            world.look_at(machine, made.look_at)
        else:
            self._plans.pop(name, None)
        if made.asks or made.heavy:
            self._slots[name] = made
        else:
            self._slots.pop(name, None)

    def _request(self) -> None:
        """The proofs for which there is a slot."""
        world = self._world
        if not any(made.asks for made in self._slots.values()):
            return
        cap = max(1, world.policy.testing.at_once.of(len(world.machines)))
        for name, asks in sorted(choose_nodes(self._slots.values(), cap).items()):
            machine = world.machines[name]
            requests = [ask.request(world.now) for ask in asks]
            machine.agent.requests = (*machine.agent.requests, *requests)
            world.publish(machine)
            for request in requests:
                at = world.now + self._length_s(request)
                world.events.at(at, Turn.ANSWER, partial(self._answer, machine, request))

    def _length_s(self, request: CheckRequest) -> float:
        agents = self._world.fleet.agents
        runs = int(request.params.get("runs", "1"))
        once = sum(agents.heavy if COSTS.heavy(check) else agents.light for check in request.checks)
        return runs * once + (runs - 1) * float(request.params.get("interval_s", "0"))

    def _answer(self, machine: Machine, request: CheckRequest) -> None:
        world, agent = self._world, machine.agent
        if request not in agent.requests:
            return
        verdict, reason = Verdict.PASS, ""
        alone = "device" in request.params
        if machine.job is not None and not alone and any(map(COSTS.heavy, request.checks)):
            verdict, reason = Verdict.UNKNOWN, "Busy"
        elif any(
            (not alone or part.component == request.params["device"])
            and (not part.row.hidden or part.row.check in request.checks)
            for part in machine.broken
        ):
            random = world.random("proof", machine.name, request.id)
            if random.random() < world.fleet.agents.finds:
                verdict, reason = Verdict.FAIL, "Simulated"
                for check in request.checks:
                    self._hardware.find_hidden(machine, check, request.params.get("device", ""))
        agent.answer(request, verdict, reason, world.now)
        world.publish(machine)

    # drain

    def _pods(self, machine: Machine, node: Node) -> SortedPods:
        order = find_drain_order(node, self._world.policy, self._world.now)
        if order is None or machine.job is None:
            return SortedPods()
        return sort_pods((_POD,), order, self._world.now)

    def _drain(self, machine: Machine) -> None:
        world = self._world
        pods = self._pods(machine, world.loop.nodes[machine.name])
        if machine.job is not None and (pods.evict or machine.evicted):
            self._placement.interrupt(machine.job, Cause.DRAIN)
        else:
            world.look_at(machine, pods.look_at)

    def _drain_devices(self, machine: Machine) -> None:
        """Of devices that are kept out alone, if the job used them before. Only people repair these."""
        world = self._world
        for part in machine.broken:
            if part.component in machine.alone and not part.unseen:
                self._hardware.call_person(machine, part)
        rules = [simulated_rule(each, since) for each, since in machine.alone.items() if machine.is_held(each)]
        if not rules:
            return
        for order in find_device_orders(world.loop.nodes[machine.name], rules, world.policy).values():
            evicts = order.taints[0].effect == "NoExecute"
            if machine.job is not None and (evicts or order.evict_at <= world.now):
                self._placement.interrupt(machine.job, Cause.DRAIN)
            elif machine.job is not None:
                world.look_at(machine, order.evict_at)

    # repair

    def _repair(self, machine: Machine) -> None:
        world, name = self._world, machine.name
        for _ in range(_STEPS):
            node = world.loop.nodes[name]
            step = next_step(node, world.policy, world.now)
            if step.kind is RepairAction.BEGIN and not self._may_begin(machine):
                return
            if step.kind is RepairAction.NOTHING or step.attempts is None:
                world.look_at(machine, step.look_at)
                return
            self._carry_out(machine, node, step, step.attempts)
        raise RuntimeError(f"the repair of node {name} at {world.now} does not settle")

    def _may_begin(self, machine: Machine) -> bool:
        """No job is left on the node, and its pool has a place."""
        world, name = self._world, machine.name
        if machine.job is not None:
            return False  # its end changes the node
        taken = [other for other in self._under_repair if other != name]
        if has_place(name, taken, world.loop.nodes, world.loop.nodes.get, world.policy):
            self._waiting.pop(name, None)
            return True
        self._waiting[name] = None
        return False

    def _carry_out(self, machine: Machine, node: Node, step: RepairStep, attempts: Mapping[str, RepairAttempt]) -> None:
        world, name, fault_class = self._world, machine.name, step.fault_class
        if step.kind in (RepairAction.BEGIN, RepairAction.MAKE):
            # as the executor: an object is made in a second step, which changes nothing here
            begun = msgspec.structs.replace(attempts[fault_class], stage=RepairStage.RUNNING)
            attempts = {**attempts, fault_class: begun}
            self._under_repair[name] = None
            if step.kind is RepairAction.BEGIN:
                world.tally.repairs += 1
                at = world.now + world.fleet.repairs.of(fault_class).takes
                world.events.at(
                    at, Turn.REPAIR_ENDS, lambda: self._repair_ends(machine, fault_class, begun.n, begun.at)
                )
        else:
            self._under_repair.pop(name, None)
            for waiting in self._waiting:
                world.changed[waiting] = None
        if step.kind is RepairAction.GIVE_UP:
            world.tally.given_up += 1
            for part in machine.broken:
                if not part.unseen:
                    self._hardware.call_person(machine, part)
        self._remember(node, attempts)

    def _remember(self, node: Node, attempts: Mapping[str, RepairAttempt]) -> None:
        memory = msgspec.structs.replace(read_record(node), attempts=dict(attempts))
        metadata = msgspec.structs.replace(
            node.metadata,
            labels=annotated(node.metadata.labels, REPAIR_LABEL, label_of(attempts) or ""),
            annotations=annotated(node.metadata.annotations, ANNOTATION, encode_record(fit_record(memory)) or ""),
        )
        self._world.loop.add(msgspec.structs.replace(node, metadata=metadata))

    def _repair_ends(self, machine: Machine, fault_class: str, n: int, at: str) -> None:
        """Its effect on the hardware, unless the attempt was ended in the meantime."""
        under_way = active_attempt(read_record(self._world.loop.nodes[machine.name]))
        if under_way is not None and (under_way[0], under_way[1].n, under_way[1].at) == (fault_class, n, at):
            self._hardware.repair_by_policy(machine, fault_class, n)
