"""An agent may report on its own node only: who speaks, by the pod that its token is bound to, and for which node.

From Kubernetes 1.30 on the token itself names the node; before, the pod is read once and its node is kept by the pod's
uid, as a pod never moves. Only the agents' service account is judged: what others may write is for RBAC to say.
"""

import logging
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

log = logging.getLogger(__name__)

LOOKUP_S = 1.0  # for the pod; below the API server's patience with us (timeoutSeconds: 2)
PODS_LIMIT = 20_000  # kept: more than a cluster has nodes (15,000), so each agent is looked up once
LOG_EVERY_S = 1.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class AgentAccount(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclass(frozen=True)
class BoundPod:
    """The pod that a token is bound to, as the token says."""

    name: str
    uid: str


@dataclass(frozen=True)
class OwnNode:
    """The node that whoever writes runs on."""

    name: str


def find_speaker(request: AdmissionRequest, account: AgentAccount) -> ReviewAnswer | OwnNode | BoundPod:
    """Whose word it is. An answer where nothing more has to be known; a pod where its node has to be looked up."""
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
            f"this token of {account} is bound to no pod, so nobody can tell which node it speaks for: expected a "
            "projected one, as the kubelet puts it into the agent's pod (volume source serviceAccountToken); the token "
            "in a Secret of the account will not do"
        )
    if _NAME.fullmatch(user.pod) is None:
        return _refused(f"{user.pod[:64]!r} is no pod's name")
    return BoundPod(user.pod, user.pod_uid)


def judge(request: AdmissionRequest, node: str, pod: str) -> ReviewAnswer:
    """``node``: where the writer runs; empty: nowhere (any more). ``pod``: who that is, for people."""
    if not node:
        return _refused(
            f"{pod}, which the token is bound to, does not exist any more or is on no node yet: only an agent that "
            "runs may report"
        )
    if node != request.name:
        return _refused(
            f"{pod} runs on node {node}, so it may write the status of NodeHealth {node} only, not of "
            f"{_shown(request.name)}"
        )
    return ALLOWED


class TokenPodNodes:
    """On which nodes the pods of ``namespace`` are. Each is read once."""

    def __init__(self, client: KubeClient, namespace: str, *, limit: int = PODS_LIMIT) -> None:
        self._client = client
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._limit = limit
        self._nodes: OrderedDict[str, str] = OrderedDict()

    async def node_of(self, pod: BoundPod) -> str:
        """Empty: there is no such pod, or it is on no node; both are asked anew. Raises ApiError, ConfigError."""
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
    """The webhook's reviewer.

    tell: gets ``allowed``, ``refused`` or ``undecided`` for each write that was judged
    clock: seconds, monotonic
    """

    def __init__(
        self, account: AgentAccount, nodes: TokenPodNodes, *, tell: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._account = account
        self._nodes = nodes
        self._tell = tell
        self._clock = clock
        self._logged_at = float("-inf")
        self._unlogged = 0

    async def review(self, request: AdmissionRequest) -> ReviewAnswer:
        found = find_speaker(request, self._account)
        if isinstance(found, OwnNode):
            pod = request.user_info.pod
            found = judge(request, found.name, f"pod {_shown(pod)}" if pod else "whoever holds this token")
        elif isinstance(found, BoundPod):
            found = await self._looked_up(request, found)
        elif found.allowed:
            return found
        self._tell("allowed" if found.allowed else "undecided" if found.code == 503 else "refused")
        if not found.allowed:
            self._log(request, found)
        return found

    async def _looked_up(self, request: AdmissionRequest, pod: BoundPod) -> ReviewAnswer:
        try:
            node = await self._nodes.node_of(pod)
        except (ApiError, ConfigError) as error:
            message = f"the node of pod {pod.name} cannot be found out, try again: {error}"
            return ReviewAnswer(False, 503, "ServiceUnavailable", message)
        return judge(request, node, f"pod {pod.name}")

    def _log(self, request: AdmissionRequest, answer: ReviewAnswer) -> None:
        """At most one line a second: whoever is refused can ask again as fast as they like."""
        now = self._clock()
        if now - self._logged_at < LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} others since the last such line)" if self._unlogged else ""
        log.warning("NodeHealth %s: a write was refused%s: %s", _shown(request.name), more, answer.message)
        self._logged_at, self._unlogged = now, 0


def _refused(message: str) -> ReviewAnswer:
    return ReviewAnswer(False, message=message)


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else repr(name[:64])
