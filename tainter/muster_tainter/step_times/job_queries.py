"""The queries for step times, and which jobs an answer names. Pure functions."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from muster_tainter.policy.sections.sources import StepTimesSource
from muster_tainter.sources.prometheus.client import SERIES_LIMIT, MetricSample
from muster_tainter.step_times.job_series import NAME_LIMIT

POINTS = 60  # readings of a series in a window; a window of 30 minutes: one each 30 s
LEAST_POINTS = 24
VALUES_LIMIT = 400_000  # of an answer: 11 MB of JSON
PARTS_LIMIT = 1_000  # of the jobs of a namespace: a JobSet has one for each of its Jobs
RANKS_LIMIT = 5_000  # of a job: three series each
SERIES_OF_A_RANK = 3  # of the metric's _sum and _count, and of its work


@dataclass(frozen=True, order=True)
class JobKey:
    """A job within its namespace. label: the one that names it."""

    namespace: str
    name: str
    label: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def list_query(where: StepTimesSource) -> str:
    """PromQL: a sample for each job, or for each part of one, with its number of ranks.

    Bounded, so that no tenant can make the answer too large for the others.
    """
    labels = ", ".join((where.namespace_label, *where.job_labels))
    series = _braces(f'__name__="{where.metric}_count"', f'{where.rank_label}!=""', where.matchers)
    one = f"topk by ({where.namespace_label}) ({PARTS_LIMIT}, count by ({labels}) ({series}))"
    return f"topk({SERIES_LIMIT}, {one})"


def series_query(where: StepTimesSource, key: JobKey) -> str:
    """PromQL: the series of one job. A label that precedes the job's own names another job, so it has to be absent."""
    before = where.job_labels[: where.job_labels.index(key.label)]
    return _braces(
        f'__name__=~"{where.metric}_(sum|count)|{where.work_metric}"',
        f"{where.namespace_label}={_quoted(key.namespace)}",
        f"{key.label}={_quoted(key.name)}",
        *(f'{label}=""' for label in before),
        where.matchers,
    )


def find_jobs(samples: Iterable[MetricSample], where: StepTimesSource) -> tuple[list[tuple[JobKey, int]], int]:
    """(jobs and their ranks, in the order in which they are judged; series whose labels name no job).

    The largest job of each namespace comes first, then the second largest of each, so no tenant takes the places of
    others; among these the small ones come first, as they cost little.
    """
    ranks: Counter[JobKey] = Counter()
    nameless = 0
    for sample in samples:
        namespace = sample.labels.get(where.namespace_label, "")
        label = next((label for label in where.job_labels if sample.labels.get(label)), "")
        if not namespace or not label or max(len(namespace), len(sample.labels[label])) > NAME_LIMIT:
            nameless += int(min(sample.value, 1e9))
            continue
        ranks[JobKey(namespace, sample.labels[label], label)] += int(min(sample.value, 1e9))
    place: Counter[str] = Counter()
    order: dict[JobKey, tuple[int, int]] = {}
    for key, count in sorted(ranks.items(), key=lambda item: (-item[1], item[0])):
        place[key.namespace] += 1
        order[key] = place[key.namespace], count
    return sorted(ranks.items(), key=lambda item: (*order[item[0]], item[0])), nameless


def step_s(ranks: int, window_s: float) -> float:
    """Seconds between two readings, so that the answer has at most VALUES_LIMIT values if it can."""
    points = max(LEAST_POINTS, min(POINTS, VALUES_LIMIT // (SERIES_OF_A_RANK * max(ranks, 1))))
    return window_s / points


def _braces(*matchers: str) -> str:
    return "{" + ", ".join(filter(None, matchers)) + "}"


def _quoted(text: str) -> str:
    """A string of PromQL, which has the escapes of Go."""
    return json.dumps(text, ensure_ascii=False)
