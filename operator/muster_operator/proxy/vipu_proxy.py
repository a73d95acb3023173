"""The core of the proxy without settings, cluster and HTTP, which tests replace."""

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
    """create_controller: creates a back end from host and port."""

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
        """Use this data of the quarantine ConfigMap; a missing ConfigMap has none."""
        if self.quarantined.update(data) and self.store.is_loaded:
            self.reconciler.verify_parked()

    @property
    def is_busy(self) -> bool:
        """Whether anything is in progress."""
        return self.reconciler.is_busy or self.capacity.is_busy

    async def stop(self) -> None:
        """Nothing has to be finished, because every intent is in the tracker."""
        await self.reconciler.stop()
        await self.capacity.stop()

    def explain_unhealthy(self) -> str:
        """Why the proxy cannot serve requests; empty if it can."""
        if not self.store.is_loaded:
            return f"the tracker is not loaded yet: {self.store.error}"
        return "" if self.reconciler.is_ready else "the quarantine of IPUs or the list of controllers is not loaded yet"

    def _wake(self, names: set[str]) -> None:
        self.reconciler.wake(names)

    def _verify_listed(self, address: str, partitions: Collection[VipuPartition]) -> None:
        self.reconciler.verify_listed(address, partitions)
