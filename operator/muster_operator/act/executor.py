"""Carries out the actions of a plan, one API or proxy call each. The result is cached before the next decision.

Nothing is read before it is written: a create that conflicts looks up the owner of the existing object and leaves other
owners' objects alone. Refusals are remembered with a back-off, so a job that cannot continue costs one call a minute.
:mod:`muster_operator.act.partition_requests` handles partitions.
"""

import contextlib
import logging
from collections.abc import Callable, Collection

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Forbidden, NotFound
from muster_kube.api.objects import Api
from muster_operator.act.partition_requests import PartitionRequester
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.refusal_cache import ASKING, RefusalCache
from muster_operator.act.unseen_pods import UnseenPods
from muster_operator.job import names
from muster_operator.job.snapshot import (
    Action,
    ActionResult,
    AddFinalizer,
    CreateObject,
    DeleteJob,
    DeletePod,
    FreePartition,
    OwnedObject,
    PatchObject,
    QueryCapacity,
    RemoveFinalizer,
    RequestChecks,
    TakePartitions,
    WithdrawRequests,
)
from muster_operator.job.types import FINALIZER, IPUJob
from muster_operator.job.types import jobs_path as jobs_in
from muster_operator.observe.cluster import ClusterCache, describe_owner, objects_path, owner_of

log = logging.getLogger(__name__)

# HTTP statuses that reject a create: 400 is an undecodable object, and the answer of many webhooks
NOT_TAKEN = frozenset({400, 403, 413, 422})
LETTING_GO = ("IPUJob", FINALIZER)  # finalizer removal requested, and not confirmed by the watch yet


class _DeletionMetadata(Api, frozen=True):
    deletion_timestamp: str = ""


class _DeletedObject(Api, frozen=True):
    kind: str = ""
    metadata: _DeletionMetadata = _DeletionMetadata()


