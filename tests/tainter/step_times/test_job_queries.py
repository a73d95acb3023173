"""Queries for step times, and the jobs that an answer names."""

import pytest

from muster_tainter.policy.file import PolicyError, parse_policy
from muster_tainter.policy.sections.sources import StepTimesSource
from muster_tainter.sources.prometheus.client import MetricSample
from muster_tainter.step_times.job_queries import JobKey, find_jobs, list_query, series_query, step_s

WHERE = StepTimesSource.model_validate({"url": "http://p", "jobLabels": ["set", "job_name"]})


def sample(ranks: float, **labels: str) -> MetricSample:
    return MetricSample(labels, ranks)


def test_parts_of_a_job_set_are_one_job_and_namespaces_keep_jobs_apart() -> None:
    samples = [
        sample(4, namespace="a", set="train", job_name="train-0"),
        sample(4, namespace="a", set="train", job_name="train-1"),
        sample(2, namespace="a", job_name="train"),
        sample(2, namespace="b", job_name="train"),
        sample(3, job_name="train"),
        sample(1, namespace="a"),
        sample(5, namespace="a", job_name="x" * 254),
    ]
    jobs, nameless = find_jobs(samples, WHERE)
    assert dict(jobs) == {
        JobKey("a", "train", "set"): 8,
        JobKey("a", "train", "job_name"): 2,
        JobKey("b", "train", "job_name"): 2,
    }
    assert nameless == 9


def test_no_namespace_takes_the_places_of_others() -> None:
    flood = [sample(1000, namespace="flood", job_name=f"j{number}") for number in range(100)]
    jobs, _ = find_jobs([*flood, sample(8, namespace="ml", job_name="train")], WHERE)
    assert [key.namespace for key, _ in jobs[:3]] == ["ml", "flood", "flood"]


def test_the_queries() -> None:
    where = WHERE.model_copy(update={"matchers": 'cluster="x"'})
    assert 'count by (namespace, set, job_name) ({__name__="muster_step_seconds_count", rank!="", cluster="x"})' in (
        list_query(where)
    )
    assert series_query(where, JobKey("ml", 'a"}\n', "job_name")) == (
        '{__name__=~"muster_step_seconds_(sum|count)|muster_step_work_total", '
        'namespace="ml", job_name="a\\"}\\n", set="", cluster="x"}'
    )
    assert series_query(where, JobKey("ml", "a", "set")) == (
        '{__name__=~"muster_step_seconds_(sum|count)|muster_step_work_total", namespace="ml", set="a", cluster="x"}'
    )


@pytest.mark.parametrize(("ranks", "seconds"), [(8, 30.0), (5000, 1800 / 26), (100_000, 75.0)])
def test_larger_jobs_are_read_less_often(ranks: int, seconds: float) -> None:
    assert step_s(ranks, 1800.0) == seconds


POLICY = "rules: []\nsources: {{stepTimes: {{url: 'http://p', {}}}}}\n"


@pytest.mark.parametrize(
    "text",
    [
        "window: 4m",
        "window: 2d",
        "jobs: 0",
        "metric: 'a b'",
        "metric: my_step_seconds_sum",
        "jobLabels: []",
        "jobLabels: [a, a]",
        "jobLabels: ['a-b']",
        "rankLabel: 'r k'",
        "matchers: 'job=training'",
        "matchers: '{job=\"training\"}'",
        'matchers: \'job="a"} or {x="b"\'',
        "heavyChecks: [No]",
        "ranks: 3",
    ],
)
def test_what_a_policy_may_not_say(text: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(POLICY.format(text))
    assert "sources.stepTimes" in str(error.value)


def test_what_it_may_say() -> None:
    text = 'window: 10m, jobLabels: job, matchers: \'job="a,b", cluster=~"x.*",\', heavyChecks: [], evict: true'
    where = parse_policy(POLICY.format(text)).sources.step_times
    assert where is not None
    assert (where.window, where.job_labels, where.heavy_checks, where.evict) == (600.0, ("job",), (), True)
    assert where.matchers == 'job="a,b", cluster=~"x.*"'
