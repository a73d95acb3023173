"""What the judges of step times return, and the thresholds that they share."""

import math
from dataclasses import dataclass

NODE, STAGE, DATA, NOBODY = "node", "stage", "data", "nobody"

FALSE_BLAME = 0.01
"""The chance that a job without a slow rank is blamed on one. docs/in-flight.md says what "without" means."""

TESTED = FALSE_BLAME / 4
"""The level of the tests: the length of blocks is an estimate, and costs up to half of the bound where steps correlate
(tests/tainter/stragglers/test_false_blame.py)."""

SLOWDOWN = 1.1
"""A smaller slowdown is not blamed. Lin et al. (arXiv 2505.05713) count a job as straggling from 1.1 on."""

ROBUST_SIGMAS = 3.5
"""How far a slow rank stands from the others: modified z-score of Iglewicz and Hoaglin, How to Detect and Handle
Outliers (1993), who recommend 3.5."""

SAME_MICROBATCH = 0.9
"""Correlation between the times of the same microbatches at two places. Lin et al. take 0.9 between forward and
backward passes as the mark of skewed sequence lengths."""

MAD_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution: 0.6745 sigma

LEAST_EXCESS = math.log(SLOWDOWN)


class TooFewSteps(Exception):
    """Even a rank that is slow in every step could not be told from chance. needed: steps that would do."""

    def __init__(self, steps: int, needed: int) -> None:
        super().__init__(f"{steps} steps with times of all ranks; at least {needed} are needed")
        self.steps, self.needed = steps, needed


@dataclass(frozen=True)
class Blame:
    """One slow row of a table of times.

    row: its index. since, until: first and last slow step, as indexes; until is None if the row is slow to the end.
    excess: how much slower than the median of the others, 0.5: by half. p: by permutation.
    """

    row: int
    since: int
    until: int | None
    excess: float
    p: float

    def columns(self, count: int) -> range:
        return range(self.since, count if self.until is None else self.until + 1)


@dataclass(frozen=True)
class Cause:
    """slowdown: the job's steps take this part longer than without the cause, 0.25: a quarter longer, while it lasts.

    blamed: of a cause ``node``, rows of workers; of ``stage``, stages; of ``data``, none. p: the largest of the blamed.
    """

    kind: str
    slowdown: float
    p: float
    blamed: tuple[Blame, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """causes: all that were proven, the costliest first; the first one is the verdict.

    block: steps that were permuted together, because their times correlate. needed: with blocks of this length, so many
    steps would be needed; more than there are: nothing could be proven.
    """

    causes: tuple[Cause, ...]
    block: int
    needed: int
    false_blame: float = FALSE_BLAME

    @property
    def kind(self) -> str:
        return self.causes[0].kind if self.causes else NOBODY
