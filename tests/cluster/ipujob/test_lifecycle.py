"""IPUJobs on the real API server, with the real webhooks, proxy and operator: from their creation to their end.

Numbers are those of the behaviours that tests carry.
"""

from typing import Any

import pytest
from tests.cluster.ipujob.operator_bed import (
    LAUNCHER,
    TEMPLATE,
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_operator.job.names import partition
from muster_operator.job.status import DONE, NOT_READY
from muster_operator.job.types import FINALIZER


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})


async def test_16_a_job_gets_its_finaliser_first_then_partitions_then_pods_and_loses_them_in_reverse(
    bed: Bed,
) -> None:
    await bed.start()
    before = bed.control_plane.audit.mark()
    job = await bed.submit("train", training())
    running = await job.until_running()
    assert (running["currentReplicas"], running["desiredReplicas"]) == (1, 1)
    assert running["iPUPartitionCreated"] is True
    assert condition(running, "Pending")["status"] == "False"
    assert condition(running, "Running")["message"] == f"IPUJob {bed.namespace}/train is running."
    assert (await job.get())["metadata"]["finalizers"] == [FINALIZER]
    name = partition(bed.namespace, "train", 0)
    assert (await job.partitions())[name].state == "active"
    assert (await bed.vipu_partitions())[name]["gcds"] == 2

    asked = list(bed.control_plane.audit.requests(before))
    writes = [each for each in asked if each.writes and each.user.endswith((":muster-operator", ":muster-vipu-proxy"))]
    # a review of the user's rights stores nothing, and what is tried again counts once
    others = ("leases", "events", "subjectaccessreviews")
    writes = [each for each in writes if each.resource not in others and each.status < 300]
    assert (writes[0].verb, writes[0].resource, writes[0].name) == ("patch", "ipujobs", "train")
    intent = next(n for n, each in enumerate(writes) if each.user.endswith(":muster-vipu-proxy"))
    first_object = next(n for n, each in enumerate(writes) if each.verb == "create" and each.resource == "configmaps")
    pods = [each.name or n for n, each in enumerate(writes) if (each.verb, each.resource) == ("create", "pods")]
    assert 0 < intent < first_object
    assert len(pods) == 3

    job.finish("train-launcher")
    done = await job.until("is completed", lambda status: status["launcherStatus"] == "Completed")
    assert (done["lastMessage"], done["currentReplicas"]) == (DONE, 0)
    assert done["completionTime"]
    await job.delete()
    await job.until_gone()
    assert await bed.vipu_partitions() == {}
    assert name not in await bed.tracker()


async def test_31_no_worker_is_made_before_its_partition_is_active(bed: Bed) -> None:
    await bed.start()
    name = partition(bed.namespace, "train", 0)
    await bed.fault(stuck=name)
    job = await bed.submit("train", training())
    waiting = await job.until_says(NOT_READY)
    assert waiting["launcherStatus"] == "Pending"
    assert condition(waiting, "Pending")["reason"] == "IPUJobPending"
    await until(bed.vipu_partitions, "V-IPU was asked")
    assert await job.pods() == {}
    assert waiting["iPUPartitionCreated"] is False
    await bed.end_faults()
    await job.until_running()
    assert set(await job.pods()) == {"train-launcher", "train-worker-0", "train-worker-1"}


async def test_21_the_launcher_comes_after_its_workers_and_waits_for_them_and_a_failed_one_fails_the_job(
    bed: Bed,
) -> None:
    await bed.start()
    job = await bed.submit("train", training())
    await job.until_running()
    pods = await job.pods()
    launcher = pods["train-launcher"]
    [waits] = launcher["spec"]["initContainers"]
    assert "wait-workers" in " ".join([*waits.get("command", []), *waits.get("args", [])])
    [main] = launcher["spec"]["containers"]
    assert main["command"] == LAUNCHER["command"]
    assert main["image"] == TEMPLATE["spec"]["containers"][0]["image"]
    job.finish("train-launcher", 3)
    failed = await job.until("has failed", lambda status: status["launcherStatus"] == "Failed")
    assert "pod train-launcher" in failed["lastMessage"]
    assert "3" in failed["lastMessage"]
    assert condition(failed, "Failed")["status"] == "True"
    assert failed["restartCount"] == 0
    await job.until_event("IPUJobFailed")


async def test_28_a_worker_that_is_deleted_by_hand_comes_again_on_the_same_partition(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("serve", inference(instances=2))
    await job.until("both are there", lambda s: s["currentReplicas"] == 2 and s["launcherStatus"] == "Running")
    before, partitions = await job.pods(), await bed.vipu_partitions()
    old = before["serve-worker-1"]["metadata"]["uid"]
    await bed.api.delete(f"/api/v1/namespaces/{job.namespace}/pods/serve-worker-1")

    async def another() -> bool:
        pod = (await job.pods()).get("serve-worker-1")
        return pod is not None and pod["metadata"]["uid"] != old

    await until(another, "another serve-worker-1")
    after = await job.pods()
    assert after["serve-worker-0"]["metadata"]["uid"] == before["serve-worker-0"]["metadata"]["uid"]
    assert await bed.vipu_partitions() == partitions
    [name] = [
        each["value"]
        for each in after["serve-worker-1"]["spec"]["containers"][0]["env"]
        if each["name"] == "IPUOF_VIPU_API_PARTITION_ID"
    ]
    assert name == partition(job.namespace, "serve", 1)


@pytest.mark.parametrize("words", [("--no-host-network",), ()])
async def test_23_host_network_can_be_switched_off(bed: Bed, words: tuple[str, ...]) -> None:
    await bed.start(*words)
    job = await bed.submit("train", training(workers=1))
    pods = await job.until_pods("train-launcher", "train-worker-0")
    for pod in pods.values():
        assert pod["spec"].get("hostNetwork", False) is not bool(words)
        assert pod["spec"]["dnsPolicy"] == ("ClusterFirst" if words else "ClusterFirstWithHostNet")
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["privileged"] is True
