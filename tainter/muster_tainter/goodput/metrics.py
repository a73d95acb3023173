"""Metrics of the ledger: what this process has booked since it leads. Other replicas export none."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from muster_tainter.goodput.books import Figure, split_account
from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.ledger import Ledger

_FIGURES = {
    Figure.NODES: ("muster_goodput_node_seconds", "Time of nodes with accelerators"),
    Figure.JOBS: ("muster_goodput_job_seconds", "Kept work of jobs: time in which at least one of their pods ran"),
    Figure.OUTAGES: ("muster_goodput_outages", "Outages of nodes that began: a node is out while a fault is open"),
    Figure.ENDED: ("muster_goodput_outages_ended", "Outages of nodes that ended"),
    Figure.OUT: ("muster_goodput_outage_seconds", "Time of the outages that ended"),
}
_PLACE = ("pool", "model")


class GoodputMetrics(Collector):
    """ledger, saved_at, unobserved: set while this process keeps the books; seconds since the epoch, seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ledger: Ledger | None = None
        self.saved_at = 0.0
        self.unobserved_s = 0.0
        self.failed_saves = 0
        registry.register(self)

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """For the registry and the reference page: without values, even if no ledger is kept."""
        yield from self._families(None)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        if self.ledger is not None:
            yield from self._families(self.ledger)

    def _families(self, ledger: Ledger | None) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        seconds = CounterMetricFamily(
            "muster_goodput_accelerator_seconds",
            "Booked time of accelerators, by cause. of: work (a pod held them) or node (none did). via: peer if only "
            "another pod of the owner shows the cause",
            labels=(*_PLACE, "of", "cause", "via"),
        )
        teams = CounterMetricFamily(
            "muster_goodput_team_accelerator_seconds",
            "Booked time of accelerators that pods held, by team",
            labels=("team", "cause"),
        )
        interruptions = CounterMetricFamily(
            "muster_goodput_interruptions", "Interruptions of jobs, by cause", labels=(*_PLACE, "cause")
        )
        figures = {name: CounterMetricFamily(*text, labels=_PLACE) for name, text in _FIGURES.items()}
        if ledger is not None:
            books = ledger.books
            for (place, name), value in sorted(books.by_place.items()):
                where = (books.places[place].pool, books.places[place].model)
                parts = split_account(name)
                if parts is not None:
                    side, cause, peer = parts
                    seconds.add_metric((*where, side, cause, "peer" if peer else ""), value)
                elif name in figures:
                    figures[name].add_metric(where, value)
                elif name.startswith(Figure.INTERRUPTIONS):
                    interruptions.add_metric((*where, name.removeprefix(Figure.INTERRUPTIONS)), value)
            for key, booked in sorted(_by_team(ledger).items()):
                teams.add_metric(key, booked)
        yield from (seconds, teams, interruptions, *figures.values())
        yield from self._gauges(ledger)

    def _gauges(self, ledger: Ledger | None) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        gauges: tuple[tuple[str, str, Callable[[Ledger], float]], ...] = (
            (
                "muster_goodput_at_risk_accelerator_seconds",
                "Time that pods hold accelerators and that is not booked yet: work since the last checkpoint, starts, "
                "and the last minutes",
                lambda each: sum(each.risk.values()),
            ),
            ("muster_goodput_accelerators", "Accelerators of the nodes", lambda each: each.nodes.accelerators()),
            ("muster_goodput_pods", "Runs of pods with accelerators that are not booked yet", lambda e: len(e.pods)),
            (
                "muster_goodput_saved_timestamp_seconds",
                "When the books were last written to the ConfigMap muster-goodput",
                lambda _: self.saved_at,
            ),
        )
        for name, text, value in gauges:
            family = GaugeMetricFamily(name, text)
            if ledger is not None:
                family.add_metric((), value(ledger))
            yield family
        counters = (
            ("muster_goodput_unobserved_seconds", "Time without a leader before this one", self.unobserved_s),
            ("muster_goodput_failed_saves", "Failed writes of the ConfigMap muster-goodput", self.failed_saves),
            (
                "muster_goodput_uncounted_pods",
                "Pods with accelerators beyond the limit, which are not booked",
                0 if ledger is None else ledger.pods.dropped,
            ),
        )
        for name, text, number in counters:
            counter = CounterMetricFamily(name, text)
            if ledger is not None:
                counter.add_metric((), number)
            yield counter


def _by_team(ledger: Ledger) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for (team, name), value in ledger.books.by_team.items():
        parts = split_account(name)
        cause: Cause | None = None if parts is None else parts[1]
        if cause is not None:
            key = ledger.books.teams[team], str(cause)
            found[key] = found.get(key, 0.0) + value
    return found
