"""Tests a volume claim on one node: creates a claim and a pod that writes to it, watches them, and deletes both.

It creates the claim first, because the scheduler delays a pod without its claim for seconds. Both have a label. If the
process dies in between, the pod's own deadline ends the pod, and the next trial on that node deletes the leftovers.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Forbidden, NotFound
from muster_kube.api.objects import Api, Event, Metadata
from muster_kube.api.times import seconds
from muster_kube.controller.reflector import Reflector
from muster_kube.volume_trial_objects import LABEL, TrialPod, VolumeClaim, make_claim, make_pod, node_mark

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
CLEAN_UP_S = 20.0
LEFT_BEHIND_S = 1800.0  # longer than any trial
_SPARE_S = 60  # added to our deadline for the pod's own
_NOT_STORAGE = ("ErrImage", "ImagePull", "InvalidImage", "CreateContainer", "RunContainer", "CrashLoop", "StartError")
_MOUNT_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")


Stage = Literal["no-class", "refused", "unbound", "unplaced", "unmounted", "not-started", "unwritten", "written"]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_WIRE = {
    "storage_class": "storageClass",
    "bound_after_s": "boundAfterSeconds",
    "written_after_s": "writtenAfterSeconds",
}
T = TypeVar("T")


class VolumeTrial(msgspec.Struct, frozen=True, kw_only=True, rename=_WIRE):
    """The result; sent as JSON between tainter and agent.

    stage: the stage that it reached (muster_checks.pvc.judge.TrialStage).
    Times: seconds since the claim was created. said: the cluster's message."""

    stage: Stage
    storage_class: str = ""
    bound_after_s: _Seconds | None = None
    written_after_s: _Seconds | None = None
    said: str = ""


class _LabelledObject(Api, frozen=True):
    metadata: Metadata


