"""What `muster simulate` takes for a year of a fleet: time and memory of one run under the built-in policy."""

import resource
import time
from dataclasses import dataclass
from multiprocessing import get_context

from harness.progress import say

from muster_tainter.policy.file import load_policy
from muster_tainter.simulation.run import make_scenario, simulate
from muster_tainter.simulation.scenario.fault_generator import generate_faults
from muster_tainter.simulation.scenario.fleet_file import FleetFile
from muster_tainter.simulation.scenario.nodes import make_nodes

BOUNDS = {400: (30.0, 2 << 30), 10_000: (600.0, 2 << 30)}  # seconds, bytes


@dataclass(frozen=True)
class YearOfFleet:
    nodes: int
    faults: int
    jobs: int
    wall_s: float
    cpu_s: float
    peak: int


def measure(sizes: tuple[int, ...] = tuple(BOUNDS)) -> list[YearOfFleet]:
    """Each size in a process of its own, so that its peak of memory is its own."""
    found = []
    for nodes in sizes:
        say(f"simulate: a year of {nodes} nodes")
        with get_context("spawn").Pool(1) as pool:
            found.append(pool.apply(run_year, (nodes,)))
    return found


def run_year(nodes: int) -> YearOfFleet:
    begun, used = time.monotonic(), time.process_time()
    fleet = FleetFile.model_validate(
        {
            "groups": [{"name": "gpu", "nodes": nodes, "domain": {"label": "example.com/rack", "nodes": 8}}],
            "start": "2026-01-01T00:00:00Z",
            "end": "2027-01-01T00:00:00Z",
            # 584 faults of 400 nodes in 348 days, and a fifth of them after a return (stepfun-ai/InfiniteHBD-Trace)
            "faults": {
                "rates": [
                    {"class": "replace", "perNodeYear": 0.4},
                    {"class": "contact", "perNodeYear": 0.6, "component": "nic/0", "check": "nic"},
                    {"class": "reboot", "perNodeYear": 0.2, "component": "host"},
                ],
                "returns": {"share": 0.2, "within": "6h"},
            },
            "workload": {
                "kinds": [
                    {"name": "large", "nodes": nodes // 4, "lasts": "30d", "share": 1},
                    {"name": "medium", "nodes": nodes // 16, "lasts": "7d", "share": 6},
                    {"name": "small", "nodes": 1, "lasts": "12h", "share": 150},
                ]
            },
        }
    )
    members = make_nodes(fleet)
    assert fleet.faults is not None
    assert fleet.start is not None
    assert fleet.end is not None
    history = generate_faults(fleet.faults, members, fleet.start, fleet.end, 1)
    outcome = simulate(make_scenario(fleet, members, history), load_policy(None))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in KiB on Linux, getrusage(2)
    return YearOfFleet(
        nodes,
        outcome.tally.faults,
        outcome.tally.finished,
        time.monotonic() - begun,
        time.process_time() - used,
        peak,
    )


def table(found: list[YearOfFleet]) -> str:
    lines = ["a year of a fleet     nodes   faults     jobs    wall s     CPU s   peak MB"]
    for each in found:
        lines.append(
            f"muster simulate      {each.nodes:6}   {each.faults:6}   {each.jobs:6}   {each.wall_s:7.1f}   "
            f"{each.cpu_s:7.1f}   {each.peak / 1e6:7.0f}"
        )
        wall_s, peak = BOUNDS[each.nodes]
        lines.append(f"bound                                           {wall_s:7.1f}             {peak / 1e6:7.0f}")
    return "\n".join(lines)
