"""Prometheus metrics of the operator. Gauges are computed at each scrape; each event is counted once, by the write that
causes it."""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobPod
from muster_operator.job.status_types import IPUJobStatus, LauncherStatus
from muster_operator.job.types import IPUJob
from muster_operator.job_metrics import CAUSES, FAULT_KINDS, count_life_events, running_ipu_s

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_WAITS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


class OperatorMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.created = Counter("muster_operator_jobs_created", "IPUJobs accepted", registry=r)
        self.succeeded = Counter("muster_operator_jobs_succeeded", "IPUJobs completed", registry=r)
        self.failed = Counter("muster_operator_jobs_failed", "IPUJobs failed", registry=r)
        self.restarts = Counter("muster_operator_job_restarts", "Restarts of IPUJobs, by cause", ["cause"], registry=r)
        self.moves = Counter(
            "muster_operator_job_moves", "Moves of IPUJobs away from bad hardware", ["fault"], registry=r
        )
        self.queued = Histogram(
            "muster_operator_job_queue_seconds",
            "Seconds from submission until all partitions of a job existed",
            buckets=_WAITS,
            registry=r,
        )
        self.first_running = Histogram(
            "muster_operator_job_first_running_seconds",
            "Seconds from submission until a job first ran",
            buckets=_WAITS,
            registry=r,
        )
        self.lost = Counter(
            "muster_operator_ipu_seconds_lost",
            "IPU-seconds of attempts that failed or moved, by cause",
            ["cause"],
            registry=r,
        )
        self.between = Counter(
            "muster_operator_ipu_seconds_between_attempts",
            "IPU-seconds from the end of an attempt until the next one runs",
            registry=r,
        )
        self._ran_ipu_s = 0.0
        self._counted_to: float | None = None  # seconds since the epoch; None: another replica leads
        self.reconcile = Histogram(
            "muster_operator_reconcile_seconds", "Duration of one reconciliation of a job", buckets=_BUCKETS, registry=r
        )
        self.reconcile_errors = Counter(
            "muster_operator_reconcile_errors", "Reconciliations of a job that failed", ["reason"], registry=r
        )
        self.conflicts = Counter(
            "muster_operator_conflicts", "Writes rejected because of a conflict (409) and planned again", registry=r
        )
        self.writes = Counter(
            "muster_operator_writes", "Writes that the API server accepted", ["verb", "kind"], registry=r
        )
        self.events = Counter("muster_operator_events", "Events on jobs, by outcome", ["outcome"], registry=r)
        self.proxy_calls = Counter("muster_operator_proxy_calls", "Calls of the V-IPU proxy", ["call"], registry=r)
        self.proxy_errors = Counter(
            "muster_operator_proxy_errors",
            "Calls of the V-IPU proxy that failed or were refused",
            ["call", "reason"],
            registry=r,
        )
        self.leader = Gauge("muster_operator_leader", "1 while this process leads", registry=r)
        for call in ("query", "take", "free", "controllers"):
            self.proxy_calls.labels(call)
        for cause in CAUSES:
            self.restarts.labels(cause)
            self.lost.labels(cause)
        for kind in FAULT_KINDS:
            self.moves.labels(kind)

    def leads(self, now: float | None) -> None:
        """This replica leads from ``now`` on, in seconds since the epoch; None: it no longer leads. The former leader
        counts what ran before."""
        self.leader.set(0 if now is None else 1)
        self._counted_to = now

    def proxy_called(self, call: str, outcome: str) -> None:
        self.proxy_calls.labels(call).inc()
        if outcome not in ("ok", "pending"):
            self.proxy_errors.labels(call, outcome).inc()

    def wrote(self, verb: str, kind: str) -> None:
        self.writes.labels(verb, kind).inc()

    def status_written(self, job: IPUJob, after: IPUJobStatus, pods: Iterable[JobPod] = (), now: float = 0.0) -> None:
        """Count the events of a successful status write. The write is conditional on the previous version, so each
        event counts once."""
        before = job.status
        found = count_life_events(job, after, pods, now, self._counted_to or now)
        if found.queued_s is not None:
            self.queued.observe(found.queued_s)
        if found.first_running_s is not None:
            self.first_running.observe(found.first_running_s)
        if found.restarted is not None:
            self.restarts.labels(found.restarted).inc(after.restart_count - before.restart_count)
        if found.moved is not None:
            self.moves.labels(found.moved).inc()
        if found.lost_ipu_s is not None:
            cause, seconds = found.lost_ipu_s
            self.lost.labels(cause).inc(seconds)
        self.between.inc(found.waited_ipu_s)
        self._ran_ipu_s += found.ran_ipu_s
        if _is(after, "Complete") and not _is(before, "Complete"):
            self.succeeded.inc()
        if _is(after, "Failed") and not _is(before, "Failed"):
            self.failed.inc()

    def watch(
        self,
        jobs: Callable[[], Iterable[IPUJob]],
        entries: Callable[[], Iterable[tuple[str, PartitionEntry]]],
        depth: Callable[[], int],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.registry.register(_JobCollector(jobs, entries, depth, lambda: self._ran(jobs(), now())))

    def _ran(self, jobs: Iterable[IPUJob], now: float) -> float:
        """Added up at each scrape. Only the time since the last scrape is lost when a job is deleted or this process
        ends, and nothing is counted twice."""
        if self._counted_to is not None and now > self._counted_to:
            self._ran_ipu_s += running_ipu_s(jobs, self._counted_to, now)
            self._counted_to = now
        return self._ran_ipu_s


class _JobCollector(Collector):
    def __init__(
        self,
        jobs: Callable[[], Iterable[IPUJob]],
        entries: Callable[[], Iterable[tuple[str, PartitionEntry]]],
        depth: Callable[[], int],
        ran_ipu_s: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._entries = entries
        self._depth = depth
        self._ran_ipu_s = ran_ipu_s

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        ran = "IPU-seconds used by running jobs"
        yield CounterMetricFamily("muster_operator_ipu_seconds_used", ran, value=self._ran_ipu_s())
        phases: Tally[str] = Tally(dict.fromkeys(get_args(LauncherStatus), 0))
        for job in self._jobs():
            phases[job.status.launcher_status] += 1
        family = GaugeMetricFamily("muster_operator_jobs", "IPUJobs by status", labels=("status",))
        for phase, number in phases.items():
            family.add_metric([phase], number)
        yield family
        ipus = partitions = 0
        for _, entry in self._entries():
            if entry.job:
                ipus += entry.size
                partitions += 1
        yield GaugeMetricFamily("muster_operator_ipus_used", "IPUs in partitions of jobs and pods", value=ipus)
        yield GaugeMetricFamily("muster_operator_partitions", "Partitions of jobs and pods", value=partitions)
        yield GaugeMetricFamily("muster_operator_queue_depth", "Jobs waiting for reconciliation", value=self._depth())


def _is(status: IPUJobStatus, kind: str) -> bool:
    return any(each.type == kind and each.status == "True" for each in status.conditions)
