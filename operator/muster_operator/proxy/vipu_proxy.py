"""The proxy without its edges: what keeps partitions, wired together. Tests run it in a world of their own."""

from collections.abc import Collection, Mapping

from muster_operator.proxy.controllers.capacity import CapacityCounter
from muster_operator.proxy.controllers.registry import ControllerFactory, ControllerRegistry
from muster_operator.proxy.intervals import Intervals, RequestTimeouts
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partition_limits import PartitionLimits
from muster_operator.proxy.partitions.intents import PartitionIntents
from muster_operator.proxy.partitions.reconciler import PartitionReconciler
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus
from muster_operator.proxy.tracker.config_map import TrackerConfigMap
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.vipu.controller import VipuPartition

LIMITS, INTERVALS, TIMEOUTS = PartitionLimits(), Intervals(), RequestTimeouts()


class VipuProxy:
    """create_controller: a back end for host and port."""

    def __init__(
        self,
        tracker: TrackerConfigMap,
        create_controller: ControllerFactory,
        metrics: ProxyMetrics,
        *,
        limits: PartitionLimits = LIMITS,
        intervals: Intervals = INTERVALS,
        timeouts: RequestTimeouts = TIMEOUTS,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.quarantined = QuarantinedIpus(metrics, limits.parked)
        self.controllers = ControllerRegistry(create_controller, metrics)
        self.store = TrackerStore(tracker, metrics, on_change=self._wake)
        self.capacity = CapacityCounter(
            self.controllers, self.store, metrics, self.quarantined, intervals, on_listed=self._verify_listed
        )
        self.reconciler = PartitionReconciler(
            self.store, self.controllers, self.capacity, metrics, self.quarantined, intervals
        )
        self.intents = PartitionIntents(
            self.store, self.capacity, self.reconciler, metrics, max_ipus=limits.max_ipus, timeouts=timeouts
        )

    def update_quarantine(self, data: Mapping[str, str]) -> None:
        """The ConfigMap's data is this from now on; a missing one has none."""
        if self.quarantined.update(data) and self.store.is_loaded:
            self.reconciler.verify_parked()

    @property
    def is_busy(self) -> bool:
        """Something is on its way."""
        return self.reconciler.is_busy or self.capacity.is_busy

    async def stop(self) -> None:
        """Nothing has to be finished: every intent is in the tracker."""
        await self.reconciler.stop()
        await self.capacity.stop()

    def explain_unhealthy(self) -> str:
        """Why it can serve nobody; empty when it can."""
        if not self.store.is_loaded:
            return f"the tracker is not known yet: {self.store.error}"
        return "" if self.reconciler.is_ready else "it is not known yet which IPUs are quarantined"

    def _wake(self, names: set[str]) -> None:
        self.reconciler.wake(names)

    def _verify_listed(self, address: str, partitions: Collection[VipuPartition]) -> None:
        self.reconciler.verify_listed(address, partitions)
