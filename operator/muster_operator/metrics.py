"""What the operator tells Prometheus. What there is, is counted when asked for; events are counted once, by the write
that makes them so."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster_operator.ipujob import IPUJob, LauncherStatus, Status
from muster_operator.partitions import Entry

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.created = Counter("muster_operator_jobs_created", "IPUJobs taken on", registry=r)
        self.succeeded = Counter("muster_operator_jobs_succeeded", "IPUJobs that were completed", registry=r)
        self.failed = Counter("muster_operator_jobs_failed", "IPUJobs that failed", registry=r)
        self.restarts = Counter("muster_operator_job_restarts", "Restarts of IPUJobs", registry=r)
        self.reconcile = Histogram(
            "muster_operator_reconcile_seconds", "Time of one look at a job", buckets=_BUCKETS, registry=r
        )
        self.reconcile_errors = Counter(
            "muster_operator_reconcile_errors", "Looks at a job that were broken off", ["reason"], registry=r
        )
        self.conflicts = Counter("muster_operator_conflicts", "Writes that were decided again (409)", registry=r)
        self.writes = Counter("muster_operator_writes", "Writes the API server took", ["verb", "kind"], registry=r)
        self.events = Counter("muster_operator_events", "Events on jobs, by what came of them", ["outcome"], registry=r)
        self.proxy_calls = Counter("muster_operator_proxy_calls", "Calls of the V-IPU proxy", ["call"], registry=r)
        self.proxy_errors = Counter(
            "muster_operator_proxy_errors", "Calls of the V-IPU proxy that were refused", ["call", "reason"], registry=r
        )
        self.leader = Gauge("muster_operator_leader", "1 while this process leads", registry=r)
        for call in ("query", "take", "free"):
            self.proxy_calls.labels(call)

    def proxy_called(self, call: str, outcome: str) -> None:
        self.proxy_calls.labels(call).inc()
        if outcome not in ("ok", "pending"):
            self.proxy_errors.labels(call, outcome).inc()

    def wrote(self, verb: str, kind: str) -> None:
        self.writes.labels(verb, kind).inc()

    def status_written(self, before: Status, after: Status) -> None:
        """A status of a job, after the write that was taken: conditional on the version before it, so once an event."""
        if _is(after, "Complete") and not _is(before, "Complete"):
            self.succeeded.inc()
        if _is(after, "Failed") and not _is(before, "Failed"):
            self.failed.inc()
        self.restarts.inc(max(0, after.restart_count - before.restart_count))

    def watch(
        self,
        jobs: Callable[[], Iterable[IPUJob]],
        entries: Callable[[], Iterable[tuple[str, Entry]]],
        depth: Callable[[], int],
    ) -> None:
        self.registry.register(_Store(jobs, entries, depth))


class _Store(Collector):
    def __init__(
        self,
        jobs: Callable[[], Iterable[IPUJob]],
        entries: Callable[[], Iterable[tuple[str, Entry]]],
        depth: Callable[[], int],
    ) -> None:
        self._jobs = jobs
        self._entries = entries
        self._depth = depth

    def collect(self) -> Iterator[GaugeMetricFamily]:
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
        yield GaugeMetricFamily("muster_operator_ipus_used", "IPUs in partitions of jobs", value=ipus)
        yield GaugeMetricFamily("muster_operator_partitions", "Partitions of jobs", value=partitions)
        yield GaugeMetricFamily("muster_operator_queue_depth", "Jobs waiting to be looked at", value=self._depth())


def _is(status: Status, kind: str) -> bool:
    return any(each.type == kind and each.status == "True" for each in status.conditions)
