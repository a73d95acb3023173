"""IPUJobs that serve: replicas that are replaced, an autoscaler that changes their number, and partitions of more than
64 IPUs; on the real API server with the real proxy, operator and controller-manager."""

from typing import Any

import pytest
from tests.cluster.ipujob.metrics_api import GROUP, serving_metrics
from tests.cluster.ipujob.operator_bed import (
    Bed,
    Job,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)
from tests.wording.facts import missing_facts

from muster_kube.api.errors import ApiError
from muster_operator.job.names import partition

HIGH_LIMIT = {"type": "OnFailure", "backOffLimit": 1000}


def running_since(status: Object) -> str:
    [running] = [each for each in status["conditions"] if each["type"] == "Running" and each["status"] == "True"]
    return str(running["lastTransitionTime"])


async def until_attempts(job: Job, *expected: str) -> dict[str, Object]:
    """Its workers run, in these attempts."""

    async def ask() -> dict[str, Object] | None:
        pods = await job.pods()
        found = [pods[name]["metadata"]["labels"]["muster.dev/attempt"] for name in sorted(pods)]
        run = all(pod["status"]["phase"] == "Running" for pod in pods.values())
        return pods if run and found == list(expected) else None

    return dict(await until(ask, f"the workers of {job.name} run in the attempts {expected}"))


async def test_a_crashed_replica_is_replaced_at_once_while_the_others_run(bed: Bed) -> None:
    file = bed.folder / "operator.yaml"
    file.write_text("restart_delay_s: 3600\n")  # of the second restart in a row
    await bed.start("--config", str(file))
    job = await bed.submit("serve", inference(instances=3, restartPolicy=HIGH_LIMIT))
    before = await until_attempts(job, "0", "0", "0")
    whole = await job.until("is whole", lambda s: (s["currentReplicas"], s["launcherStatus"]) == (3, "Running"))
    ran_since = running_since(whole)
    mark = bed.control_plane.audit.mark()
    job.finish("serve-worker-1", 139)
    after = await until_attempts(job, "0", "1", "0")
    for name in ("serve-worker-0", "serve-worker-2"):
        assert after[name]["metadata"]["uid"] == before[name]["metadata"]["uid"]
    found = await job.until("is whole again", lambda status: status["currentReplicas"] == 3)
    assert (found["launcherStatus"], found["restartCount"], found.get("attempt", 0)) == ("Running", 1, 0)
    assert running_since(found) == ran_since
    entries = await job.partitions()
    assert [entries[partition(bed.namespace, "serve", number)].attempt for number in range(3)] == [0, 1, 0]
    deleted = [
        each.name
        for each in bed.control_plane.audit.requests(mark)
        if (each.resource, each.verb) == ("pods", "delete")
        and each.user.endswith(":muster-operator")
        and each.status < 300  # what is tried again counts once
    ]
    assert deleted == ["serve-worker-1"]
    assert "139" in await job.until_event("InstanceRestarting")
    # the next one in a row waits, and its pod can be read until then
    job.finish("serve-worker-1", 7)
    waits = await job.until("waits", lambda status: status["currentReplicas"] == 2)
    assert not missing_facts(waits["lastMessage"], "instance 1", "serve-worker-1", "7")
    assert (waits["launcherStatus"], waits["restartCount"]) == ("Running", 2)
    assert (await job.pods())["serve-worker-1"]["status"]["phase"] == "Failed"


async def test_a_partition_of_more_than_64_ipus_from_its_admission_to_its_end(bed: Bed) -> None:
    await bed.start(ipus=256, max_ipus=128)
    with pytest.raises(ApiError, match=r"spec\.ipusPerJobInstance"):
        await bed.submit("huge", training(ipus=256))
    jobs = [await bed.submit(name, training(ipus=128, cleanPodPolicy="All")) for name in ("one", "two")]
    for job in jobs:
        await job.until_running()
    held = await bed.vipu_partitions()
    assert {(each["size"], each["gcds"]) for each in held.values()} == {(128, 2)}
    pods = await jobs[0].pods()
    for number in (0, 1):
        env = {each["name"]: each.get("value") for each in pods[f"one-worker-{number}"]["spec"]["containers"][0]["env"]}
        assert env["IPUOF_VIPU_API_PARTITION_ID"] == partition(bed.namespace, "one", 0)
        assert env["IPUOF_VIPU_API_GCD_ID"] == str(number)
    assert bed.proxy is not None
    assert (await bed.proxy.get("/stats")).json()["total"] == {"used": 256, "available": 0}
    assert (await bed.proxy.post("/query", {"size": 128})).json()["numOfPartitions"] == 0
    later = await bed.submit("later", training(ipus=128))
    await later.until_says("128")
    jobs[0].finish("one-launcher")
    await later.until_running()
    for job in (*jobs, later):
        await job.delete()
        await job.until_gone()
    assert await bed.vipu_partitions() == {}


async def autoscaling(bed: Bed) -> str:
    """The newest version that the API server has."""
    found = await bed.api.get("/apis/autoscaling")
    versions = [each["version"] for each in found["versions"]]
    return next(version for version in ("v2", "v2beta2") if version in versions)


async def test_50_an_autoscaler_scales_instances_of_several_workers_up_and_down(bed: Bed) -> None:
    await bed.start(ipus=16)
    job = await bed.submit("serve", inference(ipus=2, workersPerJobInstance="2", restartPolicy=HIGH_LIMIT))
    await job.until_running()
    version = await autoscaling(bed)
    cpu = {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "200m"}}
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "serve"},
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [{"type": "Resource", "resource": cpu}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    place = f"/apis/autoscaling/{version}/namespaces/{bed.namespace}/horizontalpodautoscalers"
    with serving_metrics(bed.control_plane, bed.namespace) as metrics:
        metrics.load = 600

        async def served() -> bool:
            return bool((await bed.api.get(f"/apis/{GROUP}/v1beta1/namespaces/{bed.namespace}/pods"))["items"])

        await until(served, "the API server passes metrics on")
        await bed.api.create(place, {"metadata": {"name": "serve"}, "spec": spec})
        # 600 of 200: three instances, although there are six pods
        grown = await job.until("has three instances", lambda status: status["currentReplicas"] == 3)
        assert grown["desiredReplicas"] == 3
        pods = await until_attempts(job, *["0"] * 6)
        looks = len(metrics.selectors)

        async def looked() -> bool:
            return len(metrics.selectors) >= looks + 3

        await until(looked, "the autoscaler has looked at what it made")
        assert (await job.get())["spec"]["jobInstances"] == 3
        assert metrics.selectors[-1] == grown["selector"]
        metrics.load = 100
        await job.until("has shrunk", lambda s: (s["currentReplicas"], s["desiredReplicas"]) == (1, 1))
        left = await job.until_pods("serve-worker-0", "serve-worker-1")
        assert {name: pod["metadata"]["uid"] for name, pod in left.items()} == {
            name: pods[name]["metadata"]["uid"] for name in left
        }

        async def active() -> bool:
            conditions = (await bed.api.get(f"{place}/serve"))["status"].get("conditions", [])
            return ("ScalingActive", "True") in [(each["type"], each["status"]) for each in conditions]

        await until(active, "the autoscaler says that it scales")
        await bed.api.delete(f"{place}/serve")

    async def freed() -> bool:
        return set(await bed.vipu_partitions()) == {partition(bed.namespace, "serve", 0)}

    await until(freed, "the partitions of what is gone are free")
