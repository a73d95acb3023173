"""The agent's own metrics, in a registry of its own; what is known at scrape time is read then, not counted before."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from muster_checks.vocabulary import Finding, Verdict

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
REASONS_LIMIT = 200  # series of findings by reason; reasons come from log lines


class CheckReading(msgspec.Struct, frozen=True, kw_only=True):
    """One check at scrape time.

    counts:     what its stream has seen, by what became of it
    measured:   the findings of its last run, sound components included, with what was measured
    ran_at:     when that run began, seconds since the epoch; 0: it has not run
    duration_s: how long it took; period_s: how often it runs by itself, 0: it does not
    tallies:    runs since this process started, by what became of them: ``run``, ``timeout``, ``overrun`` (its next
                turn came before it was through), ``refused`` (busy), ``gave_way`` (called off for a job)
    due_since:  since when a heavy check waits for an idle node (epoch seconds); None: it is not due
    """

    name: str
    verdict: Verdict
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    number_given: int
    measured: Sequence[Finding] = ()
    ran_at: float = 0.0
    duration_s: float = 0.0
    period_s: float = 0.0
    tallies: Mapping[str, int] = msgspec.field(default_factory=dict)
    due_since: float | None = None


class Readings(Protocol):
    def checks(self) -> Sequence[CheckReading]: ...
    def unpublished_s(self) -> float: ...
    def accelerator(self) -> Mapping[str, str]: ...


class Metrics:
    """All of them. ``node``: the label that Autopilot's gauge carries."""

    def __init__(self, node: str, version: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._node = node
        self._readings: Readings | None = None
        self._latency = Histogram(
            "muster_agent_publish_seconds",
            "From noticing a change to the API server's answer to the PATCH that carries it",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._writes = Counter("muster_agent_publishes", "PATCHes of the own NodeHealth", registry=self.registry)
        self._failures = Counter(
            "muster_agent_publish_failures", "PATCHes that failed, by error", ["error"], registry=self.registry
        )
        self._refused = Gauge(
            "muster_agent_claim_refused", "1 while another agent holds this node", registry=self.registry
        )
        self._state_errors = Counter(
            "muster_agent_state_write_errors", "Times the state file could not be written", registry=self.registry
        )
        self._restarts = Counter(
            "muster_agent_stream_failures",
            "Times a stream check broke and was started anew",
            ["check"],
            registry=self.registry,
        )
        info = Gauge("muster_agent_info", "The running version", ["version"], registry=self.registry)
        info.labels(version).set(1)
        self.registry.register(_AtScrape(self))

    def bind(self, readings: Readings) -> None:
        """Where to read at scrape time."""
        self._readings = readings

    def published(self, latency_s: float | None) -> None:
        self._writes.inc()
        if latency_s is not None:
            self._latency.observe(latency_s)

    def publish_failed(self, error: str) -> None:
        self._failures.labels(error).inc()

    def refused(self, refused: bool) -> None:
        self._refused.set(1 if refused else 0)

    def state_write_failed(self) -> None:
        self._state_errors.inc()

    def stream_failed(self, check: str) -> None:
        self._restarts.labels(check).inc()

    def read(self) -> Iterator[Metric]:
        """The families that mirror the present."""
        if self._readings is None:
            return
        verdicts = GaugeMetricFamily(
            "muster_agent_check_verdict", "1 for the verdict a check has now", labels=["check", "verdict"]
        )
        findings = GaugeMetricFamily("muster_agent_findings", "Open findings", labels=["check", "verdict", "reason"])
        occurrences = CounterMetricFamily("muster_agent_occurrences", "Firings numbered so far", labels=["check"])
        lines = CounterMetricFamily(
            "muster_agent_stream_records", "Records a stream has seen, by what became of them", labels=["check", "kind"]
        )
        autopilot = GaugeMetricFamily(
            "autopilot_health_checks",
            "Autopilot's gauge: 0 good, 1 bad (GB/s for pciebw)",
            labels=["health", "node", "cpumodel", "gpumodel", "deviceid"],
        )
        hardware = self._readings.accelerator()
        for check in self._readings.checks():
            for verdict in Verdict:
                verdicts.add_metric([check.name, verdict.value], 1.0 if verdict is check.verdict else 0.0)
            for (worded, reason), number in sorted(_by_reason(check.findings).items()):
                findings.add_metric([check.name, worded, reason], number)
            occurrences.add_metric([check.name], check.number_given)
            for kind, number in check.counts.items():
                lines.add_metric([check.name, kind], number)
            labels = [check.name, self._node, hardware.get("cpumodel", ""), hardware.get("gpumodel", ""), ""]
            autopilot.add_metric(labels, 1.0 if check.verdict is Verdict.FAIL else 0.0)
        yield from (verdicts, findings, occurrences, lines, autopilot)
        yield GaugeMetricFamily(
            "muster_agent_unpublished_seconds",
            "Age of the oldest change that the NodeHealth does not hold",
            value=self._readings.unpublished_s(),
        )


class _AtScrape(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.read()


def _by_reason(findings: Sequence[Finding]) -> dict[tuple[str, str], int]:
    numbers: dict[tuple[str, str], int] = {}
    for finding in findings:
        key = (finding.verdict.value, finding.reason)
        if key not in numbers and len(numbers) >= REASONS_LIMIT:
            key = (finding.verdict.value, "other")
        numbers[key] = numbers.get(key, 0) + 1
    return numbers
