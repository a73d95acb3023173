"""Step times of a job of any length in bounded memory."""

from array import array
from dataclasses import replace

from muster_cli.usage import UsageError
from muster_tainter.stragglers.step_times import StepTimes

CELLS_LIMIT = 1 << 21  # ranks times columns: 24 bytes each while reading, then about 64 while judging; 128 with work
FEWEST_COLUMNS = 64


class IncompleteTimes(Exception):
    """There are no steps in which ranks can be compared."""


class StepTable:
    """Ranks by steps. Where it grows too large, neighbouring steps become one, with their mean."""

    def __init__(self, cells_limit: int = CELLS_LIMIT) -> None:
        self.cells_limit = cells_limit
        self.width = 1  # steps in a column
        self._columns: dict[int, int] = {}  # step // width -> column, in the order of reading
        self._rows: dict[int, tuple[array[float], array[float], array[int]]] = {}  # rank -> (seconds, work, counts)
        self._last: dict[int, int] = {}  # rank -> its last step
        self._stages: dict[int, int | None] = {}  # rank -> its pipeline stage
        self._workless: set[int] = set()  # ranks that do not say how much they had to do

    def add(self, rank: int, step: int, seconds: float, stage: int | None = None, work: float | None = None) -> None:
        """stage, work: None if it is not known.

        Raises UsageError for a step that does not follow the rank's last one, for too many ranks, and for a rank whose
        stage changes.
        """
        if (known := self._stages.setdefault(rank, stage)) != stage:
            raise UsageError(
                f"stage: {_shown(stage)} follows {_shown(known)} of rank {rank}; expected one for each rank"
            )
        last = self._last.get(rank)
        if last is None:
            if (len(self._rows) + 1) * FEWEST_COLUMNS > self.cells_limit:
                raise UsageError(f"rank: more than {len(self._rows)} ranks; expected fewer")
            self._rows[rank] = array("d"), array("d"), array("L")
        elif step <= last:
            raise UsageError(f"step: {step} follows {last} of rank {rank}; expected the steps of a rank to rise")
        self._last[rank] = step
        column = self._columns.setdefault(step // self.width, len(self._columns))
        if len(self._rows) * len(self._columns) > self.cells_limit:
            self._halve()
            column = self._columns.setdefault(step // self.width, len(self._columns))
        sums, amounts, counts = self._rows[rank]
        if (missing := column + 1 - len(sums)) > 0:
            sums.extend([0.0] * missing)
            amounts.extend([0.0] * missing)
            counts.extend([0] * missing)
        sums[column] += seconds
        counts[column] += 1
        if work is None:
            self._workless.add(rank)
        else:
            amounts[column] += work

    def _halve(self) -> None:
        while len(self._rows) * len(self._columns) > self.cells_limit:
            self.width *= 2
            columns: dict[int, int] = {}
            new = [columns.setdefault(number // 2, len(columns)) for number in self._columns]
            empty = array("d", [0.0]) * len(columns)
            for rank, (sums, amounts, counts) in self._rows.items():
                merged = empty[:], empty[:], array("L", [0]) * len(columns)
                for old, (total, work, count) in enumerate(zip(sums, amounts, counts, strict=True)):
                    merged[0][new[old]] += total
                    merged[1][new[old]] += work
                    merged[2][new[old]] += count
                self._rows[rank] = merged
            self._columns = columns

    def complete(self) -> tuple[StepTimes, int]:
        """(the steps that have times of all ranks, number of the others). Raises IncompleteTimes."""
        ranks = sorted(self._rows)
        if len(ranks) < 2:
            what = "no times" if not ranks else f"times of rank {ranks[0]} only"
            raise IncompleteTimes(f"{what}; expected at least two ranks, as a rank is compared with the others")
        columns = [
            (number * self.width, column)
            for number, column in sorted(self._columns.items())
            if all(column < len(counts) and counts[column] for *_, counts in self._rows.values())
        ]
        if not columns:
            fewest = min(ranks, key=lambda rank: sum(map(bool, self._rows[rank][2])))
            raise IncompleteTimes(f"no step has times of all {len(ranks)} ranks; rank {fewest} has the fewest")
        seconds, work = (
            [[self._rows[rank][of][column] / self._rows[rank][2][column] for _, column in columns] for rank in ranks]
            for of in (0, 1)
        )
        if self._workless and len(self._workless) < len(ranks):
            raise IncompleteTimes(f"rank {min(self._workless)} has no work; expected it of all ranks, or of none")
        stages = [_shown(self._stages[rank]) for rank in ranks]
        if any(stages) and not all(stages):
            raise IncompleteTimes(f"rank {ranks[stages.index('')]} has no stage; expected one of all ranks, or of none")
        times = StepTimes(ranks, [step for step, _ in columns], seconds)
        times = replace(times, stages=stages if all(stages) else (), work=() if self._workless else work)
        return times, len(self._columns) - len(columns)


def _shown(stage: int | None) -> str:
    return "" if stage is None else str(stage)
