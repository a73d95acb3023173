"""Metrics of quarantined devices. The gauges are computed at scrape time."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster_tainter.faults.record.node_record import DeviceStage

STATES = (*DeviceStage, "withheld")


class DeviceMetrics(Collector):
    """staged: (stage, component) of each device; lost: healthy devices on nodes that are tainted for others;
    by_drivers: (driver, effect) of each device that its driver has tainted."""

    def __init__(
        self,
        registry: CollectorRegistry,
        staged: Callable[[], Iterable[tuple[str, str]]],
        lost: Callable[[], int],
        by_drivers: Callable[[], Iterable[tuple[str, str]]],
    ) -> None:
        self._staged = staged
        self._lost = lost
        self._by_drivers = by_drivers
        self._writes = Counter(
            "muster_tainter_device_rule_writes",
            "Writes of DeviceTaintRules, by result: created, changed, deleted, or the API server's reason for an error",
            ["result"],
            registry=registry,
        )
        self._seconds = Counter(
            "muster_tainter_device_seconds",
            "Device-seconds on nodes with a fault, by driver and outcome: alone (kept out of use alone), with_node (on "
            "a node that Muster has tainted), spared (in use beside one that is kept out alone)",
            ["driver", "outcome"],
            registry=registry,
        )
        registry.register(self)

    def count(self, result: str) -> None:
        self._writes.labels(result).inc()

    def add_seconds(self, driver: str, outcome: str, seconds: float) -> None:
        self._seconds.labels(driver, outcome).inc(seconds)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        states: Tally[str] = Tally(dict.fromkeys(map(str, STATES), 0))
        for stage, _ in self._staged():
            if stage in states:
                states[stage] += 1
        family = GaugeMetricFamily(
            "muster_tainter_devices_quarantined",
            "GPUs and NICs with a fault for which they are kept out of use alone, by state",
            labels=("state",),
        )
        for state, number in states.items():
            family.add_metric([state], number)
        yield family
        yield GaugeMetricFamily(
            "muster_tainter_healthy_devices_lost",
            "Healthy devices on nodes that are tainted only for faults of other devices",
            value=self._lost(),
        )
        by_drivers = GaugeMetricFamily(
            "muster_tainter_devices_tainted_by_driver",
            "Devices that their driver has tainted in its ResourceSlices, by the strongest effect; None only informs",
            labels=("driver", "effect"),
        )
        for (driver, effect), number in sorted(Tally(self._by_drivers()).items()):
            by_drivers.add_metric([driver, effect], number)
        yield by_drivers
