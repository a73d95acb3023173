"""Whoever has taken a node writes its Node with the kubelet's own certificate, and wants taints off: its own ones and
those of other people. On a real API server with the authorizer Node and the admission plug-in NodeRestriction.

Muster's keys are guarded by what the chart renders for the version of the API server: a ValidatingAdmissionPolicy from
Kubernetes 1.30 on, before that the tainter's webhook.
"""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.chart.helm_render import Helm, Rendered
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import FAULTY, Cluster, Tainters, finding, until

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import Conflict, Forbidden
from muster_kube.webhook.certificate_secret import mutating_webhook_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_tainter.faults.record.node_record import ANNOTATION

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

NODES = "/api/v1/nodes"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
WEBHOOK = "muster-own-node"
CONFIGURATION = mutating_webhook_path(WEBHOOK)
ADMISSION = CONFIGURATION.rpartition("/")[0].rpartition("/")[0]
POLICY = "muster-node-keys"
MANAGED = {"labels": {"muster.dev/managed": "false"}}
THEIRS = [
    {"key": "dedicated", "value": "research", "effect": "NoSchedule"},
    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
]
TRIED = {"dryRun": "All"}  # admission is asked, nothing is written
_numbers = itertools.count()


@dataclass
class Writer:
    """A client that writes Nodes in the name of one user."""

    api: KubeClient

    async def patch(self, node: str, metadata: dict[str, Any], *, status: bool = False, **params: str) -> None:
        path = f"{NODES}/{node}{'/status' if status else ''}"
        await self.api.patch(path, {"metadata": metadata}, params=params)

    async def taint(self, node: str, *taints: dict[str, Any]) -> None:
        await self.api.patch(f"{NODES}/{node}", {"spec": {"taints": list(taints)}})


@pytest.fixture
async def writers(control_plane: ControlPlane) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def made(kubeconfig: Path) -> Writer:
            client = KubeClient(load_config(kubeconfig), timeout_s=30.0)
            return Writer(await stack.enter_async_context(client))

        yield made


def claim(*taints: dict[str, str]) -> dict[str, Any]:
    """The annotation that says that Muster has set these taints, and that a fault of any number is closed."""
    closed = [{"check": "dmesg", "component": "gpu/0000:3b:00.0", "reason": "Xid79", "occurrence": 2**53}]
    return {"annotations": {ANNOTATION: json.dumps({"ours": taints, "closed": closed})}}


async def test_a_record_that_the_kubelet_forged_takes_off_no_taint_of_others(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, control_plane: ControlPlane, writers: Any
) -> None:
    """Without any admission check: what Muster's own code guarantees."""
    await tainters.start()
    name, unmanaged = await fleet.create(2, prefix="forged")
    for each, more in ((name, {}), (unmanaged, MANAGED)):
        await Writer(cluster.api).taint(each, *THEIRS)
        await cluster.report(each, finding())
        await until(lambda each=each: cluster.faulty(each), f"{each} is tainted")  # type: ignore[misc] # bound at once
        kubelet = await writers(control_plane.kubeconfig_for_node(each))
        with pytest.raises(Forbidden):
            await kubelet.taint(each)  # NodeRestriction: no kubelet writes taints; so it asks the tainter to
        await kubelet.patch(each, claim(*THEIRS, FAULTY) | more)

        async def believed(each: str = each) -> bool:
            """The tainter has decided about what the kubelet wrote."""
            annotations = (await cluster.node(each))["metadata"].get("annotations", {})
            return THEIRS[0]["key"] not in annotations.get(ANNOTATION, "")

        await until(believed, "the claim is gone")
        kept = [taint for taint in await cluster.taints(each) if taint["key"] != FAULTY["key"]]
        assert kept == THEIRS

    async def told() -> bool:
        return "TaintNotInPolicy" in await cluster.events(name)

    await until(told, "an Event names them")
    for each in (name, unmanaged):
        await Writer(cluster.api).taint(each)


@pytest.fixture
async def guarded(
    tainters: Tainters, control_plane: ControlPlane, fleet: SimulatedNodes, writers: Any, tmp_path: Path
) -> AsyncIterator[str]:
    """A node, while Muster's keys are guarded."""
    [node] = await fleet.create(1, prefix=f"keys{next(_numbers)}")
    rendered = Helm(tmp_path).template(version=control_plane.server_version)
    guard = policy_guard if rendered.has("ValidatingAdmissionPolicy", POLICY) else webhook_guard
    new = f"{node}-tried"
    joining = await writers(control_plane.kubeconfig_for_node(new))
    admin = await writers(control_plane.kubeconfig)

    def tried() -> Awaitable[str]:
        return refused(joining.api.create(NODES, labelled(new), params=TRIED))

    async def passes() -> bool:
        return not await tried()

    try:
        async with guard(rendered, admin.api, tainters):
            await until(tried, "the rule is in force")
            yield node
    finally:
        await until(passes, "the rule is gone")  # else it would meet the next test


@asynccontextmanager
async def policy_guard(rendered: Rendered, api: KubeClient, tainters: Tainters) -> AsyncIterator[None]:
    kinds = ("ValidatingAdmissionPolicy", "validatingadmissionpolicies")
    bindings = ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
    try:
        for kind, plural in (kinds, bindings):
            await api.create(f"{ADMISSION}/{plural}", rendered.one(kind, POLICY))
        await tainters.start()
        yield
    finally:
        for _, plural in (bindings, kinds):
            await api.delete(f"{ADMISSION}/{plural}/{POLICY}")


