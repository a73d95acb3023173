"""The own-node rule as the API server itself enforces it, with the chart's ValidatingAdmissionPolicy: which token may
write which NodeHealth. test_own_node_webhook.py has the same for earlier versions, where the tainter enforces it.
"""

import base64
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.chart.helm_render import Helm
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.tainter.test_end_to_end import until
from tests.security.cluster.test_own_node_webhook import HEALTHS, SECRETS, TOKENS, TRIED, write

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_kube.api.errors import Forbidden
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE
from muster_sandbox.controlplane.kubeconfig import bearer_user, write_kubeconfig
from muster_sandbox.simulation.agents import create_agent_pods, delete_agent_pods, pod_name
from muster_sandbox.simulation.nodes import NODES, SimulatedNodes

pytestmark = pytest.mark.needs_modern(30)

NAME = "muster-own-node"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
KINDS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
NODE_TOKENS_MINOR = 31  # tokens can be bound to a Node by default
_numbers = itertools.count()


@dataclass
class Guard:
    """Two nodes with an agent's pod and a NodeHealth each, while the policy is in force."""

    plane: ControlPlane
    api: KubeClient
    clients: AsyncExitStack
    one: str
    other: str
    uids: dict[str, str]

    def token(self, kind: str = "", name: str = "", uid: str = "") -> str:
        """Of the agents' account, bound to that object; to none without a kind."""
        spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": []}
        if kind:
            spec["boundObjectRef"] = {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.plane.admin.create(TOKENS, body)["status"]["token"])

    def pod_token(self, node: str) -> str:
        """As the kubelet of ``node`` requests it for its agent."""
        return self.token("Pod", pod_name(node), self.uids[node])

    async def agent(self, token: str) -> KubeClient:
        ca = self.plane.ca_file.read_bytes()
        config = ClusterConfig("test", self.plane.server, ca=ca, credentials=StaticToken(token))
        return await self.clients.enter_async_context(KubeClient(config, timeout_s=60.0))


async def is_refused(client: KubeClient, node: str) -> bool:
    """By the policy: a refusal of RBAC is raised."""
    try:
        await write(client, node, **TRIED)
    except Forbidden as error:
        if NAME not in error.message:
            raise
        return True
    return False


@pytest.fixture
async def guard(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes, tmp_path: Path
) -> AsyncIterator[Guard]:
    one, other = await fleet.create(2, prefix=f"policy{next(_numbers)}")
    uids = await create_agent_pods(api, [one, other])
    for node in (one, other):
        body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
        await api.create(HEALTHS, body)
    rendered = Helm(tmp_path).template(values={"namespace": {"name": NAMESPACE}}, version=control_plane.server_version)
    async with AsyncExitStack() as clients:
        made = Guard(control_plane, api, clients, one, other, uids)
        foreign = await made.agent(made.pod_token(one))
        try:
            for kind, plural in KINDS.items():
                await api.create(f"{ADMISSION}/{plural}", rendered.one(kind, NAME))
            await until(lambda: is_refused(foreign, other), "the policy is in force")
            yield made
        finally:
            for plural in reversed(KINDS.values()):
                await api.delete(f"{ADMISSION}/{plural}/{NAME}")
            await until(lambda: _passes(foreign, other), "the policy is gone")  # else it would meet the next test
            await delete_agent_pods(api, [one, other])


async def _passes(client: KubeClient, node: str) -> bool:
    return not await is_refused(client, node)


async def test_an_agent_writes_its_own_nodes_status_and_no_others(guard: Guard) -> None:
    agent = await guard.agent(guard.pod_token(guard.one))
    assert await write(agent, guard.one, "mine") == "mine"
    with pytest.raises(Forbidden) as refused:
        await write(agent, guard.other, "not mine")
    assert guard.one in refused.value.message
    kept = (await guard.api.get(f"{HEALTHS}/{guard.other}")).get("status", {})
    assert kept.get("message") != "not mine"


