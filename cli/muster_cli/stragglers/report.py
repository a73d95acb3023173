"""The verdict on a job's step times as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from muster_cli.report.columns import print_table
from muster_cli.report.quantities import plural
from muster_tainter.stragglers.step_times import StepTimes
from muster_tainter.stragglers.verdict import DATA, NODE, SLOWDOWN, STAGE, Blame, Cause, Verdict

ADVICE = {
    NODE: "Check the nodes of these ranks.",
    STAGE: "The stages do not share the work evenly: move layers. No node is at fault.",
    DATA: "Ranks or microbatches with more work are slow wherever they are computed: balance the data. No node is at "
    "fault.",
}


@dataclass(frozen=True)
class JobTimes:
    """What the report and the plot show of a job.

    times: of step times the ranks, of an operation trace the workers by number. workers: their (dp rank, stage, rank).
    incomplete: steps without times of all ranks. width: steps that were averaged to one.
    """

    times: StepTimes
    workers: Sequence[tuple[int, int, int]] | None
    incomplete: int
    width: int = 1

    @property
    def stages(self) -> list[int]:
        """As causes number them."""
        return [int(stage) for stage in self.times.rows_of_stages()] if self.times.stages else []

    def label(self, row: int) -> str:
        if self.workers is None:
            return f"rank {self.times.ranks[row]}"
        dp_rank, stage, rank = self.workers[row]
        return f"dp_rank {dp_rank}, stage {stage} (rank {rank})"

    def name(self, cause: Cause, blame: Blame) -> str:
        return f"stage {self.stages[blame.row]}" if cause.kind == STAGE else self.label(blame.row)

    def identity(self, cause: Cause, blame: Blame) -> dict[str, int]:
        if cause.kind == STAGE:
            return {"stage": self.stages[blame.row]}
        if self.workers is None:
            return {"rank": self.times.ranks[blame.row]}
        return dict(zip(("dp_rank", "stage", "rank"), self.workers[blame.row], strict=True))


def as_document(job: JobTimes, verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.kind,
        "falseBlame": verdict.false_blame,
        "causes": [
            {
                "kind": cause.kind,
                "slowdown": round(cause.slowdown, 4),
                "p": cause.p,
                "blamed": [
                    {
                        **job.identity(cause, blame),
                        "since": job.times.steps[blame.since],
                        "until": None if blame.until is None else job.times.steps[blame.until],
                        "slower": round(blame.excess, 4),
                        "p": blame.p,
                    }
                    for blame in cause.blamed
                ],
            }
            for cause in verdict.causes
        ],
        "ranks": len(job.times.ranks),
        "steps": len(job.times.steps) * job.width,
        "incompleteSteps": job.incomplete * job.width,
        "stepsPermutedTogether": verdict.block * job.width,
        "stepsNeeded": verdict.needed * job.width,
    }


def print_verdict(job: JobTimes, verdict: Verdict) -> None:
    for line in summary(job, verdict):
        print(line)
    rows = [
        (
            job.name(cause, blame),
            str(job.times.steps[blame.since]),
            "(to the end)" if blame.until is None else str(job.times.steps[blame.until]),
            f"{blame.excess:.0%}",
            f"{blame.p:.4f}",
        )
        for cause in verdict.causes
        for blame in cause.blamed
    ]
    if rows:
        print()
        print_table(("SLOW", "SINCE STEP", "UNTIL STEP", "SLOWER BY", "P"), rows)


def summary(job: JobTimes, verdict: Verdict) -> Iterator[str]:
    unit = "rank" if job.workers is None else "worker"
    of = f"{plural(len(job.times.ranks), unit)}, {plural(len(job.times.steps) * job.width, 'step')}"
    yield f"verdict: {verdict.kind} ({of})"
    for cause in verdict.causes:
        yield f"{cause.kind}: steps take {cause.slowdown:.0%} longer than without it. {ADVICE[cause.kind]}"
    if not verdict.causes:
        yield f"No {unit} is proven to be slow by {SLOWDOWN - 1:.0%} or more."
    if len(job.times.steps) < verdict.needed:
        yield (
            f"Slow moments last for several steps, so {verdict.needed * job.width} steps are needed for a proof; "
            "record more steps."
        )
    yield f"error bound: at most {verdict.false_blame:.0%} of jobs without a cause get a verdict other than nobody"
    if job.incomplete:
        yield f"{plural(job.incomplete * job.width, 'step')} without times of all {unit}s are left out"
