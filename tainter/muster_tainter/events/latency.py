"""Measures the hops of a fault that taints its node: first sign, agent's report, delivery here, patched Node."""

from collections.abc import Callable

from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.desired_state import Decision
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.rules import SPARE_KEY


class HopLatency:
    """now: seconds since the epoch."""

    def __init__(self, metrics: TainterMetrics, now: Callable[[], float]) -> None:
        self._metrics = metrics
        self._now = now
        self._delivered: dict[str, float] = {}  # when the watch delivered a change that may lead to a taint

    def delivered(self, node: str) -> None:
        self._delivered.setdefault(node, self._now())

    def forget(self, node: str) -> None:
        """The delivered change leads to no taint."""
        self._delivered.pop(node, None)

    def patched(self, node: str, decision: Decision, health: NodeHealth | None) -> None:
        delivered = self._delivered.pop(node, None)
        if delivered is None or not any(
            change.added and change.taint.key != SPARE_KEY for change in decision.taint_changes
        ):
            return
        observed = seconds(health.status.observed_at) if health is not None else 0.0
        hop = self._metrics.hop.labels
        hop("delivered_to_patched").observe(max(0.0, self._now() - delivered))
        if observed:
            hop("observed_to_delivered").observe(max(0.0, delivered - observed))
            firsts = [seconds(change.fault.first_seen) for change in decision.changes if change.fault.first_seen]
            if firsts:
                hop("seen_to_observed").observe(max(0.0, observed - max(firsts)))
