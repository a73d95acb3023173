"""Step times of jobs, from the logs of their pods, in the form that the tainter reads from Prometheus.

The labels ``namespace`` and ``pod`` are those of the job's pod, by the kubelet. The others are the program's word.
"""

from collections.abc import Iterable

from prometheus_client.core import SummaryMetricFamily

from muster_agent.metrics.measurements import label
from muster_checks.base.declaration import StepTotals

NAME = "muster_step_seconds"  # as sources.stepTimes.metric of the policy
LABELS = ("namespace", "pod", "job_name", "rank", "gpu", "stage")


def step_times_family(totals: Iterable[StepTotals]) -> SummaryMetricFamily:
    family = SummaryMetricFamily(NAME, "A rank's own work in training steps, as its program prints it", labels=LABELS)
    for each in totals:
        labels = [each.namespace, each.pod, each.job, str(each.rank), label(each.gpu), label(each.stage)]
        family.add_metric(labels, each.steps, each.seconds)
    return family
