"""Creates Events on pods and their owners. Each has a name of its own, so the same Event is never created twice."""

import logging

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from muster_kube.api.objects import Event, EventMetadata, EventSource, ObjectReference
from muster_kube.api.times import rfc3339_whole
from muster_tainter.events.recorder import COMPONENT
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics

log = logging.getLogger(__name__)


class ObjectEvents:
    def __init__(self, client: KubeClient, replica: Replica, metrics: TainterMetrics) -> None:
        self._client = client
        self._replica = replica
        self._metrics = metrics

    async def create(self, about: ObjectReference, name: str, reason: str, message: str) -> None:
        """A warning in the namespace of ``about``. Raises ApiError, unless the API server will never accept it."""
        now = rfc3339_whole(self._replica.now())
        event = Event(
            metadata=EventMetadata(name=name, namespace=about.namespace),
            involved_object=about,
            reason=reason,
            message=message,
            type="Warning",
            source=EventSource(component=COMPONENT),
            first_timestamp=now,
            last_timestamp=now,
            reporting_component=COMPONENT,
        )
        if not self._replica.may_write():
            return
        try:
            await self._client.create(f"/api/v1/namespaces/{about.namespace}/events", event, type=Event)
        except AlreadyExists:
            return
        except (NotFound, Forbidden, Invalid) as error:  # e.g. the namespace is being deleted
            self._metrics.write_errors.labels("event", error.reason).inc()
            log.info("could not create an Event on %s %s/%s: %s", about.kind, about.namespace, about.name, error)
            return
        except ApiError as error:
            self._metrics.write_errors.labels("event", error.reason).inc()
            raise
        self._metrics.writes.labels("event").inc()
