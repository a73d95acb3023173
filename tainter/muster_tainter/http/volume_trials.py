"""Volume claims tried for those who may not make one themselves: a node's agent, and people (POST /api/trials/pvc).

Any replica does it, leader or not: a trial decides nothing about nodes, its objects have names of their own, and its
verdict is the agent's to publish.
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
AT_ONCE = 4  # storage systems work at few claims at a time: more would slow each other and look like a bad one
RETRY_AFTER_S = 30
STOP_S = 5.0


def _on_the_wire(name: str) -> str:
    return to_camel(name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name)


class TrialRequest(PvcParameters):
    """One request: the check's own parameters and bounds, named as in JSON (``bindTimeoutSeconds``)."""

    model_config = ConfigDict(strict=True, alias_generator=_on_the_wire, defer_build=False)
    node: str = Field(
        max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="on which the pod has to run"
    )


class HttpRefusal(Exception):
    """status: of HTTP; reason: the API's word for it."""

    def __init__(
        self, status: int, reason: str, message: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.headers = headers


class TrialAuthorizer:
    """Who may ask for a trial on a node: that node's agent, and whoever could make the pod themselves.

    ``namespace``: where trials are made. ``client``: reads pods.
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
                raise unauthorized("the API server does not know this token")
            if await self._reviews.may(identity, "create", "", "pods", namespace=self._namespace):
                return identity.user
        except (ApiError, ConfigError) as error:
            raise HttpRefusal(503, "ServiceUnavailable", f"who asks cannot be found out: {error}") from error
        raise HttpRefusal(
            403,
            "Forbidden",
            f"{identity.user} is not the agent of node {node} (a token for audience {AUDIENCE}, bound to a pod there), "
            f"and may not create pods in namespace {self._namespace}",
        )

    async def _is_agent_of(self, identity: Identity, node: str) -> bool:
        """An agent is who may write NodeHealths' status: any pod can have itself given a token for our audience."""
        if not identity.pod or identity.service_account is None or await self._node_of(identity) != node:
            return False
        return await self._reviews.may(identity, "patch", GROUP, PLURAL, subresource="status")

    async def _node_of(self, identity: Identity) -> str:
        """The node of the pod that the token is bound to; empty where that pod is gone."""
        if identity.node:
            return identity.node
        assert identity.service_account is not None  # noqa: S101 - asked by the caller
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
    asked: TrialRequest
    task: "asyncio.Task[VolumeTrial]"
    waiting: int = 0


class VolumeTrials:
    """One at a time on a node, AT_ONCE in all. Callers who ask the same share a run; when the last of them is gone it
    is called off, and its objects are deleted."""

    def __init__(self, volumes: VolumeTrialRunner) -> None:
        self._volumes = volumes
        self._runs: dict[str, _Run] = {}
        self._stopping = False

    async def run(self, asked: TrialRequest, user: str) -> VolumeTrial:
        """Raises HttpRefusal."""
        run = self._runs.get(asked.node) or self._begin(asked, user)
        if run.asked != asked or run.task.cancelling():
            raise _busy(f"node {asked.node} is being tried for somebody else")
        run.waiting += 1
        try:
            await asyncio.wait([run.task])  # unlike awaiting it, this takes no other caller's run along when cancelled
        finally:
            run.waiting -= 1
            if not run.waiting:
                run.task.cancel()
        if run.task.cancelled():
            raise _stopping()
        return run.task.result()

    def _begin(self, asked: TrialRequest, user: str) -> _Run:
        if self._stopping:
            raise _stopping()
        if len(self._runs) >= AT_ONCE:
            raise _busy(f"{AT_ONCE} trials are under way, which is the most at once")
        task = asyncio.create_task(self._try(asked, user))
        run = self._runs[asked.node] = _Run(asked, task)
        task.add_done_callback(lambda _: self._runs.pop(asked.node))
        return run

    async def _try(self, asked: TrialRequest, user: str) -> VolumeTrial:
        log.info("node %s: a claim of class %s is tried for %s", asked.node, asked.storage_class or "default", user)
        trial = await self._volumes.try_claim(
            asked.node,
            storage_class=asked.storage_class,
            size_mib=asked.size_mib,
            image=asked.image,
            bind_timeout_s=asked.bind_timeout_s,
            write_timeout_s=asked.write_timeout_s,
        )
        log.info("node %s: the claim was %s", asked.node, f"{trial.stage}: {trial.said}" if trial.said else trial.stage)
        return trial

    async def stop(self) -> None:
        """Call off what runs, and wait a while for its objects to be deleted. Nothing begins after this."""
        self._stopping = True
        tasks = [run.task for run in self._runs.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)


def _busy(message: str) -> HttpRefusal:
    return HttpRefusal(429, "TooManyRequests", message, {"Retry-After": str(RETRY_AFTER_S)})


def _stopping() -> HttpRefusal:
    return HttpRefusal(503, "ServiceUnavailable", "this replica stops", {"Retry-After": "1"})
