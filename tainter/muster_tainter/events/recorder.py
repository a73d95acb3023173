"""Writes Events on the Node and its condition, after the taints. They never delay the taint of another node.

Events of one (node, reason, fault) are one object with a count, written at most every few seconds, so flapping does not
flood the API server. Neither does a node that makes up one finding after the other: its Events about them are limited.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError, Conflict, Forbidden, Invalid, NotFound
from muster_kube.api.objects import Event, EventMetadata, EventSource, Node, NodeCondition, ObjectReference
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.token_bucket import TokenBuckets
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_tainter.faults.messages import CONDITION, Notice
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.task_rounds import yield_to_taints

log = logging.getLogger(__name__)

COMPONENT = "muster-tainter"
NAMESPACE = "default"  # where Events of Nodes live
EVENTS_PATH = f"/api/v1/namespaces/{NAMESPACE}/events"
MIN_INTERVAL_S = 10.0  # between two writes of one Event
# of one node, about its findings: as many as a check reports, then one every few seconds. client-go allows an object 25
# and then one every five minutes (tools/record, EventCorrelator)
BURST, REFILL_S = 64, 10.0
KNOWN_LIMIT = 4096  # Events whose counts are cached
WORKERS = 4

_NAME_LIMIT = 253 - 17


@dataclass
class _EventState:
    """One Event object. count: written to the server; pending: not yet written."""

    node: str
    uid: str
    notice: Notice
    pending: int = 0
    count: int = 0
    first: float = 0.0
    sent_at: float = float("-inf")


class EventRecorder:
    """look_again: called with a node whose condition was computed from an outdated version of it"""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        *,
        look_again: Callable[[str], None],
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._look_again = look_again
        self._events: OrderedDict[str, _EventState] = OrderedDict()
        self._conditions: dict[str, tuple[Node, NodeCondition | None]] = {}
        self._allowed = TokenBuckets(BURST, REFILL_S, replica.clock)
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def record(self, node: Node, notice: Notice) -> None:
        if notice.per_finding and self._allowed.take(node.metadata.name) > 0.0:
            self._metrics.events_dropped.inc()
            return
        name = event_name(node.metadata.name, notice)
        event = self._events.get(name)
        if event is None or event.uid != node.metadata.uid:
            first = self._replica.now()
            event = self._events[name] = _EventState(node.metadata.name, node.metadata.uid, notice, first=first)
        event.notice = notice
        event.pending += 1
        self._events.move_to_end(name)
        while len(self._events) > KNOWN_LIMIT:
            self._events.popitem(last=False)
        self._queue.add(("event", name))

    def set_condition(self, node: Node, condition: NodeCondition | None) -> None:
        """Set the Node's condition; None removes it."""
        if _shown(node) == _essence(condition):
            self._conditions.pop(node.metadata.name, None)
            return
        self._conditions[node.metadata.name] = (node, condition)
        self._queue.add(("condition", node.metadata.name))

    async def run(self) -> None:
        await run_workers(self._queue, self._write, workers=WORKERS)

    async def _write(self, key: tuple[str, str]) -> None:
        await yield_to_taints(self._fleet.taints_idle)
        if not self._replica.may_write():
            return
        kind, name = key
        try:
            if kind == "event":
                await self._write_event(name)
            else:
                await self._write_condition(name)
        except (Forbidden, Invalid) as error:
            self._metrics.write_errors.labels(kind, error.reason).inc()
            log.warning("could not write %s %s: %s", kind, name, error)  # a retry would not help
        except NotFound:
            pass  # the Node is gone
        except ApiError as error:
            self._metrics.write_errors.labels(kind, error.reason).inc()
            raise

    async def _write_condition(self, name: str) -> None:
        wanted = self._conditions.get(name)
        if wanted is None:
            return
        node, condition = wanted
        body = condition_patch(node, condition, rfc3339_whole(self._replica.now()))
        try:
            answer = await self._client.patch(f"/api/v1/nodes/{name}/status", body, kind="strategic", type=Node)
        except Conflict:
            self._drop(name, wanted)
            self._fleet.observe_node(await self._client.get(f"/api/v1/nodes/{name}", type=Node))
            self._look_again(name)
            return
        self._drop(name, wanted)
        self._metrics.writes.labels("condition").inc()
        self._fleet.observe_node(answer)

    def _drop(self, name: str, wanted: tuple[Node, NodeCondition | None]) -> None:
        if self._conditions.get(name) is wanted:
            del self._conditions[name]

    async def _write_event(self, name: str) -> None:
        event = self._events.get(name)
        if event is None or not event.pending:
            return
        wait_s = event.sent_at + MIN_INTERVAL_S - self._replica.clock()
        if wait_s > 0:
            self._queue.add_after(("event", name), wait_s)
            return
        event.sent_at = self._replica.clock()
        adding, event.pending = event.pending, 0
        try:
            await self._write_count(name, event, adding)
        except ApiError:
            event.pending += adding
            event.sent_at = float("-inf")
            raise
        self._metrics.writes.labels("event").inc()

    async def _write_count(self, name: str, event: _EventState, adding: int) -> None:
        if not event.count:
            try:
                await self._client.create(EVENTS_PATH, self._event(name, event, adding), type=Event)
            except AlreadyExists:
                # created by an earlier process: the patch returns its count
                event.count = (await self._patch(name, event, None)).count
            else:
                event.count = adding
                return
        try:
            await self._patch(name, event, event.count + adding)
        except NotFound:  # the API server keeps Events for an hour
            event.first = self._replica.now()
            await self._client.create(EVENTS_PATH, self._event(name, event, adding), type=Event)
            event.count = adding
        else:
            event.count += adding

    async def _patch(self, name: str, event: _EventState, count: int | None) -> Event:
        body: dict[str, object] = {"message": event.notice.message, "lastTimestamp": rfc3339_whole(self._replica.now())}
        if count is not None:
            body["count"] = count
        return await self._client.patch(f"{EVENTS_PATH}/{name}", body, type=Event)

    def _event(self, name: str, event: _EventState, count: int) -> Event:
        return Event(
            metadata=EventMetadata(name=name, namespace=NAMESPACE),
            involved_object=ObjectReference(kind="Node", name=event.node, uid=event.uid, api_version="v1"),
            reason=event.notice.reason,
            message=event.notice.message,
            type="Warning" if event.notice.warning else "Normal",
            source=EventSource(component=COMPONENT),
            first_timestamp=rfc3339_whole(event.first),
            last_timestamp=rfc3339_whole(self._replica.now()),
            count=count,
            reporting_component=COMPONENT,
        )


