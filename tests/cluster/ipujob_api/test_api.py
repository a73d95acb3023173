"""IPUJobs as an API: the CRD on a real API server, and what the real kubectl makes of it (behaviours 1, 3, 6)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from tests.cluster.ipujob_api.ipujob_webhooks import Kubectl, job, kubectl  # noqa: F401 - one is a fixture

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Invalid
from muster_operator.job.crd import FILE, NAME, schema
from muster_operator.job.types import jobs_path
from muster_sandbox.controlplane.install import crd_directory

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
INFERENCE = "job-inference-1"


async def test_1_the_definition_is_served_as_published(api: KubeClient) -> None:
    """Behaviour 1; the paths of scale are those of behaviour 50."""
    found = await api.get(CRD)
    spec = found["spec"]
    assert (found["metadata"]["name"], spec["scope"]) == ("ipujobs.graphcore.ai", "Namespaced")
    assert spec["names"] == {"kind": "IPUJob", "listKind": "IPUJobList", "plural": "ipujobs", "singular": "ipujob"}
    (version,) = spec["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.jobInstances",
            "statusReplicasPath": ".status.currentReplicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert [(each["name"], each["jsonPath"]) for each in version["additionalPrinterColumns"]] == [
        ("status", ".status.launcherStatus"),
        ("current", ".status.currentReplicas"),
        ("desired", ".status.desiredReplicas"),
        ("LastMessage", ".status.lastMessage"),
        ("Age", ".metadata.creationTimestamp"),
    ]
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert "NonStructuralSchema" not in conditions, found["status"]["conditions"]


def row(text: str) -> list[str]:
    """Of a table with one, without its age."""
    _, line = text.strip().splitlines()
    return [cell.strip() for cell in line.split("  ") if cell.strip()][:-1]


async def test_1_kubectl_prints_the_columns_of_the_transcripts(
    api: KubeClient,
    namespace: str,
    kubectl: Kubectl,  # noqa: F811 - the fixture
) -> None:
    """Behaviours 1 and 2: Pending at once, before anybody has looked at it."""
    await api.create(jobs_path(namespace), job(INFERENCE))
    shown = (await kubectl.fine("get", "ipujobs", namespace=namespace)).out
    assert shown.split("\n")[0].split() == ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
    assert row(shown) == [INFERENCE, "Pending"]
    for launcher, current, desired, message in (
        ("Running", 2, 2, "Successfully reconciled IPUJob"),
        ("Pending", 2, 4, "partition not ready yet!partition not ready yet!"),
        ("Completed", 0, 1, "All instances done"),
    ):
        status = {"launcherStatus": launcher, "currentReplicas": current, "desiredReplicas": desired}
        body = {"status": status | {"lastMessage": message}}
        await api.patch(f"{jobs_path(namespace)}/{INFERENCE}/status", body)
        shown = (await kubectl.fine("get", f"ipujob.graphcore.ai/{INFERENCE}", namespace=namespace)).out
        assert row(shown) == [INFERENCE, launcher, str(current), str(desired), message]


async def test_scale_reads_what_runs_and_writes_what_is_wanted(
    api: KubeClient,
    namespace: str,
    kubectl: Kubectl,  # noqa: F811 - the fixture
) -> None:
    path = f"{jobs_path(namespace)}/{INFERENCE}"
    await api.create(jobs_path(namespace), job(INFERENCE))
    selector = f"muster.dev/ipujob={INFERENCE}"
    await api.patch(f"{path}/status", {"status": {"currentReplicas": 1, "selector": selector}})
    scaled = await kubectl.fine("scale", f"ipujob.graphcore.ai/{INFERENCE}", "--replicas", "2", namespace=namespace)
    assert scaled.out == f"ipujob.graphcore.ai/{INFERENCE} scaled\n"
    scale = await api.get(f"{path}/scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": selector})
    assert (await api.get(path))["spec"]["jobInstances"] == 2
    for replicas in (-1, 4097):
        refused = await kubectl("scale", f"ipujob.graphcore.ai/{INFERENCE}", f"--replicas={replicas}")
        assert refused.code != 0
        with pytest.raises(Invalid):
            await api.patch(f"{path}/scale", {"spec": {"replicas": replicas}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"jobInstances": None}, "spec.jobInstances: Required value"),
        ({"ipusPerJobInstance": None}, "spec.ipusPerJobInstance: Required value"),
        ({"workers": None}, "spec.workers: Required value"),
        ({"workers": {}}, "spec.workers.template: Required value"),
        ({"workers": {"replicas": 0, "template": {}}}, "spec.workers.replicas"),
        ({"ipusPerJobInstance": 2}, 'spec.ipusPerJobInstance: Invalid value: "integer"'),
        ({"jobInstances": "1"}, 'spec.jobInstances: Invalid value: "string"'),
        ({"jobInstances": -1}, "spec.jobInstances"),
        ({"jobInstances": 2**40}, "spec.jobInstances"),
        ({"launcher": {}}, "spec.launcher.command: Required value"),
        ({"launcher": {"command": "mpirun"}}, "spec.launcher.command: Invalid value"),
        ({"interactive": {}}, "spec.interactive.ttl: Required value"),
        ({"interactive": {"ttl": 0}}, "spec.interactive.ttl"),
        ({"restartPolicy": {}}, "spec.restartPolicy.type: Required value"),
        ({"restartPolicy": {"type": "Sometimes"}}, 'spec.restartPolicy.type: Unsupported value: "Sometimes"'),
        ({"restartPolicy": {"type": "ExitCode", "exitCodes": "9-"}}, "spec.restartPolicy.exitCodes"),
        ({"cleanPodPolicy": "none"}, 'spec.cleanPodPolicy: Unsupported value: "none"'),
        ({"healthPolicy": {"onFault": "Run"}}, 'spec.healthPolicy.onFault: Unsupported value: "Run"'),
        ({"suspend": "yes"}, 'spec.suspend: Invalid value: "string"'),
        ({"activeDeadlineSeconds": 2**33}, "spec.activeDeadlineSeconds"),
    ],
)
async def test_3_the_schema_names_what_is_missing_or_wrong(
    api: KubeClient, namespace: str, change: dict[str, Any], said: str
) -> None:
    """Behaviour 3: 422, with the path."""
    with pytest.raises(Invalid) as refused:
        await api.create(jobs_path(namespace), job("bad", **change))
    assert refused.value.status == 422
    assert said in refused.value.message


async def test_6_spec_and_status_are_written_apart(api: KubeClient, namespace: str) -> None:
    """Behaviour 6."""
    path = f"{jobs_path(namespace)}/apart"
    made = await api.create(jobs_path(namespace), job("apart") | {"status": {"lastMessage": "mine"}})
    assert made["metadata"]["generation"] == 1
    assert made["status"] == {"launcherStatus": "Pending"}
    both = {"spec": {"jobInstances": 3}, "status": {"lastMessage": "done", "launcherStatus": "Running"}}
    by_status = await api.patch(f"{path}/status", both)
    assert by_status["spec"]["jobInstances"] == 1
    assert by_status["status"] == both["status"]
    assert by_status["metadata"]["generation"] == 1
    both["status"] = {"lastMessage": "lost"}
    by_spec = await api.patch(path, both)
    assert by_spec["spec"]["jobInstances"] == 3
    assert by_spec["status"]["lastMessage"] == "done"
    assert by_spec["metadata"]["generation"] == 2


async def test_a_whole_status_is_taken_and_kept(api: KubeClient, namespace: str) -> None:
    path = f"{jobs_path(namespace)}/whole"
    await api.create(jobs_path(namespace), job("whole"))
    time = "2026-03-22T10:10:31Z"
    condition = {
        "type": "Running",
        "status": "True",
        "reason": "IPUJobRunning",
        "message": "IPUJob default/whole is running.",
        "observedGeneration": 1,
        "lastUpdateTime": time,
        "lastTransitionTime": time,
    }
    status = {
        "desiredReplicas": 1,
        "lastMessage": "Successfully reconciled IPUJob",
        "currentReplicas": 1,
        "launcherStatus": "Running",
        "iPUPartitionCreated": True,
        "restartCount": 0,
        "attempt": 1,
        "selector": "a=b",
        "startTime": time,
        "lastReconcileTime": time,
        "observedGeneration": 1,
        "workersStatus": {"active": 1, "succeeded": 0, "failed": 0},
        "conditions": [condition],
    }
    found = await api.patch(f"{path}/status", {"status": status | {"completionTime": None}})
    assert found["status"] == status


async def test_the_template_is_kept_to_its_last_field(api: KubeClient, namespace: str) -> None:
    template = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "containers": [{"name": "main", "image": "main:1", "aFieldOfAYearToCome": {"x": [1, {"y": None}]}}],
            "hostIPC": True,
        },
    }
    made = await api.create(jobs_path(namespace), job("kept", workers={"template": template}))
    assert made["spec"]["workers"]["template"] == template


@pytest.fixture
async def definition_again(api: KubeClient) -> AsyncIterator[None]:
    yield
    await api.patch(CRD, {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": None}}})


async def test_the_definition_applies_with_kubectl_from_the_client_side(
    api: KubeClient,
    kubectl: Kubectl,  # noqa: F811 - the fixture
    definition_again: None,
) -> None:
    """The annotation that this writes has to stay far below 256 KiB; the published CRD is 481 kB."""
    file = crd_directory() / FILE
    await kubectl.fine("apply", "-f", str(file))
    annotations = (await api.get(CRD))["metadata"]["annotations"]
    assert len(annotations["kubectl.kubernetes.io/last-applied-configuration"]) < 64 << 10
    again = await kubectl.fine("apply", "-f", str(file))
    assert "unchanged" in again.out
    assert yaml.safe_load(file.read_text())["metadata"]["name"] == NAME


def described(found: dict[str, Any], path: str) -> list[tuple[str, str]]:
    """Of a schema: each field that has fields of its own, with the description of the first of them."""
    properties = found.get("items", found).get("properties", {})
    first = [(path, each["description"]) for each in list(properties.values())[:1] if "description" in each]
    return first + [pair for name, each in properties.items() for pair in described(each, f"{path}.{name}")]


async def test_kubectl_explain_tells_what_fields_mean(
    kubectl: Kubectl,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    whole = schema()["properties"]
    asked = [*described(whole["spec"], "ipujob.spec"), *described(whole["status"], "ipujob.status")]
    assert len(asked) > 8
    for path, description in asked:
        said = await kubectl.fine("explain", path)
        assert description in " ".join(said.out.split()), path
