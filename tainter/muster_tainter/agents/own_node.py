"""An agent may report only on its own node. The node is that of the pod to which the agent's token is bound.

From Kubernetes 1.30 on, the token itself names the node. Before, the pod is read once and its node is cached by the
pod's UID, as a pod never moves. Only the agents' service account is checked: RBAC limits all others.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.api.objects import Pod
from muster_kube.nodehealth import GROUP, PLURAL
from muster_kube.webhook.review import ALLOWED, AdmissionRequest, ReviewAnswer
from muster_tainter.agents.refusals import RefusalLog

LOOKUP_S = 1.0  # for the pod; below the webhook's timeoutSeconds: 2
PODS_LIMIT = 20_000  # cached: more than the nodes of the largest cluster (15,000), so each agent is looked up once
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class AgentAccount(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclass(frozen=True)
class BoundPod:
    """The pod to which a token is bound, according to the token."""

    name: str
    uid: str


@dataclass(frozen=True)
class OwnNode:
    """The node on which the writer runs."""

    name: str


def find_speaker(request: AdmissionRequest, account: AgentAccount) -> ReviewAnswer | OwnNode | BoundPod:
    """Identify the writer: an answer if no more is needed, or a pod whose node has to be looked up."""
    resource = request.resource
    if (resource.group, resource.resource, request.sub_resource) != (GROUP, PLURAL, "status"):
        return ALLOWED
    user = request.user_info
    if user.user != str(account):
        return ALLOWED
    if user.node:
        return OwnNode(user.node)
    if not user.pod or not user.pod_uid:
        return _refused(
            f"the token of {account} is not bound to a pod, so its node is unknown: use a projected token, as the "
            "kubelet mounts it into the agent's pod (volume source serviceAccountToken); a token from a Secret of the "
            "account is not accepted"
        )
    if _NAME.fullmatch(user.pod) is None:
        return _refused(f"{user.pod[:64]!r} is not a valid pod name")
    return BoundPod(user.pod, user.pod_uid)


def judge(request: AdmissionRequest, node: str, pod: str) -> ReviewAnswer:
    """``node``: where the writer runs, empty if nowhere (any more). ``pod``: the writer's name for the message."""
    if not node:
        return _refused(
            f"{pod}, to which the token is bound, does not exist or is not scheduled: only a running agent may report"
        )
    if node != request.name:
        return _refused(
            f"{pod} runs on node {node}: it may write only the status of NodeHealth {node}, not of "
            f"{_shown(request.name)}"
        )
    return ALLOWED


class TokenPodNodes:
    """The nodes of the pods in ``namespace``. Each pod is read once."""

    def __init__(self, client: KubeClient, namespace: str, *, limit: int = PODS_LIMIT) -> None:
        self._client = client
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._limit = limit
        self._nodes: OrderedDict[str, str] = OrderedDict()

    async def node_of(self, pod: BoundPod) -> str:
        """Empty if there is no such pod or it is on no node; neither is cached. Raises ApiError, ConfigError."""
        if pod.uid in self._nodes:
            self._nodes.move_to_end(pod.uid)
            return self._nodes[pod.uid]
        try:
            found = await self._client.get(f"{self._pods}/{pod.name}", type=Pod, timeout_s=LOOKUP_S)
        except NotFound:
            return ""
        node = found.spec.node_name
        if found.metadata.uid != pod.uid or not node:
            return ""
        self._nodes[pod.uid] = node
        while len(self._nodes) > self._limit:
            self._nodes.popitem(last=False)
        return node


class OwnNodeRule:
    """The webhook's reviewer. tell, clock: as of :class:`RefusalLog`."""

    def __init__(
        self, account: AgentAccount, nodes: TokenPodNodes, *, tell: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._account = account
        self._nodes = nodes
        self._refusals = RefusalLog(tell, clock)

    async def review(self, request: AdmissionRequest) -> ReviewAnswer:
        found = find_speaker(request, self._account)
        if isinstance(found, OwnNode):
            pod = request.user_info.pod
            found = judge(request, found.name, f"pod {_shown(pod)}" if pod else "the holder of this token")
        elif isinstance(found, BoundPod):
            found = await self._looked_up(request, found)
        elif found.allowed:
            return found
        self._refusals.note(f"NodeHealth {_shown(request.name)}", found)
        return found

    async def _looked_up(self, request: AdmissionRequest, pod: BoundPod) -> ReviewAnswer:
        try:
            node = await self._nodes.node_of(pod)
        except (ApiError, ConfigError) as error:
            message = f"cannot look up the node of pod {pod.name}: {error}; try again"
            return ReviewAnswer(False, 503, "ServiceUnavailable", message)
        return judge(request, node, f"pod {pod.name}")


def _refused(message: str) -> ReviewAnswer:
    return ReviewAnswer(False, message=message)


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else repr(name[:64])
