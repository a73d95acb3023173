"""`muster release` with no other rights than the chart gives its job at an uninstallation, and with fewer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chart.helm_render import Helm
from tests.cluster.commands.test_release import MAPS, Person
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import Cluster, finding, until

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import apply

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

RBAC = "/apis/rbac.authorization.k8s.io/v1"
OURS = {"key": "example.com/broken", "value": "true", "effect": "NoSchedule"}
POLICY = (
    f"rules: [{{name: own, match: {{verdict: FAIL}}, action: taint, taint: {{key: {OURS['key']}, value: 'true'}}}}]"
)


@pytest.fixture
def job(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., Person]]:
    """A person with the rights of the job; without_maps: it may read none of these ConfigMaps."""
    made: list[str] = []

    def with_rights(*without_maps: str) -> Person:
        rendered = Helm(tmp_path).template()
        for kind in ("ClusterRole", "Role"):
            role = rendered.one(kind, "muster-release")
            role["metadata"]["annotations"] = {}
            if kind == "Role":
                role["metadata"]["namespace"] = "muster"  # where this tainter runs
                for rule in role["rules"]:
                    if rule["resources"] == ["configmaps"]:
                        rule["resourceNames"] = [name for name in rule["resourceNames"] if name not in without_maps]
            namespace = {"namespace": "muster"} if kind == "Role" else {}
            binding = {
                "apiVersion": role["apiVersion"],
                "kind": f"{kind}Binding",
                "metadata": {"name": "muster-release", **namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "muster-release"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "release-job"}],
            }
            for each in (role, binding):
                apply(control_plane.admin, each)
                place = "/namespaces/muster" if namespace else ""
                made.append(f"{RBAC}{place}/{each['kind'].lower()}s/muster-release")
        return Person(control_plane.kubeconfig_for_user("release-job", []))

    yield with_rights
    for path in made:
        control_plane.admin.delete(path)


@pytest.fixture
async def stored_policy(api: KubeClient) -> Any:
    await api.create(MAPS, {"metadata": {"name": "muster-policy"}, "data": {"policy.yaml": POLICY}})
    yield
    await api.delete(f"{MAPS}/muster-policy")


@pytest.fixture
async def tainted(tainters: Any, fleet: Any, cluster: Cluster, tmp_path: Path) -> Any:
    """A node with a taint of the policy's own key, and no tainter any more."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    replica = await tainters.start("--policy", str(tmp_path / "policy.yaml"))
    [name] = await fleet.create(1, prefix="job")
    await cluster.report(name, finding())
    await until(lambda: cluster.taints(name), "the taint")
    await replica.stop()
    return name


async def test_the_job_removes_taints_with_keys_of_the_policys_own(
    job: Callable[..., Person], stored_policy: None, tainted: str, cluster: Cluster
) -> None:
    assert await cluster.taints(tainted) == [OURS]
    person = job()

    async def released() -> bool:
        return (await person.types("release", tainted, "--yes")).code == 0

    await until(released, "RBAC has heard of the role")
    assert await cluster.taints(tainted) == []


async def test_nothing_is_removed_while_the_policy_may_not_be_read(
    job: Callable[..., Person], stored_policy: None, tainted: str, cluster: Cluster, api: KubeClient
) -> None:
    record = (await cluster.node(tainted))["metadata"]["annotations"]
    person = job("muster-policy")

    async def refused() -> bool:
        said = await person.types("release", tainted, "--yes")
        return said.code == 3 and "muster-policy" in said.err

    await until(refused, "RBAC has heard of the role")
    assert await cluster.taints(tainted) == [OURS]
    assert (await cluster.node(tainted))["metadata"]["annotations"] == record
