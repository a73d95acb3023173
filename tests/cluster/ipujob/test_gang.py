"""All or nothing, on the real API server and scheduler: what cannot start together gives back what it holds."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cluster.ipujob.operator_bed import (
    SELECTOR,
    WAIT_S,
    Bed,
    Job,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    training,
    until,
)

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NodeShape
from muster_sandbox.simulation.pods import PodScript, SimulatedPod

WORKERS = "tests.muster.dev/workers"  # annotation: how many a launcher waits for
LOOK_S = 0.1


class LaunchersWait:
    """A launcher starts once all of its workers are ready, as its init container has it."""

    def __init__(self) -> None:
        self.kubelets: Kubelets | None = None
        self._seen: dict[str, float] = {}

    def __call__(self, pod: SimulatedPod) -> PodScript:
        job, launcher, _ = pod.key.rpartition("-launcher")
        if not launcher or self.kubelets is None or pod.status.phase == "Running":
            return PodScript()
        pods = self.kubelets.pods.items()
        ready = sum(key.startswith(f"{job}-worker-") and each.status.ready for key, each in pods)
        if ready == int(pod.metadata.annotations.get(WORKERS, 0)):
            return PodScript()
        age_s = time.monotonic() - self._seen.setdefault(pod.metadata.uid, time.monotonic())
        return PodScript(start_after_s=age_s + LOOK_S)


@pytest.fixture
async def kubelets(api: KubeClient) -> AsyncIterator[Kubelets]:
    script = LaunchersWait()
    async with Kubelets(api, script=script) as running:
        script.kubelets = running
        yield running


async def start(bed: Bed, settings: str, *, ipus: int, **labels: str) -> None:
    """A node for each of ``labels``, which it bears, with room for one worker and a launcher."""
    for number, (key, value) in enumerate(labels.items()):
        shape = NodeShape(cpu="1500m", gpus=0, labels={SELECTOR[0]: SELECTOR[1], key: value})
        bed.nodes += await bed.fleet.create(1, prefix=f"ipu-{bed.namespace}", first=number, shape=shape)
    file = bed.folder / "operator.yaml"
    file.write_text(settings)
    await bed.start("--config", str(file), ipus=ipus, nodes=0)


def gang(workers: int, *, instances: int = 1, ipus: int = 2, **more: Any) -> Object:
    """With a launcher. workers: of an instance; each takes a node's place where there is but one."""
    container = {"name": "worker", "image": "poplar:1", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"annotations": {WORKERS: str(instances * workers)}}
    template = {"metadata": metadata, "spec": {"containers": [container]} | more}
    return training(instances=instances, workers=workers, ipus=ipus, template=template, cleanPodPolicy="All")


async def bound(job: Job) -> dict[str, str]:
    """Nodes of its workers that have one, by uid of the pod."""
    return {
        pod["metadata"]["uid"]: pod["spec"]["nodeName"]
        for name, pod in (await job.pods()).items()
        if "nodeName" in pod["spec"] and not name.endswith("-launcher")
    }


async def until_half(job: Job) -> dict[str, str]:
    """One of its two workers has a node, the other cannot have one."""

    async def ask() -> dict[str, str] | None:
        found = await bound(job)
        return found if len(found) == 1 and "-worker-" in (await job.status())["lastMessage"] else None

    return dict(await until(ask, f"{job.name} has half of its workers on a node"))


def is_running(status: Object) -> bool:
    """A job that gives back its partitions does not run, although its launcher may still start."""
    gives_back = status.get("givenBack", {}).get("instances")
    return bool(status.get("launcherStatus") == "Running" and not gives_back)


async def until_one_runs(one: Job, other: Job) -> tuple[Job, Job]:
    """That one, and the other, which waits."""

    async def ask() -> tuple[Job, Job] | None:
        running = [is_running(await job.status()) for job in (one, other)]
        return {(True, False): (one, other), (False, True): (other, one)}.get((running[0], running[1]))

    # each time that both try again in one second costs them another hold and a longer delay
    runs, waits = await until(ask, "one of two jobs runs", 2 * WAIT_S)
    return runs, waits


def pending(status: Object) -> Object:
    return next(each for each in status["conditions"] if each["type"] == "Pending")


async def test_49_a_gang_that_cannot_start_gives_back_what_another_job_then_runs_on(bed: Bed) -> None:
    await start(bed, "hold_timeout_s: 20\nhold_delay_s: 3600\n", ipus=4, place="first")
    large = await bed.submit("large", gang(2, ipus=4))
    await until_half(large)
    assert len(await large.partitions()) == 1
    small = await bed.submit("small", gang(1, ipus=4))
    await small.until_running()

    async def gave_back() -> bool:
        return (await large.pods(), await large.partitions()) == ({}, {})

    await until(gave_back, "both have room only one after the other")
    said = await large.status()
    assert "20 s" in said["lastMessage"]
    assert "large-worker-" in said["lastMessage"]
    assert (pending(said)["status"], pending(said)["reason"]) == ("True", "GaveBack")
    assert said["givenBack"]["count"] == 1
    assert said["givenBack"]["until"]
    assert "20 s" in await large.until_event("GaveBack")
    # the edit ends the wait of an hour: there is a place for its second worker, once the other job is over
    small.finish("small-launcher")
    await small.until("has completed", lambda status: status.get("launcherStatus") == "Completed")
    shape = NodeShape(cpu="1500m", gpus=0, labels={SELECTOR[0]: SELECTOR[1]})
    await bed.fleet.create(1, prefix=f"ipu-{bed.namespace}", first=1, shape=shape)
    await bed.api.patch(large.path, {"spec": {"activeDeadlineSeconds": 3600}})
    running = await large.until_running()
    assert (running.get("givenBack"), pending(running)["status"], running["restartCount"]) == (None, "False", 0)


async def test_49_two_jobs_that_each_hold_half_of_the_nodes_both_run(bed: Bed) -> None:
    await start(bed, "hold_timeout_s: 20\nhold_delay_s: 8\n", ipus=8, one="yes", other="yes")
    one = await bed.submit("one", gang(2, nodeSelector={"one": "yes"}))
    other = await bed.submit("other", gang(2, nodeSelector={"other": "yes"}))
    halves = [await until_half(one), await until_half(other)]
    for node in bed.nodes:
        await bed.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"one": "yes", "other": "yes"}}})
    # either could run on both nodes now, and keeps one of them from the other
    assert [await bound(one), await bound(other)] == halves
    assert {node for half in halves for node in half.values()} == set(bed.nodes)

    runs, waits = await until_one_runs(one, other)
    assert len(await bound(runs)) == 2
    assert (await waits.status())["givenBack"]["count"] >= 1
    runs.finish(f"{runs.name}-launcher")
    await waits.until_running()
    assert len(await bound(waits)) == 2


async def test_49_two_jobs_submitted_at_once_never_share_the_ipus_between_them(bed: Bed) -> None:
    """Each wants three of the four partitions, and V-IPU takes its time with each."""
    await bed.start(ipus=8, delay_s=0.3)
    one, other = [await bed.submit(name, gang(2, instances=3)) for name in ("one", "other")]

    runs, waits = await until_one_runs(one, other)
    told = await waits.until_says("1 of 3", "2 IPUs")
    assert (told["currentReplicas"], await waits.partitions(), await waits.pods()) == (0, {}, {})
    assert len(await runs.partitions()) == 3
    runs.finish(f"{runs.name}-launcher")
    await waits.until_running()

    async def freed() -> bool:
        return await runs.partitions() == {}

    await until(freed, "the partitions of the one that ran are free")