@pytest.mark.parametrize("own", [True, False], ids=["own", "other"])
async def test_server_side_apply_is_no_way_around_it(guard: Guard, own: bool) -> None:
    agent = await guard.agent(guard.pod_token(guard.one))
    node = guard.one if own else guard.other
    body = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "NodeHealth",
        "metadata": {"name": node},
        "status": {"verdict": "WARN", "message": "applied"},
    }
    path = f"{HEALTHS}/{node}/status"
    if own:
        answer = await agent.apply(path, body, field_manager="muster-agent", force=True)
        assert answer["status"]["message"] == "applied"
        return
    with pytest.raises(Forbidden) as refused:
        await agent.apply(path, body, field_manager="muster-agent", force=True)
    assert NAME in refused.value.message


async def test_a_token_that_is_bound_to_nothing_writes_no_status(guard: Guard) -> None:
    agent = await guard.agent(guard.token())
    assert [await is_refused(agent, node) for node in (guard.one, guard.other)] == [True, True]


async def test_a_token_from_a_secret_writes_no_status(guard: Guard) -> None:
    name = f"{guard.one}-token"
    note = {"kubernetes.io/service-account.name": AGENT}
    secret = {"metadata": {"name": name, "annotations": note}, "type": "kubernetes.io/service-account-token"}
    await guard.api.create(SECRETS, secret)

    async def filled() -> str:
        data = (await guard.api.get(f"{SECRETS}/{name}")).get("data", {})
        return base64.b64decode(data.get("token", "")).decode()

    try:
        agent = await guard.agent(await until(filled, "the controller-manager has made the token"))
        assert [await is_refused(agent, node) for node in (guard.one, guard.other)] == [True, True]
    finally:
        await guard.api.delete(f"{SECRETS}/{name}")


async def test_a_token_that_is_bound_to_a_node_is_as_good_as_its_agents(guard: Guard) -> None:
    if guard.plane.minor < NODE_TOKENS_MINOR:
        pytest.skip(f"needs Kubernetes 1.{NODE_TOKENS_MINOR} or later in $KUBEBUILDER_ASSETS")
    uid = (await guard.api.get(f"{NODES}/{guard.one}"))["metadata"]["uid"]
    agent = await guard.agent(guard.token("Node", guard.one, uid))
    assert [await is_refused(agent, node) for node in (guard.one, guard.other)] == [False, True]


async def test_whom_rbac_allows_and_is_no_agent_is_not_judged(guard: Guard) -> None:
    assert await write(guard.api, guard.one, "an administrator") == "an administrator"


async def test_an_agent_that_is_told_it_is_another_node_logs_it_and_keeps_trying(guard: Guard, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "agent.kubeconfig"
    user = bearer_user(guard.pod_token(guard.one))
    ca = guard.plane.ca_file.read_bytes()
    write_kubeconfig(kubeconfig, server=guard.plane.server, ca=ca, user=user, namespace=NAMESPACE)
    config = kernel_log_only(tmp_path)
    since = guard.plane.audit.mark()
    agent = AgentProcess(
        tmp_path, guard.other, kubeconfig, "--config", str(config), "--pod-uid", guard.uids[guard.other]
    )

    def answers() -> list[int]:
        """To the agent's writes of the other node's status."""
        return [
            each.status
            for each in guard.plane.audit.requests(since)
            if (each.resource, each.name) == ("nodehealths/status", guard.other) and each.writes and AGENT in each.user
        ]

    async def tried_again() -> bool:
        return answers().count(403) > 2

    agent.start()
    try:
        await until(tried_again, "it tries again and again")
        assert set(answers()) == {403}
        assert agent.process is not None
        assert agent.process.poll() is None
        told = [line for line in agent.log.splitlines() if "WARNING" in line and guard.other in line and NAME in line]
        assert told
    finally:
        agent.close()
