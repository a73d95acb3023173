"""The dead man's switch: an agent that says nothing any more is told by its pod, whose readiness the kubelet reports.

Every process reads it from the cluster anew: a pod that is not ready says since when, a node that never had an agent is
as old as its NodeHealth, and a silence that was told stands on the Node. Nobody is found silent while this process does
not see the pods, nor right after it sees them again: then it was the API server that was silent.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from muster_checks.vocabulary import shorten
from muster_kube.client import KubeClient
from muster_kube.errors import AlreadyExists, ApiError
from muster_kube.nodehealth import Cleared, Finding, NodeHealth
from muster_kube.objects import Event, EventMetadata, EventSource, Node, ObjectReference
from muster_kube.reflector import Reflector
from muster_kube.times import rfc3339_whole, seconds
from muster_tainter.agent_pods import AgentPod, slim_agent_pod
from muster_tainter.announcer import COMPONENT
from muster_tainter.desired import CONDITION, is_managed
from muster_tainter.health import Unusable
from muster_tainter.memory import ANNOTATION, Fault, read_memory
from muster_tainter.policy import SILENT, STARTUP_KEY, Policy

log = logging.getLogger(__name__)

CHECK, COMPONENT_OF, REASON = SILENT
SETTLE_S = 120.0
"""Agents are not ready while they do not reach the API server; after an outage their watches come back within 45 s,
the next probe of readiness follows within 10, and the kubelet has its own back-off."""
BLIND_S = 1.0  # between two looks at whether the pods are seen again
LEAST_S = 0.2  # what comes together is looked at together
TELL_AGAIN_S = 30.0

_SINCE = re.compile(r"no ready agent since (\S+):")


@dataclass(slots=True)
class _Silence:
    """begin: on the monotonic clock; since: seconds since the epoch. number: its occurrence.

    known: it stands on the Node already: an earlier leader has waited for the grace. fault: as an open fault
    told: it has been found; shared: as a part of an incident
    """

    begin: float
    since: float
    number: int
    known: bool = False
    fault: bool = False
    told: bool = False
    shared: bool = False


@dataclass(slots=True)
class _Incident:
    """began: seconds since the epoch. calm_at: since when fewer are silent, on the monotonic clock."""

    began: float
    told: bool = False
    calm_at: float | None = None


class AgentWatch:
    """Finds the nodes whose agent is silent. now: seconds since the epoch; clock: monotonic seconds.

    selector: of labels; node: as it is known, with the labels that pools look at; found, over: as
    :class:`muster_tainter.outside.Outside` has them
    """

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
        health: Callable[[str], NodeHealth | Unusable | None],
        found: Callable[[str, str, Finding], None],
        over: Callable[[str, str, Cleared], None],
        may_tell: Callable[[], bool],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._policy = policy
        self._node = node
        self._nodes = nodes
        self._health = health
        self._found = found
        self._over = over
        self._may_tell = may_tell
        self._now = now
        self._clock = clock
        self.pods: Reflector[AgentPod] = Reflector(
            client,
            f"/api/v1/namespaces/{namespace}/pods",
            AgentPod,
            on_change=self.pod_changed,
            params={"labelSelector": selector},
            transform=slim_agent_pod,
            sleep=self._pause,
        )
        self._pods_on: dict[str, tuple[AgentPod, ...]] = {}
        self._ready: set[str] = set()  # nodes of ours with a ready agent
        self._silent: dict[str, _Silence] = {}
        self._incident: _Incident | None = None
        self._warm = False
        self._seen_at = float("-inf")  # since when the pods are seen, on the monotonic clock
        self._wake = asyncio.Event()
        gauge = Gauge("muster_tainter_agents_ready", "Nodes with a ready agent", registry=registry)
        gauge.set_function(lambda: len(self._ready))
        gauge = Gauge("muster_tainter_agents_silent", "Nodes whose agent is silent beyond the grace", registry=registry)
        gauge.set_function(lambda: sum(silence.told for silence in self._silent.values()))
        gauge = Gauge(
            "muster_tainter_agents_incident", "1 while most of the agents are silent at once", registry=registry
        )
        gauge.set_function(lambda: self._incident is not None)

    async def run(self, synced: Callable[[], Awaitable[object]]) -> None:
        """For ever. synced: waits for the Nodes and NodeHealths."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self._follow(synced))

    async def _follow(self, synced: Callable[[], Awaitable[object]]) -> None:
        await synced()
        await self.pods.wait_synced()
        self.begin()
        while True:
            self._wake.clear()
            wait_s = self.round()
            if await self._tell_incident():
                wait_s = TELL_AGAIN_S if wait_s is None else min(wait_s, TELL_AGAIN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            await asyncio.sleep(LEAST_S)

    async def _pause(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not self.pods.connected:
            self._seen_at = self._clock()

    # what is seen

    def begin(self) -> None:
        """All is listed."""
        self._warm = True
        self._seen_at = self._clock()
        self.look_at_all()

    def look_at_all(self) -> None:
        """Another policy, or this replica leads now."""
        for name in list(self._nodes()):
            self.look(name)
        self._wake.set()

    def pod_changed(self, key: str, old: AgentPod | None, new: AgentPod | None) -> None:
        touched = {pod.node for pod in (old, new) if pod is not None and pod.node}
        for node in touched:
            pods = [pod for pod in self._pods_on.get(node, ()) if _key(pod) != key]
            if new is not None and new.node == node:
                pods.append(new)
            if pods:
                self._pods_on[node] = tuple(pods)
            else:
                self._pods_on.pop(node, None)
        for node in touched:
            self.look(node)

    def look(self, name: str) -> None:
        """Something about the node, its NodeHealth or its agent may be another than before."""
        if not self._warm:
            return
        node = self._node(name)
        if node is None or not is_managed(node) or node.metadata.deletion_timestamp:
            self._ready.discard(name)
            self._silent.pop(name, None)
            return
        pods = self._pods_on.get(name, ())
        fault = _open_fault(node)
        ready = next((pod for pod in pods if pod.ready), None)
        if ready is not None:
            self._ready.add(name)
            self._is_over(name, fault, f"pod {_key(ready)} is ready")
        elif self._policy().dead_man.action == "ignore":
            self._ready.discard(name)
            self._is_over(name, fault, "deadMan.action is ignore")
        elif fault is None and not self._is_expected(node, pods):
            self._ready.discard(name)
            self._is_over(name, fault, "no agent is expected there")
        else:
            was_ready = name in self._ready
            self._ready.discard(name)
            if name not in self._silent:
                self._silent[name] = self._begun(node, pods, fault, was_ready=was_ready)
                self._wake.set()

    def _is_expected(self, node: Node, pods: tuple[AgentPod, ...]) -> bool:
        """An agent is or was there, or the node waits for one, or a pool names nodes like it by their labels. Other
        nodes may be of no concern to the agents' DaemonSet."""
        health = self._health(node.metadata.name)
        return (
            bool(pods)
            or isinstance(health, Unusable)
            or (health is not None and bool(health.status.verdict))
            or any(taint.key == STARTUP_KEY for taint in node.spec.taints)
            or any(pool.selector.match_labels for pool in self._policy().pools_of(node.metadata.labels))
            or _said_since(node) is not None
        )

    def _begun(self, node: Node, pods: tuple[AgentPod, ...], fault: Fault | None, *, was_ready: bool) -> _Silence:
        now, clock = self._now(), self._clock()
        if fault is not None and not fault.over:
            return _Silence(clock, float(fault.occurrence), fault.occurrence, known=True, fault=True)
        said = _said_since(node)
        if said is not None and not was_ready:
            return _Silence(clock, said, int(said), known=True)
        if was_ready:
            # seen, whatever the clocks say
            number = max(int(now), read_memory(node).closed_up_to(SILENT) + 1, fault.occurrence + 1 if fault else 0)
            return _Silence(clock, now, number)
        since = self._evidence(node, pods)
        since = since if 0.0 < since < now else now
        return _Silence(clock - (now - since), since, int(since))

    def _evidence(self, node: Node, pods: tuple[AgentPod, ...]) -> float:
        """Since when the cluster says that there is no ready agent, seconds since the epoch; 0: it does not say."""
        if pods:
            return max(pod.silent_since for pod in pods)
        health = self._health(node.metadata.name)
        if isinstance(health, NodeHealth) and not health.status.verdict:
            return seconds(health.metadata.creation_timestamp)  # made when its Node came
        return 0.0

    def _is_over(self, name: str, fault: Fault | None, why: str) -> None:
        silence = self._silent.pop(name, None)
        if silence is not None and self._incident is not None:
            self._wake.set()
        number = silence.number if silence is not None and silence.told else 0
        if fault is not None and not fault.over:
            number = max(number, fault.occurrence)
        if number:
            at = rfc3339_whole(self._now())
            self._over(name, CHECK, Cleared(COMPONENT_OF, REASON, number, "source", at, why))

    # what is found

    def round(self) -> float | None:
        """Find who is silent by now. Returns the seconds until time alone may make a difference; None: never."""
        if not self._warm:
            return None
        clock, policy = self._clock(), self._policy()
        grace_s = policy.dead_man.grace
        sees = self.pods.connected
        if not sees:
            self._seen_at = clock
        settled_at = self._seen_at + min(grace_s, SETTLE_S)
        waiting = {name: silence for name, silence in self._silent.items() if not silence.told}
        due = {
            name: silence
            for name, silence in waiting.items()
            if silence.known or clock >= max(settled_at, silence.begin + grace_s)
        }
        ends_at = self._judge_incident(policy, due, clock)
        for name, silence in due.items():
            self._find(name, silence)
        if not sees:
            return BLIND_S if len(waiting) > len(due) or ends_at is not None else None
        times = [max(settled_at, silence.begin + grace_s) for name, silence in waiting.items() if name not in due]
        times += [] if ends_at is None else [ends_at]
        return max(min(times) - clock, 0.0) if times else None

    def _judge_incident(self, policy: Policy, due: dict[str, _Silence], clock: float) -> float | None:
        """Whether most agents are silent at once. Returns when, on the monotonic clock, that may be over by time."""
        silent = len(self._silent)
        most = silent >= policy.incidents.nodes and silent > len(self._ready)
        incident = self._incident
        if incident is None:
            if not most or not due:
                return None
            incident = self._incident = _Incident(min(silence.since for silence in self._silent.values()))
            log.error("%s", self._incident_text(incident))
        if most:
            incident.calm_at = None
            return None
        if incident.calm_at is None:
            incident.calm_at = clock  # agents come back one by one: those that follow are no news of their own
        ends_at = incident.calm_at + policy.dead_man.grace
        if silent and clock < ends_at:
            return ends_at
        self._incident = None
        log.warning("the agents are back: %d of %d are still silent", silent, silent + len(self._ready))
        for name, silence in self._silent.items():
            if silence.shared:
                self._find(name, silence)
        return None

    def _find(self, name: str, silence: _Silence) -> None:
        silence.told = True
        silence.shared = self._incident is not None and not silence.fault
        pods = self._pods_on.get(name, ())
        why = "; ".join(f"pod {_key(pod)}: {pod.state or 'not ready'}" for pod in pods) or "no pod of it is there"
        since = rfc3339_whole(silence.since)
        self._found(
            name,
            CHECK,
            Finding(
                component=COMPONENT_OF,
                reason=REASON,
                # of an incident nothing is said, nor done, node by node
                verdict="UNKNOWN" if silence.shared else "FAIL",
                message=shorten(f"no ready agent since {since}: {why}"),
                first_seen=since,
                occurrence=silence.number,
            ),
        )

    def _incident_text(self, incident: _Incident) -> str:
        silent = len(self._silent)
        return (
            f"{silent} of {silent + len(self._ready)} agents are silent, the first since"
            f" {rfc3339_whole(incident.began)}: one incident; the health of their nodes is unknown, none is tainted for"
            " that, nor told of by itself"
        )

    async def _tell_incident(self) -> bool:
        """Once, by whoever leads; True: it is to be tried again."""
        incident = self._incident
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
            message=self._incident_text(incident),
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
        except ApiError as error:
            log.warning("no Event about the silent agents yet: %s", error)
            return True
        incident.told = True
        return False


def _key(pod: AgentPod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _open_fault(node: Node) -> Fault | None:
    if ANNOTATION not in node.metadata.annotations:
        return None
    return next((fault for fault in read_memory(node).open if fault.key == SILENT), None)


def _said_since(node: Node) -> float | None:
    """Since when the node's agent is silent by its condition, which an earlier leader may have set."""
    for condition in node.status.conditions:
        if condition.type == CONDITION and condition.reason == REASON:
            match = _SINCE.search(condition.message)
            return (seconds(match[1]) if match else 0.0) or seconds(condition.last_transition_time or "") or None
    return None
