"""The cluster of a sandbox: a control plane, nodes, and Muster's components running as processes.

This package does not import the components; it starts them as programs. The caller provides what only a component
knows: the operator's webhook configurations, the audience of its token for the V-IPU proxy, and the ConfigMap of the
active policy.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError
from muster_sandbox.controlplane.cluster import ControlPlane, free_ports
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, OPERATOR, PROXY, TAINTER
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.session import parts
from muster_sandbox.session.agent_address import NoAddress, relay_agents
from muster_sandbox.session.agent_service import publish_agents
from muster_sandbox.session.folder import SandboxFolder, SandboxNode
from muster_sandbox.session.nodes import create_nodes
from muster_sandbox.simulation.agents import create_agent_pods
from muster_sandbox.simulation.kubelets import Kubelets

KUBECONFIG = "admin.kubeconfig"  # in the sandbox's folder
LOOPBACK = "127.0.0.1"
Object = dict[str, Any]
WebhookConfigurations = Callable[[int, str], Mapping[str, Object]]
"""(port of the operator's webhooks, API server version such as v1.20.2) -> objects by plural."""


@dataclass(frozen=True)
class ClusterContents:
    """What a sandbox contains besides its control plane.

    simulated: number of simulated nodes. policy: the tainter's policy file, or None for the built-in policy.
    policy_map: the ConfigMap that shows the policy. webhooks: the operator's webhook configurations.
    proxy_audience: of the operator's token for the V-IPU proxy.
    """

    simulated: int
    policy: Path | None
    policy_map: Object | None
    webhooks: WebhookConfigurations
    proxy_audience: str


@dataclass(frozen=True)
class SandboxCluster:
    """A running cluster. agent_port: port of this machine's agent. page_port: port of the tainter's fleet page."""

    client: KubeClient
    nodes: tuple[SandboxNode, ...]
    supervisor: parts.PartSupervisor
    agent_port: int
    page_port: int


@asynccontextmanager
async def run_cluster(
    plane: ControlPlane, folder: SandboxFolder, contents: ClusterContents, say: Callable[[str], None]
) -> AsyncIterator[SandboxCluster]:
    """Run the components inside the block and stop them at its end. ``say`` receives messages for the user."""
    config = load_config(folder.path / KUBECONFIG)
    async with AsyncExitStack() as stack:
        reaper = stack.enter_context(closing(ProcessReaper()))
        client = await stack.enter_async_context(KubeClient(config, user_agent="muster-sandbox"))
        await stack.enter_async_context(Kubelets(client))
        if contents.policy_map is not None:
            await client.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", contents.policy_map)
        nodes = await create_nodes(client, contents.simulated, folder.path)
        page, simulator, proxy, operator, metrics, webhooks, *rest = free_ports(6 + 2 * len(nodes))
        agents, for_agents = rest[: len(nodes)], rest[len(nodes) :]
        for plural, body in contents.webhooks(webhooks, plane.server_version).items():
            await client.create(f"/apis/admissionregistration.k8s.io/v1/{plural}", body)
        ports = {node.name: port for node, port in zip(nodes, agents, strict=True)}
        address, obstacle = LOOPBACK, ""
        try:
            address = await stack.enter_async_context(relay_agents(reaper, folder.path, rest))
        except NoAddress as error:
            obstacle = f": {error}"
        try:
            await publish_agents(client, ports, address)
        except ApiError as error:
            say(f"agents cannot find each other: {error}{obstacle}")
        ready_urls = {name: f"http://{LOOPBACK}:{port}/readyz" for name, port in ports.items()}
        uids = await create_agent_pods(client, ready_urls, ready_urls=ready_urls)
        supervisor = parts.PartSupervisor(reaper, folder.path, say)
        stack.push_async_callback(supervisor.stop)
        account = plane.kubeconfig_for(TAINTER, NAMESPACE)
        supervisor.start(parts.tainter_command(kubeconfig=account, port=page, policy=contents.policy))
        account = plane.kubeconfig_for(AGENT, NAMESPACE)
        for node, tls_port in zip(nodes, for_agents, strict=True):
            at = (ports[node.name], tls_port)
            command = parts.agent_command(
                node, kubeconfig=account, ports=at, pod_uid=uids[node.name], folder=folder.path
            )
            supervisor.start(command)
        supervisor.start(parts.vipu_simulator_command(port=simulator, folder=folder.path))
        account = plane.kubeconfig_for(PROXY, NAMESPACE)
        controller = f"{LOOPBACK}:{simulator}"
        supervisor.start(parts.vipu_proxy_command(kubeconfig=account, port=proxy, controller=controller))
        supervisor.start(
            parts.operator_command(
                kubeconfig=plane.kubeconfig_for(OPERATOR, NAMESPACE),
                port=operator,
                metrics_port=metrics,
                webhook_port=webhooks,
                proxy=f"{LOOPBACK}:{proxy}",
                proxy_token=plane.token_file_for(OPERATOR, NAMESPACE, contents.proxy_audience),
            )
        )
        yield SandboxCluster(client, tuple(nodes), supervisor, agents[0], page)
