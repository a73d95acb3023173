"""`make bench`: the project's figures, each beside its bound, and beside what it is compared with in the same run.

    --only PART [PART …]   latency, burst, selectivity, sync, outcomes, jobs, idle, flood, fleet, page, simulate,
                           outage, spares, takeover, growth (default: all)
    --json FILE            also keep the results in FILE, beside those of other parts that are in it
    --fleet N [N …]        latency: nodes in the cluster (default 1, 5,000 and 15,000)
    --rounds N             latency: of each way (default 100)
    --real-time            latency: with real-time priority, so that other programs on this machine do not take part
    --window S             idle: seconds (default 120; the slowest light check runs every 600)
    --flood S              flood: seconds of 1,600 kernel lines each (default 20)
    --jobs N               jobs: IPUJobs of 8 workers (default 1,000)
    --sizes N [N …]        growth: nodes (default 100, 1,000, 5,000 and 15,000)
    --numbers N [N …]      growth: IPUJobs (default 10, 100 and 1,000; 0: none)

latency   kernel line -> taint, and -> rule for one GPU, beside a bare read, two PATCHes and two watches
burst     500 faults that wait when the tainter starts, beside clients that do nothing but PATCH
selectivity  200 fatal findings among 1,800 harmless ones, over 10,000 nodes
sync      processor time and memory of a tainter for 15,000 nodes at rest
outcomes  processor time and memory of a tainter that sees 100 pods end a second, and 100,000 at once
jobs      1,000 IPUJobs of 8 workers: API writes a job, time, processor time and memory, beside a client that only makes
          the same objects
idle      memory, processor time and API writes of an agent with nothing to do, beside Debian's node exporter
flood     an agent under 1,600 kernel lines a second
fleet     one /status through one agent to 199 others, and with ten of them dead or silent
page      the fleet page of 10,000 nodes in Chromium, beside an empty page
simulate  `muster simulate`: a year of 400 and of 10,000 nodes
outage    a kernel line while the API server is away for 30 s: from its return to the taint
spares    from the taint of a node to the release of a spare, with 20 nodes of which 2 are spares
takeover  a new leader over 15,000 nodes with 500 open faults; and taints while 5,000 healthy nodes reboot
growth    what a tainter takes for 100 to 15,000 nodes, and operator and proxy for 10 to 1,000 jobs: curves, their
          exponents, and what they say of 50,000 nodes

Ends with 1 if a cost grows faster than it may (growth).

Needs root, for /dev/kmsg (simulate alone does not); for the page Debian's chromium and chromium-driver. Ends by
itself; leaves nothing behind but lines in this machine's kernel log, and programs in the cache.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import burst
import flood
import growth
import idle
import jobs
import latency
import outage
import outcomes
import page
import selectivity
import simulation
import spares
import sync
import takeover
import whole_fleet
from harness import results
from harness.bounds import LATENCY_FLEETS
from harness.progress import say

from muster_sandbox.controlplane.cluster import read_minor_version
from muster_sandbox.programs.control_plane import find_or_build

BURST_ROUNDS = 5
FLEET_ROUNDS = 5
PAGE_ROUNDS = 10
SYNC_NODES = 15_000
EXIT_TOO_FAST = 1


@dataclass(frozen=True)
class Part:
    """failures: what the outcome breaks that must not break; only of figures that a busy machine does not change."""

    measure: Callable[[Path, argparse.Namespace], Any]
    table: Callable[[Any], str]
    options: tuple[str, ...] = ()
    failures: Callable[[Any], Sequence[str]] = lambda _: ()


PARTS = {
    "latency": Part(
        lambda binaries, given: [
            latency.measure(binaries, nodes, given.rounds, alone=given.real_time) for nodes in given.fleet
        ],
        latency.table,
        ("fleet", "rounds", "real_time"),
    ),
    "burst": Part(lambda binaries, _: burst.measure(binaries, BURST_ROUNDS), burst.table),
    "selectivity": Part(lambda binaries, _: selectivity.measure(binaries), selectivity.table),
    "sync": Part(lambda binaries, _: sync.measure(binaries, SYNC_NODES), sync.table),
    "outcomes": Part(lambda _binaries, _given: outcomes.measure(), outcomes.table),
    "jobs": Part(lambda binaries, given: jobs.measure(binaries, given.jobs), jobs.table, ("jobs",)),
    "idle": Part(lambda binaries, given: idle.measure(binaries, given.window), idle.table, ("window",)),
    "flood": Part(lambda binaries, given: flood.measure(binaries, given.flood), flood.table, ("flood",)),
    "fleet": Part(lambda _binaries, _given: whole_fleet.measure(FLEET_ROUNDS), whole_fleet.table),
    "page": Part(lambda _binaries, _given: page.measure(PAGE_ROUNDS), page.table),
    "simulate": Part(lambda _binaries, _given: simulation.measure(), simulation.table),
    "outage": Part(lambda binaries, _: outage.measure(binaries), outage.table),
    "spares": Part(lambda binaries, _: spares.measure(binaries), spares.table),
    "takeover": Part(lambda binaries, _: takeover.measure(binaries), takeover.table),
    "growth": Part(
        lambda binaries, given: growth.measure(binaries, given.sizes, [each for each in given.numbers if each]),
        growth.table,
        ("sizes", "numbers"),
        growth.failures,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fleet", type=int, nargs="+", default=list(LATENCY_FLEETS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument("--window", type=float, default=120.0)
    parser.add_argument("--flood", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(growth.SIZES))
    parser.add_argument("--numbers", type=int, nargs="+", default=list(growth.JOBS))
    arguments = parser.parse_args()
    binaries, kubernetes = Path(), "none"
    if set(arguments.only) != {"simulate"}:
        if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
            say("/dev/kmsg cannot be read and written: run as root, on a machine that has it")
            return 64
        binaries = find_or_build(say)
        kubernetes = f"1.{read_minor_version(binaries / 'kube-apiserver')}"
    threading.stack_size(1 << 20)
    failed: list[str] = []
    for name, part in PARTS.items():
        if name not in arguments.only:
            continue
        load, began = os.getloadavg()[0], time.monotonic()
        outcome = part.measure(binaries, arguments)
        table = part.table(outcome)
        print(f"{table}\n", flush=True)
        failed += part.failures(outcome)
        if arguments.json is not None:
            results.save(
                arguments.json,
                name,
                outcome,
                table=table,
                seconds=time.monotonic() - began,
                load=load,
                kubernetes=kubernetes,
                options={option: getattr(arguments, option) for option in part.options},
            )
    for failure in failed:
        say(failure)
    return EXIT_TOO_FAST if failed else 0


if __name__ == "__main__":
    sys.exit(main())
