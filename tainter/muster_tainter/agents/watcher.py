"""The dead man's switch: an agent that says nothing any more is told by its pod, whose readiness the kubelet reports.

Only the agents' pods are watched, by every replica: one that takes over knows since when they are silent.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Gauge

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError
from muster_kube.api.objects import Event, EventMetadata, EventSource, Node, ObjectReference
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import ClearedFault, NodeHealth, ReportedFinding
from muster_tainter.agents.liveness import AgentLiveness
from muster_tainter.agents.pods import AgentPod, slim_agent_pod
from muster_tainter.events.recorder import COMPONENT
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.policy.rules import Policy

log = logging.getLogger(__name__)

LEAST_S = 0.2  # what comes together is looked at together
TELL_AGAIN_S = 30.0
LIST_S = 3.0


class AgentWatch:
    """namespace, selector (of labels): of the agents' pods. may_tell: this replica leads. The rest is as
    :class:`AgentLiveness` has it."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        selector: str,
        policy: Callable[[], Policy],
        registry: CollectorRegistry,
        *,
        node: Callable[[str], Node | None],
        nodes: Callable[[], Iterable[str]],
        health: Callable[[str], NodeHealth | UnusableHealth | None],
        found: Callable[[str, str, ReportedFinding], None],
        over: Callable[[str, str, ClearedFault], None],
        may_tell: Callable[[], bool],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._may_tell = may_tell
        self._now = now
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        silences = self._silences = AgentLiveness(
            policy,
            node=node,
            nodes=nodes,
            health=health,
            found=found,
            over=over,
            wake=self._wake.set,
            now=now,
            clock=clock,
        )
        self.look = silences.look
        self.look_at_all = silences.look_at_all
        self.pods: Reflector[AgentPod] = Reflector(
            client,
            f"/api/v1/namespaces/{namespace}/pods",
            AgentPod,
            on_change=silences.pod_changed,
            params={"labelSelector": selector},
            transform=slim_agent_pod,
            sleep=self._pause,
        )
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "ready": ("Nodes with a ready agent", lambda: silences.ready),
            "silent": ("Nodes whose agent is silent beyond the grace", lambda: silences.silent),
            "incident": ("1 while most of the agents are silent at once", lambda: silences.incident is not None),
        }
        for name, (text, value) in gauges.items():
            Gauge(f"muster_tainter_agents_{name}", text, registry=registry).set_function(value)

    async def run(self, synced: Callable[[], Awaitable[object]]) -> None:
        """For ever. synced: waits for the Nodes and NodeHealths."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self._follow(synced))

    async def wait_looked(self) -> None:
        """Until it is known who is silent, or for a moment: no taint waits long for pods that cannot be listed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LIST_S):
                await self._looked.wait()

    async def _follow(self, synced: Callable[[], Awaitable[object]]) -> None:
        await synced()
        await self.pods.wait_synced()
        self._silences.begin()
        while True:
            self._wake.clear()
            wait_s = self._silences.round(sees=self.pods.connected)
            self._looked.set()
            if await self._tell_incident():
                wait_s = TELL_AGAIN_S if wait_s is None else min(wait_s, TELL_AGAIN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            await asyncio.sleep(LEAST_S)

    async def _pause(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not self.pods.connected:
            self._silences.unseen()

    async def _tell_incident(self) -> bool:
        """Once, by whoever leads; True: it is to be tried again."""
        incident = self._silences.incident
        if incident is None or incident.told or not self._may_tell():
            return incident is not None and not incident.told
        # the same name for the same incident: the next leader finds it told
        name = f"muster-agents-silent.{int(incident.began)}"
        now = rfc3339_whole(self._now())
        event = Event(
            metadata=EventMetadata(name=name, namespace=self._namespace),
            involved_object=ObjectReference(
                kind="Namespace", name=self._namespace, namespace=self._namespace, api_version="v1"
            ),
            reason="AgentsSilent",
            message=self._silences.incident_text(incident),
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
            log.warning("no Event about the silent agents yet: %s", error)
            return True
        incident.told = True
        return False
