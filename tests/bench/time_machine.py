"""The tables of docs/time-machine.md: policies fitted on the first half of a public trace and judged on the second.

    python tests/bench/time_machine.py [--replicates N] [--processes N] [--trace gpu|hpc|numa …] [--no-fit]

Reads the traces where tests/shared_data.py finds them. The same numbers always give the same tables.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.shared_data import find_folder

from muster_tainter.policy.file import default_policy_text, parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.comparison import GOODPUT, INTERRUPTIONS, KEPT_OUT, Measure, difference, estimate
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import Scenario, simulate
from muster_tainter.simulation.scenario.fault_file import RecordedFaults
from muster_tainter.simulation.scenario.fleet_file import FleetFile
from muster_tainter.simulation.scenario.nodes import make_nodes
from muster_tainter.simulation.scenario.public_traces import read_gpu_cluster, read_hpc_outages

DAY = 86_400.0
TESTED_FOR = ("", "1h", "6h", "24h")  # between the two runs of the proof; empty: the built-in proofs
HOLDS = (
    "base: 5m, longest: 24h, halfLife: 6h",
    "base: 2h, longest: 3d, halfLife: 14d",
    "base: 6h, longest: 3d, halfLife: 60d",
)
NO_HOLD = "base: 0s"
LOST = Measure(
    "lost", "lost hours", lambda outcome: sum(outcome.hours[c] for c in (Cause.FAULT, Cause.REWORK, Cause.DRAIN,
                                                                         Cause.TEST, Cause.HOLD)),
)  # fmt: skip
_EVERYTHING = "match: {verdict: FAIL, class: [reset, reboot, replace, contact]}, action: taint"
SIMPLE = {
    "cordon until a person": f"rules: [{{name: all, {_EVERYTHING}, closeOn: [clear]}}]\nholdDown: {{base: 0s}}\n",
    "reboot at once": f"""
rules: [{{name: all, {_EVERYTHING}, closeOn: [boot, driver]}}]
holdDown: {{base: 0s}}
pools:
  - name: all
    selector: {{}}
    drain: {{when: now}}
    repair: {{atOnce: 100%, reset: &reboot {{annotate: {{example.com/reboot: now}}}}, reboot: *reboot,
              replace: *reboot, contact: *reboot}}
""",
    "fixed 20 % breaker": f"""
