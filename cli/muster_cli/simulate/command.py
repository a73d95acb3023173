"""`muster simulate POLICY… --fleet FILE`: what policies would cost and save, on a simulated clock."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from muster_cli.report.output_format import TABLE, add_output, print_document
from muster_cli.simulate import from_cluster
from muster_cli.simulate.inputs import FORMATS, read_policies, read_scenario
from muster_cli.simulate.page import make_page
from muster_cli.simulate.report import Comparison, as_document, print_comparison
from muster_cli.simulate.variants import NamedPolicy, Variation, read_variation
from muster_cli.usage import UsageError
from muster_kube.process.command_line import EXIT_USAGE
from muster_tainter.policy.file import PolicyError
from muster_tainter.simulation.comparison import REPLICATES, REPLICATES_LEAST, Case, run_one, runs
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import Scenario
from muster_tainter.simulation.scenario.fleet_file import FleetError

_REPLICATES_MOST = 10_000
_PROCESSES_MOST = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs the real decisions of the tainter (rules, budgets, verification, hold-down, drains, repairs, spares) for "
        "a fleet, its faults and its jobs, and shows where every accelerator-hour went. Several policies are compared "
        "on the same faults, jobs and random numbers; the output says when two of them do not differ significantly. "
        "The same files and seed always give the same answer. A simulation needs no cluster. With "
        "--from-cluster, the command writes input files from the past of your cluster instead. "
        "docs/time-machine.md describes the files."
    )
    parser.add_argument("policies", metavar="POLICY", nargs="*", help="policy files, or - for the built-in policy")
    parser.add_argument(
        "--fleet",
        metavar="FILE",
        type=Path,
        help="YAML file: nodes, repairs, jobs and rates of faults",
    )
    parser.add_argument(
        "--faults", metavar="FILE", type=Path, help="recorded faults; without it, the rates of the fleet file give them"
    )
    parser.add_argument(
        "--faults-format", choices=FORMATS, help="format of the recorded faults; by default recognised by the content"
    )
    parser.add_argument(
        "--jobs",
        metavar="FILE",
        type=Path,
        help="CSV file of submitted jobs, in addition to the jobs of the fleet file",
    )
    parser.add_argument(
        "--vary",
        metavar="SETTING=VALUE,…",
        type=_variation,
        action="append",
        default=[],
        help="also compare copies of the first policy with these values of a setting, such as holdDown.base=0s,2h or "
        "pools.POOL.spares.nodes=1,2 (POOL: the name of a pool), or of agents.planned.CHECK=1d,7d,never: how often a "
        "heavy check is due on a node; can be repeated",
    )
    parser.add_argument("--seed", metavar="N", type=_seed, default=1, help="seed of all random numbers; default: 1")
    parser.add_argument(
        "--replicates",
        metavar="N",
        type=_replicates,
        default=REPLICATES,
        help="number of resampled fleets from which the confidence intervals are computed; 0: no intervals; "
        f"default: {REPLICATES}",
    )
    parser.add_argument(
        "--processes", metavar="N", type=_processes, default=min(os.cpu_count() or 1, 8),
        help="runs at a time; default: one for each core, at most 8",
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE.html", type=Path, help="also write one page with plots")
    add_output(parser)
    from_cluster.add_arguments(parser)


def _whole(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least} to {most}")
    return int(text)


def _variation(text: str) -> Variation:
    try:
        return read_variation(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _seed(text: str) -> int:
    return _whole(text, 0, 999_999_999)


def _replicates(text: str) -> int:
    if text == "0":
        return 0
    return _whole(text, REPLICATES_LEAST, _REPLICATES_MOST)


def _processes(text: str) -> int:
    return _whole(text, 1, _PROCESSES_MOST)


def main(arguments: argparse.Namespace) -> int:
    try:
        if arguments.from_cluster is not None:
            return from_cluster.write_files(arguments)
        _require_files(arguments)
        policies = read_policies(arguments.policies, arguments.vary)
        scenario = read_scenario(
            arguments.fleet, arguments.faults, arguments.faults_format, arguments.jobs, arguments.seed
        )
        comparison = compare(scenario, policies, arguments.replicates, arguments.processes)
        if arguments.html is not None:
            arguments.html.write_text(make_page(comparison), encoding="utf-8")
    except (PolicyError, FleetError, UsageError) as error:
        print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"muster: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return EXIT_USAGE
    if arguments.output == TABLE:
        print_comparison(comparison)
    else:
        print_document(as_document(comparison), arguments.output)
    return 0


def _require_files(arguments: argparse.Namespace) -> None:
    """Before the runs, which may take long. Raises UsageError."""
    page: Path | None = arguments.html
    if not arguments.policies or arguments.fleet is None:
        raise UsageError("expected POLICY… and --fleet FILE, or --from-cluster FOLDER")
    if page is not None and not page.parent.is_dir():
        raise UsageError(f"--html {page}: {page.parent}: no such folder")


def compare(scenario: Scenario, policies: Sequence[NamedPolicy], replicates: int, processes: int) -> Comparison:
    """Run every policy on the fleet and on its resampled copies."""
    which = runs(len(policies), replicates)
    outcomes: list[list[Outcome]] = [[] for _ in policies]
    made = _run_all(scenario, [each.case for each in policies], which, min(processes, len(which)))
    for number, ((policy, _), outcome) in enumerate(zip(which, made, strict=True), 1):
        outcomes[policy].append(outcome)
        if sys.stderr.isatty():
            end = "\n" if number == len(which) else ""
            print(f"\rrun {number} of {len(which)}", end=end, file=sys.stderr, flush=True)
    return Comparison(scenario, [each.name for each in policies], outcomes)


def _run_all(scenario: Scenario, cases: list[Case], which: list[tuple[int, int]], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from (run_one(scenario, cases, each) for each in which)
        return
    # fork: each process starts with the scenario in memory, instead of a copy for each run
    try:
        with ProcessPoolExecutor(
            processes, mp_context=get_context("fork"), initializer=_Shared.put, initargs=(scenario, cases)
        ) as pool:
            yield from pool.map(_Shared.run, which)
    except BrokenProcessPool:
        raise UsageError("a run was killed, probably because the memory is used up: try fewer --processes") from None


class _Shared:
    """What a process of the pool works on."""

    held: tuple[Scenario, list[Case]]

    @classmethod
    def put(cls, scenario: Scenario, cases: list[Case]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
        cls.held = scenario, cases

    @classmethod
    def run(cls, which: tuple[int, int]) -> Outcome:
        return run_one(*cls.held, which)
