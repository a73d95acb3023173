"""Metrics of the proxy. A scrape does not call V-IPU: IPUs are as of the last change or /stats."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from muster_operator.job.names import is_parked
from muster_operator.job.partition_api import PartitionEntry

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ProxyMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.partitions = Gauge(
            "muster_vipu_proxy_partitions",
            "Partitions in the tracker, by state; parked ones hold quarantined IPUs",
            ["state"],
            registry=self.registry,
        )
        self.ipus = Gauge(
            "muster_vipu_proxy_ipus",
            "IPUs that jobs use, and IPUs available at the last change or /stats",
            ["state"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "muster_vipu_proxy_vipu_seconds",
            "Duration of calls to V-IPU",
            ["call"],
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.errors = Counter(
            "muster_vipu_proxy_vipu_errors",
            "Calls that V-IPU did not answer (unreachable) or rejected (refused)",
            ["call", "kind"],
            registry=self.registry,
        )
        self.intents = Counter(
            "muster_vipu_proxy_intents",
            "Intents written to the tracker before a call to V-IPU",
            ["intent"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "muster_vipu_proxy_refusals", "Requests for partitions that were refused", ["why"], registry=self.registry
        )
        self.vanished = Counter(
            "muster_vipu_proxy_vanished",
            "Active partitions that were missing in V-IPU",
            registry=self.registry,
        )
        self.writes = Counter("muster_vipu_proxy_tracker_writes", "Writes of the tracker", registry=self.registry)
        self.conflicts = Counter(
            "muster_vipu_proxy_tracker_conflicts",
            "Writes of the tracker that conflicted and were repeated",
            registry=self.registry,
        )
        self.unreadable = Gauge(
            "muster_vipu_proxy_tracker_unreadable", "Tracker entries that cannot be decoded", registry=self.registry
        )
        self.quarantined = Gauge(
            "muster_vipu_proxy_quarantined_ipus",
            "Quarantined IPUs, which new partitions must not use",
            registry=self.registry,
        )
        self.controllers = Gauge(
            "muster_vipu_proxy_controllers", "Entries in the list of V-IPU controllers, valid and invalid", ["entries"],
            registry=self.registry,
        )  # fmt: skip
        for state in ("creating", "active", "deleting", "parked"):
            self.partitions.labels(state)
        for intent in ("create", "reset", "delete", "park"):
            self.intents.labels(intent)

    def count_entries(self, entries: Mapping[str, PartitionEntry]) -> None:
        """Partitions by state, and IPUs of jobs."""
        states = dict.fromkeys(("creating", "active", "deleting", "parked"), 0)
        used = 0
        for name, entry in entries.items():
            parked = is_parked(name)
            states["parked" if parked else entry.state] += 1
            used += 0 if parked else entry.size
        for state, number in states.items():
            self.partitions.labels(state).set(number)
        self.ipus.labels("used").set(used)