class VolumeTrialRunner:
    """Uses claims and pods in ``namespace``. The client needs permission to create, get, list, watch and delete both,
    and to list Events and StorageClasses. Several trials may run at the same time."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"

    async def try_claim(
        self,
        node: str,
        *,
        storage_class: str,
        size_mib: int,
        image: str,
        bind_timeout_s: float,
        write_timeout_s: float,
    ) -> VolumeTrial:
        """Run one trial to its end. Never raises ApiError. Deletes its objects, unless the API server prevents it."""
        name = f"muster-pvc-{secrets.token_hex(4)}"
        try:
            if not storage_class and not await self._has_default_class():
                return VolumeTrial(stage="no-class", said="the cluster has no default StorageClass: name one")
            await self._sweep(node)
            deadline_s = int(bind_timeout_s + write_timeout_s) + _SPARE_S
            claim = await self._create(self._claims, make_claim(name, node, storage_class, size_mib), VolumeClaim)
            pod = await self._create(self._pods, make_pod(name, node, image, deadline_s), TrialPod)
            return await self._watch(pod, claim, bind_timeout_s, write_timeout_s)
        except ApiError as error:
            return VolumeTrial(stage="refused", storage_class=storage_class, said=str(error))
        finally:
            await asyncio.shield(self._delete(name))

    async def _create(self, path: str, body: object, kind: type[T]) -> T:
        """Create the object and wait for the result even if the trial is cancelled: otherwise the object might be
        created after its deletion."""
        making = asyncio.create_task(self._client.create(path, body, type=kind))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.gather(making, return_exceptions=True)
            raise

    async def _watch(
        self, pod: TrialPod, claim: VolumeClaim, bind_timeout_s: float, write_timeout_s: float
    ) -> VolumeTrial:
        changed = asyncio.Event()
        begun = self._clock()
        params = {"fieldSelector": f"metadata.name={pod.metadata.name}"}

        def on_change(*_: object) -> None:
            changed.set()

        pods = Reflector(self._client, self._pods, TrialPod, on_change=on_change, params=params)
        claims = Reflector(self._client, self._claims, VolumeClaim, on_change=on_change, params=params)
        watching = [asyncio.create_task(pods.run()), asyncio.create_task(claims.run())]
        key = f"{self._namespace}/{pod.metadata.name}"
        bound_after_s: float | None = None
        try:
            while True:
                changed.clear()
                pod, claim = pods.store.get(key, pod), claims.store.get(key, claim)
                elapsed_s = self._clock() - begun
                # the two watches are not in order: a pod that has started proves that its claim is bound
                started = pod.status.phase in ("Running", "Succeeded")
                if bound_after_s is None and (claim.status.phase == "Bound" or started):
                    bound_after_s = elapsed_s
                limit_s = bind_timeout_s if bound_after_s is None else bound_after_s + write_timeout_s
                if pod.status.phase in ("Succeeded", "Failed") or elapsed_s >= limit_s:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit_s - elapsed_s):
                        await changed.wait()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        stage, message = find_stage(pod, bound=bound_after_s is not None)
        if stage in ("unbound", "unmounted", "unplaced") and (events := await self._events(pod, claim)):
            failed = [event for event in events if event.reason in _MOUNT_EVENTS]
            message = (failed or events)[-1].message or message
            if stage == "unmounted" and not failed:
                stage = "not-started"
        return VolumeTrial(
            stage=stage,
            storage_class=claim.spec.storage_class_name,
            bound_after_s=bound_after_s,
            written_after_s=elapsed_s if stage == "written" else None,
            said=message,
        )

    async def _events(self, pod: TrialPod, claim: VolumeClaim) -> list[Event]:
        """The Events of both objects, oldest first; empty without permission to read them."""
        found: list[Event] = []
        path = f"/api/v1/namespaces/{self._namespace}/events"
        for uid in (claim.metadata.uid, pod.metadata.uid):
            with contextlib.suppress(ApiError):
                page = await self._client.list_page(path, Event, params={"fieldSelector": f"involvedObject.uid={uid}"})
                found += page.items
        return sorted(found, key=lambda event: event.last_timestamp or "")

    async def _has_default_class(self) -> bool:
        try:
            page = await self._client.list_page("/apis/storage.k8s.io/v1/storageclasses", _LabelledObject)
        except ApiError:
            return True  # unknown without permission: creating the claim will show it
        return any(item.metadata.annotations.get(DEFAULT_CLASS) == "true" for item in page.items)

    async def _sweep(self, node: str) -> None:
        """Delete leftovers of earlier trials on this node."""
        old = self._wall() - LEFT_BEHIND_S
        for path in (self._pods, self._claims):
            page = await self._client.list_page(
                path, _LabelledObject, params={"labelSelector": f"{LABEL}={node_mark(node)}"}
            )
            for made in page.items:
                if seconds(made.metadata.creation_timestamp) < old:
                    await self._delete(made.metadata.name)

    async def _delete(self, name: str) -> None:
        """Delete both objects; retry for up to CLEAN_UP_S."""
        deadline = self._clock() + CLEAN_UP_S
        left = [f"{self._pods}/{name}", f"{self._claims}/{name}"]
        while left and self._clock() < deadline:
            try:
                await self._client.delete(left[0], {"gracePeriodSeconds": 0})
            except (NotFound, Forbidden):  # without permission to delete it, it could not be created either
                pass
            except ApiError:
                await asyncio.sleep(1.0)
                continue
            left.pop(0)


def find_stage(pod: TrialPod, *, bound: bool) -> tuple[Stage, str]:
    """The stage that the trial reached, and the pod's message about it."""
    state, status = pod.state, pod.status
    if status.phase == "Succeeded":
        return "written", ""
    if state.terminated is not None:
        return "unwritten", f"exit code {state.terminated.exit_code}: {state.terminated.message}".rstrip(": ")
    scheduled = next((c for c in status.conditions if c.type == "PodScheduled"), None)
    unplaced = scheduled.message if scheduled is not None and scheduled.status == "False" else ""
    if not bound:
        storage = "persistent volume" in unplaced.lower() or "persistentvolume" in unplaced.lower()
        return ("unplaced" if unplaced and not storage else "unbound"), unplaced
    if not pod.spec.node_name:
        return "unplaced", unplaced
    waiting = state.waiting
    if waiting is not None and waiting.reason.startswith(_NOT_STORAGE):
        return "not-started", f"{waiting.reason}: {waiting.message}".rstrip(": ")
    if state.running is not None:
        return "unwritten", "still writing"
    if status.phase == "Failed":
        return "not-started", f"{status.reason}: {status.message}".strip(": ")
    return "unmounted", waiting.message if waiting is not None else ""
