"""A partition is released or reset only once the API server itself says that no pod that no watch has shown uses it."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import NS, PODS, OperatorBench, a_job, bench_around, failure, pod_object

from muster_kube.api.errors import ApiError, Conflict
from muster_operator.act.orphans import AGAIN_S, OrphanCollector
from muster_operator.act.refusal_cache import FREEING
from muster_operator.job.names import partition
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import ActionResult, FreePartition, JobPod, TakePartitions

FIRST, SECOND = (partition(NS, "train", instance) for instance in (0, 1))
FREE = FreePartition(FIRST)
RESET = TakePartitions((0,), attempt=1, size=4, gcds=1, together=False)
GONE = failure(404, "NotFound")


def entry(instance: int = 0, workers: int = 1) -> PartitionEntry:
    return PartitionEntry(
        job="u1", namespace=NS, name="train", instance=instance, size=4, gcds=workers, state="active"
    )  # fmt: skip


@pytest.fixture
async def bench() -> AsyncIterator[OperatorBench]:
    async with bench_around() as made:
        for instance, name in enumerate((FIRST, SECOND)):
            made.played.on("DELETE", f"/partitions/{name}", 200, {})
            made.played.on("PUT", f"/partitions/{name}", 200, entry(instance))
        yield made


def holds(bench: OperatorBench, *entries: PartitionEntry) -> None:
    found = {partition(NS, "train", each.instance): msgspec.json.encode(each).decode() for each in entries}
    bench.cluster.tracker.update(found)


def has(bench: OperatorBench, worker: int, reply: Reply) -> None:
    bench.api.on("GET", f"{PODS}/train-worker-{worker}", reply)


def looked(bench: OperatorBench) -> list[str]:
    return [asked.path.rpartition("/")[2] for asked in bench.api.asked if asked.path.startswith(PODS)]


@pytest.mark.parametrize("action", [FREE, RESET])
@pytest.mark.parametrize("worker", [0, 1])
async def test_a_partition_is_kept_while_one_of_its_pods_exists(
    bench: OperatorBench, action: FreePartition | TakePartitions, worker: int
) -> None:
    holds(bench, entry(workers=2))
    has(bench, 1 - worker, GONE)
    has(bench, worker, Reply(200, pod_object(f"train-worker-{worker}")))
    with pytest.raises(Conflict):
        await bench.executor.execute(a_job(), action)
    assert bench.played.asked == []
    has(bench, worker, GONE)
    assert await bench.executor.execute(a_job(), action) is ActionResult.DONE
    assert looked(bench) == ["train-worker-0", "train-worker-1"] * 2


async def test_only_the_pods_of_that_partition_are_looked_for(bench: OperatorBench) -> None:
    holds(bench, entry(0, workers=2), entry(1, workers=2))
    has(bench, 2, GONE)
    has(bench, 3, GONE)
    assert await bench.executor.execute(a_job(), FreePartition(SECOND)) is ActionResult.DONE
    assert looked(bench) == ["train-worker-2", "train-worker-3"]


async def test_a_pod_of_that_name_of_another_job_keeps_no_partition(bench: OperatorBench) -> None:
    holds(bench, entry())
    has(bench, 0, Reply(200, pod_object("train-worker-0", owner="another")))
    assert await bench.executor.execute(a_job(), FREE) is ActionResult.DONE


async def test_a_pod_that_the_decision_knew_is_not_looked_for(bench: OperatorBench) -> None:
    holds(bench, entry())
    bench.cluster.pods.note("", None, msgspec.convert(pod_object("train-worker-0"), type=JobPod))
    assert await bench.executor.execute(a_job(), FREE) is ActionResult.DONE
    assert looked(bench) == []


async def test_a_partition_is_kept_while_the_server_cannot_say_whether_its_pods_exist(bench: OperatorBench) -> None:
    holds(bench, entry())
    has(bench, 0, failure(500, "InternalError"))
    with pytest.raises(ApiError):
        await bench.executor.execute(a_job(), FREE)
    assert bench.played.asked == []


async def test_nothing_is_looked_for_while_a_release_waits_or_a_partition_is_new(bench: OperatorBench) -> None:
    assert await bench.executor.execute(a_job(), RESET) is ActionResult.DONE
    holds(bench, entry())
    bench.refusals.note("u1", (FREEING, FIRST), None)
    assert await bench.executor.execute(a_job(), FREE) is ActionResult.WAITS
    assert looked(bench) == []


@pytest.mark.parametrize("left", [0, 1])
async def test_the_partitions_of_a_job_that_is_gone_are_kept_while_pods_of_it_exist(
    bench: OperatorBench, left: int
) -> None:
    holds(bench, entry(0), entry(1))
    bench.api.on("GET", f"/apis/graphcore.ai/v1alpha1/namespaces/{NS}/ipujobs/train", GONE)
    has(bench, 1 - left, GONE)
    has(bench, left, Reply(200, pod_object(f"train-worker-{left}")))
    collector = OrphanCollector(bench.client, bench.cluster, bench.executor)
    with pytest.raises(Conflict):
        await collector.collect(f"{NS}/train")
    assert ("DELETE", f"/partitions/{partition(NS, 'train', left)}") not in bench.played.asked
    has(bench, left, GONE)
    assert await collector.collect(f"{NS}/train") == AGAIN_S
    assert ("DELETE", f"/partitions/{partition(NS, 'train', left)}") in bench.played.asked
