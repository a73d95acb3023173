"""Makes and deletes what repairs are carried out with: Jobs and objects of any kind.

Before something is deleted it is looked at: a Node's annotation says which object its repair has made, and the Node's
kubelet may write that, too.
"""

from contextlib import suppress

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from muster_kube.api.objects import Api, Metadata, Node
from muster_tainter.faults.node_record import Fault
from muster_tainter.policy.repair import Remedy
from muster_tainter.repair.object_template import (
    REPAIR_OF,
    ObjectKinds,
    RenderedObject,
    annotations_of,
    is_our_path,
    render_object,
)

_JOBS = "/apis/batch/v1/"


class ObjectNotMade(Exception):
    """It cannot be made now: for people."""


class _Condition(Api, frozen=True):
    type: str = ""
    status: str = ""


class _JobStatus(Api, frozen=True):
    conditions: tuple[_Condition, ...] = ()

    def has(self, kind: str) -> bool:
        return any(each.type == kind and each.status == "True" for each in self.conditions)


class _Object(Api, frozen=True):
    metadata: Metadata
    status: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def job(self) -> _JobStatus:
        """Other kinds have another status."""
        try:
            return msgspec.json.decode(self.status, type=_JobStatus)
        except msgspec.MsgspecError:
            return _JobStatus()


class ObjectWriter:
    """namespace: where a template says none. All but ``rendered`` raise ApiError only where the server cannot be
    reached."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._kinds = ObjectKinds(client)

    async def rendered(self, node: Node, fault: Fault, fault_class: str, remedy: Remedy, n: int) -> RenderedObject:
        """Raises ObjectNotMade, ApiError."""
        try:
            return await render_object(self._client, self._kinds, node, fault, fault_class, remedy, n, self._namespace)
        except ValueError as error:
            raise ObjectNotMade(f"{fault_class}: {error}") from error

    async def make(self, made: RenderedObject, node: Node) -> bool:
        """True: it is there now, made by this attempt, whoever carried it out. False: what an earlier attempt has made
        is to go first. Raises ObjectNotMade."""
        try:
            await self._client.create(made.collection, made.body, type=msgspec.Raw)
        except AlreadyExists as error:
            try:
                found = await self._client.get(made.path, type=_Object)
            except NotFound:
                return False
            marks = found.metadata.annotations
            if all(marks.get(key) == value for key, value in annotations_of(made).items()):
                return True
            if marks.get(REPAIR_OF) != node.metadata.uid:
                raise ObjectNotMade(f"{made.path} is there already, and not for this repair") from error
            await self.delete(made.path, node, finished=True)
            return False
        except (Forbidden, Invalid, NotFound) as error:
            raise ObjectNotMade(f"{made.path}: {error.reason}: {error.message}") from error
        return True

    async def delete(self, path: str, node: Node, *, finished: bool = False) -> None:
        """Only what was made for this node; not a Job that has ended, unless ``finished``: its log is worth reading."""
        if not is_our_path(path):
            return
        try:
            found = await self._client.get(path, type=_Object)
        except (NotFound, Forbidden):
            return
        if found.metadata.annotations.get(REPAIR_OF) != node.metadata.uid or found.metadata.deletion_timestamp:
            return
        if is_job(path) and not finished and (found.job.has("Complete") or found.job.has("Failed")):
            return
        body = {"propagationPolicy": "Background", "preconditions": {"uid": found.metadata.uid}}
        with suppress(NotFound, Conflict):
            await self._client.delete(path, body, type=msgspec.Raw)

    async def has_failed(self, path: str) -> bool:
        """A Job; False where it is gone, or not for us to see."""
        try:
            return (await self._client.get(path, type=_Object)).job.has("Failed")
        except (NotFound, Forbidden):
            return False


def is_job(path: str) -> bool:
    return path.startswith(_JOBS)
