"""A sandbox's cluster: a control plane with nodes, and Muster's parts on it as processes.

The component imports none of those parts: it starts them as programs. What only a part knows (the operator's webhook
configurations, where the tainter's policy is published) comes from the caller.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane, free_ports
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, OPERATOR, PROXY, TAINTER
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.session import parts
from muster_sandbox.session.agent_service import publish_agents
from muster_sandbox.session.folder import SandboxFolder, SandboxNode
from muster_sandbox.session.nodes import create_nodes
from muster_sandbox.simulation.agents import create_agent_pods
from muster_sandbox.simulation.kubelets import Kubelets

KUBECONFIG = "admin.kubeconfig"  # in the sandbox's folder
Object = dict[str, Any]
WebhookConfigurations = Callable[[int, str], Mapping[str, Object]]
"""(port of the operator's webhooks, the API server's version as v1.20.2) -> bodies by plural."""


@dataclass(frozen=True)
class ClusterContents:
    """What a sandbox holds beside its control plane.

    simulated: number of nodes beside this machine. policy: the tainter's rules, or None for its own; policy_map: the
    ConfigMap that shows them. webhooks: the operator's configurations.
    """

    simulated: int
    policy: Path | None
    policy_map: Object | None
    webhooks: WebhookConfigurations


@dataclass(frozen=True)
class SandboxCluster:
    """One that runs. agent_port: of this machine's agent; page_port: of the tainter's fleet page."""

    client: KubeClient
    nodes: tuple[SandboxNode, ...]
    supervisor: parts.PartSupervisor
    agent_port: int
    page_port: int


@asynccontextmanager
async def run_cluster(
    plane: ControlPlane, folder: SandboxFolder, contents: ClusterContents, say: Callable[[str], None]
) -> AsyncIterator[SandboxCluster]:
    """The parts run inside the block and end with it. ``say`` gets a line for each thing that a person should know."""
    config = load_config(folder.path / KUBECONFIG)
    with closing(ProcessReaper()) as reaper:
        async with KubeClient(config, user_agent="muster-sandbox") as client, Kubelets(client):
            if contents.policy_map is not None:
                await client.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", contents.policy_map)
            nodes = await create_nodes(client, contents.simulated, folder.path)
            page, simulator, proxy, operator, metrics, webhooks, *agents = free_ports(6 + len(nodes))
            for plural, body in contents.webhooks(webhooks, plane.server_version).items():
                await client.create(f"/apis/admissionregistration.k8s.io/v1/{plural}", body)
            ports = {node.name: port for node, port in zip(nodes, agents, strict=True)}
            if alone := await publish_agents(client, ports):
                say(alone)
            ready_urls = {name: f"http://127.0.0.1:{port}/readyz" for name, port in ports.items()}
            uids = await create_agent_pods(client, ready_urls, ready_urls=ready_urls)
            supervisor = parts.PartSupervisor(reaper, folder.path, say)
            try:
                account = plane.kubeconfig_for(TAINTER, NAMESPACE)
                supervisor.start(parts.tainter_command(kubeconfig=account, port=page, policy=contents.policy))
                account = plane.kubeconfig_for(AGENT, NAMESPACE)
                for node in nodes:
                    port, uid = ports[node.name], uids[node.name]
                    supervisor.start(
                        parts.agent_command(node, kubeconfig=account, port=port, pod_uid=uid, folder=folder.path)
                    )
                supervisor.start(parts.vipu_simulator_command(port=simulator, folder=folder.path))
                account = plane.kubeconfig_for(PROXY, NAMESPACE)
                controller = f"127.0.0.1:{simulator}"
                supervisor.start(parts.vipu_proxy_command(kubeconfig=account, port=proxy, controller=controller))
                supervisor.start(
                    parts.operator_command(
                        kubeconfig=plane.kubeconfig_for(OPERATOR, NAMESPACE),
                        port=operator,
                        metrics_port=metrics,
                        webhook_port=webhooks,
                        proxy=f"127.0.0.1:{proxy}",
                    )
                )
                yield SandboxCluster(client, tuple(nodes), supervisor, agents[0], page)
            finally:
                await supervisor.stop()
