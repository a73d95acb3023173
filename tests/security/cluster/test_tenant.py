"""What somebody gains who may create IPUJobs and little else, and what a job's launcher may do in its namespace.

The operator runs as the chart has it by default: it adds neither the host's network nor privileges.
"""

import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.ipujob.operator_bed import (  # noqa: F401 - one is a fixture
    OPERATOR,
    OWN,
    TEMPLATE,
    WEBHOOKS,
    Bed,
    Object,
    bed_fixture,
    inference,
    training,
    until,
)

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError, Forbidden, Invalid
from muster_kube.api.self_reviews import ACCESS_REVIEWS
from muster_operator.job.names import launcher_account
from muster_operator.job.types import jobs_path

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
JOBS_ONLY: list[Object] = [
    {"apiGroups": ["graphcore.ai"], "resources": ["ipujobs"], "verbs": ["get", "create", "patch"]}
]
MAKES_PODS: list[Object] = [*JOBS_ONLY, {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]

# a pod that owns its node, with the rights of another account
SPEC = "spec.workers.template.spec"
GREEDY: Object = {
    "hostPID": True,
    "hostNetwork": True,
    "nodeName": "control-plane",
    "serviceAccountName": "admin",
    "volumes": [{"name": "disk", "hostPath": {"path": "/"}}],
    "containers": [
        {
            "name": "worker",
            "image": "evil:1",
            "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}},
            "volumeMounts": [{"name": "disk", "mountPath": "/host"}],
        }
    ],
}
REFUSED = [
    f"{SPEC}.hostNetwork",
    f"{SPEC}.hostPID",
    f"{SPEC}.nodeName",
    f"{SPEC}.serviceAccountName",
    f"{SPEC}.volumes[0].hostPath",
    f"{SPEC}.containers[0].securityContext.privileged",
    f"{SPEC}.containers[0].securityContext.capabilities.add",
]


@pytest.fixture
def config(tmp_path: Path) -> tuple[str, str]:
    """Flags of the operator: the settings that the chart gives it by default, and one exception for templates."""
    file = tmp_path / "operator.yaml"
    file.write_text("host_network: false\nprivileged: false\nallow_in_templates: [capability:IPC_LOCK]\n")
    return "--config", str(file)


@asynccontextmanager
async def tenant(bed: Bed, name: str, rules: Sequence[Object]) -> AsyncIterator[KubeClient]:
    """An account with these rights in the test's namespace."""
    kubeconfig = bed.control_plane.kubeconfig_for(name, bed.namespace)
    root = f"{RBAC}/namespaces/{bed.namespace}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": bed.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    await bed.api.create(f"{root}/roles", {"metadata": {"name": name}, "rules": list(rules)})
    await bed.api.create(
        f"{root}/rolebindings", {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    )
    wanted = {"verb": "create", "group": "graphcore.ai", "resource": "ipujobs", "namespace": bed.namespace}
    async with KubeClient(load_config(kubeconfig), user_agent="tenant", timeout_s=60.0) as client:

        async def may() -> bool:
            review = await client.create(ACCESS_REVIEWS, {"spec": {"resourceAttributes": wanted}})
            return bool(review["status"]["allowed"])

        await until(may, f"RBAC has heard of the role of {name}")
        yield client


def template(spec: Object) -> Object:
    return copy.deepcopy({"spec": spec})


async def test_the_right_to_create_ipujobs_is_not_the_right_to_run_pods(bed: Bed, config: tuple[str, str]) -> None:
    await bed.start(*config)
    path = jobs_path(bed.namespace)
    async with tenant(bed, "weak", JOBS_ONLY) as weak, tenant(bed, "strong", MAKES_PODS) as strong:
        with pytest.raises(Forbidden) as denied:
            await weak.create(path, bed.body("plain", inference()))
        assert "create pods" in denied.value.message
        with pytest.raises(Invalid) as refused:
            await strong.create(path, bed.body("greedy", inference(template=template(GREEDY))))
        assert [field for field in REFUSED if f"{field}: " not in refused.value.message] == []

        await strong.create(path, bed.body("plain", inference()))
        job = bed.job("plain")
        await job.until_pods("plain-worker-0")
        other = copy.deepcopy(TEMPLATE)
        other["spec"]["containers"][0]["image"] = "evil:1"
        with pytest.raises(Forbidden):
            await weak.patch(f"{path}/plain", {"spec": {"workers": {"template": other}}})
        await weak.patch(f"{path}/plain", {"spec": {"jobInstances": 2}})

        locking = copy.deepcopy(TEMPLATE)
        locking["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
        await strong.create(path, bed.body("allowed", inference(template=locking)))
        [pod] = (await bed.job("allowed").until_pods("allowed-worker-0")).values()
    [container] = pod["spec"]["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert not pod["spec"].get("hostNetwork")


async def test_a_job_that_no_webhook_has_seen_gets_no_pods_beyond_the_rules(bed: Bed, config: tuple[str, str]) -> None:
    await bed.start(*config)
    for plural in ("mutating", "validating"):
        await bed.api.delete(f"{REGISTRATION}/{plural}webhookconfigurations/{WEBHOOKS}")
    path = jobs_path(bed.namespace)

    async def unseen() -> bool:
        body = bed.body("probe", inference(template=template(GREEDY)))
        try:
            await bed.api.create(path, body, params={"dryRun": "All"})
        except ApiError:
            return False
        return True

    await until(unseen, "the webhooks are called no more")
    accounts = f"/api/v1/namespaces/{bed.namespace}/serviceaccounts"
    await bed.api.create(accounts, {"metadata": {"name": GREEDY["serviceAccountName"]}})
    job = await bed.submit("greedy", inference(template=template(GREEDY)))
    status = await job.until("is refused", lambda status: invalid(status).get("status") == "True")
    assert invalid(status)["reason"] == "ValidationError"
    assert [field for field in REFUSED if f"{field}: " not in invalid(status)["message"]] == []
    assert await job.pods() == {}
    assert await job.partitions() == {}
    await until(job.events, "an Event says so")
    assert (await job.events()).keys() == {"ValidationError"}

    await bed.api.patch(job.path, {"spec": {"workers": {"template": {"spec": None}}}})
    await bed.api.patch(job.path, {"spec": {"workers": {"template": TEMPLATE}}})
    await job.until_pods("greedy-worker-0")
    status = await job.until_running()
    assert (invalid(status)["status"], status["launcherStatus"]) == ("False", "Running")


def invalid(status: Object) -> dict[str, Any]:
    return next((each for each in status.get("conditions", ()) if each["type"] == "Invalid"), {})


async def test_19_a_launcher_sees_and_enters_the_workers_of_its_own_job_only(bed: Bed, config: tuple[str, str]) -> None:
    await bed.start(*config)
    for name in ("mine", "theirs"):
        await bed.submit(name, training(workers=1))
    for name in ("mine", "theirs"):
        await bed.job(name).until_pods(f"{name}-launcher", f"{name}-worker-0")
    pods = f"/api/v1/namespaces/{bed.namespace}/pods"
    named = {"fieldSelector": "metadata.name=mine-worker-0"}
    kubeconfig = bed.control_plane.kubeconfig_for(launcher_account("mine"), bed.namespace)
    async with KubeClient(load_config(kubeconfig), user_agent="launcher", timeout_s=60.0) as launcher:
        assert (await launcher.get(f"{pods}/mine-worker-0"))["metadata"]["name"] == "mine-worker-0"
        found = (await launcher.get(pods, params=named))["items"]
        assert [each["metadata"]["name"] for each in found] == ["mine-worker-0"]
        with pytest.raises(ApiError) as entered:  # no kubelet serves it, but it is allowed
            await launcher.create(f"{pods}/mine-worker-0/exec", {}, params={"command": "true"})
        assert entered.value.status != 403
        for path, params in (
            (pods, {}),
            (pods, {"labelSelector": "muster.dev/ipujob=mine"}),
            (pods, {"fieldSelector": "metadata.name=theirs-worker-0"}),
            (f"{pods}/theirs-worker-0", {}),
            (f"{pods}/theirs-launcher", {}),
        ):
            with pytest.raises(Forbidden):
                await launcher.get(path, params=params)
        with pytest.raises(Forbidden):
            await launcher.create(f"{pods}/theirs-worker-0/exec", {}, params={"command": "true"})


@asynccontextmanager
async def bound_in_one_namespace(bed: Bed) -> AsyncIterator[None]:
    """The operator's account has its rights on jobs as the chart binds them with ``admissionWebhooks.scope``."""
    everywhere = f"{RBAC}/clusterrolebindings/{OPERATOR}-jobs"
    bound = await bed.api.get(everywhere)
    kept: Object = {"roleRef": bound["roleRef"], "subjects": bound["subjects"]}
    name: Object = {"metadata": {"name": bound["metadata"]["name"]}}
    await bed.api.create(f"{RBAC}/namespaces/{bed.namespace}/rolebindings", name | kept)
    await bed.api.delete(everywhere)
    try:
        yield
    finally:
        await bed.api.create(f"{RBAC}/clusterrolebindings", name | kept)


async def test_with_a_scope_the_operator_works_and_reaches_no_other_namespace(bed: Bed, tmp_path: Path) -> None:
    """Whoever takes over its account gets no pods, roles or shells elsewhere."""
    file = tmp_path / "scoped.yaml"
    file.write_text(f"scope: [{bed.namespace}]\n")
    async with bound_in_one_namespace(bed):
        await bed.start("--config", str(file))
        job = await bed.submit("train", training(workers=1))
        await job.until_pods("train-launcher", "train-worker-0")
        kubeconfig = bed.control_plane.kubeconfig_for(OPERATOR, OWN)
        rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}]
        named = {"metadata": {"name": "x"}}
        async with KubeClient(load_config(kubeconfig), user_agent="thief", timeout_s=60.0) as thief:
            for path, body in (
                ("/api/v1/namespaces/default/pods", named | TEMPLATE),
                ("/api/v1/namespaces/default/pods/x/exec", {}),
                ("/api/v1/namespaces/default/serviceaccounts", named),
                (f"{RBAC}/namespaces/default/roles", named | {"rules": rules}),
                (f"{RBAC}/namespaces/default/rolebindings", named),
            ):
                with pytest.raises(Forbidden):
                    await thief.create(path, body, params={"dryRun": "All"})
            for path in (
                f"/api/v1/namespaces/{OWN}/configmaps",
                f"/api/v1/namespaces/{OWN}/secrets",
                f"/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases/muster-tainter",
            ):
                with pytest.raises(Forbidden):
                    await thief.get(path)
