"""Step times of jobs, from the logs of their pods, in the form that the tainter reads from Prometheus.

The labels ``namespace`` and ``pod`` are those of the job's pod, by the kubelet. The others are the program's word.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

from muster_agent.metrics.measurements import label
from muster_checks.base.declaration import StepTotals

NAME = "muster_step_seconds"  # as sources.stepTimes.metric of the policy
WORK = "muster_step_work"  # with _total, as sources.stepTimes.workMetric
LABELS = ("namespace", "pod", "job_name", "rank", "gpu", "stage")


def step_times_families(totals: Iterable[StepTotals]) -> Iterator[SummaryMetricFamily | CounterMetricFamily]:
    seconds = SummaryMetricFamily(NAME, "A rank's own work in training steps, as its program prints it", labels=LABELS)
    work = CounterMetricFamily(WORK, "How much work a rank had in these steps, in its program's unit", labels=LABELS)
    for each in totals:
        labels = [each.namespace, each.pod, each.job, str(each.rank), label(each.gpu), label(each.stage)]
        seconds.add_metric(labels, each.steps, each.seconds)
        if each.work is not None:
            work.add_metric(labels, each.work)
    yield seconds
    yield work
