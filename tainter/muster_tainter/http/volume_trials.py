"""Volume trials for callers without permission to create claims: nodes' agents, and people (POST /api/trials/pvc).

Any replica runs them, leader or not: a trial decides nothing about nodes, its objects have unique names, and the agent
publishes the verdict.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from muster_checks.pvc import PvcParameters
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.api.objects import Pod
from muster_kube.api.reviews import Identity, Reviews
from muster_kube.nodehealth import GROUP, PLURAL
from muster_kube.volume_trial import VolumeTrial, VolumeTrialRunner

log = logging.getLogger(__name__)

AUDIENCE = "muster"
AT_ONCE = 4  # storage systems handle few claims at a time: more would slow each other down and look like a failure
RETRY_AFTER_S = 30
STOP_S = 5.0


def _on_the_wire(name: str) -> str:
    return to_camel(name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name)


class TrialRequest(PvcParameters):
    """The parameters and bounds of the check, named as in JSON (``bindTimeoutSeconds``)."""

    model_config = ConfigDict(strict=True, alias_generator=_on_the_wire, defer_build=False)
    node: str = Field(
        max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="node on which the pod has to run"
    )


class HttpRefusal(Exception):
    """status: of HTTP; reason: as in the Kubernetes API."""

    def __init__(
        self, status: int, reason: str, message: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.headers = headers


class TrialAuthorizer:
    """Admits callers to trials on a node: that node's agent, and users with permission to create pods.

    ``namespace``: where trials run. ``client``: reads pods.
    """

    def __init__(self, client: KubeClient, reviews: Reviews, namespace: str) -> None:
        self._client = client
        self._reviews = reviews
        self._namespace = namespace

    async def admit(self, token: str, node: str) -> str:
        """The user's name. Raises HttpRefusal."""
        try:
            identity = await self._reviews.who(token, AUDIENCE)
            if identity is not None and await self._is_agent_of(identity, node):
                return identity.user
            identity = identity or await self._reviews.who(token)
            if identity is None:
                raise unauthorized("the API server rejected this token")
            if await self._reviews.may(identity, "create", "", "pods", namespace=self._namespace):
                return identity.user
        except (ApiError, ConfigError) as error:
            raise HttpRefusal(503, "ServiceUnavailable", f"cannot verify the token: {error}") from error
        raise HttpRefusal(
            403,
            "Forbidden",
            f"{identity.user} is not the agent of node {node} (a token for audience {AUDIENCE}, bound to a pod there), "
            f"and has no permission to create pods in namespace {self._namespace}",
        )

    async def _is_agent_of(self, identity: Identity, node: str) -> bool:
        """An agent has permission to write NodeHealth statuses: any pod can request a token for our audience."""
        if not identity.pod or identity.service_account is None or await self._node_of(identity) != node:
            return False
        return await self._reviews.may(identity, "patch", GROUP, PLURAL, subresource="status")

    async def _node_of(self, identity: Identity) -> str:
        """The node of the pod to which the token is bound; empty if that pod is gone."""
        if identity.node:
            return identity.node
        assert identity.service_account is not None  # noqa: S101 - checked by the caller
        namespace, _ = identity.service_account
        try:
            pod = await self._client.get(f"/api/v1/namespaces/{namespace}/pods/{identity.pod}", type=Pod)
        except NotFound:
            return ""
        return pod.spec.node_name if pod.metadata.uid == identity.pod_uid else ""


def unauthorized(message: str) -> HttpRefusal:
    return HttpRefusal(401, "Unauthorized", message, {"WWW-Authenticate": "Bearer"})


@dataclass
class _Run:
    request: TrialRequest
    task: "asyncio.Task[VolumeTrial]"
    waiting: int = 0


class VolumeTrials:
    """One trial at a time per node, AT_ONCE in total. Callers with the same request share a run; when the last of them
    disconnects it is cancelled and its objects are deleted. image: of all pods; requests for another are rejected."""

    def __init__(self, volumes: VolumeTrialRunner, image: str) -> None:
        self._volumes = volumes
        self._image = image
        self._runs: dict[str, _Run] = {}
        self._stopping = False

    async def run(self, request: TrialRequest, user: str) -> VolumeTrial:
        """Raises HttpRefusal."""
        if "image" in request.model_fields_set and request.image != self._image:
            raise HttpRefusal(
                400,
                "BadRequest",
                f"body.image: found {request.image!r}, expected {self._image!r}, the tainter's setting trials_image",
            )
        run = self._runs.get(request.node) or self._begin(request, user)
        if run.request != request or run.task.cancelling():
            raise _busy(f"another trial is running on node {request.node}")
        run.waiting += 1
        try:
            await asyncio.wait([run.task])  # unlike await, this does not cancel the other callers' run
        finally:
            run.waiting -= 1
            if not run.waiting:
                run.task.cancel()
        if run.task.cancelled():
            raise _stopping()
        return run.task.result()

    def _begin(self, request: TrialRequest, user: str) -> _Run:
        if self._stopping:
            raise _stopping()
        if len(self._runs) >= AT_ONCE:
            raise _busy(f"{AT_ONCE} trials are running, which is the limit")
        task = asyncio.create_task(self._try(request, user))
        run = self._runs[request.node] = _Run(request, task)
        task.add_done_callback(lambda _: self._runs.pop(request.node))
        return run

    async def _try(self, request: TrialRequest, user: str) -> VolumeTrial:
        storage_class = request.storage_class or "default"
        log.info("node %s: volume trial of class %s for %s", request.node, storage_class, user)
        trial = await self._volumes.try_claim(
            request.node,
            storage_class=request.storage_class,
            size_mib=request.size_mib,
            image=self._image,
            bind_timeout_s=request.bind_timeout_s,
            write_timeout_s=request.write_timeout_s,
        )
        result = f"{trial.stage}: {trial.said}" if trial.said else trial.stage
        log.info("node %s: volume trial result: %s", request.node, result)
        return trial

    async def stop(self) -> None:
        """Cancel running trials, and wait for a limited time until their objects are deleted. Rejects new trials."""
        self._stopping = True
        tasks = [run.task for run in self._runs.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)


def _busy(message: str) -> HttpRefusal:
    return HttpRefusal(429, "TooManyRequests", message, {"Retry-After": str(RETRY_AFTER_S)})


def _stopping() -> HttpRefusal:
    return HttpRefusal(503, "ServiceUnavailable", "this replica is stopping", {"Retry-After": "1"})
