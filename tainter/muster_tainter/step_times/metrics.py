"""Metrics of step times."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from muster_tainter.step_times.job_verdict import VERDICTS

LEFT_OUT, TOO_LARGE, FAILED = "left_out", "too_large", "failed"
"""Instead of a verdict: beyond the policy's number of jobs or the window's time; more series than can be read; the
child process ended early."""


class StepTimesMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge(
            "muster_tainter_step_time_jobs", "Jobs with step times, by verdict in the last window", ["verdict"],
            registry=registry,
        )  # fmt: skip
        self.cpu = Counter(
            "muster_tainter_step_time_cpu_seconds", "CPU time of the processes that judge jobs", registry=registry
        )
        self.evictions = Counter(
            "muster_tainter_straggler_evictions", "Evictions of slow pods, by result", ["result"], registry=registry
        )

    def set_jobs(self, verdicts: Mapping[str, int]) -> None:
        for verdict in (*VERDICTS, LEFT_OUT, TOO_LARGE, FAILED):
            self._jobs.labels(verdict).set(verdicts.get(verdict, 0))
