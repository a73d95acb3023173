"""Events on the user's job or pod, in its namespace, with lower priority than the job's own writes.

There is one Event object per (job, reason, message). Its name is derived from these, so a new leader finds the existing
Event. A token bucket limits the Events of each job.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from muster_kube.api.objects import Event, EventMetadata, EventSource, ObjectReference
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.token_bucket import TokenBuckets
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_operator.job.names import MANAGER, POD_PREFIX, is_pod
from muster_operator.job.snapshot import RecordEvent
from muster_operator.job.types import API_VERSION, KIND, IPUJob

log = logging.getLogger(__name__)

WORKERS = 2
MESSAGE_LIMIT = 1024  # characters, the limit of Kubernetes
KNOWN_LIMIT = 8192  # Events that are remembered as recorded
BURST = 12  # Events of one job at once
REFILL_S = 60.0  # until one more Event is allowed
_NAME_LIMIT = 253 - 17


class JobEventRecorder:
    """clock: monotonic seconds; now: seconds since the epoch; note: called with (outcome) after each write."""

    def __init__(
        self,
        client: KubeClient,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        note: Callable[[str], None] = lambda _outcome: None,
    ) -> None:
        self._client = client
        self._now = now
        self._note = note
        self._recorded: OrderedDict[str, None] = OrderedDict()
        self._allowed = TokenBuckets(BURST, REFILL_S, clock)
        self._waiting: dict[str, tuple[str, Event]] = {}
        self._queue: WorkQueue[str] = WorkQueue()

    def record(self, job: IPUJob, action: RecordEvent) -> None:
        """Does nothing if the Event is already recorded or if this job exceeds its rate limit."""
        event = self._event(job, action)
        name = event.metadata.name
        if name in self._recorded:
            self._recorded.move_to_end(name)
            return
        if self._allowed.take(job.metadata.uid):
            self._note("left out")
            return
        self._recorded[name] = None
        while len(self._recorded) > KNOWN_LIMIT:
            self._recorded.popitem(last=False)
        self._waiting[name] = job.metadata.namespace, event
        self._queue.add(name)

    async def run(self) -> None:
        """Runs until cancelled."""
        await run_workers(self._queue, self._write, workers=WORKERS)

    async def _write(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return
        namespace, event = waiting
        try:
            await self._client.create(f"/api/v1/namespaces/{namespace}/events", event, type=Event)
        except AlreadyExists:
            self._note("known")
        except (NotFound, Forbidden, Invalid) as error:
            # for example, the namespace is being deleted: a retry would not help
            self._note("refused")
            about = event.involved_object
            log.warning(
                "%s %s/%s: cannot record Event %s: %s",
                *(about.kind, namespace, about.name, event.reason, error),
            )
        except ApiError:
            self._waiting[name] = waiting
            raise
        else:
            self._note("written")

    def _event(self, job: IPUJob, action: RecordEvent) -> Event:
        meta, now = job.metadata, rfc3339_whole(self._now())
        message = action.message if len(action.message) <= MESSAGE_LIMIT else action.message[: MESSAGE_LIMIT - 1] + "…"
        digest = hashlib.blake2b(
            "\0".join((meta.uid, action.type, action.reason, message)).encode(), digest_size=8
        ).hexdigest()
        name = meta.name.removeprefix(POD_PREFIX)
        kind, version = ("Pod", "v1") if is_pod(meta.name) else (KIND, API_VERSION)
        return Event(
            metadata=EventMetadata(name=f"{name[:_NAME_LIMIT]}.{digest}", namespace=meta.namespace),
            involved_object=ObjectReference(
                kind=kind, name=name, namespace=meta.namespace, uid=meta.uid, api_version=version
            ),
            reason=action.reason,
            message=message,
            type=action.type,
            source=EventSource(component=MANAGER),
            first_timestamp=now,
            last_timestamp=now,
            reporting_component=MANAGER,
        )
