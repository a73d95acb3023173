"""Passes the reports of the checks on to the NodeHealth, the state file and the metrics.

The publisher and the saver need the agent, whose checks need a reporter, so both are bound after the agent has been
created. They read the state when they start, so earlier reports are not lost.
"""

from muster_agent.checks.reporter import PublicationState, Reporter
from muster_agent.checks.state_file import StateSaver
from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.publish.publisher import Publisher
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import NodeHealth

UNPUBLISHED_LIMIT_S = 60.0
WATCH_DOWN_LIMIT_S = 15.0  # watches end every few minutes by design, and reconnect within seconds


class Delivery(Reporter):
    """node: the agent's own node; in_cluster: there is an API server to publish to."""

    def __init__(self, node: str, metrics: AgentMetrics, *, in_cluster: bool, clock: AgentClock = SYSTEM_CLOCK) -> None:
        self._node = node
        self._metrics = metrics
        self._in_cluster = in_cluster
        self._clock = clock
        self._saver: StateSaver | None = None
        self._publisher: Publisher | None = None
        self._reflector: Reflector[NodeHealth] | None = None
        self._watch_down_since: float | None = None

    def bind_saver(self, saver: StateSaver) -> None:
        self._saver = saver

    def bind_publisher(self, publisher: Publisher, reflector: Reflector[NodeHealth]) -> None:
        """reflector: the watch of the NodeHealth that ``publisher`` writes."""
        self._publisher, self._reflector = publisher, reflector

    def report_change(self) -> None:
        # the publisher first, so that its PATCH does not wait for the disk
        if self._publisher is not None:
            self._publisher.notify_change()
        if self._saver is not None:
            self._saver.save_now()

    def report_progress(self) -> None:
        if self._publisher is not None:
            self._publisher.notify_progress()
        if self._saver is not None:
            self._saver.save_soon()

    def report_rerun(self) -> None:
        if self._publisher is not None:
            self._publisher.notify_progress()
        if self._saver is not None:
            self._saver.save_lazily()

    def report_stream_failure(self, check: str) -> None:
        self._metrics.record_stream_failure(check)

    def report_detection(self, check: str, delay_s: float) -> None:
        self._metrics.record_detection(check, delay_s)

    def publication(self) -> PublicationState:
        if not self._in_cluster:
            return PublicationState()
        publisher, now = self._publisher, self._clock.monotonic()
        since = publisher.unpublished_since if publisher is not None else None
        unpublished_s = 0.0 if since is None else now - since
        complaint = ""
        watch_down_s = self._watch_down_s(now)
        if publisher is not None and publisher.claim.holder:
            complaint = f"the node is claimed by another agent (pod UID {publisher.claim.holder})"
        elif watch_down_s > WATCH_DOWN_LIMIT_S:
            complaint = f"cannot watch NodeHealth {self._node}"
            complaint += f": {self._reflector.error}" if self._reflector is not None and self._reflector.error else ""
        elif unpublished_s > UNPUBLISHED_LIMIT_S:
            complaint = f"a change has not been published for {unpublished_s:.0f} s"
            if publisher is not None and publisher.observed is None:
                complaint += f": NodeHealth {self._node} does not exist; the tainter creates it"
            elif publisher is not None and publisher.error:
                complaint += f": {publisher.error}"
        return PublicationState(complaint=complaint, unpublished_s=unpublished_s)

    def _watch_down_s(self, now: float) -> float:
        """How long the watch has been down; 0 if it is up, infinity if it never was."""
        reflector = self._reflector
        if reflector is not None and reflector.connected:
            self._watch_down_since = None
            return 0.0
        if self._watch_down_since is None:
            self._watch_down_since = now if reflector is not None and reflector.synced else float("-inf")
        return now - self._watch_down_since
