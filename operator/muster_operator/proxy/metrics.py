"""What the proxy counts. V-IPU is not asked for a scrape: IPUs are as they were at the last change or /stats."""

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
            "IPUs that jobs use, and that were available at the last change or /stats",
            ["state"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "muster_vipu_proxy_vipu_seconds",
            "How long V-IPU took to answer",
            ["call"],
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.errors = Counter(
            "muster_vipu_proxy_vipu_errors",
            "Calls that V-IPU did not answer (unreachable) or said no to (refused)",
            ["call", "kind"],
            registry=self.registry,
        )
        self.intents = Counter(
            "muster_vipu_proxy_intents",
            "What was written into the tracker before V-IPU was asked",
            ["intent"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "muster_vipu_proxy_refusals", "Wishes that were refused", ["why"], registry=self.registry
        )
        self.vanished = Counter(
            "muster_vipu_proxy_vanished",
            "Active partitions that V-IPU did not have any more",
            registry=self.registry,
        )
        self.writes = Counter("muster_vipu_proxy_tracker_writes", "Writes of the tracker", registry=self.registry)
        self.conflicts = Counter(
            "muster_vipu_proxy_tracker_conflicts",
            "Writes that met another's and were decided anew",
            registry=self.registry,
        )
        self.unreadable = Gauge(
            "muster_vipu_proxy_tracker_unreadable", "Entries that somebody made unreadable", registry=self.registry
        )
        self.quarantined = Gauge(
            "muster_vipu_proxy_quarantined_ipus", "IPUs that are kept out of new partitions", registry=self.registry
        )
        self.controllers = Gauge(
            "muster_vipu_proxy_controllers", "V-IPU controllers in the list, good and bad entries", ["entries"],
            registry=self.registry,
        )  # fmt: skip
        for state in ("creating", "active", "deleting", "parked"):
            self.partitions.labels(state)
        for intent in ("create", "reset", "delete", "park"):
            self.intents.labels(intent)

    def count_entries(self, entries: Mapping[str, PartitionEntry]) -> None:
        """Partitions by state, and the IPUs of jobs."""
        states = dict.fromkeys(("creating", "active", "deleting", "parked"), 0)
        used = 0
        for name, entry in entries.items():
            parked = is_parked(name)
            states["parked" if parked else entry.state] += 1
            used += 0 if parked else entry.size
        for state, number in states.items():
            self.partitions.labels(state).set(number)
        self.ipus.labels("used").set(used)
