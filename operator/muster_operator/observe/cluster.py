"""Caches each job's object, pods and four kinds of small objects, indexed by their owner. Likewise, where the setting
``ipu_pods`` asks for it, pods that have IPUs by their annotation (:mod:`muster_operator.job.ipu_pod`).

Each list and watch selects the operator's objects by a label and decodes only what decisions need. Nothing is looked up
by name alone: jobs of the same name, in two namespaces or one after the other, never see each other's objects.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata, Object
from muster_kube.controller.reflector import Reflector
from muster_operator.job import names
from muster_operator.job.ipu_pod import IpuPod, project_pod
from muster_operator.job.snapshot import JobPod, OwnedObject
from muster_operator.job.types import API_VERSION, GROUP, KIND, PLURAL, IPUJob
from muster_operator.observe.check_requests import NodeCheckRequests
from muster_operator.observe.node_capacity import CapacityIndex, FleetNode, project_node
from muster_operator.observe.node_health import HardwareHealth
from muster_operator.observe.tracker_reader import TrackerReader, TrackerSnapshot

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"

# kind: API path of its group, and its plural
PLURALS = {
    "Pod": ("/api/v1", "pods"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Role": (_RBAC, "roles"),
    "RoleBinding": (_RBAC, "rolebindings"),
}
SMALL_KINDS = ("ConfigMap", "ServiceAccount", "Role", "RoleBinding")


def objects_path(kind: str, namespace: str) -> str:
    """The API path of ``kind`` in a namespace; empty: in all."""
    root, plural = PLURALS[kind]
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def owner_of(metadata: Metadata) -> tuple[str, str] | None:
    """(``namespace/name``, uid) of the IPUJob that controls the object, or (``namespace/pod/NAME``, uid) of the pod;
    None if it has another controller or none."""
    for owner in metadata.owner_references:
        if owner.controller and owner.kind == KIND and owner.api_version.partition("/")[0] == GROUP:
            return f"{metadata.namespace}/{owner.name}", owner.uid
        if owner.controller and (owner.api_version, owner.kind) == ("v1", "Pod"):
            return f"{metadata.namespace}/{names.POD_PREFIX}{owner.name}", owner.uid
    return None


def describe_owner(metadata: Metadata) -> str:
    """The controller of the object, for people."""
    for owner in metadata.owner_references:
        if owner.controller:
            return f"{owner.kind} {owner.name}"
    return "no owner"


class _OwnedObjects(Generic[T]):
    """Objects of one kind by their owner, as :func:`owner_of` returns it, and their name. The owner's namespace counts,
    too: a copy in another namespace has the same owner reference."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._by_owner: dict[tuple[str, str], dict[str, T]] = {}

    def of_job(self, key: str, uid: str) -> Mapping[str, T]:
        """key: of the job (``namespace/name``)."""
        return self._by_owner.get((key, uid), MappingProxyType({}))

    def note(self, _key: str, old: T | None, new: T | None) -> None:
        for obj in (old, new):
            if obj is None or (owner := owner_of(obj.metadata)) is None:
                continue
            if obj is new:
                self._by_owner.setdefault(owner, {})[obj.metadata.name] = obj
            elif (held := self._by_owner.get(owner)) is not None:
                held.pop(obj.metadata.name, None)
                if not held:
                    del self._by_owner[owner]
            self._on_change(owner[0])


@dataclass(frozen=True)
class WatchScope:
    """What the operator watches. tracker, quarantine: namespace and name of the ConfigMap; by default both are in the
    same namespace. namespaces: only jobs of these count; empty: all. ipu_pods: also pods that have IPUs by their
    annotation."""

    tracker: tuple[str, str]
    quarantine: tuple[str, str] | None = None
    namespaces: tuple[str, ...] = ()
    ipu_pods: bool = False

    @property
    def watches(self) -> int:
        """Number of the cluster cache's watches. Each occupies a connection."""
        in_each_namespace = 2 + len(SMALL_KINDS) + self.ipu_pods
        return in_each_namespace * max(1, len(self.namespaces)) + 4


