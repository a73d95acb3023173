"""A job that is deleted gives back all it has, whatever state it is in, and says what holds it up."""

import asyncio
import signal

import pytest
from tests.cluster.ipujob.operator_bed import (
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_operator.job.names import partition
from muster_operator.job.types import FINALIZER


async def test_34_v_ipu_is_down_the_finaliser_stays_the_reason_is_shown_and_it_ends_by_itself(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("train", training())
    await job.until_running()
    await bed.fault(down=True)
    await job.delete()
    await job.until_pods()
    name = partition(job.namespace, "train", 0)

    async def shown() -> bool:
        found = await job.get()
        entry = (await bed.tracker()).get(name)
        waits = found["status"]["lastMessage"]
        return FINALIZER in found["metadata"]["finalizers"] and entry is not None and "release" in waits

    await until(shown, "the finaliser and the entry stay, and the status says why")
    await bed.end_faults()
    await job.until_gone()
    assert await bed.vipu_partitions() == {}
    assert name not in await bed.tracker()


async def test_34_the_proxy_is_away_the_job_waits_and_says_so(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("serve", inference())
    await job.until_running()
    assert bed.proxy is not None
    port = int(bed.proxy.told["listening"].rpartition(":")[2])
    await bed.proxy.stop(signal.SIGKILL)
    await job.delete()
    await job.until_says("V-IPU proxy http://127.0.0.1")
    await bed.start_proxy(port=port)
    await job.until_gone()
    assert await bed.vipu_partitions() == {}


async def test_35_deleted_while_its_partition_is_being_made(bed: Bed) -> None:
    await bed.start()
    name = partition(bed.namespace, "train", 0)
    await bed.fault(stuck=name)
    job = await bed.submit("train", training())

    async def begun() -> bool:
        return name in await bed.vipu_partitions()

    await until(begun, "V-IPU makes it")
    await job.delete()
    await bed.end_faults()
    await job.until_gone()

    async def nothing() -> bool:
        return await bed.vipu_partitions() == {} and name not in await bed.tracker()

    await until(nothing, "no partition is left")


@pytest.mark.parametrize("spec", [training(), inference(instances=3)], ids=["launcher", "instances"])
async def test_35_deleted_at_any_moment_nothing_is_left(bed: Bed, spec: dict[str, object]) -> None:
    await bed.start(delay_s=0.05)
    jobs = []
    for number in range(8):
        job = await bed.submit(f"brief-{number}", spec)
        await asyncio.sleep(0.04 * number)  # not waited for: each job is met in another state
        await job.delete()
        jobs.append(job)
    for job in jobs:
        await job.until_gone()

    async def nothing() -> bool:
        return await bed.vipu_partitions() == {} and await bed.tracker() == {}

    await until(nothing, "no partition is left")


async def test_deleted_while_nobody_can_place_it_and_after_it_has_ended(bed: Bed) -> None:
    await bed.start(nodes=0)
    waiting = await bed.submit("waiting", training())
    await waiting.until_says("waiting for a node")
    assert await bed.vipu_partitions() == {}  # nothing is held while nothing can run
    await waiting.delete()
    await waiting.until_gone()


async def test_a_partition_whose_job_is_no_more_is_given_back(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("gone", inference())
    await job.until_running()
    assert bed.operator is not None
    await bed.operator.stop(signal.SIGKILL)
    await bed.api.patch(job.path, {"metadata": {"finalizers": []}})
    await job.delete()
    await job.until_gone()
    assert await bed.vipu_partitions() != {}
    await bed.start_operator()

    async def nothing() -> bool:
        return await bed.vipu_partitions() == {} and await bed.tracker() == {}

    await until(nothing, "the operator gives it back")
