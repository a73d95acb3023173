"""Agent pods, one on each node, created already bound as the DaemonSet does; the simulated kubelets run them.

They have no containers. If a real agent process stands in for one, its ``/readyz`` determines the pod's readiness, and
the pod's uid is the agent's ``--pod-uid``.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Pod
from muster_sandbox.controlplane.install import AGENT, NAMESPACE
from muster_sandbox.simulation.nodes import for_each
from muster_sandbox.simulation.pods import READY_URL

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LABELS = MappingProxyType({"app": "muster-agent"})


def agent_pod(
    node: str, *, ready_url: str = "", annotations: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """``ready_url``: URL of a real agent's readiness; empty: ready from the start."""
    notes = {**annotations, **({READY_URL: ready_url} if ready_url else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name(node), "labels": dict(LABELS), "annotations": notes},
        "spec": {
            "nodeName": node,
            "serviceAccountName": AGENT,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "agent", "image": "muster.invalid/agent"}],
        },
    }


def pod_name(node: str) -> str:
    return f"muster-agent-{node}"


async def create_agent_pods(
    client: KubeClient, nodes: Iterable[str], *, ready_urls: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Create an agent pod on each node; returns uids by node. ``ready_urls``: by node, for nodes with a real agent."""
    uids: dict[str, str] = {}

    async def create(node: str) -> None:
        pod = await client.create(PODS, agent_pod(node, ready_url=ready_urls.get(node, "")), type=Pod)
        uids[node] = pod.metadata.uid

    await for_each(nodes, create)
    return uids


async def delete_agent_pods(client: KubeClient, nodes: Iterable[str]) -> None:
    """Delete the pods immediately, with or without kubelets, if they exist."""

    async def delete(node: str) -> None:
        try:
            await client.delete(f"{PODS}/{pod_name(node)}", {"gracePeriodSeconds": 0})
        except NotFound:
            return

    await for_each(nodes, delete)