def event_name(node: str, notice: Notice) -> str:
    """Deterministic, so that a new leader continues the count."""
    digest = hashlib.blake2b(f"{node}\0{notice.reason}\0{notice.about}".encode(), digest_size=8).hexdigest()
    return f"{node[:_NAME_LIMIT].rstrip('-.')}.{digest}"


def _essence(condition: NodeCondition | None) -> tuple[str, str, str] | None:
    return None if condition is None else (condition.status, condition.reason, condition.message)


def _shown(node: Node) -> tuple[str, str, str] | None:
    return _essence(next((c for c in node.status.conditions if c.type == CONDITION), None))


def condition_patch(node: Node, condition: NodeCondition | None, now: str) -> dict[str, object]:
    """The strategic merge patch of the Node's status, bound to the version that the decision was based on."""
    metadata = {"resourceVersion": node.metadata.resource_version}
    if condition is None:
        return {"metadata": metadata, "status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}}
    known = next((c for c in node.status.conditions if c.type == CONDITION), None)
    same = known is not None and known.status == condition.status
    entry = {
        "type": CONDITION,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": known.last_transition_time or now if same and known is not None else now,
    }
    return {"metadata": metadata, "status": {"conditions": [entry]}}


async def record_policy_event(client: KubeClient, path: str, error: str | None, *, namespace: str, now: float) -> None:
    """Create an Event about the policy file. It concerns no node, so it is on the tainter's namespace."""
    event = Event(
        metadata=EventMetadata(generate_name="muster-policy.", namespace=namespace),
        involved_object=ObjectReference(kind="Namespace", name=namespace, namespace=namespace, api_version="v1"),
        reason="PolicyRejected" if error else "PolicyLoaded",
        message=shorten(error or f"{path} is active", 900),
        type="Warning" if error else "Normal",
        source=EventSource(component=COMPONENT),
        first_timestamp=rfc3339_whole(now),
        last_timestamp=rfc3339_whole(now),
    )
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/events", event, type=Event)
    except (ApiError, ConfigError) as failure:
        log.warning("could not create the Event about the policy: %s", failure)
