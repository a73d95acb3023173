"""The result of `muster simulate` as text and as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from muster_cli.report.columns import print_table
from muster_cli.report.quantities import plural
from muster_kube.api.times import rfc3339_whole
from muster_tainter.simulation.comparison import (
    GOODPUT,
    INTERRUPTIONS,
    MEASURES,
    Estimate,
    Measure,
    difference,
    estimate,
)
from muster_tainter.simulation.ledger import BUCKETS, Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import Scenario
from muster_tainter.simulation.scenario.nodes import drawn_by

JUDGED = (GOODPUT, INTERRUPTIONS)  # the measures by which two policies are told apart
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Comparison:
    """outcomes: by policy, the fleet as it is first, then its resampled copies."""

    scenario: Scenario
    names: list[str]
    outcomes: list[list[Outcome]]

    @property
    def replicates(self) -> int:
        return len(self.outcomes[0]) - 1

    def first(self, policy: int) -> Outcome:
        """On the fleet as it is."""
        return self.outcomes[policy][0]


@dataclass(frozen=True)
class Judgement:
    """A policy beside the first one."""

    name: str
    other: str
    measure: Measure
    difference: Estimate


def judgements(comparison: Comparison) -> Iterator[Judgement]:
    ours = comparison.outcomes[0]
    for name, others in list(zip(comparison.names, comparison.outcomes, strict=True))[1:]:
        for measure in JUDGED:
            yield Judgement(name, comparison.names[0], measure, difference(others, ours, measure))


def print_comparison(comparison: Comparison) -> None:
    rows = [
        (measure.title, *(show(estimate(outcomes, measure), measure) for outcomes in comparison.outcomes))
        for measure in MEASURES
        if any(measure.of(outcomes[0]) for outcomes in comparison.outcomes) or measure in JUDGED
    ]
    print_table(("", *comparison.names), rows)
    print()
    for line in summary(comparison):
        print(line)


def show(found: Estimate, measure: Measure) -> str:
    """``94.20% (93.80 to 94.60)``; ``-`` where it is not defined."""
    if found.value is None:
        return "-"
    unit = {"%": "%", "h": " h"}.get(measure.unit, "")
    text = f"{found.value:,.{measure.digits}f}{unit}"
    if found.low is None or found.high is None:
        return text
    low = max(found.low, 0.0)
    return f"{text} ({low:,.{measure.digits}f} to {found.high:,.{measure.digits}f})"


def summary(comparison: Comparison) -> Iterator[str]:
    scenario, first = comparison.scenario, comparison.first(0)
    days = (scenario.end - scenario.begin) / _DAY_S
    faults, jobs = plural(first.tally.faults, "fault"), plural(first.tally.finished, "finished job")
    yield (
        f"{plural(first.nodes, 'node')} with {first.devices} accelerators, {days:g} days from "
        f"{rfc3339_whole(scenario.begin)}, {faults}, {jobs}; seed {scenario.seed}"
    )
    for judgement in judgements(comparison):
        yield judged(judgement)
    yield from notes(comparison)


def judged(judgement: Judgement) -> str:
    """One sentence: more, less, or that the data cannot tell."""
    found, measure = judgement.difference, judgement.measure
    names = f"{judgement.name} and {judgement.other}"
    if found.value is None:
        return f"{measure.title}: {names}: not defined"
    unit = " points" if measure.unit == "%" else ""
    number = f"{abs(found.value):,.{measure.digits}f}{unit}"
    more = "more" if found.value > 0 else "less" if unit else "fewer"
    if found.low is None or found.high is None:
        return f"{measure.title}: {judgement.name}: {number} {more} than {judgement.other}"
    span = f"95 % interval {found.low:+,.{measure.digits}f} to {found.high:+,.{measure.digits}f}"
    if not found.tells_apart:
        return f"{measure.title}: the data cannot tell {names} apart ({found.value:+,.{measure.digits}f}, {span})"
    return f"{measure.title}: {judgement.name}: {number} {more} than {judgement.other} ({span})"


def notes(comparison: Comparison) -> Iterator[str]:
    scenario, first = comparison.scenario, comparison.first(0)
    yield from (f"note: {note}" for note in scenario.history.summary.notes)
    if comparison.replicates:
        drawn = drawn_by(scenario.nodes)
        yield f"intervals: 95 %, from {comparison.replicates} fleets whose {drawn} are drawn with replacement"
    else:
        yield "note: without resampled fleets there are no intervals: --replicates 25"
    if first.tally.repeated:
        yield f"note: {plural(first.tally.repeated, 'fault')} of a component that was broken already are left out"
    if not scenario.fleet.workload.kinds and not scenario.jobs:
        yield "note: no jobs: goodput and interruptions are zero; expected workload.kinds in the fleet file, or --jobs"
    if scenario.fleet.idle_faults == "happen" and scenario.fleet.faults is None:
        yield (
            "note: recorded faults happen even on nodes that are held back; idleFaults: wait in the fleet file assumes "
            "the opposite. The truth lies between the two"
        )


def as_document(comparison: Comparison) -> dict[str, Any]:
    scenario = comparison.scenario
    return {
        "from": rfc3339_whole(scenario.begin),
        "to": rfc3339_whole(scenario.end),
        "seed": scenario.seed,
        "replicates": comparison.replicates,
        "drawn": drawn_by(scenario.nodes),
        "nodes": comparison.first(0).nodes,
        "accelerators": comparison.first(0).devices,
        "policies": [
            _policy(name, outcomes) for name, outcomes in zip(comparison.names, comparison.outcomes, strict=True)
        ],
        "differences": [
            {
                "policy": each.name,
                "from": each.other,
                "measure": each.measure.name,
                **_numbers(each.difference),
                "toldApart": each.difference.tells_apart,
            }
            for each in judgements(comparison)
        ],
        "notes": list(notes(comparison)),
    }


def _policy(name: str, outcomes: list[Outcome]) -> dict[str, Any]:
    first = outcomes[0]
    tally = first.tally
    return {
        "name": name,
        "measures": {
            measure.name: {**_numbers(estimate(outcomes, measure)), "unit": measure.unit} for measure in MEASURES
        },
        "acceleratorHours": {"total": first.total_h, **{str(cause): first.hours[cause] for cause in Cause}},
        "faults": tally.faults,
        "faultsWithoutJob": tally.harmless,
        "interruptionsBy": {str(cause): count for cause, count in sorted(tally.interruptions.items())},
        "jobsFinished": tally.finished,
        "withheldNodeHours": tally.withheld_s / 3600,
        "repairsGivenUp": tally.given_up,
        "outShare": {"stepHours": (first.end - first.begin) / BUCKETS / 3600, "values": list(first.out_share)},
    }


def _numbers(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}
