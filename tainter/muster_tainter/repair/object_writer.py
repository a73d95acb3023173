"""Creates and deletes the objects of repairs: Jobs and objects of any kind.

Before it deletes an object it verifies that Muster created it: the path is in the Node's annotation, which the Node's
kubelet can write, too.
"""

from contextlib import suppress

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from muster_kube.api.objects import Api, Metadata, Node
from muster_tainter.faults.record.node_record import Fault
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
    """The object cannot be created now, with the reason as its message."""


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
        """The status as a Job's; empty for other kinds."""
        try:
            return msgspec.json.decode(self.status, type=_JobStatus)
        except msgspec.MsgspecError:
            return _JobStatus()


class ObjectWriter:
    """namespace: for templates without one. All methods except ``rendered`` raise ApiError only if the server cannot be
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
        """True: the object exists and belongs to this attempt. False: the object of an earlier attempt has to be
        deleted first. Raises ObjectNotMade."""
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
                raise ObjectNotMade(f"{made.path} already exists and does not belong to this repair") from error
            await self.delete(made.path, node, finished=True)
            return False
        except (Forbidden, Invalid, NotFound) as error:
            raise ObjectNotMade(f"{made.path}: {error.reason}: {error.message}") from error
        return True

    async def delete(self, path: str, node: Node, *, finished: bool = False) -> None:
        """Delete an object of this node; a finished Job only if ``finished``, because its log is useful."""
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
        """Whether a Job has failed; False if it is gone or cannot be read."""
        try:
            return (await self._client.get(path, type=_Object)).job.has("Failed")
        except (NotFound, Forbidden):
            return False


def is_job(path: str) -> bool:
    return path.startswith(_JOBS)
