"""The agent's metrics, in their own registry. Most are read from the agent's state at scrape time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from muster_agent.idle.occupancy import Occupancy
from muster_agent.metrics import autopilot_gauge
from muster_agent.metrics import measurements as measured
from muster_agent.metrics.step_times import step_times_families
from muster_checks.base.declaration import StepTotals
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
FAULTS_LIMIT = 100  # series of findings that are FAIL
NO_CLASS = "none"  # of a finding that asks for nothing: an empty label would be none at all
REASONS_LIMIT = 200  # series of findings by reason, all checks together; reasons come from log lines

_TALLIES = {
    "run": ("runs", "Runs, periodic or requested"),
    "timeout": ("timeouts", "Runs ended by the check's timeout"),
    "overrun": ("overruns", "Periodic runs skipped because the previous run had not ended"),
    "refused": ("refused", "Heavy runs refused because the node was busy"),
    "gave_way": ("gave_way", "Heavy runs cancelled because work started on the node"),
}


class CheckReading(msgspec.Struct, frozen=True, kw_only=True):
    """One check at scrape time.

    counts:     records of its stream, by outcome
    measured:   findings of its last run with measurements, including those that are PASS
    ran_at:     start of that run, seconds since the epoch; 0: it has not run
    duration_s: duration of that run
    period_s:   interval between periodic runs; 0: none
    tallies:    runs since the process started, by outcome: ``run``, ``timeout``, ``overrun`` (skipped because the
                previous run had not ended), ``refused`` (busy), ``gave_way`` (cancelled for a job)
    due_since:  since when a heavy check has been waiting for an idle node (epoch seconds); None: it is not due
    known:      it has a verdict: it has run, or has open findings
    step_times: what jobs have reported about their training steps, by its stream
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
    known: bool = True
    step_times: Sequence[StepTotals] = ()


class MetricsSource(Protocol):
    def checks(self) -> Sequence[CheckReading]: ...
    def unpublished_s(self) -> float: ...
    def accelerator(self) -> Mapping[str, str]: ...


