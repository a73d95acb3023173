"""What an IPUJob is made of, as it stands on the real API server."""

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.ipujob.operator_bed import (
    SAMPLES,
    SELECTOR,
    TEMPLATE,
    Bed,
    Job,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_operator.job.names import partition
from muster_sandbox.simulation.nodes import NodeShape

RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def owned(job: Job, path: str) -> dict[str, Any]:
    found = await job.bed.api.get(path)
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("IPUJob", job.name, await job.uid())
    assert owner["controller"] is owner["blockOwnerDeletion"] is True
    return found


def environment(pod: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in pod["spec"]["containers"][0].get("env", []):
        found.setdefault(each["name"], []).append(each.get("value", ""))
    return found


def printed(command: list[str], first_on_path: Path) -> str:
    environ = os.environ | {"PATH": f"{first_on_path}:{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout


async def test_17_18_19_a_launcher_job_has_a_remote_shell_a_hostfile_and_rights_on_its_workers_only(
    bed: Bed, tmp_path: Path
) -> None:
    await bed.start()
    job = await bed.submit("train", training(instances=2, ipus=4, workers=2))
    await job.until_running()
    core, workers = f"/api/v1/namespaces/{job.namespace}", [f"train-worker-{n}" for n in range(4)]

    data = (await owned(job, f"{core}/configmaps/train-config"))["data"]
    assert data["hostfile"] == "".join(f"{name} slots=1\n" for name in workers)
    kubeexec, kubectl = tmp_path / "kubeexec", tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\n')
    kubeexec.write_text(data["kubeexec"])
    for file in (kubeexec, kubectl):
        file.chmod(stat.S_IRWXU)
    said = printed([str(kubeexec), "train-worker-0", "cmd", "a", "b"], kubectl.parent)
    assert "[train-worker-0]" in said
    assert said.endswith("[--]\n[/bin/sh]\n[-c]\n[cmd a b]\n")
    mounted = (await job.pods())["train-launcher"]["spec"]["volumes"]
    [items] = [each["configMap"] for each in mounted if each.get("configMap", {}).get("name") == "train-config"]
    modes = {each["key"]: each["mode"] for each in items["items"]}
    assert modes["kubeexec"] & 0o111 == 0o111

    await owned(job, f"{core}/serviceaccounts/train-launcher")
    role = await owned(job, f"{RBAC}/namespaces/{job.namespace}/roles/train-launcher")
    by_resource = {rule["resources"][0]: rule for rule in role["rules"]}
    assert set(by_resource) == {"pods", "pods/exec"}
    assert set(by_resource["pods"]["verbs"]) == {"get", "list", "watch"}
    assert by_resource["pods/exec"]["verbs"] == ["create"]
    assert by_resource["pods/exec"]["resourceNames"] == workers
    assert by_resource["pods"]["resourceNames"] == workers
    binding = await owned(job, f"{RBAC}/namespaces/{job.namespace}/rolebindings/train-launcher")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "train-launcher", "namespace": job.namespace}]

    await job.scale(1)

    async def followed() -> bool:
        rules = (await bed.api.get(f"{RBAC}/namespaces/{job.namespace}/roles/train-launcher"))["rules"]
        return [rule.get("resourceNames") for rule in rules] == [workers[:2]] * 2

    await until(followed, "the role follows a scale")


async def test_20_22_24_workers_sleep_or_run_their_own_command_and_share_volumes_and_variables(bed: Bed) -> None:
    await bed.start()
    container = {
        "name": "worker",
        "image": "poplar:1",
        "env": [{"name": "IPUOF_VIPU_API_TIMEOUT", "value": "300"}, {"name": "MINE", "value": "1"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    template = {"spec": {"containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]}}
    train = await bed.submit("train", training(workers=2, template=template))
    own = {"spec": {"containers": [{"name": "serve", "image": "serve:1", "command": ["serve", "--port", "80"]}]}}
    serve = await bed.submit("serve", inference(template=own))
    pods = await train.until_pods("train-launcher", "train-worker-0", "train-worker-1")
    host, port = bed.simulator.told["listening"].split(":") if bed.simulator else ("", "")
    for number in range(2):
        worker = pods[f"train-worker-{number}"]
        assert "sleep 365d" in " ".join(worker["spec"]["containers"][0]["command"])
        found = environment(worker)
        assert found["IPUOF_VIPU_API_HOST"] == [host]
        assert found["IPUOF_VIPU_API_PORT"] == [port]
        assert found["IPUOF_VIPU_API_PARTITION_ID"] == [partition(train.namespace, "train", 0)]
        assert found["IPUOF_VIPU_API_GCD_ID"] == [str(number)]
        assert found["IPUOF_VIPU_API_TIMEOUT"] == ["300"]  # once, and as the user wants it
        assert found["MINE"] == ["1"]
    launcher = pods["train-launcher"]["spec"]
    assert {"name": "scratch", "emptyDir": {}} in launcher["volumes"]
    assert {"name": "scratch", "mountPath": "/scratch"} in launcher["containers"][0]["volumeMounts"]

    pods = await serve.until_pods("serve-worker-0")
    assert pods["serve-worker-0"]["spec"]["containers"][0]["command"] == ["serve", "--port", "80"]
    await serve.until_running()
    core = f"/api/v1/namespaces/{serve.namespace}"
    for kind, name in (("configmaps", "serve-config"), ("serviceaccounts", "serve-launcher")):
        listed = (await bed.api.get(f"{core}/{kind}"))["items"]
        assert name not in [each["metadata"]["name"] for each in listed]


async def test_25_pods_go_where_their_partition_is_reached_from_and_a_conflict_is_told(bed: Bed) -> None:
    await bed.start()
    key, value = SELECTOR
    kept = {"spec": TEMPLATE["spec"] | {"nodeSelector": {"kubernetes.io/os": "linux"}}}
    job = await bed.submit("kept", inference(template=kept))
    await job.until_running()
    [pod] = (await job.pods()).values()
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", key: value}
    clash = {"spec": TEMPLATE["spec"] | {"nodeSelector": {key: "rack2"}}}
    await bed.fleet.create(1, prefix=f"rack2-{bed.namespace}", shape=NodeShape(labels={key: "rack2"}, gpus=0))
    stuck = await bed.submit("clash", inference(template=clash))
    said = await stuck.until_says(f"{key}=rack2")
    assert f"{key}={value}" in said["lastMessage"]
    assert await stuck.pods() == {}


async def test_all_samples_apply_unchanged_and_the_nfs_ones_bring_their_claim(bed: Bed) -> None:
    await bed.start()
    files = sorted(path.name for path in SAMPLES.glob("ipujob_*.yaml"))
    assert len(files) == 7
    for file in files:
        job = bed.sample(file)
        with_launcher = file != "ipujob_inference.yaml"
        expected = [f"{job.name}-worker-0", *([f"{job.name}-launcher"] if with_launcher else [])]
        pods = await job.until_pods(*expected)
        if "nfs" in file:
            for pod in pods.values():
                claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"]
                          if "persistentVolumeClaim" in v}  # fmt: skip
                [main] = pod["spec"]["containers"]
                mounts = {mount["name"]: mount["mountPath"] for mount in main["volumeMounts"]}
                assert claims == {"sets": "sets"}
                assert mounts["sets"] == "/sets"
        else:
            await job.until_running()
        await job.delete()
        await job.until_gone()
    await bed.api.delete("/api/v1/persistentvolumes/training-sets")
