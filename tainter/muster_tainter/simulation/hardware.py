"""The hardware as it really is: faults begin, are reported, and end by themselves, by people or by the policy's repair.

What the tainter knows of it is only what the simulated agent reports.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import ClearEntry
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.policy.repair import REPAIRED
from muster_tainter.simulation.devices.counted import device_component, is_device
from muster_tainter.simulation.event_queue import Turn
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.placement import Placement
from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED, FaultRow
from muster_tainter.simulation.world import BrokenPart, Machine, World

_ORDER = {str(name): place for place, name in enumerate(REPAIRED)}
PERSON = "simulated person"


class Hardware:
    """rows: faults in the order of start; repeats: node of the history -> the nodes that repeat its faults."""

    def __init__(
        self, world: World, placement: Placement, rows: Iterator[FaultRow], repeats: dict[str, list[str]]
    ) -> None:
        self._world = world
        self._placement = placement
        self._rows = rows
        self._repeats = repeats
        self._read_next()

    # begin

    def _read_next(self) -> None:
        """Plan the next fault of the history, only one at a time: it may have millions."""
        world = self._world
        for row in self._rows:
            if row.start >= world.end:
                return
            if row.end <= world.begin or row.node not in self._repeats:
                continue
            world.events.at(max(row.start, world.begin), Turn.FAULT, partial(self._arrive, row))
            return

    def _arrive(self, row: FaultRow) -> None:
        for name in self._repeats[row.node]:
            self._begin(self._world.machines[name], row, 0)
        self._read_next()

    def _begin(self, machine: Machine, row: FaultRow, times: int) -> None:
        world = self._world
        now = world.now
        if world.fleet.idle_faults == "wait" and machine.tainted and machine.job is None and not machine.broken:
            after_s = max(row.start - machine.repaired_at, 0.0) if machine.repaired_at else 0.0
            moved = row._replace(end=row.end - row.start + now, start=now)
            machine.deferred.append((lambda: self._begin(machine, self._shifted(moved), times), after_s))
            return
        component = device_component(row.component, machine.node.devices)
        key = (row.check, component, row.reason or f"{row.fault_class.capitalize()}Fault")
        if any(part.key == key for part in machine.broken):
            world.tally.repeated += 1
            return
        part = BrokenPart(row, key, times, unseen=row.hidden)
        world.find_user(machine, part)
        machine.broken.append(part)
        world.tally.faults += 1
        world.restate(machine)
        if row.end != UNTIL_REPAIRED:
            world.events.at(row.end, Turn.REPAIRED, lambda: self._repair(machine, [part]))
        if part.user is None:
            world.tally.harmless += 1
        elif row.fatal:
            self._placement.interrupt(part.user, Cause.REWORK)
        if not row.hidden:
            world.events.at(now + world.fleet.agents.detect, Turn.REPORT, lambda: self._report(machine, part))

    def _shifted(self, row: FaultRow) -> FaultRow:
        """The same fault, from now on."""
        now = self._world.now
        return row._replace(start=now, end=row.end - row.start + now)

    def _report(self, machine: Machine, part: BrokenPart) -> None:
        if part not in machine.broken:
            return
        machine.agent.find(part.key, part.row.fault_class, self._world.now)
        self._world.publish(machine)
        if not self._policy_repairs(machine, part):
            self.call_person(machine, part)

    def find_hidden(self, machine: Machine, check: str, component: str = "") -> int:
        """A heavy check of the node, or of one component, has failed: what only it finds is reported. Returns how much
        of that nobody had seen before."""
        found = [
            part
            for part in machine.broken
            if part.row.hidden and part.row.check == check and component in ("", part.component)
        ]
        new = sum(part.unseen for part in found)
        for part in found:
            part.unseen = False
            self._report(machine, part)
        return new

    def _policy_repairs(self, machine: Machine, part: BrokenPart) -> bool:
        pool = self._world.policy.pool_of(machine.node.labels)
        return pool is not None and pool.repair is not None and pool.repair.of(part.row.fault_class) is not None

    def call_person(self, machine: Machine, part: BrokenPart) -> None:
        """A person repairs it; when, the history says, or it takes a mean time by class."""
        world, row = self._world, part.row
        if row.end == UNTIL_REPAIRED and not part.called:
            part.called = True
            mean = world.fleet.people.repair.of(row.fault_class)
            takes = world.random("person", row.number, machine.name, part.times).expovariate(1 / mean)
            world.events.at(world.now + takes, Turn.REPAIRED, lambda: self._repair(machine, [part]))

    # end

    def _repair(self, machine: Machine, parts: Iterable[BrokenPart]) -> None:
        """By people, or by itself. A node is rebooted for it, so a job that the fault did not end must leave first."""
        there = [part for part in parts if part in machine.broken]
        if not there:
            return
        if machine.job is not None and any(part.row.fault_class != "reset" for part in there):
            machine.waits += there
            return
        self.end_faults(machine, there, reboot=any(part.row.fault_class != "reset" for part in there))

    def repair_emptied(self) -> bool:
        """What people wait to repair on nodes that a job has left; whether there was anything."""
        world = self._world
        if not world.emptied:
            return False
        names, world.emptied = world.emptied, {}
        for name in names:
            machine = world.machines[name]
            if machine.job is None:
                parts, machine.waits = machine.waits, []
                self._repair(machine, parts)
        return True

    def end_faults(self, machine: Machine, parts: Iterable[BrokenPart], *, reboot: bool) -> None:
        """``parts`` are repaired. After a reboot the agent reports what is still broken again."""
        world, agent = self._world, machine.agent
        parts = list(parts)
        for part in parts:
            machine.broken.remove(part)
            self._return(machine, part)
            if not reboot:
                agent.recover(part.key, world.now)
        if reboot:
            agent.reboot()
            for part in machine.broken:
                if not part.row.hidden:
                    agent.find(part.key, part.row.fault_class, world.now)
        if parts and not machine.broken:
            machine.repaired_at = world.now
        if parts and (not machine.broken or world.loop.devices is not None):
            at = world.now + world.fleet.people.clear
            world.events.at(at, Turn.CLEAR, lambda: self._clear(machine))
        world.restate(machine)
        world.publish(machine)

    def _return(self, machine: Machine, part: BrokenPart) -> None:
        """The share of generated faults that were not really repaired comes back."""
        world, row = self._world, part.row
        returns = world.fleet.faults.returns if world.fleet.faults is not None else None
        if returns is None:
            return
        random = world.random("return", row.number, machine.name, part.times)
        if random.random() < returns.share:
            after = random.expovariate(1 / returns.within)
            times = part.times + 1
            world.events.at(world.now + after, Turn.FAULT, lambda: self._begin(machine, self._shifted(row), times))

    def _clear(self, machine: Machine) -> None:
        """The person who repaired the node clears what no proof closes. While something else there is still broken,
        only what names a device that may be kept out alone."""
        world, agent = self._world, machine.agent
        broken = {part.component for part in machine.broken}
        if broken and world.loop.devices is None:
            return
        open_faults = read_record(world.loop.nodes[machine.name]).open
        entries = tuple(
            ClearEntry(fault.check, fault.component, fault.occurrence, PERSON, rfc3339(world.now))
            for fault in open_faults
            if not fault.over
            and (not broken or (is_device(fault.component) and fault.component not in broken))
            and match_policy(fault, world.policy).proof is None
        )
        if entries:
            cleared = {entry.check for entry in entries}
            agent.clears = (*(entry for entry in agent.clears if entry.check not in cleared), *entries)
            agent.drop_cleared()
            world.publish(machine)

    # by the policy

    def repair_by_policy(self, machine: Machine, fault_class: str, attempt: int) -> None:
        """An attempt of the policy's repair has ended: it helps against faults of its class and milder ones."""
        world = self._world
        effect = world.fleet.repairs.of(fault_class)
        repaired = [
            part
            for part in machine.broken
            if part.row.end == UNTIL_REPAIRED
            and _ORDER[part.row.fault_class] <= _ORDER[fault_class]
            and world.random("repair", part.row.number, machine.name, part.times, fault_class, attempt).random()
            < effect.helps
        ]
        self.end_faults(machine, repaired, reboot=fault_class != "reset")