class ActionExecutor:
    """wrote: called with (verb, kind) after each successful write."""

    def __init__(
        self,
        client: KubeClient,
        proxy: ProxyClient,
        cluster: ClusterCache,
        refusals: RefusalCache,
        *,
        wrote: Callable[[str, str], None] = lambda _verb, _kind: None,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._refusals = refusals
        self._wrote = wrote
        self.partitions = PartitionRequester(proxy, cluster, refusals)

    async def execute(self, job: IPUJob, action: Action, unseen: UnseenPods) -> ActionResult:
        """unseen: of the decision that ``action`` is part of. Raises ApiError, which ends the turn; its subclass
        Conflict means that the decision used outdated state."""
        match action:
            case AddFinalizer():
                return await self._add_finalizer(job)
            case RemoveFinalizer():
                return await self._drop_finalizer(job)
            case CreateObject():
                return await self._create(job, action)
            case PatchObject():
                return await self._patch(job, action)
            case DeletePod():
                return await self._delete_pod(job, action)
            case TakePartitions():
                return await self.partitions.take(job, action, unseen)
            case FreePartition():
                return await self.partitions.free(job.metadata.uid, action.name, unseen, unsuitable=action.unsuitable)
            case QueryCapacity():
                return await self.partitions.ask_room(job.metadata.uid, action.size)
            case RequestChecks():
                return await self._request_checks(job.metadata.uid, action)
            case WithdrawRequests():
                return await self.withdraw(job.metadata.uid, action.node, action.keep)
            case DeleteJob():
                return await self._delete_job(job)
        raise TypeError(f"unknown action for the executor: {action!r}")

    async def _add_finalizer(self, job: IPUJob) -> ActionResult:
        if FINALIZER in job.metadata.finalizers:
            return ActionResult.NOTHING
        await self._write_finalizers(job, [*job.metadata.finalizers, FINALIZER])
        return ActionResult.DONE

    async def _drop_finalizer(self, job: IPUJob) -> ActionResult:
        """Remove the finalizer. Only the watch shows whether the job is gone, so the job is not planned again until
        then, and the removal is not repeated while events of its pods and partitions arrive."""
        uid = job.metadata.uid
        if FINALIZER in job.metadata.finalizers and not self._refusals.waits(uid, LETTING_GO):
            self._refusals.note(uid, LETTING_GO, None)  # before the call, as the watch may be faster than the response
            with contextlib.suppress(NotFound):
                try:
                    await self._write_finalizers(job, [each for each in job.metadata.finalizers if each != FINALIZER])
                except BaseException:
                    self._refusals.forget(uid, LETTING_GO)
                    raise
        return ActionResult.WAITS

    async def _write_finalizers(self, job: IPUJob, finalizers: list[str]) -> None:
        meta = job.metadata
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}}
        answer = await self._client.patch(_path(job), body, type=IPUJob)
        self._wrote("patch", "IPUJob")
        if FINALIZER in finalizers:  # otherwise the job may be gone by now and must not return to the cache
            self._cluster.observe_job(answer)

    async def _create(self, job: IPUJob, action: CreateObject) -> ActionResult:
        uid, key = job.metadata.uid, (action.kind, action.name)
        foreign = self._refusals.is_foreign(uid, key)
        if self._refusals.waits(uid, key):
            return ActionResult.NOTHING if foreign else ActionResult.WAITS
        if foreign and (met := await self._inspect(job, action)) is not None:
            return met
        path = objects_path(action.kind, job.metadata.namespace)
        try:
            raw = await self._client.create(path, action.body, type=msgspec.Raw)
        except AlreadyExists:
            return await self._inspect(job, action) or ActionResult.REFUSED  # it was deleted meanwhile: decide again
        except BaseException as error:
            if not isinstance(error, ApiError) or error.status not in NOT_TAKEN:
                raise
            self._refusals.note(uid, key, f"cannot create {action.kind} {action.name}: {error.message}")
            return ActionResult.REFUSED
        self._wrote("create", action.kind)
        self._refusals.forget(uid, key)
        self._cluster.observe(action.kind, raw)
        return ActionResult.DONE

    async def _inspect(self, job: IPUJob, action: CreateObject) -> ActionResult | None:
        """Look up the existing object of that name; None if there is none."""
        uid, key = job.metadata.uid, (action.kind, action.name)
        path = f"{objects_path(action.kind, job.metadata.namespace)}/{action.name}"
        try:
            raw = await self._client.get(path, type=msgspec.Raw)
        except NotFound:
            return None
        found = msgspec.json.decode(raw, type=OwnedObject).metadata
        owner = owner_of(found)
        if owner != (f"{job.metadata.namespace}/{job.metadata.name}", uid):
            self._refusals.note(uid, key, describe_owner(found), foreign=True)
            return ActionResult.REFUSED
        if found.labels.get(names.MANAGED_BY) != names.MANAGER:
            # someone removed its labels, so the watch does not see it, and the operator would try to create it forever
            self._refusals.note(
                uid, key, f"owned by this job, but without the label {names.OWNED_SELECTOR}", foreign=True
            )
            return ActionResult.REFUSED
        self._refusals.forget(uid, key)
        self._cluster.observe(action.kind, raw)
        return ActionResult.DONE

    async def _patch(self, job: IPUJob, action: PatchObject) -> ActionResult:
        path = f"{objects_path(action.kind, job.metadata.namespace)}/{action.name}"
        raw = await self._client.patch(path, action.body, type=msgspec.Raw)
        self._wrote("patch", action.kind)
        self._cluster.observe(action.kind, raw)
        return ActionResult.DONE

    async def _delete_pod(self, job: IPUJob, action: DeletePod) -> ActionResult:
        options: dict[str, object] = {"preconditions": {"uid": action.uid}}
        if action.grace_s is not None:
            options["gracePeriodSeconds"] = action.grace_s
        path = f"{objects_path('Pod', job.metadata.namespace)}/{action.name}"
        try:
            raw = await self._client.delete(path, options, type=msgspec.Raw)
        except NotFound as error:
            require_gone(error)
            return ActionResult.NOTHING  # gone: the watch reports it. A 409 need not mean that, so it is decided again
        self._wrote("delete", "Pod")
        if (left := _left(raw)) is not None:
            self._cluster.observe("Pod", left)
        # only the watch reports a pod that is gone at once; deciding before that would delete it again
        return ActionResult.NOTHING

    async def _delete_job(self, job: IPUJob) -> ActionResult:
        try:
            await self._client.delete(_path(job), {"preconditions": _as_decided(job)}, type=msgspec.Raw)
            self._wrote("delete", "IPUJob")
        except NotFound as error:
            require_gone(error)
        return ActionResult.WAITS

    async def _request_checks(self, uid: str, action: RequestChecks) -> ActionResult:
        """A node that cannot be asked does not hold up the others."""
        key = (ASKING, action.node)
        if self._refusals.waits(uid, key):
            return ActionResult.NOTHING
        try:
            refused = await self._cluster.requests.ask(action.node, action.request)
        except Forbidden as error:
            refused = error.message
        if refused:
            self._refusals.note(uid, key, refused)
            return ActionResult.NOTHING
        self._wrote("patch", "NodeHealth")
        self._refusals.forget(uid, key)
        return ActionResult.DONE

    async def withdraw(self, uid: str, node: str, keep: Collection[str] = ()) -> ActionResult:
        try:
            if not await self._cluster.requests.withdraw(node, uid, keep):
                return ActionResult.NOTHING
        except Forbidden as error:  # this does not hold up the job
            log.warning("node %s: cannot withdraw a check request: %s", node, error)
            return ActionResult.NOTHING
        self._wrote("patch", "NodeHealth")
        return ActionResult.DONE


def require_gone(error: NotFound) -> None:
    """Raise ``error`` unless the object does not exist. If the resource is not served, as while an API server starts,
    the 404 is plain text and not a Status, so it has no reason."""
    if error.reason != "NotFound":
        raise error


def _as_decided(job: IPUJob) -> dict[str, str]:
    """Delete preconditions: a job that was edited since, for example to extend its lifetime, is planned again."""
    return {"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version}


def _left(raw: bytes | msgspec.Raw) -> bytes | msgspec.Raw | None:
    """The pod that its kubelet still has to terminate; None if it is gone already or the answer is a Status."""
    pod = msgspec.json.decode(raw, type=_DeletedObject)
    return raw if pod.kind == "Pod" and pod.metadata.deletion_timestamp else None


def _path(job: IPUJob) -> str:
    return f"{jobs_in(job.metadata.namespace)}/{job.metadata.name}"
