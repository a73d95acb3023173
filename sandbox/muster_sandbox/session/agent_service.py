"""The agents' Service, so that any one of them answers for all: `curl …/status?check=dmesg`, `muster run --url …`."""

from collections.abc import Mapping

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_sandbox.controlplane.install import NAMESPACE

NAME = "autopilot-healthchecks"
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
# only those below Kubernetes 1.21 take loopback addresses, which are all that a sandbox has
_SLICES = f"/apis/discovery.k8s.io/v1beta1/namespaces/{NAMESPACE}/endpointslices"


async def publish_agents(client: KubeClient, ports: Mapping[str, int]) -> str:
    """``ports``: by node. Returns what keeps agents from finding each other; empty when they do.

    One slice for each agent: a slice has one port for all its addresses, and here each agent has one of its own.
    """
    port = {"name": "http", "port": 3333}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": [port]}
    try:
        await client.create(_SERVICES, {"metadata": {"name": NAME}, "spec": spec})
        for node, number in ports.items():
            body = {
                "metadata": {"name": f"{NAME}-{node}", "labels": {"kubernetes.io/service-name": NAME}},
                "addressType": "IPv4",
                "ports": [port | {"port": number}],
                "endpoints": [{"addresses": ["127.0.0.1"], "topology": {"kubernetes.io/hostname": node}}],
            }
            await client.create(_SLICES, body)
    except NotFound:
        return "this API server takes no loopback address in an EndpointSlice, so agents do not find each other"
    except ApiError as error:
        return f"agents do not find each other: {error}"
    return ""
