"""Metrics of pod outcomes. Whether the watch is up is a source's metric."""

from prometheus_client import CollectorRegistry, Counter

from muster_tainter.outcomes.kinds import KINDS


class OutcomeMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Counter(
            "muster_tainter_outcomes_pods",
            "Pods that were counted, by result: succeeded, failed, unrelated (their end says nothing about the node)",
            ["result"],
            registry=registry,
        )
        self.failures = Counter(
            "muster_tainter_outcomes_failures", "Pods that failed, by kind of failure", ["kind"], registry=registry
        )
        self.proven = Counter(
            "muster_tainter_outcomes_proven", "Times that evidence about a node was proven", ["kind"], registry=registry
        )
        for kind in KINDS:  # so that the first failure of a kind is a rise
            self.failures.labels(kind.name)
            self.proven.labels(kind.name)
        self.dropped = Counter(
            "muster_tainter_outcomes_dropped",
            "Pods that did not count, by reason: full (too many at once), homeless (no Node of that name)",
            ["why"],
            registry=registry,
        )
