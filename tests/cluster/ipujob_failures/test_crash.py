"""Operator and V-IPU proxy end after every single write of a job's life, on the real API server (59).

A life without an accident says how many writes there are and what is seen after each of its steps; then it is lived
once for each write, and must look the same; and once with no write of the operator's ever answered.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from tests.cluster.ipujob.operator_bed import inference, training
from tests.cluster.ipujob_failures.embedded_jobs import (
    EmbeddedJob,
    JobTestBed,
    Look,
    is_empty,
    job_bed_fixture,  # noqa: F401 - the fixture
    live_through,
)
from tests.cluster.ipujob_failures.embedded_operator import ProcessFate

SPARE = 3  # a life may have a write less than the first one
Who = Literal["operator", "proxy"]


@dataclass(frozen=True)
class Accident:
    """at: the write after which it ends, from one; 0: none. unanswered: every write of its is."""

    who: Who
    at: int = 0
    unanswered: bool = False


Step = tuple[Callable[[EmbeddedJob], Awaitable[None]], Callable[[EmbeddedJob], object]]


def _runs(attempt: int = 0, instances: int = 1) -> Callable[[EmbeddedJob], bool]:
    def holds(life: EmbeddedJob) -> bool:
        said = life.status()
        return (said.launcher_status, said.attempt, said.current_replicas) == ("Running", attempt, instances)

    return holds


def _scaled(instances: int) -> Step:
    def holds(life: EmbeddedJob) -> bool:
        return _runs(0, instances)(life) and len(life.watcher.tracker(life.namespace)) == instances

    return lambda life: life.scale(instances), holds


TRAINING = training(restartPolicy={"type": "OnFailure", "backOffLimit": 1})
INFERENCE = inference()
DELETED: Step = (lambda life: life.delete(), is_empty)
FAILS: Step = (lambda life: life.end_pod("launcher", 137), _runs(1))
LIVES: dict[str, list[Step]] = {
    "with a launcher": [(lambda life: life.submit(TRAINING), _runs()), FAILS, DELETED],
    "without a launcher": [(lambda life: life.submit(INFERENCE), _runs()), _scaled(2), _scaled(1), DELETED],
}


@dataclass
class Lived:
    looks: list[Look]
    written: list[str]


async def live(job_bed: JobTestBed, steps: list[Step], accident: Accident, expected: list[Look] | None = None) -> Lived:
    """expected: what is to be seen after each step; None: what its own condition says."""
    fate = ProcessFate(dies_at=accident.at, unanswered=accident.unanswered)
    fates = (fate, None) if accident.who == "operator" else (None, fate)
    looks: list[Look] = []
    async with job_bed.run_job(*fates) as life:
        for number, (act, holds) in enumerate(steps):
            await act(life)
            wanted = None if expected is None else expected[number]
            await job_bed.watcher.until(
                lambda holds=holds, wanted=wanted: (
                    holds(life) and life.is_at_rest() if wanted is None else life.look() == wanted
                ),
                lambda number=number, wanted=wanted: (
                    f"{accident}, step {number} of {life.namespace}; written: {fate.written}\n"
                    f"seen:     {life.look()}\nexpected: {wanted}"
                ),
            )
            looks.append(life.look())
    return Lived(looks, fate.written)


@pytest.mark.timeout(1800)  # dozens of lives, on however slow a machine
@pytest.mark.parametrize("steps", LIVES.values(), ids=LIVES)
async def test_59_whoever_ends_after_any_write_is_followed_by_the_same_end(
    job_bed: JobTestBed, steps: list[Step]
) -> None:
    without = await live(job_bed, steps, Accident("operator"))
    proxys = await live(job_bed, steps, Accident("proxy"), without.looks)
    accidents = [
        *(Accident("operator", at) for at in range(1, len(without.written) + 1)),
        *(Accident("proxy", at) for at in range(1, len(proxys.written) + 1)),
        Accident("operator", unanswered=True),
    ]
    assert len(accidents) > 20, "a life has more writes than that"

    async def happens(accident: Accident) -> bool:
        return accident.at <= len((await live(job_bed, steps, accident, without.looks)).written)

    missed = await live_through(accidents, happens)
    first = {"operator": len(without.written), "proxy": len(proxys.written)}
    assert [late for late in missed if late.at < first[late.who] - SPARE] == []
    assert job_bed.made_twice() == {}
