"""Places jobs on free nodes, and interrupts them.

The first waiting job that does not fit gets a reservation, at the time when enough running jobs will have ended; a
later job overtakes it only if it ends before that (EASY backfilling: Lifka, The ANL/IBM SP Scheduling System, 1995).
Nodes that have been free for longest come first; no node is preferred for its history.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from muster_tainter.simulation.event_queue import NEVER, Turn
from muster_tainter.simulation.job_queue import Job, JobQueue, book_run, run_length
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.scenario.job_file import SubmittedJob
from muster_tainter.simulation.world import Machine, World


class _Reservation(NamedTuple):
    group: str
    at: float


_NO_RESERVATION = _Reservation("", NEVER)


class Placement:
    """queue: with jobs; without kinds of jobs and without submitted ones, the fleet stays idle."""

    def __init__(self, world: World, queue: JobQueue, submitted: tuple[SubmittedJob, ...]) -> None:
        self._world = world
        self._queue = queue
        self._free: dict[str, dict[str, None]] = {group.name: {} for group in world.fleet.groups}
        self._partial: dict[str, dict[str, int]] = {group.name: {} for group in world.fleet.groups}
        self._devices = {group.name: group.devices for group in world.fleet.groups}
        self._alone: dict[str, int] = {}  # nodes with accelerators that are kept out alone, and how many
        self._running: dict[Job, None] = {}
        self._changed = True  # free nodes or running jobs, since all jobs that fit were started
        for job in submitted:
            world.events.at(max(job.at, world.begin), Turn.JOB_QUEUED, partial(self._submit, job))

    def _submit(self, job: SubmittedJob) -> None:
        self._queue.submit(job.kind, self._world.now)

    def place(self) -> bool:
        """Start every job that fits; whether one started."""
        world, queue = self._world, self._queue
        names, world.freed = world.freed, {}
        for name in names:
            self._update(world.machines[name])
        queue.refill(world.now)
        if not self._changed and not queue.changed:
            return False
        self._changed = queue.changed = False
        started, reserved = False, _NO_RESERVATION
        for job in queue.candidates():
            group = self._room(job, reserved)
            if group:
                self._start(job, group)
                started = True
            elif not reserved.group:
                reserved = self._reservation(job)
        if started:
            queue.refill(world.now)
        world.ledger.waiting = len(queue) > 0
        self._changed = self._changed or started
        return started

    def _update(self, machine: Machine) -> None:
        free, partial, name = self._free[machine.node.group], self._partial[machine.node.group], machine.name
        if len(machine.alone) != self._alone.get(name, 0):
            self._alone[name] = len(machine.alone)
            self._changed = True  # a reservation moves
        is_free = machine.job is None and not machine.blocked and not machine.ending
        usable = machine.usable if is_free and machine.alone else 0
        if usable != partial.get(name, 0):
            partial.pop(name, None)
            if usable:
                partial[name] = usable
            self._changed = True
        is_free = is_free and not machine.alone
        if is_free and name not in free:
            free[name] = None
            self._changed = True
        elif not is_free and name in free:
            del free[name]
            self._changed = True  # a reservation moves, and more jobs may end before it

    def _groups(self, job: Job) -> list[str]:
        """That have nodes with enough accelerators."""
        groups = [job.kind.group] if job.kind.group is not None else list(self._free)
        return [name for name in groups if job.kind.devices is None or job.kind.devices <= self._devices[name]]

    def _used(self, job: Job, group: str) -> int:
        """Accelerators of a node of the group that the job needs."""
        return self._devices[group] if job.kind.devices is None else job.kind.devices

    def _places(self, job: Job, group: str) -> Iterator[str]:
        """Nodes on which it may start, those with devices that are kept out first."""
        used = self._used(job, group)
        yield from (name for name, usable in self._partial[group].items() if usable >= used)
        yield from self._free[group]

    def _room_in(self, job: Job, group: str) -> int:
        """How many nodes that are."""
        used = self._used(job, group)
        return len(self._free[group]) + sum(usable >= used for usable in self._partial[group].values())

    def _room(self, job: Job, reserved: "_Reservation") -> str:
        """The first group in which the job may start now; empty if there is none."""
        for name in self._groups(job):
            in_time = name != reserved.group or self._world.now + run_length(job) <= reserved.at
            if in_time and self._room_in(job, name) >= job.size:
                return name
        return ""

    def _reservation(self, job: Job) -> "_Reservation":
        """Where and when enough nodes will be free, if no more of them fail."""
        best = _NO_RESERVATION
        for name in self._groups(job):
            free = self._room_in(job, name)
            used = self._used(job, name)
            running = [each for each in self._running if each.group == name]
            for each in sorted(running, key=lambda each: (each.ends, each.size)):
                if free >= job.size:
                    break
                free += self._gives(each, used)
                if free >= job.size and each.ends < best.at:
                    best = _Reservation(name, each.ends)
        return best

    def _gives(self, job: Job, used: int) -> int:
        """Nodes with ``used`` accelerators that are not kept out alone, when the job ends."""
        if self._world.loop.devices is None:
            return job.size
        return sum(self._world.machines[name].usable >= used for name in job.nodes)

    def _start(self, job: Job, group: str) -> None:
        world, now = self._world, self._world.now
        self._queue.take(job)
        job.nodes = list(islice(self._places(job, group), job.size))
        job.devices = self._used(job, group)
        job.since = now
        job.runs += 1
        if job.runs > 1:
            world.tally.requeued_s += (now - job.queued) * job.devices * job.size
        self._running[job] = None
        crash_at = NEVER
        for name in job.nodes:
            self._free[group].pop(name, None)
            self._partial[group].pop(name, None)
            machine = world.machines[name]
            machine.job, machine.used = job, job.devices
            world.restate(machine)
            world.set_idle(machine, 0.0)
            for part in machine.broken:
                world.find_user(machine, part)
            if machine.crashes_job:
                crash_at = now + job.kind.restart + world.fleet.workload.crash
            for happen, after_s in machine.deferred:
                world.events.at(now + after_s, Turn.FAULT, happen)
            machine.deferred.clear()
        run, job.group, job.ends = job.runs, group, now + run_length(job)
        world.events.at(job.ends, Turn.JOB_ENDS, lambda: self._end(job, run))
        if crash_at < NEVER:
            world.events.at(crash_at, Turn.JOB_CRASHES, lambda: self._crash(job, run))

    def _end(self, job: Job, run: int) -> None:
        if job in self._running and job.runs == run:
            self._world.tally.finished += 1
            self._leave(job, None)

    def _crash(self, job: Job, run: int) -> None:
        """It started on a broken node."""
        is_broken = any(self._world.machines[name].crashes_job for name in job.nodes)
        if job in self._running and job.runs == run and is_broken:
            self.interrupt(job, Cause.REWORK)

    def interrupt(self, job: Job, cause: Cause) -> None:
        """cause: REWORK for a fault, DRAIN for an eviction. Its nodes are free again when its pods have ended."""
        world = self._world
        world.tally.interruptions[cause] += 1
        machines = [world.machines[name] for name in job.nodes]
        for machine in machines:
            machine.ending += 1
        self._leave(job, cause)
        at = world.now + world.fleet.workload.requeue
        world.events.at(at, Turn.JOB_QUEUED, lambda: self._requeue(job, machines))

    def _requeue(self, job: Job, machines: list[Machine]) -> None:
        for machine in machines:
            machine.ending -= 1
            self._world.freed[machine.name] = None
        self._queue.put_back(job, self._world.now)

    def _leave(self, job: Job, cause: Cause | None) -> None:
        world = self._world
        book_run(job, world.ledger, world.now, cause)
        world.tally.job_s += world.now - job.since
        del self._running[job]
        self._changed = True
        for name in job.nodes:
            machine = world.machines[name]
            machine.job = None
            world.restate(machine)
            world.set_idle(machine, world.now)
            if machine.waits:
                world.emptied[name] = None
        job.nodes = []

    def finish(self) -> None:
        """Book the jobs that still run."""
        for job in self._running:
            book_run(job, self._world.ledger, self._world.now, None)
            self._world.tally.job_s += self._world.now - job.since
