"""The tainter's Prometheus metrics. Faults and taints are counted at scrape time, from the store."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster_kube.api.objects import Node
from muster_tainter.budgets.incidents import Incident
from muster_tainter.budgets.pool_usage import BudgetUsage
from muster_tainter.faults.messages import format_taint, withheld_reason
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.spares.plan import GroupState

_CHECKS_LIMIT = 64
_BUDGETS_LIMIT = 200  # rows
HOP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


@dataclass(frozen=True)
class PlanFigures:
    """The fleet's plan of heavy checks. running, waiting: nodes by check; oldest_s: the longest wait of each check

    cap: nodes that may run one at a time; beyond: nodes not tested within the coverage; short: those of them that are
    idle and have no slot
    """

    running: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    oldest_s: Mapping[str, float] = field(default_factory=dict)
    cap: int = 0
    beyond: int = 0
    short: int = 0


class TainterMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.transitions = Counter(
            "muster_tainter_fault_transitions", "Faults opened, raised, over and closed", ["step", "check"], registry=r
        )
        self.taint_changes = Counter("muster_tainter_taint_changes", "Taints set and removed", ["what"], registry=r)
        self.hop = Histogram(
            "muster_tainter_hop_seconds",
            "Time of each hop from the first sign to the taint",
            ["hop"],
            buckets=HOP_BUCKETS,
            registry=r,
        )
        self.writes = Counter("muster_tainter_writes", "Writes that succeeded", ["what"], registry=r)
        self.write_errors = Counter("muster_tainter_write_errors", "Writes that failed", ["what", "reason"], registry=r)
        self.events_dropped = Counter(
            "muster_tainter_events_dropped", "Events about findings of a node that has too many", registry=r
        )
        self.conflicts = Counter("muster_tainter_conflicts", "Node writes repeated after a conflict (409)", registry=r)
        self.put_back = Counter("muster_tainter_taints_put_back", "Taints set again after others dropped", registry=r)
        self.unusable = Counter("muster_tainter_healths_unusable", "Invalid NodeHealths received", registry=r)
        self.leader = Gauge("muster_tainter_leader", "1 while this process leads, or decides in a dry run", registry=r)
        self.dry_run = Gauge("muster_tainter_dry_run", "1 in a dry run, which writes nothing to nodes", registry=r)
        self.policy_good = Gauge("muster_tainter_policy_good", "0 while the policy file is invalid", registry=r)
        self.policy_reloads = Counter("muster_tainter_policy_reloads", "Reloads of the policy", ["result"], registry=r)
        self.plan_conflicts = Counter(
            "muster_tainter_plan_conflicts", "Requests repeated after a conflict (409)", registry=r
        )
        self.tests_asked = Counter("muster_tainter_tests_asked", "Heavy checks requested", ["check"], registry=r)
        self.tests_answered = Counter(
            "muster_tainter_tests_answered",
            "Results of requested heavy checks; verdict none: the agent never answered",
            ["check", "verdict"],
            registry=r,
        )
        self._by_check = {
            "running": Gauge("muster_tainter_tests_running", "Nodes that run a planned check", ["check"], registry=r),
            "waiting": Gauge(
                "muster_tainter_tests_waiting", "Nodes where the check is due, idle or not", ["check"], registry=r
            ),
            "oldest": Gauge(
                "muster_tainter_tests_oldest_wait_seconds",
                "Longest wait of a node: time since the check last measured something there, or since the node joined",
                ["check"],
                registry=r,
            ),
        }
        self.tests_cap = Gauge("muster_tainter_tests_cap", "Nodes that may test at the same time", registry=r)
        self.tests_beyond = Gauge(
            "muster_tainter_tests_beyond_coverage", "Nodes not tested within the policy's coverage", registry=r
        )
        self.tests_short = Gauge(
            "muster_tainter_tests_short_of_places", "Idle nodes among those without a free slot", registry=r
        )
        self._checks: set[str] = set()
        self.policy_good.set(1)
        for hop in ("seen_to_observed", "observed_to_delivered", "delivered_to_patched"):
            self.hop.labels(hop)

    def bounded(self, check: str) -> str:
        """``check`` as a label value: agents name their checks, so the number of series must be limited."""
        if check in self._checks or len(self._checks) < _CHECKS_LIMIT:
            self._checks.add(check)
            return check
        return "other"

    def set_plan(self, plan: PlanFigures) -> None:
        for name, values in (("running", plan.running), ("waiting", plan.waiting), ("oldest", plan.oldest_s)):
            gauge = self._by_check[name]
            gauge.clear()
            for check, value in sorted(values.items()):
                child = gauge.labels(self.bounded(check))
                child.set(max(0.0, value))
        self.tests_cap.set(plan.cap)
        self.tests_beyond.set(plan.beyond)
        self.tests_short.set(plan.short)

    def watch_store(self, nodes: Callable[[], Iterable[Node]], depths: Callable[[], dict[str, int]]) -> None:
        self.registry.register(_Store(nodes, depths))

    def watch_budgets(
        self, usage: Callable[[], Iterable[BudgetUsage]], incidents: Callable[[], Iterable[Incident]]
    ) -> None:
        self.registry.register(_Budgets(usage, incidents))

    def watch_spares(self, groups: Callable[[], Iterable[GroupState]]) -> None:
        self.registry.register(_Spares(groups))


class _Store(Collector):
    def __init__(self, nodes: Callable[[], Iterable[Node]], depths: Callable[[], dict[str, int]]) -> None:
        self._nodes = nodes
        self._depths = depths

    def collect(self) -> Iterator[GaugeMetricFamily]:
        faults: Tally[tuple[str, ...]] = Tally()
        taints: Tally[str] = Tally()
        health: Tally[str] = Tally()
        held: Tally[str] = Tally({"budget": 0, "paused": 0})
        for node in self._nodes():
            health[node.metadata.labels.get("muster.dev/health", "none")] += 1
            if not node.metadata.annotations:
                continue
            memory = read_record(node)
            for fault in memory.open:
                faults[fault.rule, fault.fault_class] += fault.rest or 1
            for taint in memory.ours:
                taints[format_taint(taint)] += 1
            why = withheld_reason(node) if memory.open else ""
            if why:
                held["budget" if why.startswith("budget") else "paused"] += 1
        yield _family("muster_tainter_faults_open", "Open faults", ("rule", "class"), faults.items())
        yield _family("muster_tainter_taints", "Taints of Muster on nodes", ("taint",), _single(taints))
        yield _family(
            "muster_tainter_nodes_withheld",
            "Nodes with a fault whose taint is withheld, by cause",
            ("why",),
            _single(held),
        )
        yield _family("muster_tainter_nodes", "Nodes by health", ("health",), _single(health))
        yield _family("muster_tainter_queue_depth", "Keys waiting in each queue", ("queue",), _single(self._depths()))


class _Budgets(Collector):
    """A failure domain has series only while it is full or nodes wait there: a fleet has up to a thousand domains."""

    def __init__(self, usage: Callable[[], Iterable[BudgetUsage]], incidents: Callable[[], Iterable[Incident]]) -> None:
        self._usage = usage
        self._incidents = incidents

    def collect(self) -> Iterator[GaugeMetricFamily]:
        shown = [row for row in self._usage() if not row.domain or row.waiting or row.left == 0][:_BUDGETS_LIMIT]
        labels = ("pool", "domain", "budget")
        keys = [(row.pool, row.domain, row.what) for row in shown]
        yield _family(
            "muster_tainter_budget_used",
            "Nodes that count against a budget: tainted ones, or (healthyPerDomain) healthy ones",
            labels,
            zip(keys, (row.used for row in shown), strict=True),
        )
        limits = [(key, row.limit) for key, row in zip(keys, shown, strict=True) if row.limit is not None]
        yield _family("muster_tainter_budget_limit", "The policy's limit", labels, limits)
        left = [(key, row.left) for key, row in zip(keys, shown, strict=True) if row.left is not None]
        yield _family("muster_tainter_budget_left", "How many more nodes may be tainted", labels, left)
        sizes: Tally[str] = Tally()
        for incident in self._incidents():
            sizes[incident.check if len(sizes) < _CHECKS_LIMIT or incident.check in sizes else "other"] += 1
        yield _family("muster_tainter_incidents", "Current incidents, by check", ("check",), _single(sizes))


class _Spares(Collector):
    def __init__(self, groups: Callable[[], Iterable[GroupState]]) -> None:
        self._groups = groups

    def collect(self) -> Iterator[GaugeMetricFamily]:
        shown = list(self._groups())[:_BUDGETS_LIMIT]
        keys = [(each.pool, each.domain) for each in shown]
        yield _family(
            "muster_tainter_spares",
            "Spares of a pool, or of its failure domain, by state",
            ("pool", "domain", "state"),
            [
                ((*key, state), number)
                for key, each in zip(keys, shown, strict=True)
                for state, number in (
                    ("ready", each.plan.ready),
                    ("not_ready", each.plan.spares - each.plan.ready),
                )
            ],
        )
        yield _family(
            "muster_tainter_spares_wanted",
            "Spares that the policy wants while no node has a fault",
            ("pool", "domain"),
            zip(keys, (each.plan.asked for each in shown), strict=True),
        )


def _single(values: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((key,), value) for key, value in values.items())


def _family(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], int]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(list(key), value)
    return family
