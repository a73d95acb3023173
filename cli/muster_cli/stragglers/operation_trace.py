"""Operation traces as Parquet, in the format that ByteDance publishes (github.com/ByteDance-Seed/StragglerAnalysis):
a row for each operation with dp_rank, stage, rank, step, optype, duration (seconds) and mb_id (microbatch).
"""

from collections import defaultdict
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from muster_cli.stragglers.step_file import SECONDS_LIMITS
from muster_cli.usage import UsageError
from muster_tainter.stragglers.operations import Operations

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "duration", "mb_id")
FORWARD, BACKWARD = "forward-compute", "backward-compute"
MAGIC = b"PAR1"  # a Parquet file begins and ends with it
OPERATIONS_LIMIT = 1_000_000  # 300 MB
BATCH_ROWS = 64 << 10


class Pass(NamedTuple):
    """Of one microbatch through one stage."""

    optype: str
    dp_rank: int
    stage: int
    step: int
    microbatch: int


def is_parquet(opened: BufferedReader) -> bool:
    """Consumes nothing, because a pipe can be read only once. Raises OSError."""
    return opened.peek(len(MAGIC)).startswith(MAGIC)


def read_operation_trace(file: Path, operations_limit: int = OPERATIONS_LIMIT) -> tuple[Operations, int]:
    """(the steps in which every worker has the same microbatches, number of the others). Raises UsageError, OSError."""
    durations, ranks = defaultdict[Pass, float](float), dict[tuple[int, int], int]()
    for number, (one, rank, seconds) in enumerate(_compute_passes(file)):
        if number >= operations_limit:
            raise UsageError(f"{file}: more than {operations_limit} forward and backward passes; expected fewer steps")
        durations[one] += seconds
        ranks[one.dp_rank, one.stage] = min(rank, ranks.get((one.dp_rank, one.stage), rank))
    return _tables(file, durations, ranks)


def _compute_passes(file: Path) -> Iterator[tuple[Pass, int, float]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(f"{file}: a Parquet file takes pyarrow; run: pip install 'passmuster[traces]'") from None
    try:
        with parquet.ParquetFile(file) as opened:
            names = opened.schema_arrow.names
            if missing := [name for name in COLUMNS if name not in names]:
                found = ", ".join(repr(name[:40]) for name in names[:12])
                raise UsageError(f"{file}: columns: {', '.join(missing)} missing; found {found}")
            first = 1
            for batch in opened.iter_batches(BATCH_ROWS, columns=list(COLUMNS)):
                columns = [batch.column(name).to_pylist() for name in COLUMNS]
                for row, values in enumerate(zip(*columns, strict=True), first):
                    if values[4] in (FORWARD, BACKWARD):
                        yield _read(file, row, *values)
                first += batch.num_rows
    except pyarrow.ArrowException as error:
        raise UsageError(f"{file}: not a readable Parquet file: {str(error).splitlines()[0][:200]}") from None


def _read(
    file: Path, row: int, dp_rank: object, stage: object, rank: object, step: object, optype: str, duration: object,
    microbatch: object,
) -> tuple[Pass, int, float]:  # fmt: skip
    whole = {"dp_rank": dp_rank, "stage": stage, "rank": rank, "step": step, "mb_id": microbatch}
    for name, value in whole.items():
        if not isinstance(value, int) or value < 0:
            raise UsageError(f"{file}: row {row}: {name}: {value!r:.40}; expected a whole number from 0 on")
    least, most = SECONDS_LIMITS
    if not isinstance(duration, int | float) or not least <= duration <= most:
        raise UsageError(f"{file}: row {row}: duration: {duration!r:.40}; expected seconds from {least} to {most:g}")
    numbers = [value for value in whole.values() if isinstance(value, int)]
    return Pass(optype, numbers[0], numbers[1], numbers[3], numbers[4]), numbers[2], duration


def _tables(file: Path, durations: dict[Pass, float], ranks: dict[tuple[int, int], int]) -> tuple[Operations, int]:
    dp_ranks, stages = (sorted({worker[place] for worker in ranks}) for place in (0, 1))
    if len(ranks) < 2:
        raise UsageError(f"{file}: forward and backward passes of {len(ranks)} workers; expected at least two")
    if absent := [(dp_rank, stage) for dp_rank in dp_ranks for stage in stages if (dp_rank, stage) not in ranks]:
        dp_rank, stage = absent[0]
        raise UsageError(f"{file}: no passes of dp_rank {dp_rank}, stage {stage}; expected all stages of all dp ranks")
    microbatches = defaultdict[int, set[int]](set)
    for one in durations:
        microbatches[one.step].add(one.microbatch)
    workers = [(dp_rank, stage, ranks[dp_rank, stage]) for dp_rank in dp_ranks for stage in stages]
    most = max(map(len, microbatches.values()))
    complete = [
        step
        for step in sorted(microbatches)
        if len(microbatches[step]) == most
        and all(
            Pass(optype, dp_rank, stage, step, microbatch) in durations
            for optype in (FORWARD, BACKWARD)
            for dp_rank, stage, _ in workers
            for microbatch in microbatches[step]
        )
    ]
    if not complete:
        raise UsageError(f"{file}: no step has forward and backward passes of all {len(workers)} workers")
    forward, backward = (
        [
            [
                [durations[Pass(optype, dp_rank, stage, step, number)] for number in sorted(microbatches[step])]
                for step in complete
            ]
            for dp_rank, stage, _ in workers
        ]
        for optype in (FORWARD, BACKWARD)
    )
    operations = Operations(workers, len(dp_ranks), len(stages), complete, forward, backward)
    return operations, len(microbatches) - len(complete)
