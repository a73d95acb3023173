"""Jobs: what waits, what runs, and what an interruption costs. A gang job runs on nodes of one group."""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

from muster_tainter.simulation.ledger import Cause, Ledger
from muster_tainter.simulation.scenario.fleet_file import JobKind, Workload

DEPTH = 100  # waiting jobs that are tried at one moment, as schedulers do


@dataclass(eq=False, slots=True)
class Job:
    """left_s: work that is not saved. nodes, group: where it runs, with how many devices of each node. since, ends: of
    this run, if nothing interrupts it. lost_to: what the next start is booked as. queued: since when it waits."""

    number: int
    kind: JobKind
    size: int
    left_s: float
    queued: float
    nodes: list[str] = field(default_factory=list)
    group: str = ""
    devices: int = 0
    since: float = 0.0
    ends: float = 0.0
    runs: int = 0
    lost_to: Cause = Cause.OVERHEAD


class Run(NamedTuple):
    """What one run of a job, so far, was spent on, in seconds of its wall clock."""

    start_s: float
    saved_s: float
    checkpoints_s: float
    unsaved_s: float


def run_so_far(job: Job, now: float) -> Run:
    kind = job.kind
    spent = now - job.since
    start = min(spent, kind.restart)
    worked = spent - start
    cycle = kind.checkpoint + kind.checkpoint_cost
    saves = int(worked // cycle) if worked > 0 else 0
    saved = saves * kind.checkpoint
    return Run(start, saved, saves * kind.checkpoint_cost, worked - saves * cycle)


def run_length(job: Job) -> float:
    """Seconds from its start to its end, without an interruption. Its last work needs no checkpoint."""
    kind = job.kind
    saves = max(-int(-job.left_s // kind.checkpoint) - 1, 0)
    return kind.restart + job.left_s + saves * kind.checkpoint_cost


def book_run(job: Job, ledger: Ledger, now: float, lost_to: Cause | None) -> None:
    """Book a run that ends now. lost_to: what interrupted it; None: it is finished, or the simulation is."""
    run, devices = run_so_far(job, now), job.devices * job.size
    ledger.book(job.lost_to, devices * run.start_s)
    ledger.book(Cause.OVERHEAD, devices * run.checkpoints_s)
    kept = run.saved_s if lost_to is not None else run.saved_s + run.unsaved_s
    ledger.book(Cause.GOODPUT, devices * kept)
    if lost_to is not None:
        ledger.book(lost_to, devices * run.unsaved_s)
        job.lost_to = lost_to
        job.left_s = max(job.left_s - run.saved_s, 1.0)


class JobQueue:
    """Waiting jobs: interrupted ones first, then as they came. The same seed gives the same sequence of jobs under
    every policy."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._random = Random(f"{seed}/jobs")  # noqa: S311 - a simulation
        self._waiting: deque[Job] = deque()
        self._number = 0
        self.changed = False
        """Jobs have come since somebody set it to False."""

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, kind: JobKind, now: float) -> None:
        """A job without a gang is as many jobs of one node."""
        self.changed = True
        parts = (kind.nodes,) if kind.gang else (1,) * kind.nodes
        for size in parts:
            self._number += 1
            self._waiting.append(Job(self._number, kind, size, kind.lasts, now))

    def refill(self, now: float) -> None:
        """Keep the wanted number of jobs waiting."""
        kinds = self._workload.kinds
        while kinds and len(self._waiting) < self._workload.queue:
            (kind,) = self._random.choices(kinds, [each.share for each in kinds])
            self.submit(kind, now)

    def put_back(self, job: Job, now: float) -> None:
        """An interrupted job: before all others."""
        job.queued = now
        self.changed = True
        self._waiting.appendleft(job)

    def candidates(self) -> list[Job]:
        """The first ones, in their order."""
        return list(islice(self._waiting, DEPTH))

    def take(self, job: Job) -> None:
        self._waiting.remove(job)
