"""Creates an Event on each pod that holds a device which is kept out of use, and on the owners of these pods. Rules and
taints come first."""

import logging

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from muster_kube.api.objects import Event, EventMetadata, EventSource, ObjectReference
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_tainter.devices.holders.reader import HolderReader, TooManyPods
from muster_tainter.devices.rules.plan import staged_faults
from muster_tainter.devices.rules.store import RuleStore
from muster_tainter.events.affected_pods import Concern, event_name, pods_run
from muster_tainter.events.pod_owners import PodOwners
from muster_tainter.events.recorder import COMPONENT
from muster_tainter.faults.messages import MESSAGE_LIMIT, describe_fault
from muster_tainter.faults.policy_match import match_as_node
from muster_tainter.faults.record.node_record import DeviceStage
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.task_rounds import yield_to_taints

log = logging.getLogger(__name__)

REASON = "DeviceFaulty"
OWNERS_LIMIT = 64


class HolderNotifier:
    def __init__(
        self, client: KubeClient, fleet: Fleet, replica: Replica, store: RuleStore, reader: HolderReader
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._store = store
        self._reader = reader
        self._queue: WorkQueue[tuple[str, str]] | None = None  # set while it runs

    def note(self, node: str, component: str) -> None:
        """A rule for the component has been created."""
        if self._queue is not None:
            self._queue.add((node, component))

    async def run(self) -> None:
        """Runs until cancelled."""
        queue = self._queue = WorkQueue[tuple[str, str]]()
        try:
            await run_workers(queue, self._handle, workers=1)
        finally:
            self._queue = None

    async def _handle(self, key: tuple[str, str]) -> None:
        await yield_to_taints(self._fleet.taints_idle)
        try:
            await self.notify(*key)
        except (Forbidden, TooManyPods) as error:  # a retry would not help
            log.warning("node %s: %s: could not create Events on the pods that hold it: %s", *key, error)

    async def notify(self, node: str, component: str) -> None:
        """Events on the pods that hold the component now. Raises ApiError."""
        faults = [f for f in staged_faults(self._fleet.node(node)).get(component, ()) if f.device == DeviceStage.ALONE]
        devices = self._store.devices(node, component)
        if not faults or not devices:
            return
        want = match_as_node(faults[0], self._fleet.policy())
        if want.taint is None:
            return
        concern = Concern(faults[0], want.rule, want.taint)
        owners: dict[str, tuple[ObjectReference, list[str]]] = {}
        owners_of = PodOwners(self._client)
        for holder in await self._reader.holders(node, devices):
            meta = holder.pod.metadata
            if meta.deletion_timestamp or not holder.held:
                continue
            pod = ObjectReference(kind="Pod", name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version="v1")
            await self._write(pod, node, concern, "this pod runs")
            for about in await owners_of.of(meta) if len(owners) < OWNERS_LIMIT else ():
                owners.setdefault(about.uid, (about, []))[1].append(meta.name)
        for about, names in owners.values():
            await self._write(about, node, concern, pods_run(names))

    async def _write(self, about: ObjectReference, node: str, concern: Concern, who: str) -> None:
        now = rfc3339_whole(self._replica.now())
        evicts = concern.taint.effect == "NoExecute"
        end = "pods that do not tolerate its taint are evicted" if evicts else "no further pod gets it"
        what = shorten(describe_fault(concern.fault), MESSAGE_LIMIT // 2)
        event = Event(
            metadata=EventMetadata(name=event_name(about, node, concern), namespace=about.namespace),
            involved_object=about,
            reason=REASON,
            message=f"{who} with a device of node {node} that is kept out of use (rule {concern.rule}): {what}; {end}",
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
        except (AlreadyExists, NotFound, Invalid):
            return
        except ApiError as error:
            log.info("could not create an Event on %s %s/%s: %s", about.kind, about.namespace, about.name, error)
            raise
