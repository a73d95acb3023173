"""What kubectl prints of IPUJobs: the published transcripts, column by column and word by word."""

import re

from tests.cluster.ipujob.operator_bed import (
    SAMPLES,
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    training,
    until,
)

from muster_operator.job.names import partition

COLUMNS = ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
RECONCILED = "Successfully reconciled IPUJob"


def row(printed: str) -> list[str]:
    """The one job's line, without its age; columns are two or more blanks apart."""
    head, line = printed.strip().splitlines()
    assert re.split(r" {2,}", head.strip()) == COLUMNS
    *cells, age = re.split(r" {2,}", line.strip())
    assert re.fullmatch(r"\d+[smh].*", age)
    return cells


async def test_47_48_50_get_and_scale_print_the_transcript(bed: Bed) -> None:
    await bed.start(ipus=16)
    name = "job-inference-1"
    text = (SAMPLES / "ipujob_inference.yaml").read_text().replace("namespace: default", f"namespace: {bed.namespace}")
    assert bed.kubectl("apply", "-f", "-", stdin=text) == f"ipujob.graphcore.ai/{name} created\n"
    job = bed.job(name)

    async def shows(*cells: str) -> None:
        async def ask() -> bool:
            return row(bed.kubectl("get", "ipujobs", name)) == [name, *cells]

        await until(ask, f"kubectl get prints {cells}")

    await shows("Running", "1", "1", RECONCILED)
    [first] = (await job.pods()).values()

    assert bed.kubectl("scale", f"ipujob.graphcore.ai/{name}", "--replicas", "2") == (
        f"ipujob.graphcore.ai/{name} scaled\n"
    )
    await shows("Running", "2", "2", RECONCILED)

    for number in (2, 3):
        await bed.fault(stuck=partition(bed.namespace, name, number))
    bed.kubectl("scale", f"ipujob.graphcore.ai/{name}", "--replicas", "4")
    await shows("Pending", "2", "4", "partition not ready yet!partition not ready yet!")
    assert set(await job.pods()) == {f"{name}-worker-0", f"{name}-worker-1"}
    await bed.unstick(partition(bed.namespace, name, 2))
    await shows("Pending", "3", "4", "partition not ready yet!")
    await bed.end_faults()
    await shows("Running", "4", "4", RECONCILED)
    pods = await job.pods()
    assert set(pods) == {f"{name}-worker-{number}" for number in range(4)}
    assert pods[f"{name}-worker-0"]["metadata"]["uid"] == first["metadata"]["uid"]

    bed.kubectl("scale", f"ipujob.graphcore.ai/{name}", "--replicas", "1")
    await shows("Running", "1", "1", RECONCILED)
    await job.until_pods(f"{name}-worker-0")

    async def freed() -> bool:
        return set(await bed.vipu_partitions()) == {partition(bed.namespace, name, 0)}

    await until(freed, "the partitions of what is gone are free")
    scale = await bed.api.get(f"{job.path}/scale")
    assert scale["status"]["replicas"] == 1
    found = await bed.api.get(
        f"/api/v1/namespaces/{bed.namespace}/pods", params={"labelSelector": scale["status"]["selector"]}
    )
    assert [pod["metadata"]["name"] for pod in found["items"]] == [f"{name}-worker-0"]


async def test_describe_and_the_end_print_the_transcript(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("mnist-training", training(workers=1))
    await job.until_running()
    said = bed.kubectl("describe", "ipujobs.graphcore.ai", "mnist-training")
    expected = [
        "API Version:  graphcore.ai/v1alpha1",
        "Kind:         IPUJob",
        "ipu.finalizers.graphcore.ai",
        f"IPUJob {bed.namespace}/mnist-training is waiting for resources to be ready.",
        "IPUJobPending",
        f"IPUJob {bed.namespace}/mnist-training is running.",
        "IPUJobRunning",
        "I PU Partition Created:  true",
        "Launcher Status:         Running",
        "Restart Count:           0",
        "Start Time:",
        "Workers Status:",
        "Active:  1",
    ]
    at = 0
    for text in expected:
        at = said.find(text, at)
        assert at >= 0, f"{text!r} is not there, or not in its place:\n{said}"
    job.finish("mnist-training-launcher")
    await job.until("is completed", lambda status: status["launcherStatus"] == "Completed")
    assert row(bed.kubectl("get", "ipujobs")) == ["mnist-training", "Completed", "0", "1", "All instances done"]