rules: [{{name: all, {_EVERYTHING}}}]
holdDown: {{base: 0s}}
pools: [{{name: all, selector: {{}}, budget: {{tainted: 20%}}}}]
""",
}


@dataclass(frozen=True)
class Trace:
    """begin, end: days of the trace, in seconds since the epoch."""

    name: str
    history: RecordedFaults
    nodes: int
    devices: int
    begin: float
    end: float

    def half(self, second: int, idle_faults: str) -> Scenario:
        middle = float(int((self.begin + self.end) / 2))
        fleet = FleetFile.model_validate(
            {
                "groups": [{"name": "n", "nodes": self.nodes, "devices": self.devices, "namesFrom": "faults"}],
                "idleFaults": idle_faults,
                "workload": {
                    "kinds": [
                        {"name": "large", "nodes": self.nodes // 4, "lasts": "30d", "share": 1},
                        {"name": "medium", "nodes": self.nodes // 16, "lasts": "7d", "share": 6},
                        {"name": "small", "nodes": 1, "lasts": "12h", "share": 150, "restart": "2m"},
                    ]
                },
            }
        )
        begin, end = (middle, self.end) if second else (self.begin, middle)
        return Scenario(fleet, make_nodes(fleet, self.history.summary.nodes), self.history, begin, end)


def gpu_trace(folder: Path) -> Trace:
    history = read_gpu_cluster(folder / "infinitehbd_fault_trace.json")
    begin = history.summary.begin - history.summary.begin % DAY
    return Trace("gpu", history, 400, 8, begin, history.summary.end)


def hpc_trace(folder: Path) -> Trace:
    return _system(folder, "hpc", "20", 512, 4)


def numa_trace(folder: Path) -> Trace:
    """Few large nodes, which fail often."""
    return _system(folder, "numa", "2", 49, 128)


def _system(folder: Path, name: str, system: str, nodes: int, processors: int) -> Trace:
    """A year of one system of LA-UR-05-7318, after its first one, in which it was installed."""
    history = read_hpc_outages(folder / "lanl_failures_1996_2005.csv.xz", [system])
    begin = history.summary.begin + 365 * DAY
    return Trace(name, history, nodes, processors, begin, min(begin + 365 * DAY, history.summary.end))


TRACES = {"gpu": gpu_trace, "hpc": hpc_trace, "numa": numa_trace}


@dataclass(frozen=True)
class Variant:
    """The built-in policy with another hold-down, and every returned node tested twice, ``tested_for`` apart."""

    hold: str
    tested_for: str = ""

    @property
    def policy(self) -> Policy:
        text = default_policy_text()
        line = next(line for line in text.splitlines() if line.startswith("holdDown:"))
        text = text.replace(line, f"holdDown: {{{self.hold}}}")
        if self.tested_for:
            proof = f"{{checks: [gpumem, pciebw], passes: 2, interval: {self.tested_for}}}"
            rule = f"{{name: soak, {_EVERYTHING}, closeOn: [proof], proof: {proof}}}"
            text = text.replace("rules:\n", f"rules:\n  - {rule}\n", 1)
        return parse_policy(text)

    @property
    def name(self) -> str:
        tested = f"tested for {self.tested_for}" if self.tested_for else "built-in proofs"
        return f"{tested}, holdDown {self.hold}"


LONG_TEST = Variant(HOLDS[0], "6h")  # a fifth of the faults of the first trace begin within six hours of a return


class _Shared:
    worlds: Sequence[tuple[Scenario, Policy]]

    @classmethod
    def put(cls, worlds: Sequence[tuple[Scenario, Policy]]) -> None:
        cls.worlds = worlds

    @classmethod
    def run(cls, which: tuple[int, int]) -> Outcome:
        return simulate(*cls.worlds[which[0]], which[1])


def run_all(worlds: Sequence[tuple[Scenario, Policy]], replicates: int, processes: int) -> list[list[Outcome]]:
    which = [(world, replicate) for world in range(len(worlds)) for replicate in range(replicates + 1)]
    found: list[list[Outcome]] = [[] for _ in worlds]
    with ProcessPoolExecutor(processes, get_context("fork"), _Shared.put, (worlds,)) as pool:
        for (world, _), outcome in zip(which, pool.map(_Shared.run, which), strict=True):
            found[world].append(outcome)
    return found


def find_variant(trace: Trace, processes: int) -> Variant:
    """The one with the fewest lost accelerator-hours in the first half and a resampled copy of it."""
    grid = [Variant(hold, tested_for) for tested_for in TESTED_FOR for hold in HOLDS]
    first = trace.half(0, "happen")
    outcomes = run_all([(first, each.policy) for each in grid], 1, processes)
    scores = [sum(LOST.of(each) or 0.0 for each in found) / len(found) for found in outcomes]
    for each, score in zip(grid, scores, strict=True):
        print(f"  first half of {trace.name}: {each.name}: {score:,.0f} lost accelerator-hours", file=sys.stderr)
    return grid[scores.index(min(scores))]


def policies_of(found: Variant | None) -> dict[str, Policy]:
    """found: None: not sought, or the built-in one."""
    simple = {name: parse_policy(text) for name, text in SIMPLE.items()}
    variants = {each.name: each.policy for each in (LONG_TEST, found) if each is not None}
    default = parse_policy(default_policy_text())
    return {"built-in": default, "built-in without hold-down": Variant(NO_HOLD).policy, **variants, **simple}


def table(trace: Trace, found: Variant | None, replicates: int, processes: int) -> Iterator[str]:
    every = policies_of(found)
    for idle_faults in ("happen", "wait"):
        # the simple policies hold no node back, so it makes no difference to them
        policies = {name: each for name, each in every.items() if idle_faults == "happen" or name not in SIMPLE}
        second = trace.half(1, idle_faults)
        outcomes = run_all([(second, policy) for policy in policies.values()], replicates, processes)
        faults = outcomes[0][0].tally.faults
        yield f"\n{trace.name}, second half, idleFaults: {idle_faults}, {faults} faults\n"
        head = ("policy", "interruptions", "beside built-in", "lost hours", "beside built-in", "goodput", "kept out")
        yield f"| {' | '.join(head)} |"
        yield "|---" * len(head) + "|"
        for name, each in zip(policies, outcomes, strict=True):
            cells = [name]
            for measure in (INTERRUPTIONS, LOST):
                cells += [
                    _shown(estimate(each, measure), 0),
                    _shown(difference(each, outcomes[0], measure), 0, sign="+"),
                ]
            cells += [_shown(estimate(each, GOODPUT), 2), _shown(estimate(each, KEPT_OUT), 3)]
            yield f"| {' | '.join(cells)} |"


def _shown(found: tuple[float | None, float | None, float | None], digits: int, sign: str = "") -> str:
    value, low, high = found
    if value is None or low is None or high is None:
        return f"{value}"
    low = low if sign else max(low, 0.0)
    return f"{value:{sign},.{digits}f} ({low:{sign},.{digits}f} to {high:{sign},.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=25)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-fit", action="store_true", help="leave out the search in the first half")
    parser.add_argument("--trace", nargs="+", choices=tuple(TRACES), default=tuple(TRACES))
    arguments = parser.parse_args()
    folder = find_folder(os.environ)
    if folder is None:
        print("the public traces are not here: set MUSTER_SHARED_DATA", file=sys.stderr)
        return 64
    for name in arguments.trace:
        trace = TRACES[name](folder / "traces")
        found = None if arguments.no_fit else find_variant(trace, arguments.processes)
        if found is not None and found.hold == HOLDS[0] and not found.tested_for:
            found = None
        for line in table(trace, found, arguments.replicates, arguments.processes):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
