"""`make bench`: the project's figures, each beside its bound, and beside what it is compared with in the same run.

    --only PART [PART …]   latency, burst, selectivity, sync, outcomes, jobs, idle, flood, fleet, page, simulate
                           (default: all)
    --fleet N [N …]        latency: nodes in the cluster (default 1 and 5,000)
    --rounds N             latency: of each way (default 100)
    --window S             idle: seconds (default 120; the slowest light check runs every 600)
    --flood S              flood: seconds of 1,600 kernel lines each (default 20)
    --jobs N               jobs: IPUJobs of 8 workers (default 1,000)

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

Needs root, for /dev/kmsg (simulate alone does not); for the page Debian's chromium and chromium-driver. Ends by
itself; leaves nothing behind but lines in this machine's kernel log, and programs in the cache.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable

import burst
import flood
import idle
import jobs
import latency
import outcomes
import page
import selectivity
import simulation
import sync
import whole_fleet
from harness.progress import say

from muster_sandbox.programs.control_plane import find_or_build

BURST_ROUNDS = 5
FLEET_ROUNDS = 5
PAGE_ROUNDS = 10
SYNC_NODES = 15_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = (
        "latency", "burst", "selectivity", "sync", "outcomes", "jobs", "idle", "flood", "fleet", "page", "simulate",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--fleet", type=int, nargs="+", default=[1, 5000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--window", type=float, default=120.0)
    parser.add_argument("--flood", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=1000)
    arguments = parser.parse_args()
    if set(arguments.only) == {"simulate"}:
        print(simulation.table(simulation.measure()), flush=True)
        return 0
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        say("/dev/kmsg cannot be read and written: run as root, on a machine that has it")
        return 64
    binaries = find_or_build(say)
    threading.stack_size(1 << 20)
    tables: dict[str, Callable[[], str]] = {
        "latency": lambda: latency.table([latency.measure(binaries, n, arguments.rounds) for n in arguments.fleet]),
        "burst": lambda: burst.table(burst.measure(binaries, BURST_ROUNDS)),
        "selectivity": lambda: selectivity.table(selectivity.measure(binaries)),
        "sync": lambda: sync.table(sync.measure(binaries, SYNC_NODES)),
        "outcomes": lambda: outcomes.table(outcomes.measure()),
        "jobs": lambda: jobs.table(jobs.measure(binaries, arguments.jobs)),
        "idle": lambda: idle.table(idle.measure(binaries, arguments.window)),
        "flood": lambda: flood.table(flood.measure(binaries, arguments.flood)),
        "fleet": lambda: whole_fleet.table(whole_fleet.measure(FLEET_ROUNDS)),
        "page": lambda: page.table(page.measure(PAGE_ROUNDS)),
        "simulate": lambda: simulation.table(simulation.measure()),
    }
    for part in parts:
        if part in arguments.only:
            print(f"{tables[part]()}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
