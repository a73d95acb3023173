"""The proxy without its edges: what keeps partitions, wired together. Tests run it in a world of their own."""

import logging
from collections.abc import Collection, Mapping

from muster_operator.proxy.controllers.capacity import CapacityCounter
from muster_operator.proxy.controllers.registry import ControllerFactory, ControllerRegistry
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partitions.intents import PartitionIntents, RequestTimeouts
from muster_operator.proxy.partitions.reconciler import PartitionReconciler
from muster_operator.proxy.quarantine import quarantined_ipus as quarantine
from muster_operator.proxy.timing import Intervals
from muster_operator.proxy.tracker.store import ConfigMapClient, TrackerStore
from muster_operator.vipu.controller import Ipu, VipuPartition

log = logging.getLogger(__name__)

NAMED = 16  # IPUs in one line of the log
PACE, WAITS = Intervals(), RequestTimeouts()


class VipuProxy:
    """client: for the tracker; make: a back end for host and port."""

    def __init__(
        self,
        client: ConfigMapClient,
        namespace: str,
        tracker: str,
        make: ControllerFactory,
        metrics: ProxyMetrics,
        *,
        max_ipus: int = 64,
        parked_limit: int = 16,
        pace: Intervals = PACE,
        waits: RequestTimeouts = WAITS,
    ) -> None:
        self.metrics = metrics
        self.quarantined: frozenset[Ipu] = frozenset()
        self.reaching = ControllerRegistry(make, metrics)
        self.store = TrackerStore(client, namespace, tracker, metrics, on_change=self._changed)
        self.counting = CapacityCounter(
            self.reaching, self.store, metrics, lambda: self.quarantined, self._listed, pace
        )
        self.settling = PartitionReconciler(
            self.store,
            self.reaching,
            self.counting,
            metrics,
            lambda: self.quarantined,
            parked_limit=parked_limit,
            pace=pace,
        )
        self.taking = PartitionIntents(
            self.store, self.counting, self.settling, metrics, max_ipus=max_ipus, waits=waits
        )

    def quarantine(self, data: Mapping[str, str]) -> None:
        """The ConfigMap's data is this from now on; a missing one has none."""
        ipus, skipped = quarantine.parse_quarantine_map(data)
        for line in skipped:
            log.error("quarantine: %s: skipped", line)
        if ipus == self.quarantined:
            return
        named = ", ".join(f"{ipu.machine}/{ipu.index}" for ipu in sorted(ipus)[:NAMED]) or "none"
        log.info("quarantined IPUs: %s%s", named, f" and {len(ipus) - NAMED} more" if len(ipus) > NAMED else "")
        self.quarantined = ipus
        self.metrics.quarantined.set(len(ipus))
        if self.store.loaded:
            self.settling.verify_parked()

    @property
    def is_busy(self) -> bool:
        """Something is on its way."""
        return self.settling.is_busy or self.counting.is_busy

    async def stop(self) -> None:
        """Nothing has to be finished: every intent is in the tracker."""
        await self.settling.stop()
        await self.counting.stop()

    def unhealthy(self) -> str:
        """Why it can serve nobody; empty when it can."""
        if not self.store.loaded:
            return f"the tracker is not known yet: {self.store.error}"
        return "" if self.settling.is_ready else "it is not known yet which IPUs are quarantined"

    def _changed(self, names: set[str]) -> None:
        self.settling.wake(names)

    def _listed(self, address: str, partitions: Collection[VipuPartition]) -> None:
        self.settling.listed(address, partitions)