class AgentMetrics:
    """All metrics of the agent; docs/metrics.md documents them.

    node: value of the label of Autopilot's gauge
    wall: clock, seconds since the epoch
    """

    def __init__(self, node: str, version: str, *, wall: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._node = node
        self._wall = wall
        self._readings: MetricsSource | None = None
        self._occupancy: Occupancy | None = None
        self._detection = Histogram(
            "muster_agent_detect_seconds",
            "Time from the timestamp of a log line to its finding",
            ["check"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._latency = Histogram(
            "muster_agent_publish_seconds",
            "Time from the detection of a change to the API server's answer to its PATCH",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._writes = Counter(
            "muster_agent_publishes", "PATCH requests for the node's NodeHealth", registry=self.registry
        )
        self._failures = Counter(
            "muster_agent_publish_failures", "Failed PATCH requests, by error", ["error"], registry=self.registry
        )
        self._refused = Gauge(
            "muster_agent_claim_refused", "1 while another agent holds this node, else 0", registry=self.registry
        )
        self._state_errors = Counter(
            "muster_agent_state_write_errors", "Failed writes of the state file", registry=self.registry
        )
        self._restarts = Counter(
            "muster_agent_stream_failures",
            "Failures of a stream check, after each of which it restarts",
            ["check"],
            registry=self.registry,
        )
        self._wrong_keys = Counter(
            "muster_agent_wrong_keys",
            "Connections with other agents that did not have the key in their NodeHealth: to them, or from them",
            ["direction"],
            registry=self.registry,
        )
        for direction in ("to", "from"):
            self._wrong_keys.labels(direction)
        info = Gauge("muster_agent_info", "Version of the agent", ["version"], registry=self.registry)
        info.labels(version).set(1)
        self.registry.register(_AtScrape(self))

    def bind(self, readings: MetricsSource, occupancy: Occupancy | None = None) -> None:
        """Set the sources that are read at scrape time."""
        self._readings = readings
        self._occupancy = occupancy

    def record_detection(self, check: str, latency_s: float) -> None:
        """A negative latency, after a change of the wall clock, counts as 0."""
        self._detection.labels(check).observe(max(0.0, latency_s))

    def record_publish(self, latency_s: float | None) -> None:
        self._writes.inc()
        if latency_s is not None:
            self._latency.observe(latency_s)

    def record_publish_failure(self, error: str) -> None:
        self._failures.labels(error).inc()

    def set_claim_refused(self, refused: bool) -> None:
        self._refused.set(1 if refused else 0)

    def record_wrong_key(self, direction: str) -> None:
        """direction: ``to`` or ``from`` the other agent."""
        self._wrong_keys.labels(direction).inc()

    def record_state_write_failure(self) -> None:
        self._state_errors.inc()

    def record_stream_failure(self, check: str) -> None:
        self._restarts.labels(check).inc()

    def read(self) -> Iterator[Metric]:
        """The families that mirror the present."""
        if self._readings is None:
            return
        checks = self._readings.checks()
        known = [check for check in checks if check.known]
        yield from _verdicts(known)
        yield _findings(known)
        yield _faults(known)
        yield from self._runs(checks)
        by_check = {
            check.name: measured.measured_components(check.name, (*check.measured, *check.findings)) for check in known
        }
        yield from step_times_families(total for check in checks for total in check.step_times)
        yield from measured.measurement_families(component for each in by_check.values() for component in each)
        judged = ((check.name, check.verdict, by_check[check.name]) for check in known)
        yield autopilot_gauge.autopilot_family(judged, self._node, self._readings.accelerator())
        yield GaugeMetricFamily(
            "muster_agent_unpublished_seconds",
            "Age of the oldest change that the NodeHealth does not hold",
            value=self._readings.unpublished_s(),
        )
        if self._occupancy is not None:
            yield GaugeMetricFamily(
                "muster_agent_idle",
                "1 while no work is on the node's accelerators; 0 also while that cannot be told",
                value=0.0 if self._occupancy.idle_since is None else 1.0,
            )

    def _runs(self, checks: Sequence[CheckReading]) -> Iterator[Metric]:
        now = self._wall()
        age = GaugeMetricFamily(
            "muster_agent_check_age_seconds", "Time since the start of the last run", labels=["check"]
        )
        duration = GaugeMetricFamily(
            "muster_agent_check_duration_seconds", "Duration of the last run", labels=["check"]
        )
        period = GaugeMetricFamily(
            "muster_agent_check_period_seconds", "Interval between periodic runs", labels=["check"]
        )
        due = GaugeMetricFamily(
            "muster_agent_check_due_seconds", "How long a due check has been waiting for an idle node", labels=["check"]
        )
        for check in checks:
            if check.ran_at:
                age.add_metric([check.name], max(0.0, now - check.ran_at))
                duration.add_metric([check.name], check.duration_s)
            if check.period_s:
                period.add_metric([check.name], check.period_s)
            if check.period_s or check.due_since is not None:
                waited_s = 0.0 if check.due_since is None else max(0.0, now - check.due_since)
                due.add_metric([check.name], waited_s)
        yield from (age, duration, period, due)
        for tally, (name, text) in _TALLIES.items():
            family = CounterMetricFamily(f"muster_agent_check_{name}", text, labels=["check"])
            for check in checks:
                family.add_metric([check.name], check.tallies.get(tally, 0))
            yield family


def _verdicts(checks: Sequence[CheckReading]) -> Iterator[Metric]:
    verdicts = GaugeMetricFamily(
        "muster_agent_check_verdict",
        "1 for the current verdict of a check, 0 for the others",
        labels=["check", "verdict"],
    )
    occurrences = CounterMetricFamily("muster_agent_occurrences", "Occurrences of findings so far", labels=["check"])
    records = CounterMetricFamily(
        "muster_agent_stream_records", "Records read by a stream, by outcome", labels=["check", "kind"]
    )
    for check in checks:
        for verdict in Verdict:
            verdicts.add_metric([check.name, verdict.value], 1.0 if verdict is check.verdict else 0.0)
        occurrences.add_metric([check.name], check.number_given)
        for kind, number in check.counts.items():
            records.add_metric([check.name, kind], number)
    yield from (verdicts, occurrences, records)


def _findings(checks: Sequence[CheckReading]) -> Metric:
    """Open findings by reason; reasons beyond the limit count as ``other`` of their check and verdict."""
    numbers: dict[tuple[str, str, str], int] = {}
    for check in checks:
        for finding in check.findings:
            key = (check.name, finding.verdict.value, measured.label(finding.reason))
            if key not in numbers and len(numbers) >= REASONS_LIMIT:
                key = (check.name, finding.verdict.value, "other")
            numbers[key] = numbers.get(key, 0) + 1
    family = GaugeMetricFamily("muster_agent_findings", "Open findings", labels=["check", "verdict", "reason"])
    for key, number in sorted(numbers.items()):
        family.add_metric(list(key), number)
    return family


def _faults(checks: Sequence[CheckReading]) -> Metric:
    """The findings that are FAIL, each with the class of repair that it asks for: what a fault history needs."""
    found = {
        (check.name, measured.label(finding.component), measured.label(finding.reason), finding.fault_class or NO_CLASS)
        for check in checks
        for finding in check.findings
        if finding.verdict is Verdict.FAIL
    }
    family = GaugeMetricFamily(
        "muster_agent_fault", "1 while a finding is FAIL", labels=["check", "component", "reason", "class"]
    )
    # those that ask for a repair of hardware first
    for key in sorted(found, key=lambda key: (key[-1] in (NO_CLASS, FaultClass.RESTART_APP), key))[:FAULTS_LIMIT]:
        family.add_metric([str(each) for each in key], 1.0)
    return family


class _AtScrape(Collector):
    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.read()
