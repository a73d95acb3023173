"""What is told behind the taints: Events on the Node and its condition. Never in the way of another node's taint.

Events of one (node, reason, fault) are one object with a count, written at most every few seconds: flapping makes
numbers, not a storm.
"""

import asyncio
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
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_tainter.faults.desired_state import CONDITION, Notice
from muster_tainter.metrics import TainterMetrics
from muster_tainter.periodic import yield_to_taints

log = logging.getLogger(__name__)

COMPONENT = "muster-tainter"
NAMESPACE = "default"  # where Events of Nodes live
EVENTS_PATH = f"/api/v1/namespaces/{NAMESPACE}/events"
MIN_INTERVAL_S = 10.0  # between two writes of one Event
KNOWN_LIMIT = 4096  # Events whose counts are remembered
WORKERS = 4

_NAME_LIMIT = 253 - 17


@dataclass
class _EventState:
    """One Event object. count: what the server has; pending: what it has not."""

    node: str
    uid: str
    notice: Notice
    pending: int = 0
    count: int = 0
    first: float = 0.0
    sent_at: float = float("-inf")


class EventRecorder:
    """observe: takes in what a write returned. look_again(node): a condition was decided on an old version of the Node.

    idle: set while no taint waits to be written
    """

    def __init__(
        self,
        client: KubeClient,
        metrics: TainterMetrics,
        *,
        may_write: Callable[[], bool],
        observe: Callable[[Node], None],
        look_again: Callable[[str], None],
        idle: asyncio.Event,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._may_write = may_write
        self._observe = observe
        self._look_again = look_again
        self._idle = idle
        self._now = now
        self._clock = clock
        self._told: OrderedDict[str, _EventState] = OrderedDict()
        self._conditions: dict[str, tuple[Node, NodeCondition | None]] = {}
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def tell(self, node: Node, notice: Notice) -> None:
        name = event_name(node.metadata.name, notice)
        told = self._told.get(name)
        if told is None or told.uid != node.metadata.uid:
            told = self._told[name] = _EventState(node.metadata.name, node.metadata.uid, notice, first=self._now())
        told.notice = notice
        told.pending += 1
        self._told.move_to_end(name)
        while len(self._told) > KNOWN_LIMIT:
            self._told.popitem(last=False)
        self._queue.add(("event", name))

    def show(self, node: Node, condition: NodeCondition | None) -> None:
        """Have the Node's condition read so; None: have none."""
        if _shown(node) == _essence(condition):
            self._conditions.pop(node.metadata.name, None)
            return
        self._conditions[node.metadata.name] = (node, condition)
        self._queue.add(("condition", node.metadata.name))

    async def run(self) -> None:
        await run_workers(self._queue, self._write, workers=WORKERS)

    async def _write(self, key: tuple[str, str]) -> None:
        await yield_to_taints(self._idle)
        if not self._may_write():
            return
        kind, name = key
        try:
            if kind == "event":
                await self._write_event(name)
            else:
                await self._write_condition(name)
        except (Forbidden, Invalid) as error:
            self._metrics.write_errors.labels(kind, error.reason).inc()
            log.warning("%s %s is not written: %s", kind, name, error)  # again would not help
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
        body = condition_patch(node, condition, rfc3339_whole(self._now()))
        try:
            answer = await self._client.patch(f"/api/v1/nodes/{name}/status", body, kind="strategic", type=Node)
        except Conflict:
            self._drop(name, wanted)
            self._observe(await self._client.get(f"/api/v1/nodes/{name}", type=Node))
            self._look_again(name)
            return
        self._drop(name, wanted)
        self._metrics.writes.labels("condition").inc()
        self._observe(answer)

    def _drop(self, name: str, wanted: tuple[Node, NodeCondition | None]) -> None:
        if self._conditions.get(name) is wanted:
            del self._conditions[name]

    async def _write_event(self, name: str) -> None:
        told = self._told.get(name)
        if told is None or not told.pending:
            return
        wait_s = told.sent_at + MIN_INTERVAL_S - self._clock()
        if wait_s > 0:
            self._queue.add_after(("event", name), wait_s)
            return
        told.sent_at = self._clock()
        adding, told.pending = told.pending, 0
        try:
            await self._write_count(name, told, adding)
        except ApiError:
            told.pending += adding
            told.sent_at = float("-inf")
            raise
        self._metrics.writes.labels("event").inc()

    async def _write_count(self, name: str, told: _EventState, adding: int) -> None:
        if not told.count:
            try:
                await self._client.create(EVENTS_PATH, self._event(name, told, adding), type=Event)
            except AlreadyExists:
                # an earlier process made it: its count is in the answer
                told.count = (await self._patch(name, told, None)).count
            else:
                told.count = adding
                return
        try:
            await self._patch(name, told, told.count + adding)
        except NotFound:  # Events live for an hour
            told.first = self._now()
            await self._client.create(EVENTS_PATH, self._event(name, told, adding), type=Event)
            told.count = adding
        else:
            told.count += adding

    async def _patch(self, name: str, told: _EventState, count: int | None) -> Event:
        body: dict[str, object] = {"message": told.notice.message, "lastTimestamp": rfc3339_whole(self._now())}
        if count is not None:
            body["count"] = count
        return await self._client.patch(f"{EVENTS_PATH}/{name}", body, type=Event)

    def _event(self, name: str, told: _EventState, count: int) -> Event:
        return Event(
            metadata=EventMetadata(name=name, namespace=NAMESPACE),
            involved_object=ObjectReference(kind="Node", name=told.node, uid=told.uid, api_version="v1"),
            reason=told.notice.reason,
            message=told.notice.message,
            type="Warning" if told.notice.warning else "Normal",
            source=EventSource(component=COMPONENT),
            first_timestamp=rfc3339_whole(told.first),
            last_timestamp=rfc3339_whole(self._now()),
            count=count,
            reporting_component=COMPONENT,
        )


def event_name(node: str, notice: Notice) -> str:
    """The same for the same news: a new leader counts on where the last one stopped."""
    digest = hashlib.blake2b(f"{node}\0{notice.reason}\0{notice.about}".encode(), digest_size=8).hexdigest()
    return f"{node[:_NAME_LIMIT].rstrip('-.')}.{digest}"


def _essence(condition: NodeCondition | None) -> tuple[str, str, str] | None:
    return None if condition is None else (condition.status, condition.reason, condition.message)


def _shown(node: Node) -> tuple[str, str, str] | None:
    return _essence(next((c for c in node.status.conditions if c.type == CONDITION), None))


def condition_patch(node: Node, condition: NodeCondition | None, now: str) -> dict[str, object]:
    """The strategic merge patch of the Node's status, bound to the version it was decided on."""
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
    """An Event about the policy file. It belongs to no node, so it hangs on the namespace the tainter runs in."""
    event = Event(
        metadata=EventMetadata(generate_name="muster-policy.", namespace=namespace),
        involved_object=ObjectReference(kind="Namespace", name=namespace, namespace=namespace, api_version="v1"),
        reason="PolicyRejected" if error else "PolicyLoaded",
        message=shorten(error or f"{path} is in force", 900),
        type="Warning" if error else "Normal",
        source=EventSource(component=COMPONENT),
        first_timestamp=rfc3339_whole(now),
        last_timestamp=rfc3339_whole(now),
    )
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/events", event, type=Event)
    except (ApiError, ConfigError) as failure:
        log.warning("no Event about the policy: %s", failure)
