"""The Service of the agents, through which one agent reaches all others, for example for `muster run --url …`."""

from collections.abc import Mapping
from typing import Any

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.install import NAMESPACE

NAME = "autopilot-healthchecks"
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
_DISCOVERY = "/apis/discovery.k8s.io"


async def publish_agents(client: KubeClient, ports: Mapping[str, int], address: str) -> None:
    """Create the Service and one EndpointSlice for each agent. ``ports``: by node. Raises ApiError.

    Each agent needs its own slice because a slice has one port for all its addresses.
    """
    port = {"name": "http", "port": 3333}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": [port]}
    await client.create(_SERVICES, {"metadata": {"name": NAME}, "spec": spec})
    version = await served_version(client)
    for node, number in ports.items():
        body = {
            "metadata": {"name": f"{NAME}-{node}", "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4",
            "ports": [port | {"port": number}],
            "endpoints": [_endpoint(version, node, address)],
        }
        await client.create(f"{_DISCOVERY}/{version}/namespaces/{NAMESPACE}/endpointslices", body)


async def served_version(client: KubeClient) -> str:
    """Of EndpointSlices: v1, or v1beta1 on Kubernetes 1.20, which does not serve v1."""
    served = {each["version"] for each in (await client.get(_DISCOVERY))["versions"]}
    return "v1" if "v1" in served else "v1beta1"


def _endpoint(version: str, node: str, address: str) -> dict[str, Any]:
    if version == "v1":
        return {"addresses": [address], "nodeName": node}
    return {"addresses": [address], "topology": {"kubernetes.io/hostname": node}}
