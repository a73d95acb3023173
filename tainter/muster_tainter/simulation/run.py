"""One run: the fleet, a fault history and jobs under one policy, from the begin to the end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.hardware import Hardware
from muster_tainter.simulation.job_queue import JobQueue
from muster_tainter.simulation.outcome import Outcome, make_outcome
from muster_tainter.simulation.placement import Placement
from muster_tainter.simulation.planned_tests import PlannedTests
from muster_tainter.simulation.recovery import Recovery
from muster_tainter.simulation.scenario.fault_file import FaultHistory, FaultRow
from muster_tainter.simulation.scenario.fleet_file import FleetError, FleetFile
from muster_tainter.simulation.scenario.job_file import SubmittedJob
from muster_tainter.simulation.scenario.nodes import FleetNode, draw_histories
from muster_tainter.simulation.world import World

_ROUNDS = 1000  # at one moment; more would mean that the policy contradicts itself


@dataclass(frozen=True)
class Scenario:
    """Everything but the policy. begin, end: seconds since the epoch. seed: of jobs, repairs and resampled fleets."""

    fleet: FleetFile
    nodes: list[FleetNode]
    history: FaultHistory
    begin: float
    end: float
    jobs: tuple[SubmittedJob, ...] = ()
    seed: int = 1


def make_scenario(
    fleet: FleetFile,
    nodes: list[FleetNode],
    history: FaultHistory,
    jobs: tuple[SubmittedJob, ...] = (),
    seed: int = 1,
) -> Scenario:
    """The time of the fleet file; what it leaves out, of the faults. Raises FleetError."""
    begin = history.summary.begin if fleet.start is None else fleet.start
    end = history.summary.end if fleet.end is None else fleet.end
    if end <= begin:
        raise FleetError("start, end: no time is left between them: expected an end after the start")
    return Scenario(fleet, nodes, history, begin, end, jobs, seed)


def replan(scenario: Scenario, planned: Mapping[str, float | None]) -> Scenario:
    """With other times between two planned runs of heavy checks, in seconds; None: never."""
    agents = scenario.fleet.agents
    times = {check: each for check, each in {**agents.planned, **planned}.items() if each is not None}
    fleet = scenario.fleet.model_copy(update={"agents": agents.model_copy(update={"planned": times})})
    return replace(scenario, fleet=fleet)


def simulate(scenario: Scenario, policy: Policy, replicate: int = 0) -> Outcome:
    """replicate: 0 for the fleet as it is; each other number is a fleet of the same size whose nodes are drawn from it
    with replacement, and with other jobs. Policies that are compared meet the same replicates."""
    fleet, nodes = scenario.fleet, scenario.nodes
    draw = Random(f"{scenario.seed}/draw/{replicate}") if replicate else None  # noqa: S311 - a simulation
    world = World(fleet, nodes, policy, scenario.begin, scenario.end, scenario.seed * 1_000_003 + replicate)
    queue = JobQueue(fleet.workload, scenario.seed * 1_000_003 + replicate)
    placement = Placement(world, queue, scenario.jobs)
    hardware = Hardware(world, placement, _named(scenario), draw_histories(nodes, draw))
    _Run(world, placement, hardware).until(scenario.end)
    placement.finish()
    for machine in world.machines.values():
        if machine.withheld:
            world.tally.withheld_s += scenario.end - machine.withheld
    return make_outcome(world.ledger, world.tally, len(nodes), sum(node.devices for node in nodes))


def _named(scenario: Scenario) -> Iterator[FaultRow]:
    return scenario.history.rows()


class _Run:
    def __init__(self, world: World, placement: Placement, hardware: Hardware) -> None:
        self._world = world
        self._placement = placement
        self._hardware = hardware
        self._recovery = Recovery(world, placement, hardware)
        self._tests = PlannedTests(world, hardware)

    def until(self, end: float) -> None:
        world, events, loop = self._world, self._world.events, self._world.loop
        self._react()
        while (at := min(events.next_at, loop.next_at())) < end:
            world.ledger.advance(at)
            loop.now = at
            events.run(at)
            loop.advance(at)
            self._react()
        world.ledger.advance(end)
        loop.now = end

    def _react(self) -> None:
        """Everything that follows at this moment, until nothing changes any more."""
        world = self._world
        for _ in range(_ROUNDS):
            if world.marked:
                names, world.marked = sorted(world.marked), {}
                world.loop.settle(names)
            elif not (
                world.wake_spares()
                or self._hardware.repair_emptied()
                or self._recovery.look()
                or self._placement.place()
                or self._tests.look()
            ):
                return
        raise RuntimeError(f"the fleet at {world.now} does not settle")