@asynccontextmanager
async def webhook_guard(rendered: Rendered, api: KubeClient, tainters: Tainters) -> AsyncIterator[None]:
    configuration = rendered.one("MutatingWebhookConfiguration", WEBHOOK)
    [webhook] = configuration["webhooks"]
    path = webhook["clientConfig"]["service"]["path"]
    webhook["clientConfig"] = {"url": f"https://127.0.0.1:1{path}"}  # no Service network here; nobody answers at port 1
    webhook["timeoutSeconds"] = 30  # a starved tainter that missed the chart's two would let everything pass
    await api.create(CONFIGURATION.rpartition("/")[0], configuration | {"webhooks": [webhook]})
    try:
        replica = await tainters.start("--webhook-port", "0", wait=False)
        address = {"name": webhook["name"], "clientConfig": {"url": f"https://{await replica.next_address()}{path}"}}

        async def trusted() -> bool:
            [found] = (await api.get(CONFIGURATION))["webhooks"]
            return bool(found["clientConfig"].get("caBundle"))

        await until(trusted, "the certificate is trusted")
        await api.patch(CONFIGURATION, {"webhooks": [address]}, kind="strategic")
        yield
    finally:
        await api.delete(CONFIGURATION)


async def refused(write: Awaitable[None]) -> str:
    """The rule's message; empty if the write went through. Others' refusals are raised."""
    try:
        await write
    except Forbidden as error:
        if "node-keys.muster.dev" not in error.message and POLICY not in error.message:
            raise
        return error.message
    return ""


def labelled(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **MANAGED}}


async def test_a_kubelet_changes_no_key_of_ours_and_everything_else_of_its_node(
    guarded: str, fleet: SimulatedNodes, cluster: Cluster, control_plane: ControlPlane, writers: Any
) -> None:
    new = f"{guarded}-new"
    joining = await writers(control_plane.kubeconfig_for_node(new))
    body = {"metadata": {"name": new}, "spec": {"taints": [{"key": "muster.dev/startup", "effect": "NoSchedule"}]}}
    assert new in await refused(joining.api.create(NODES, labelled(new)))
    fleet.names.append(new)
    await joining.api.create(NODES, body)
    kubelet = await writers(control_plane.kubeconfig_for_node(guarded))
    await cluster.report(guarded, finding())
    await cluster.until_faulty(guarded)  # the tainter's own writes pass
    for attack in (
        MANAGED,
        claim(FAULTY, *THEIRS),
        {"annotations": {ANNOTATION: None}},
        {"labels": {"muster.dev/faulty": None}},
    ):
        for status in (False, True):
            said = await refused(kubelet.patch(guarded, attack, status=status))
            assert f"system:node:{guarded}" in said, (attack, status)
    with pytest.raises(Forbidden):
        await kubelet.taint(guarded)  # NodeRestriction
    with pytest.raises(Conflict):
        await kubelet.patch(guarded, MANAGED | {"resourceVersion": "1"})

    async def current_with_a_zero() -> str:
        """The API server reads it as the current version."""
        version = "0" + (await cluster.node(guarded))["metadata"]["resourceVersion"]
        return await refused(kubelet.patch(guarded, MANAGED | {"resourceVersion": version}))

    await until(current_with_a_zero, "refused")
    node = await cluster.node(guarded)
    assert (FAULTY in node["spec"]["taints"], "muster.dev/managed" in node["metadata"]["labels"]) == (True, False)
    for status in (False, True):
        await kubelet.patch(guarded, {"annotations": {"example.com/a": str(status)}}, status=status)
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    await kubelet.api.patch(f"{NODES}/{guarded}/status", {"status": {"conditions": [condition]}}, kind="strategic")


async def test_the_right_to_write_nodes_alone_takes_off_no_taint_and_people_with_the_right_do(
    guarded: str, cluster: Cluster, control_plane: ControlPlane, writers: Any
) -> None:
    """A client chooses the name in managedFields, so what it says there is no evidence of a person."""
    api = cluster.api
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["create", "get", "patch"]}
    healths = {"apiGroups": ["muster.dev"], "resources": ["nodehealths"], "verbs": ["patch"]}
    rights = {"automation": [nodes], "person-on-call": [nodes, healths]}
    try:
        for user, rules in rights.items():
            await api.create(ROLES, {"metadata": {"name": user}, "rules": rules})
            subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
            role = {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
            await api.create(BINDINGS, {"metadata": {"name": user}, "roleRef": role, "subjects": [subject]})
        automation, person = [await writers(control_plane.kubeconfig_for_user(user)) for user in rights]
        await cluster.report(guarded, finding())
        await cluster.until_faulty(guarded)
        ordinary = {"annotations": {"example.com/a": "b"}}
        for writer in (automation, person):
            await until(lambda writer=writer: _written(writer.patch(guarded, ordinary)), "RBAC has heard of the role")  # type: ignore[misc] # called at once
        new = labelled(f"{guarded}-new")
        assert "nodehealths.muster.dev" in await refused(automation.api.create(NODES, new, params=TRIED))
        for with_right in (api, person.api):
            assert not await refused(with_right.create(NODES, new, params=TRIED))
        as_person = {"fieldManager": "kubectl-taint"}
        body = {"spec": {"taints": None}}
        said = await refused(automation.api.patch(f"{NODES}/{guarded}", body, params=as_person))
        assert "nodehealths.muster.dev" in said
        assert await refused(automation.patch(guarded, MANAGED))
        assert await cluster.faulty(guarded)
        await person.patch(guarded, MANAGED)
        await cluster.until_free(guarded)
    finally:
        for user in rights:
            await api.delete(f"{BINDINGS}/{user}")
            await api.delete(f"{ROLES}/{user}")


async def _written(write: Awaitable[None]) -> bool:
    await write
    return True
