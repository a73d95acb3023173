"""Times of a job's steps with stated distributions, as logarithms of ratios: one rank in each row."""

import math
from dataclasses import dataclass
from random import Random

from muster_tainter.stragglers.step_times import StepTimes


@dataclass(frozen=True)
class SimulatedJob:
    """noise: standard deviation of a rank's logarithm, an autoregression whose steps correlate by ``correlation``.
    shared: of what all ranks have in common in a step. pauses: chance that a step of a rank takes three times as long.
    """

    ranks: int
    steps: int
    noise: float
    correlation: float = 0.0
    shared: float = 0.2
    pauses: float = 0.0

    def seconds(self, random: Random) -> list[list[float]]:
        rows = [list[float]() for _ in range(self.ranks)]
        state = [random.gauss(0, self.noise) for _ in rows]
        fresh = math.sqrt(1 - self.correlation**2) * self.noise
        for _ in range(self.steps):
            common = random.gauss(0, self.shared)
            for rank, row in enumerate(rows):
                state[rank] = self.correlation * state[rank] + random.gauss(0, fresh)
                pause = math.log(3) if random.random() < self.pauses else 0.0
                row.append(math.exp(common + state[rank] + pause))
        return rows


def step_times(seconds: list[list[float]]) -> StepTimes:
    return StepTimes(range(len(seconds)), range(len(seconds[0])), seconds)


def in_stages(seconds: list[list[float]], stages: int, work: float = 1.0) -> StepTimes:
    """Ranks belong to the stages in turn. work: of the last stage, as a multiple of that of the others."""
    of_rows = [row % stages for row in range(len(seconds))]
    rows = [
        [each * (work if stage == stages - 1 else 1) for each in row]
        for row, stage in zip(seconds, of_rows, strict=True)
    ]
    return StepTimes(range(len(rows)), range(len(rows[0])), rows, [str(stage) for stage in of_rows])


def slowed(seconds: list[list[float]], rank: int, factor: float, since: int, until: int | None = None) -> StepTimes:
    """until: the first step that is not slow."""
    steps = range(since, len(seconds[0]) if until is None else until)
    for step in steps:
        seconds[rank][step] *= factor
    return step_times(seconds)
