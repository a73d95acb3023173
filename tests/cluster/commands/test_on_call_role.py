"""The role that examples/on-call-rbac.yaml grants is enough for the commands that it names."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.commands import test_release
from tests.cluster.commands.test_release import Person
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import Cluster, finding, until

from muster_cli.cluster.agent_routes import PORT, SERVICE
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError, Forbidden
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import apply

cluster, tainters, resumed = end_to_end.cluster, end_to_end.tainters, test_release.resumed  # fixtures

EXAMPLE = Path(__file__).parents[3] / "examples/on-call-rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
async def on_call(control_plane: ControlPlane, api: KubeClient, resumed: None) -> AsyncIterator[Person]:
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(EXAMPLE.read_text()))
    paths = []
    for each in objects:
        place = RBAC
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = "muster"  # where this tainter runs
            place += "/namespaces/muster"
        paths.append(f"{place}/{each['kind'].lower()}s/{each['metadata']['name']}")
        apply(control_plane.admin, each)
    yield Person(control_plane.kubeconfig_for_user("ada", ["on-call"]))
    for path in paths:
        await api.delete(path)


async def test_a_person_on_call_can_do_what_the_page_asks_for(
    on_call: Person, tainters: Any, fleet: Any, cluster: Cluster
) -> None:
    [node] = await fleet.create(1, prefix="on-call")
    await tainters.start()
    await cluster.report(node, finding())
    await cluster.until_faulty(node)

    async def reads() -> bool:
        return node in (await on_call.types("status", namespace=None)).out

    await until(reads, "RBAC has heard of the role")
    assert (await on_call.types("explain", node)).code == 2
    assert (await on_call.types("pause", "--reason", "test")).code == 0
    assert (await on_call.types("resume")).code == 0
    assert (await on_call.types("clear", node, namespace=None)).code == 0
    await cluster.until_free(node)


async def test_a_person_on_call_may_reach_the_agents_service_and_no_other(on_call: Person) -> None:
    services = "/api/v1/namespaces/muster/services"
    async with KubeClient(load_config(on_call.kubeconfig), timeout_s=30.0) as client:

        async def refused(service: str) -> bool:
            try:
                await client.get(f"{services}/{service}/proxy/status")
            except Forbidden:
                return True
            except ApiError:  # there is no such Service here
                return False
            raise AssertionError(service)

        async def reaches() -> bool:
            return not await refused(f"http:{SERVICE}:{PORT}")

        await until(reaches, "RBAC has heard of the role")
        assert await refused("http:another:80")
