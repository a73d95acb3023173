"""The EndpointSlices of a sandbox's agents, on API servers of either version of discovery.k8s.io."""

import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import (  # noqa: F401 - fixtures
    Asked,
    FakeApi,
    FakeTime,
    Reply,
    api,
    client,
    config,
    fake_time,
)

from muster_agent.fleet.members import DISCOVERY, AgentEndpointSlice, agent_addresses
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError
from muster_sandbox.session.agent_service import publish_agents

PORTS = {"this-machine": 4001, "sim-1": 4002, "sim-5": 4003}


def rejected(message: str) -> Reply:
    return Reply(422, {"kind": "Status", "reason": "Invalid", "message": message, "code": 422})


def create_slice(asked: Asked) -> Reply:
    """As Kubernetes 1.21.1 and later decide about an EndpointSlice of discovery.k8s.io/v1."""
    body: Mapping[str, Any] = json.loads(asked.body)
    for endpoint in body["endpoints"]:
        if "topology" in endpoint or "nodeName" not in endpoint:
            return rejected("v1 names the node in nodeName")
        for text in endpoint["addresses"]:
            address = ip_address(text)
            if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
                return rejected(f'endpoints[0].addresses[0]: Invalid value: "{text}": may not be in the loopback range')
    return Reply(201, body)


def serve(api: FakeApi, *versions: str) -> str:  # noqa: F811 - the fixture
    """Returns the path of the slices in the first of ``versions``."""
    api.on("GET", DISCOVERY, Reply(200, {"versions": [{"version": each} for each in versions]}))
    api.on("POST", "/api/v1/namespaces/muster/services", Reply(201, {}))
    path = f"{DISCOVERY}/{versions[0]}/namespaces/muster/endpointslices"
    api.on("POST", path, create_slice if versions[0] == "v1" else Reply(201, {}))
    return path


@pytest.mark.parametrize("versions", [("v1",), ("v1", "v1beta1"), ("v1beta1",)], ids=["1.25", "1.21", "1.20"])
async def test_every_agent_is_found_at_its_own_port(
    api: FakeApi,  # noqa: F811 - the fixture
    client: KubeClient,  # noqa: F811 - the fixture
    versions: tuple[str, ...],
) -> None:
    path = serve(api, *versions)
    await publish_agents(client, PORTS, "192.0.2.7")
    slices = [msgspec.json.decode(each.body, type=AgentEndpointSlice) for each in api.asked_for("POST", path)]
    found = agent_addresses(slices)
    assert {node: (peer.address, peer.port) for node, peer in found.items()} == {
        node: ("192.0.2.7", port) for node, port in PORTS.items()
    }


async def test_a_rejected_address_is_an_error(api: FakeApi, client: KubeClient) -> None:  # noqa: F811 - the fixtures
    serve(api, "v1")
    with pytest.raises(ApiError, match="loopback"):
        await publish_agents(client, PORTS, "127.0.0.1")
