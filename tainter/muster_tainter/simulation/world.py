"""What the parts of a simulated run share: its nodes, clock, decisions, events and books."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.decision_context import AssignedRole
from muster_tainter.faults.desired_state import READY, Decision
from muster_tainter.faults.device_isolation import isolated_components
from muster_tainter.faults.node_report import FaultKey
from muster_tainter.faults.record.node_record import NodeRecord
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.rules import SPARE_KEY, Policy
from muster_tainter.simulation.decision_loop import DecisionLoop
from muster_tainter.simulation.devices.counted import CountedDevices, is_device
from muster_tainter.simulation.event_queue import NEVER, Action, EventQueue
from muster_tainter.simulation.job_queue import Job
from muster_tainter.simulation.ledger import BUSY, FREE, Cause, Ledger, Parts
from muster_tainter.simulation.node_agent import NodeAgent
from muster_tainter.simulation.outcome import Tally
from muster_tainter.simulation.scenario.fault_file import FaultRow
from muster_tainter.simulation.scenario.fleet_file import FleetFile
from muster_tainter.simulation.scenario.nodes import FleetNode
from muster_tainter.spares.roles import SpareRoles

_KEEPS_WORK_OFF = ("NoSchedule", "NoExecute")


@dataclass(eq=False, slots=True)
class BrokenPart:
    """row: the fault; times: how often it came back after a repair. user: the job that uses the part, or the last one
    that did; met: how many jobs might have; called: a person will repair it; unseen: no check has shown it yet."""

    row: FaultRow
    key: FaultKey
    times: int = 0
    user: Job | None = None
    met: int = 0
    called: bool = False
    unseen: bool = False

    @property
    def component(self) -> str:
        return self.key[1]


@dataclass(eq=False, slots=True)
class Machine:
    """A node as it really is, and what the tainter's last decision made of it.

    broken: not repaired. waits: of these, repaired as soon as no job runs. deferred: faults that need load, and after
    how much of it. faulty: it has open faults or taints of ours. tainted, held, blocked: it has taints of ours; all its
    faults are only held; no job may start. evicted: by the effect of a taint. ending: pods of interrupted jobs are
    ending. withheld: since when a budget withholds its taint. look_at: the next planned look at its recovery. used:
    devices of its job. alone: devices that are kept out of use alone, and since when; resting: of these, those whose
    faults are only held. booked: its devices by what their time is booked as.
    """

    node: FleetNode
    agent: NodeAgent
    broken: list[BrokenPart] = field(default_factory=list)
    waits: list[BrokenPart] = field(default_factory=list)
    deferred: list[tuple[Action, float]] = field(default_factory=list)
    job: Job | None = None
    used: int = 0
    alone: dict[str, float] = field(default_factory=dict)
    resting: frozenset[str] = frozenset()
    booked: Parts = ()
    repaired_at: float = 0.0
    faulty: bool = False
    tainted: bool = False
    held: bool = False
    blocked: bool = False
    spare: bool = False
    evicted: bool = False
    ending: int = 0
    withheld: float = 0.0
    look_at: float = NEVER

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def usable(self) -> int:
        """Devices that are not kept out of use alone."""
        return max(self.node.devices - len(self.alone), 0)

    @property
    def crashes_job(self) -> bool:
        """Whether its job uses a broken part."""
        return self.job is not None and any(part.row.fatal and part.user is self.job for part in self.broken)

    def is_held(self, component: str) -> bool:
        """Whether the job still uses the device, from before it was kept out."""
        return self.job is not None and any(
            part.user is self.job for part in self.broken if part.component == component
        )


class _FleetView:
    """The simulated nodes, as the roles of spares need them."""

    def __init__(self, loop: DecisionLoop) -> None:
        self._loop = loop

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._loop.nodes

    def policy(self) -> Policy:
        return self._loop.policy

    def node(self, name: str) -> Node | None:
        return self._loop.nodes.get(name)

    def health_of(self, name: str) -> NodeHealth | None:
        return self._loop.healths.get(name)

    def withheld(self) -> str:
        return ""


class World:
    """marked: nodes whose NodeHealth changed, to be decided. changed: nodes whose recovery has to be looked at. freed:
    nodes that may be free for a job now, or no longer. emptied: nodes without a job, on which people wait to repair.
    testable: nodes to look at for the plan of heavy checks."""

    def __init__(self, fleet: FleetFile, nodes: list[FleetNode], policy: Policy, begin: float, end: float, seed: int):
        self.fleet = fleet
        self.policy = policy
        self.begin, self.end = begin, end
        self.seed = seed
        self.events = EventQueue()
        self.ledger = Ledger(begin, end)
        self.tally = Tally()
        self.marked: dict[str, None] = {}
        self.changed: dict[str, None] = {}
        self.freed: dict[str, None] = {}
        self.emptied: dict[str, None] = {}
        self.testable: dict[str, None] = {}
        self._soon: list[Action] = []
        keeps_spares = any(pool.spares is not None for pool in policy.pools)
        self.loop = DecisionLoop(policy, self._decided, self._assign if keeps_spares else None)
        self.loop.now = begin
        self._roles: SpareRoles | None = None
        self.machines = {node.name: Machine(node, NodeAgent(node.name, begin)) for node in nodes}
        if policy.devices.quarantine != "off":
            counts = {node.name: node.devices for node in nodes}
            self.loop.devices = CountedDevices(policy, self.loop.nodes, counts, lambda: self.loop.now)
        for machine in self.machines.values():
            self._install(machine, policy)
        if keeps_spares:
            replica = Replica(lambda: False, now=lambda: self.loop.now, clock=lambda: self.loop.now)
            view = _FleetView(self.loop)
            self._roles = SpareRoles(view, replica, self._mark, self._soon.append)
            for machine in self.machines.values():
                self.publish(machine)

    def _install(self, machine: Machine, policy: Policy) -> None:
        node, agent = machine.node, machine.agent
        agent.idle_since = self.begin
        pool = policy.pool_of(node.labels)
        if pool is not None and pool.spares is not None:
            agent.tested = pool.spares.checks or pool.testing.pre_flight or ("gpumem",)
            agent.tested_until = self.end
        ready = NodeCondition(type=READY, status="True")
        metadata = Metadata(name=node.name, resource_version="1", labels=node.labels)
        self.loop.add(Node(metadata=metadata, status=NodeStatus(conditions=(ready,))))
        self.restate(machine)

    @property
    def now(self) -> float:
        return self.loop.now

    def random(self, *what: object) -> Random:
        """A stream of its own for each question, so that policies meet the same luck."""
        return Random("/".join(map(str, (self.seed, *what))))  # noqa: S311 - a simulation

    def find_user(self, machine: Machine, part: BrokenPart) -> None:
        """Note whether the job there uses the part: which of the usable devices it holds is chance."""
        part.user = None
        if machine.job is None or part.component in machine.alone:
            return
        is_used = not is_device(part.component) or machine.used >= machine.usable
        if not is_used:
            random = self.random("used", part.row.number, machine.name, part.times, part.met)
            is_used = random.random() < machine.used / machine.usable
        part.met += 1
        if is_used:
            part.user = machine.job

    def publish(self, machine: Machine) -> None:
        """The agent reports; the decision follows at the end of this moment."""
        self.loop.report(machine.agent.health())
        self._mark(machine.name)
        if self._roles is not None:
            self._roles.note(machine.name)

    def _mark(self, name: str) -> None:
        self.marked[name] = None

    def set_idle(self, machine: Machine, idle_since: float) -> None:
        """A job has ended or begun. Only then reported when somebody needs to know: a verification, or the spares."""
        machine.agent.idle_since = idle_since
        self.testable[machine.name] = None
        if machine.agent.tested or machine.faulty:
            self.publish(machine)

    def look_at(self, machine: Machine, at: float) -> None:
        """Look at the recovery of the node then."""
        if at < machine.look_at:
            machine.look_at = at

    # after a decision

    def _assign(self, node: Node, decision: Decision) -> AssignedRole | None:
        return None if self._roles is None else self._roles.assign(node, decision)

    def wake_spares(self) -> bool:
        """Look at the spares after the changes of this moment; whether there was anything to look at."""
        if not self._soon:
            return False
        looks, self._soon[:] = list(self._soon), []
        for look in looks:
            look()
        return True

    def _decided(self, name: str, decision: Decision) -> None:
        machine, memory = self.machines[name], decision.memory
        taints = self.loop.nodes[name].spec.taints
        ours = {(taint.key, taint.effect) for taint in memory.ours}
        machine.faulty = bool(memory.open or memory.ours)
        machine.tainted = bool(ours)
        self._note_devices(machine, memory)
        of_node = [fault for fault in memory.open if fault.component not in machine.alone]
        machine.held = bool(of_node) and all(fault.over for fault in of_node)
        machine.blocked = any(taint.effect in _KEEPS_WORK_OFF for taint in taints)
        machine.evicted = any(taint.effect == "NoExecute" and (taint.key, taint.effect) in ours for taint in taints)
        machine.spare = any(taint.key == SPARE_KEY for taint in taints)
        if decision.withheld and not machine.withheld:
            machine.withheld = self.now
            self.tally.refusals += 1
        elif machine.withheld and not decision.withheld:
            self.tally.withheld_s += self.now - machine.withheld
            machine.withheld = 0.0
        if self._roles is not None:
            self._roles.settle(name)
        self.changed[name] = self.testable[name] = None
        self.restate(machine)

    def _note_devices(self, machine: Machine, memory: NodeRecord) -> None:
        if self.loop.devices is None:
            return
        alone = isolated_components(memory)
        self.tally.isolated += len(alone - machine.alone.keys())
        machine.alone = {component: machine.alone.get(component, self.now) for component in sorted(alone)}
        machine.resting = alone - {fault.component for fault in memory.open if not fault.over}

    def restate(self, machine: Machine) -> None:
        """Book the time of the node's devices from now on as what they are now."""
        booked = self._parts(machine)
        if booked != machine.booked:
            self.ledger.move(machine.booked, booked)
            machine.booked = booked
        self.freed[machine.name] = None

    def _parts(self, machine: Machine) -> Parts:
        whole = machine.node.devices
        busy = machine.used if machine.job is not None else 0
        if busy == whole:
            return ((BUSY, whole),)
        rest = _state(machine)
        if not busy and not machine.alone:
            return ((rest, whole),)
        parts: Counter[str] = Counter({BUSY: busy})
        broken = {part.component for part in machine.broken}
        for component in list(machine.alone)[: whole - busy]:
            held = Cause.HOLD if component in machine.resting else Cause.TEST
            parts[Cause.FAULT if component in broken else held] += 1
        parts[rest] += whole - parts.total()
        return tuple(sorted(parts.items()))


def _state(machine: Machine) -> str:
    """Of the devices that no job uses and that are not kept out alone."""
    if machine.job is not None:
        return FREE
    if any(part.component not in machine.alone for part in machine.broken):
        return Cause.FAULT
    if machine.tainted:
        return Cause.HOLD if machine.held else Cause.TEST
    if machine.spare:
        return Cause.SPARE
    return Cause.TEST if machine.blocked else FREE
