"""The pods of a soak as files of `muster simulate`, and what the simulation says of them beside the ledger's books.

Each job gets a group of nodes of its own, because the soak decides where a pod runs. A machine that breaks stays
broken, so an interrupted job does not start again, as in the soak. What is no fault (a user's failure, a preemption) is
not simulated: these jobs end when they ended, and their work counts as kept.
"""

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.soak.goodput_bed import CHECKPOINT_S, PodEnd, Truth

from muster_kube.api.times import rfc3339_whole
from muster_tainter.goodput.causes import Cause

POLICY = """
rules: [{name: hardware, match: {class: reboot}, action: taint}]
pools: [{name: all, selector: {}, budget: {tainted: 100%}, drain: {when: now}}]
"""
FAULTS = (Cause.FAULT, Cause.INCIDENT)
GROUPS = 60  # of a fleet file, which has at most 64
AFTER_S = 60.0  # the simulation ends so long after the last pod
# a second of rounding for each of the up to three pods of a job, of the eight devices of each
ROUNDING_S = 2.0 * 8 * 3
TOLERANCE = 0.01


@dataclass(frozen=True)
class PlayedJob:
    """The pods of one job, the first to end first."""

    name: str
    ends: Sequence[PodEnd]

    @property
    def cause(self) -> Cause:
        return self.ends[0].cause

    @property
    def interrupted(self) -> bool:
        return self.cause in (*FAULTS, Cause.DRAIN)

    @property
    def nodes(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(len(self.ends))]

    def group(self) -> dict[str, Any]:
        return {"name": self.name, "names": self.nodes, "devices": self.ends[0].pod.devices}

    def job(self) -> list[str]:
        first = self.ends[0]
        pod, ran = first.pod, int(first.at) - int(first.pod.started)
        lasts = ran + (CHECKPOINT_S if self.interrupted else 0.0)  # an interrupted one wanted to go on
        start = int(pod.started) - int(pod.bound)
        row = (rfc3339_whole(pod.bound), len(self.ends), f"{lasts:.0f}s", self.name, "0s", f"{start}s")
        return [*map(str, row), f"{CHECKPOINT_S:.0f}s"]

    def fault(self) -> list[str]:
        """Of the node of the first pod; it ends with the simulation."""
        fatal = "no" if self.cause is Cause.DRAIN else "yes"  # a drain ends the job
        return [self.nodes[0], rfc3339_whole(self.ends[0].at), "reboot", fatal]


def jobs_of(ends: Iterable[PodEnd]) -> list[PlayedJob]:
    by_job: dict[str, list[PodEnd]] = {}
    for end in ends:
        by_job.setdefault(end.pod.job or end.pod.name, []).append(end)
    return [PlayedJob(name, sorted(pods, key=lambda end: end.at)) for name, pods in by_job.items()]


def write_files(jobs: Sequence[PlayedJob], folder: Path) -> None:
    end = max(pod.at for job in jobs for pod in job.ends) + AFTER_S
    begin = min(pod.pod.bound for job in jobs for pod in job.ends)
    fleet = {
        "start": rfc3339_whole(begin),
        "end": rfc3339_whole(end),
        "groups": [job.group() for job in jobs],
        "agents": {"detect": "0s"},
        "people": {"repair": {"reboot": "365d"}},
    }
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    (folder / "policy.yaml").write_text(POLICY)
    with (folder / "jobs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["submitted", "nodes", "lasts", "group", "checkpointCost", "restart", "checkpoint"])
        writer.writerows(job.job() for job in jobs)
    with (folder / "faults.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["node", "start", "class", "fatal", "end"])
        broken = sorted((job.ends[0].at, job.fault()) for job in jobs if job.interrupted)
        writer.writerows([*fault, rfc3339_whole(end)] for _, fault in broken)


def simulate(folder: Path) -> dict[str, Any]:
    """What the command prints about the only policy."""
    files = [f"--{name}={folder / f'{name}.{ending}'}" for name, ending in
             (("fleet", "yaml"), ("faults", "csv"), ("jobs", "csv"))]  # fmt: skip
    words = [sys.executable, "-m", "muster_cli", "simulate", str(folder / "policy.yaml"), *files]
    ended = subprocess.run(
        [*words, "--replicates=0", "--processes=1", "-o", "json"], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise AssertionError(ended.stderr)
    [policy] = json.loads(ended.stdout)["policies"]
    found: dict[str, Any] = policy
    return found


def disagreements(truth: Truth, folder: Path) -> list[str]:
    """Where the simulation of the soak's own faults and jobs differs from the ledger, in words."""
    jobs = jobs_of(truth.ends)
    hours: Counter[str] = Counter()
    interruptions = 0
    for first in range(0, len(jobs), GROUPS):
        part, place = jobs[first : first + GROUPS], folder / str(first)
        place.mkdir(parents=True)
        write_files(part, place)
        found = simulate(place)
        hours.update(found["acceleratorHours"])
        interruptions += sum(found["interruptionsBy"].values())
    booked = truth.found
    kept = booked[Cause.GOODPUT] + booked[Cause.USER] + booked[Cause.PREEMPTION]
    preempted = sum(job.cause is Cause.PREEMPTION for job in jobs)
    wrong = []
    for name, ledger_s in (
        ("goodput", kept),
        ("re-work", sum(booked[cause] for cause in FAULTS)),
        ("drain", booked[Cause.DRAIN]),
        ("overhead", booked[Cause.OVERHEAD]),
    ):
        simulated_s = 3600.0 * hours[name]
        if abs(simulated_s - ledger_s) > TOLERANCE * ledger_s + ROUNDING_S * len(jobs):
            wrong.append(f"simulated {name}: {simulated_s / 3600:.3f} h; the ledger has {ledger_s / 3600:.3f} h")
    if interruptions != truth.interruptions - preempted:
        wrong.append(f"simulated interruptions: {interruptions}; the ledger has {truth.interruptions - preempted}")
    return wrong
