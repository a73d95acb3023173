"""A job's counters as Prometheus scrapes them: each rank at its own moments, read back at even times."""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

from muster_tainter.step_times.job_series import SeriesLabels
from muster_tainter.step_times.job_verdict import JobQuestion, JobVerdict, judge_job

WORK = "muster_step_work_total"
LABELS = SeriesLabels(rank="rank", stage="stage", pod="pod", gpu="gpu", work=WORK)
START = 1_700_000_000.0
Points = list[tuple[float, float, float]]  # time, completed steps, their seconds


@dataclass(frozen=True)
class ScrapedJob:
    """seconds: a row for each rank, a column for each step: its own work. overhead_s: of a step, the same for all.

    first: steps completed before the first of these; scrape_s: between two readings of a rank
    stages: of each rank; empty: the job has none. work: as seconds; empty: the job does not say
    """

    seconds: Sequence[Sequence[float]]
    overhead_s: float = 0.1
    first: int = 0
    scrape_s: float = 30.0
    stages: Sequence[str] = ()
    work: Sequence[Sequence[float]] = ()

    def points(self, rank: int, random: Random, *, of: Sequence[Sequence[float]] = ()) -> Points:
        """In a synchronous job, a step ends for all ranks when the slowest has ended it. of: instead of seconds."""
        ends = list(accumulate(max(column) + self.overhead_s for column in zip(*self.seconds, strict=True)))
        totals = [0.0, *accumulate((of or self.seconds)[rank])]
        at, found = random.random() * self.scrape_s, Points()
        while at < ends[-1]:
            done = bisect_right(ends, at)
            found.append((START + at, float(self.first + done), 100.0 + totals[done]))
            at += self.scrape_s
        return found


@dataclass
class Answer:
    """A range answer. read_s: between two of its times."""

    read_s: float = 30.0
    result: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, points: Points, *, metric: str = "muster_step_seconds", work: Points | None = None, **labels: str
    ) -> None:
        """As Prometheus reads it at even times: the last value."""
        for name, read, place in ((f"{metric}_count", points, 1), (f"{metric}_sum", points, 2), (WORK, work, 2)):
            if read is not None:
                values = [[at, repr(point[place])] for at, point in self._rows(read)]
                self.result.append({"metric": {"__name__": name, **labels}, "values": values})

    def _rows(self, points: Points) -> list[tuple[float, tuple[float, ...]]]:
        times = [at for at, *_ in points]
        first = START + self.read_s * max(1, -int((START - times[0]) // self.read_s))
        count = int((times[-1] - first) // self.read_s) + 2
        read = [first + self.read_s * number for number in range(count)]
        return [(at, points[bisect_right(times, at) - 1]) for at in read if at >= times[0]]

    def body(self) -> bytes:
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": self.result}}).encode()


def answer_of(
    job: ScrapedJob,
    random: Random,
    change: Callable[[int, Points], Points] = lambda _rank, points: points,
    more: Mapping[str, str] | None = None,
) -> Answer:
    """change: what a rank's readings become."""
    answer = Answer()
    for rank in range(len(job.seconds)):
        state = random.getstate()
        points = change(rank, job.points(rank, random))
        work = None
        if job.work:
            random.setstate(state)  # the same scrapes
            work = job.points(rank, random, of=job.work)
        if points:
            labels = {"rank": str(rank), "pod": f"train-{rank}", "gpu": str(rank % 8)}
            stage = {"stage": job.stages[rank]} if job.stages else {}
            answer.add(points, work=work, **labels | stage | dict(more or {}))
    return answer


def judge(answer: Answer | bytes, looks: int = 1) -> JobVerdict:
    """looks: one, because the verdict on a slow rank takes 48 times as long with the 48 windows of a day."""
    body = answer if isinstance(answer, bytes) else answer.body()
    return judge_job(JobQuestion(LABELS, "ml/train", looks, 30.0), body)
