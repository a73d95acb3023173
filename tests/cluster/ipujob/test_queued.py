"""IPUJobs of a Kueue queue on the real API server: what Kueue's job framework does with a job, done by hand, with the
labels and annotations of its topology-aware scheduling.

It resumes by one update that also writes the flavour's node selector, tolerations, labels and annotations into the pod
template; to preempt, it suspends and restores the template by one update, and may start the job elsewhere afterwards.
"""

import copy
from typing import Any

import pytest
from tests.cluster.ipujob.operator_bed import (
    SELECTOR,
    TEMPLATE,
    Bed,
    Job,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_operator.job.types import API_VERSION, jobs_path
from muster_sandbox.simulation.nodes import NodeShape

LABEL = "kueue.x-k8s.io/queue-name"
POD_SET = "kueue.x-k8s.io/podset"
TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
FLAVOR = "example.com/flavor"  # label of nodes, as a ResourceFlavor names it


async def queued(bed: Bed, name: str, spec: Object) -> Job:
    body = bed.body(name, spec)
    body["metadata"]["labels"] = {LABEL: "team-a"}
    await bed.api.create(jobs_path(bed.namespace), body, timeout_s=60.0)
    return bed.job(name)


async def replace(bed: Bed, job: Job, suspend: bool, template: Object) -> None:
    """As one update of the whole object."""

    async def written() -> bool:
        found = await job.get()
        found["spec"] |= {"suspend": suspend}
        found["spec"]["workers"]["template"] = template
        await bed.api.replace(job.path, found)
        return True

    await until(written, f"{job.name} is updated")  # again where a status was written in between


def assigned(flavor: str) -> Object:
    """The template as Kueue starts it on a flavour."""
    template = copy.deepcopy(TEMPLATE)
    template["metadata"] = {
        "labels": {POD_SET: "workers"},
        "annotations": {"flavor": flavor, TOPOLOGY: "rack", "kueue.x-k8s.io/workload": "ipujob-train-1a2b3"},
    }
    template["spec"] |= {"nodeSelector": {FLAVOR: flavor}, "tolerations": [{"key": flavor, "operator": "Exists"}]}
    return template


def condition(status: Object, kind: str) -> str:
    return next((str(each["status"]) for each in status.get("conditions", []) if each["type"] == kind), "")


async def nothing_held(bed: Bed, job: Job) -> bool:
    return not await job.pods() and not await job.partitions() and not await bed.vipu_partitions()


@pytest.mark.parametrize("launcher", [True, False])
async def test_44_a_job_of_a_queue_holds_nothing_until_it_is_resumed_and_moves_to_another_flavor(
    bed: Bed, launcher: bool
) -> None:
    for number, flavor in enumerate(("reserved", "spot")):
        shape = NodeShape(labels={SELECTOR[0]: SELECTOR[1], FLAVOR: flavor}, gpus=0)
        bed.nodes += await bed.fleet.create(1, prefix=f"ipu-{bed.namespace}", first=number, shape=shape)
    reserved, spot = bed.nodes
    await bed.start(nodes=0)
    job = await queued(bed, "train", training() if launcher else inference(instances=2))
    assert (await job.get())["spec"]["suspend"] is True
    said = await job.until_says("suspended", "team-a")
    assert (said["launcherStatus"], condition(said, "Suspended"), said.get("startTime")) == ("Pending", "True", None)
    other = await bed.submit("other", inference())
    await other.until_running()
    assert (await job.pods(), await job.partitions()) == ({}, {}), "others run past it"
    await other.delete()
    await other.until_gone()

    async def on(node: str) -> dict[str, Any]:
        """Its pods once all of them run there."""
        status = await job.until_running()
        pods = await job.until_pods_run(3 if launcher else 2)
        assert {pod["spec"]["nodeName"] for pod in pods.values()} == {node}
        assert len(pods) == (3 if launcher else 2)
        assert (condition(status, "Suspended"), status["restartCount"]) == ("False", 0)
        return pods

    await replace(bed, job, False, assigned("reserved"))
    for pod in (await on(reserved)).values():
        assert pod["spec"]["nodeSelector"][FLAVOR] == "reserved"
        assert "reserved" in [each.get("key") for each in pod["spec"]["tolerations"]]
        assert pod["metadata"]["annotations"]["flavor"] == "reserved"
    # a pod of a kind that Kueue is told of as an external framework is its owner's business
    sets: dict[str, list[str]] = {}
    for pod in (await job.pods()).values():
        metadata = pod["metadata"]
        assert metadata["annotations"][TOPOLOGY] == "rack"
        [owner] = [each for each in metadata["ownerReferences"] if each.get("controller")]
        assert (owner["apiVersion"], owner["kind"]) == (API_VERSION, "IPUJob")
        sets.setdefault(metadata["labels"][POD_SET], []).append(metadata["labels"].get("muster.dev/index", ""))
    assert {name: sorted(indexes) for name, indexes in sets.items()} == (
        {"workers": ["0", "1"], "launcher": [""]} if launcher else {"workers": ["0", "1"]}
    )

    await replace(bed, job, True, TEMPLATE)  # preempted
    await until(lambda: nothing_held(bed, job), "it holds nothing any more")
    inactive = await job.until("is inactive", lambda status: not status.get("iPUPartitionCreated"))
    assert condition(inactive, "Suspended") == "True"
    await replace(bed, job, False, assigned("spot"))
    again = await on(spot)
    assert FLAVOR in again["train-worker-0"]["spec"]["nodeSelector"]

    for name in ("train-launcher",) if launcher else ("train-worker-0", "train-worker-1"):
        job.finish(name)
    over = await job.until("has completed", lambda status: status.get("launcherStatus") == "Completed")
    assert condition(over, "Complete") == "True", "by which Kueue gives its quota to others"