@dataclass(frozen=True)
class ChangeListener:
    """Callbacks of the watches. on_change: a job (``namespace/name``) must be reconciled; on_gone: the job with that
    uid is gone; on_room: a partition was removed or nodes have changed; on_listed: the jobs of a namespace (empty: all)
    and all that they own are known from now on."""

    on_change: Callable[[str], None]
    on_gone: Callable[[str], None] = lambda _uid: None
    on_room: Callable[[], None] = lambda: None
    on_listed: Callable[[str], None] = lambda _namespace: None


class ClusterCache:
    """Caches of everything that decisions need, up to date in every replica. our_taints: keys of the taints that keep
    jobs off a node; clock: monotonic seconds."""

    def __init__(
        self,
        client: KubeClient,
        scope: WatchScope,
        our_taints: tuple[str, ...],
        listener: ChangeListener,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._listener = listener
        self.followers: list[Callable[[], None]] = []  # called when partitions, quarantine or labels of nodes change
        on_change = listener.on_change
        self.namespaces = scope.namespaces
        namespaces = scope.namespaces or ("",)
        self._listed: set[str] = set()  # namespaces of which everything is known
        self._first_listed = asyncio.Event()
        self.unreadable: dict[str, str] = {}  # jobs that do not match their type, with the error
        self.pods: _OwnedObjects[JobPod] = _OwnedObjects(on_change)
        self.objects: dict[str, _OwnedObjects[OwnedObject]] = {kind: _OwnedObjects(on_change) for kind in SMALL_KINDS}
        self._jobs = {namespace: self._reflector_of_jobs(namespace) for namespace in namespaces}
        self._pod_reflectors = {
            namespace: Reflector(
                client,
                objects_path("Pod", namespace),
                JobPod,
                on_change=self._pod_changed,
                params={"labelSelector": names.OWNED_SELECTOR},
            )
            for namespace in namespaces
        }
        self._ipu_pods = {
            namespace: Reflector(
                client,
                objects_path("Pod", namespace),
                IpuPod,
                on_change=self._ipu_pod_changed,
                params={"labelSelector": names.IPUS},
                transform=project_pod,
            )
            for namespace in (namespaces if scope.ipu_pods else ())
        }
        self._object_reflectors = {
            (kind, namespace): Reflector(
                client,
                objects_path(kind, namespace),
                OwnedObject,
                on_change=self.objects[kind].note,
                params={"labelSelector": names.OWNED_SELECTOR},
            )
            for kind in SMALL_KINDS
            for namespace in namespaces
        }
        self.tracker = TrackerReader(
            client, *scope.tracker, on_change=self._entry_changed, on_room=listener.on_room, clock=clock
        )
        self.nodes: Reflector[FleetNode] = Reflector(
            client,
            "/api/v1/nodes",
            FleetNode,
            on_change=self._node_changed,
            transform=project_node,
        )
        self.capacity = CapacityIndex(self.nodes.store, our_taints, listener.on_room)
        self.requests = NodeCheckRequests(client, on_change)
        self.hardware = HardwareHealth(self.nodes, self.tracker, our_taints, on_change, clock)
        namespace, name = scope.quarantine or (scope.tracker[0], names.QUARANTINE)
        self._quarantine: Reflector[TrackerSnapshot] = Reflector(
            client,
            f"/api/v1/namespaces/{namespace}/configmaps",
            TrackerSnapshot,
            on_change=self._quarantine_changed,
            params={"fieldSelector": f"metadata.name={name}"},
            newest=True,  # a job that has left an IPU is not moved again
        )

    def _reflector_of_jobs(self, namespace: str) -> Reflector[IPUJob]:
        root = f"/apis/{API_VERSION}"
        return Reflector(
            self._client,
            f"{root}/namespaces/{namespace}/{PLURAL}" if namespace else f"{root}/{PLURAL}",
            IPUJob,
            on_change=self._job_changed,
            on_undecodable=self._job_unreadable,
            transform=_project_job,
        )

    async def watch(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors().values():
                group.create_task(reflector.run())
            for namespace in self.namespaces or ("",):
                group.create_task(self._wait_listed(namespace))
            # not required for readiness: without it jobs start unchecked and report that
            group.create_task(self.requests.reflector.run())

    async def wait_synced(self) -> None:
        """Wait for the tracker and for all caches of one namespace. The others follow (``on_listed``): lists may be
        forbidden in a namespace that was deleted. So may nodes and the quarantine: then nodes are not counted, and no
        quarantine is known."""
        await self.tracker.map.wait_synced()
        await self._first_listed.wait()

    async def _wait_listed(self, namespace: str) -> None:
        for reflector in self.reflectors_in(namespace).values():
            await reflector.wait_synced()
        self._listed.add(namespace)
        self._first_listed.set()
        self._listener.on_listed(namespace)

    def reflectors(self) -> dict[str, Reflector[Any]]:
        """By name, for people."""
        found: dict[str, Reflector[Any]] = {}
        for namespace in self.namespaces or ("",):
            found |= self.reflectors_in(namespace)
        return found | self.shared_reflectors()

    def shared_reflectors(self) -> dict[str, Reflector[Any]]:
        """Those that the jobs of all namespaces need."""
        return {"the tracker": self.tracker.map, "nodes": self.nodes, "the quarantine": self._quarantine}

    def reflectors_in(self, namespace: str) -> dict[str, Reflector[Any]]:
        """Those of one namespace of the scope; empty: of all namespaces, without a scope."""
        place = f" in {namespace}" if namespace else ""
        found: dict[str, Reflector[Any]] = {
            f"ipujobs{place}": self._jobs[namespace],
            f"pods{place}": self._pod_reflectors[namespace],
        }
        for kind in SMALL_KINDS:
            found[f"{PLURALS[kind][1]}{place}"] = self._object_reflectors[kind, namespace]
        if self._ipu_pods:
            found[f"pods with IPUs{place}"] = self._ipu_pods[namespace]
        return found

    def job(self, key: str) -> IPUJob | None:
        """``key``: ``namespace/name``."""
        reflector = self._jobs.get(self._place_of(key))
        return None if reflector is None else reflector.store.get(key)

    def ipu_pod(self, key: str) -> IpuPod | None:
        """``key``: ``namespace/pod/NAME``."""
        namespace, _, name = key.partition(f"/{names.POD_PREFIX}")
        reflector = self._ipu_pods.get(namespace if self.namespaces else "")
        return reflector.store.get(f"{namespace}/{name}") if reflector is not None and name else None

    def ipu_pod_keys(self) -> list[str]:
        """``namespace/pod/NAME`` of each."""
        return [_pod_key(pod) for reflector in self._ipu_pods.values() for pod in reflector.store.values()]

    def node_labels(self, pod: IpuPod) -> Mapping[str, str] | None:
        """Of the pod's node; None if it has none, or one that is not known."""
        node = self.nodes.store.get(pod.spec.node_name)
        return None if node is None else node.metadata.labels

    def owner(self, key: str) -> IPUJob | IpuPod | None:
        """Whatever partitions of that key belong to."""
        return self.job(key) or self.ipu_pod(key)

    def jobs(self) -> Iterator[IPUJob]:
        return (job for reflector in self._jobs.values() for job in list(reflector.store.values()))

    def concerns(self, key: str) -> bool:
        """Whether the job's namespace is in scope."""
        return not self.namespaces or key.partition("/")[0] in self.namespaces

    def has_listed(self, key: str) -> bool:
        """Whether all that decisions about the job need is known, as far as it is in the job's namespace."""
        return self._place_of(key) in self._listed

    def _place_of(self, key: str) -> str:
        return key.partition("/")[0] if self.namespaces else ""

    def has_begun(self, key: str) -> bool:
        """Such jobs have priority: a job that ends makes room for others, and a running job is reported even while a
        thousand start."""
        job = self.job(key)
        return job is not None and bool(job.metadata.deletion_timestamp or self.pods.of_job(key, job.metadata.uid))

    def objects_of(self, key: str, uid: str) -> dict[tuple[str, str], OwnedObject]:
        """By (kind, name)."""
        return {(kind, name): obj for kind, held in self.objects.items() for name, obj in held.of_job(key, uid).items()}

    # results of writes, so that the next decision does not use the state before them

    def observe_job(self, job: IPUJob) -> None:
        self._jobs[job.metadata.namespace if self.namespaces else ""].observe(job)

    def observe(self, kind: str, raw: bytes | msgspec.Raw) -> None:
        """Cache an object of the operator as the API server returned it."""
        if kind == "Pod":
            pod = msgspec.json.decode(raw, type=JobPod)
            place = pod.metadata.namespace if self.namespaces else ""
            if owner_of(pod.metadata) is not None:
                self.observe_pod(pod)
            elif (reflector := self._ipu_pods.get(place)) is not None:
                reflector.observe(msgspec.json.decode(raw, type=IpuPod))
        else:
            obj = msgspec.json.decode(raw, type=OwnedObject)
            self._object_reflectors[kind, obj.metadata.namespace if self.namespaces else ""].observe(obj)

    def observe_pod(self, pod: JobPod) -> None:
        """As :meth:`observe`, for a pod of a job."""
        self._pod_reflectors[pod.metadata.namespace if self.namespaces else ""].observe(pod)

    def _job_changed(self, key: str, old: IPUJob | None, new: IPUJob | None) -> None:
        self.unreadable.pop(key, None)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._listener.on_gone(old.metadata.uid)
        self._listener.on_change(key)

    def _node_changed(self, name: str, old: FleetNode | None, new: FleetNode | None) -> None:
        self.capacity.note(name, old, new)
        self.hardware.note_node(name, old, new)
        if _advertised_part(old) != _advertised_part(new):
            self._call_followers()

    def _quarantine_changed(self, _key: str, _old: TrackerSnapshot | None, new: TrackerSnapshot | None) -> None:
        self.hardware.note_quarantine(new.data if new is not None else {})
        self._call_followers()

    def _entry_changed(self, key: str) -> None:
        self._listener.on_change(key)
        self._call_followers()

    def _call_followers(self) -> None:
        for follower in self.followers:
            follower()

    def _pod_changed(self, key: str, old: JobPod | None, new: JobPod | None) -> None:
        for pod in (old, new):
            if pod is not None and (owner := owner_of(pod.metadata)) is not None:
                self.hardware.note_pod(key, old, new, owner[0])
        self.pods.note(key, old, new)

    def _ipu_pod_changed(self, _key: str, old: IpuPod | None, new: IpuPod | None) -> None:
        found = new or old
        if found is None:
            return
        self.hardware.note_pod(_pod_key(found), old, new, _pod_key(found))
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._listener.on_gone(old.metadata.uid)
        self._listener.on_change(_pod_key(found))

    def _job_unreadable(self, key: str | None, _raw: bytes, error: str) -> None:
        log.warning("IPUJob %s cannot be decoded and is left unchanged: %s", key or "without a name", error)
        if key is not None:
            self.unreadable[key] = error


def _pod_key(pod: IpuPod) -> str:
    return f"{pod.metadata.namespace}/{names.POD_PREFIX}{pod.metadata.name}"


def _advertised_part(node: FleetNode | None) -> tuple[object, ...] | None:
    return None if node is None else (node.metadata.labels, node.status.capacity)


def _project_job(job: IPUJob) -> IPUJob:
    if _LAST_APPLIED not in job.metadata.annotations:
        return job
    kept = {key: value for key, value in job.metadata.annotations.items() if key != _LAST_APPLIED}
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, annotations=kept))


__all__ = ["PLURALS", "ChangeListener", "ClusterCache", "WatchScope", "describe_owner", "objects_path", "owner_of"]
