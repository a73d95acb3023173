"""`muster stragglers FILE…`: names the rank that slows a job, from the recorded times of its steps."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from muster_cli.exit_codes import EXIT_FAIL, EXIT_OK, EXIT_WARN
from muster_cli.stragglers.operation_trace import is_parquet, read_operation_trace
from muster_cli.stragglers.plot import plot
from muster_cli.stragglers.report import JobTimes, as_document, print_verdict
from muster_cli.stragglers.step_file import read_step_file
from muster_cli.stragglers.step_table import IncompleteTimes, StepTable
from muster_cli.usage import UsageError
from muster_kube.process.command_line import EXIT_USAGE
from muster_tainter.stragglers.operations import judge_operations
from muster_tainter.stragglers.step_times import StepTimes, judge_step_times
from muster_tainter.stragglers.verdict import DATA, NOBODY, NODE, STAGE, TooFewSteps, Verdict

EXIT_CODES = {NODE: EXIT_FAIL, STAGE: EXIT_WARN, DATA: EXIT_WARN, NOBODY: EXIT_OK}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "FILE is one of these: one CSV file with the columns rank, step, seconds and, if you have them, stage (of the "
        "pipeline) and work (how much the rank had to do); one such file for each rank; or one Parquet file with the "
        "times of a job's forward and backward operations. The formats and the rate of false alarms are in "
        "docs/in-flight.md. The same files always give the "
        "same verdict. The verdicts:\n\n"
        "  node     one or more ranks are slow: check their nodes\n"
        "  stage    a pipeline stage has more work than the others\n"
        "  data     some ranks or microbatches have more work than others\n"
        "  nobody   no cause is proven"
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="CSV files of one job, or a Parquet file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--plot",
        metavar="FILE.svg",
        type=Path,
        help="also write a plot to this file: how slow each rank is in each step, against the median of all ranks",
    )


def main(arguments: argparse.Namespace) -> int:
    try:
        job, verdict = judge_files(arguments.files)
        if arguments.plot is not None:
            arguments.plot.write_text(plot(job, verdict), encoding="utf-8")
    except UsageError as error:
        print(f"muster: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"muster: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return EXIT_USAGE
    if arguments.json:
        print(json.dumps(as_document(job, verdict), indent=2))
    else:
        print_verdict(job, verdict)
    return EXIT_CODES[verdict.kind]


def judge_files(files: Sequence[Path]) -> tuple[JobTimes, Verdict]:
    """Raises UsageError, OSError."""
    random = Random(0)  # noqa: S311  # the same files give the same answer
    table = StepTable()
    try:
        for file in files:
            with file.open("rb") as opened:
                if is_parquet(opened):
                    if len(files) > 1:
                        raise UsageError(f"{file}: an operation trace; expected no file beside it")
                    if not opened.seekable():
                        raise UsageError(f"{file}: an operation trace; expected a file instead of a pipe")
                    operations, incomplete = read_operation_trace(file)
                    workers = operations.workers
                    stages = [str(stage) for _, stage, _ in workers]
                    times = StepTimes(range(len(workers)), operations.steps, operations.seconds(), stages)
                    return JobTimes(times, workers, incomplete), judge_operations(operations, random)
                read_step_file(file, opened, table)
        times, incomplete = table.complete()
        return JobTimes(times, None, incomplete, table.width), judge_step_times(times, random)
    except (TooFewSteps, IncompleteTimes) as error:
        raise UsageError(f"{', '.join(map(str, files[:3]))}{', …' * (len(files) > 3)}: {error}") from None
