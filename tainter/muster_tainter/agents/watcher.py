"""Watches the agents' pods: the kubelet reports their readiness, so a silent agent is noticed even if its node is dead.

Every replica watches, so a new leader knows since when agents are silent.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Gauge

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError
from muster_kube.api.objects import Event, EventMetadata, EventSource, ObjectReference
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.clock import Clock
from muster_kube.controller.reflector import Reflector
from muster_tainter.agents.liveness import AgentLiveness
from muster_tainter.agents.pods import AgentPod, slim_agent_pod
from muster_tainter.events.recorder import COMPONENT
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import AgentPodSelector, Replica

log = logging.getLogger(__name__)

LEAST_S = 0.2  # changes within this time are handled together
TELL_AGAIN_S = 30.0
LIST_S = 3.0


class AgentWatch:
    """Runs on every replica; only the leader creates Events."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        registry: CollectorRegistry,
        agents: AgentPodSelector,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._namespace = agents.namespace
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        liveness = self._liveness = AgentLiveness(fleet, replica, self._wake.set)
        self.note = liveness.look
        self.look_at_all = liveness.look_at_all
        self.pods: Reflector[AgentPod] = Reflector(
            client,
            f"/api/v1/namespaces/{agents.namespace}/pods",
            AgentPod,
            on_change=liveness.pod_changed,
            params={"labelSelector": agents.labels},
            transform=slim_agent_pod,
            clock=Clock(sleep=self._pause),
        )
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "ready": ("Nodes with a ready agent", lambda: liveness.ready),
            "silent": ("Nodes whose agent is silent for longer than the grace", lambda: liveness.silent),
            "incident": ("1 while most agents are silent at once", lambda: liveness.outage is not None),
        }
        for name, (text, value) in gauges.items():
            Gauge(f"muster_tainter_agents_{name}", text, registry=registry).set_function(value)

    async def run(self) -> None:
        """Runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self._follow())

    def has_agent(self, name: str) -> bool | None:
        """Whether a ready agent is on the node; None while the pods are not watched."""
        return self._liveness.has_ready(name) if self.pods.connected else None

    async def wait_looked(self) -> None:
        """Wait until silent agents are known, once the Nodes are known at most LIST_S: taints must not wait for a
        failing list of pods."""
        await self._fleet.wait_synced()
        with suppress(TimeoutError):
            async with asyncio.timeout(LIST_S):
                await self._looked.wait()

    async def _follow(self) -> None:
        await self._fleet.wait_synced()
        await self.pods.wait_synced()
        self._liveness.start()
        while True:
            self._wake.clear()
            wait_s = self._liveness.find_silent(sees=self.pods.connected)
            self._looked.set()
            if await self._record_outage():
                wait_s = TELL_AGAIN_S if wait_s is None else min(wait_s, TELL_AGAIN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            await asyncio.sleep(LEAST_S)

    async def _pause(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not self.pods.connected:
            self._liveness.mark_unseen()

    def _may_record(self) -> bool:
        return self._replica.may_write() and not self._replica.dry_run

    async def _record_outage(self) -> bool:
        """Create the outage's Event once, on the leader. True if it has to be tried again."""
        outage = self._liveness.outage
        if outage is None or outage.recorded or not self._may_record():
            return outage is not None and not outage.recorded
        # the same name for the same outage, so that the next leader does not repeat it
        name = f"muster-agents-silent.{int(outage.began)}"
        now = rfc3339_whole(self._replica.now())
        event = Event(
            metadata=EventMetadata(name=name, namespace=self._namespace),
            involved_object=ObjectReference(
                kind="Namespace", name=self._namespace, namespace=self._namespace, api_version="v1"
            ),
            reason="AgentsSilent",
            message=self._liveness.outage_text(outage),
            type="Warning",
            source=EventSource(component=COMPONENT),
            first_timestamp=now,
            last_timestamp=now,
            reporting_component=COMPONENT,
        )
        try:
            await self._client.create(f"/api/v1/namespaces/{self._namespace}/events", event, type=Event)
        except AlreadyExists:
            pass
        except (ApiError, ConfigError) as error:
            log.warning("could not create the Event about the silent agents: %s; will retry", error)
            return True
        outage.recorded = True
        return False
