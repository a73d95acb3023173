"""A partition is released or reset only once the API server itself says that no pod uses it that the decision did not
know."""

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from tests.kube.conftest import Asked, Reply
from tests.operator.operator_bench import (
    JOBS,
    NS,
    PODS,
    Object,
    OperatorBench,
    a_job,
    bench_around,
    failure,
    job_object,
    pod_list,
    pod_object,
    until,
)
from tests.operator.test_controller import lead_operator

from muster_kube.api.errors import ApiError, Conflict
from muster_operator.act.orphans import AGAIN_S, OrphanCollector
from muster_operator.act.refusal_cache import FREEING
from muster_operator.job import names
from muster_operator.job.names import partition
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import ActionResult, FreePartition, JobPlan, JobPod, Snapshot, TakePartitions
from muster_operator.job.types import IPUJob

FIRST, SECOND = (partition(NS, "train", instance) for instance in (0, 1))
FREE = FreePartition(FIRST)
RESET = TakePartitions((0,), attempt=1, size=4, gcds=2, together=False)
GONE = failure(404, "NotFound")


def entry(instance: int = 0, attempt: int = 0) -> PartitionEntry:
    return PartitionEntry(
        job="u1", namespace=NS, name="train", instance=instance, attempt=attempt, size=4, gcds=2, state="active"
    )  # fmt: skip


def worker(index: int, owner: str = "u1", **labels: str) -> Object:
    """Of two an instance."""
    made = pod_object(f"train-worker-{index}", owner=owner)
    made["metadata"]["labels"] |= {names.INSTANCE: str(index // 2), **labels}
    return made


def as_pod(made: Object) -> JobPod:
    return msgspec.convert(made, type=JobPod)


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


def exist(bench: OperatorBench, *pods: Object, meanwhile: Callable[[], object] = lambda: None) -> None:
    """meanwhile: called while the server answers."""

    def answer(asked: Asked) -> Reply:
        assert "resourceVersion" not in asked.query  # otherwise the server may answer from its cache
        meanwhile()
        wanted = dict(each.split("=") for each in asked.query["labelSelector"].split(","))
        return pod_list(*(pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()))

    bench.api.on("GET", PODS, answer)
    for pod in pods:
        bench.api.on("GET", f"{PODS}/{pod['metadata']['name']}", Reply(200, pod))


def lists(bench: OperatorBench) -> int:
    return len([asked for asked in bench.api.asked if asked.path.startswith(PODS)])


@pytest.mark.parametrize("action", [FREE, RESET])
@pytest.mark.parametrize("index", [0, 1])
async def test_a_partition_is_kept_while_a_pod_exists_that_the_decision_did_not_know(
    bench: OperatorBench, action: FreePartition | TakePartitions, index: int
) -> None:
    holds(bench, entry())
    exist(bench, worker(0), worker(1))
    with pytest.raises(Conflict):
        await bench.execute(a_job(), action, as_pod(worker(1 - index)))
    assert bench.played.asked == []
    assert await bench.execute(a_job(), action, as_pod(worker(0)), as_pod(worker(1))) is ActionResult.DONE


async def test_a_pod_that_replaced_the_known_one_keeps_its_partition(bench: OperatorBench) -> None:
    holds(bench, entry())
    former = worker(0)
    former["metadata"]["uid"] = "former"
    exist(bench, worker(0))
    with pytest.raises(Conflict):
        await bench.execute(a_job(), FREE, as_pod(former))


@pytest.mark.parametrize("action", [FREE, RESET])
async def test_a_pod_that_the_watch_delivers_while_the_server_is_asked_keeps_its_partition(
    bench: OperatorBench, action: FreePartition | TakePartitions
) -> None:
    holds(bench, entry())

    def delivers() -> None:
        bench.cluster.pods.note("", None, as_pod(worker(1)))

    exist(bench, worker(1), meanwhile=delivers)
    with pytest.raises(Conflict):
        await bench.execute(a_job(), action)
    assert bench.played.asked == []


@pytest.mark.parametrize("action", [FREE, RESET])
async def test_a_pod_that_the_watch_delivers_after_the_decision_keeps_its_partition(
    action: FreePartition | TakePartitions,
) -> None:
    """The decision knew one worker; the other arrives while another call, the first for the job, has no answer."""
    known: list[set[str]] = []

    def decide(_job: IPUJob, snapshot: Snapshot) -> JobPlan:
        known.append(set(snapshot.pods))
        if "train-worker-1" in snapshot.pods:
            return JobPlan()
        return JobPlan((TakePartitions((1,), attempt=0, size=4, gcds=2, together=False), action))

    def arrives(_asked: Asked) -> Reply:
        it.operator.cluster.observe("Pod", msgspec.json.encode(worker(1)))
        return Reply(200, job_object(observedGeneration=1))

    async with lead_operator(decide, pods=[worker(0)]) as it:
        it.bench.api.on("GET", f"{JOBS}/train", arrives)
        exist(it.bench, worker(0), worker(1))
        it.bench.played.on("PUT", f"/partitions/{SECOND}", 200, entry(1))
        it.operator.cluster.tracker.update({FIRST: msgspec.json.encode(entry()).decode()})
        await until(lambda: len(known) > 1 and it.at_rest())
        assert known[0] == {"train-worker-0"}
        assert known[-1] == {"train-worker-0", "train-worker-1"}
        assert {path for _, path in it.bench.played.asked} == {f"/partitions/{SECOND}"}


async def test_only_the_pods_of_that_partition_keep_it(bench: OperatorBench) -> None:
    holds(bench, entry(0), entry(1))
    exist(bench, worker(0), worker(1), pod_object("train-launcher"), worker(2, **{names.INSTANCE: "²"}))
    assert await bench.execute(a_job(), FreePartition(SECOND)) is ActionResult.DONE


async def test_a_pod_of_that_name_of_another_job_keeps_no_partition(bench: OperatorBench) -> None:
    holds(bench, entry())
    exist(bench, worker(0, owner="another"), worker(1, owner="another", **{names.JOB_UID: "u1"}))
    assert await bench.execute(a_job(), FREE) is ActionResult.DONE


async def test_a_pod_that_has_lost_its_label_holds_up_nothing(bench: OperatorBench) -> None:
    """No watch would ever show it, so the job could not be deleted."""
    holds(bench, entry())
    exist(bench, worker(0, **{names.MANAGED_BY: "a-tenant"}))
    assert await bench.execute(a_job(), FREE) is ActionResult.DONE


async def test_a_partition_is_kept_while_the_server_cannot_say_which_pods_exist(bench: OperatorBench) -> None:
    holds(bench, entry())
    bench.api.on("GET", PODS, failure(500, "InternalError"))
    with pytest.raises(ApiError):
        await bench.execute(a_job(), FREE)
    assert bench.played.asked == []


async def test_a_partition_that_no_watch_has_shown_either_is_not_reset_under_a_pod(bench: OperatorBench) -> None:
    exist(bench, worker(0))
    with pytest.raises(Conflict):
        await bench.execute(a_job(), RESET)
    assert bench.played.asked == []


@pytest.mark.parametrize("attempt", [0, 1])
async def test_nothing_is_listed_for_a_partition_that_is_not_reset(bench: OperatorBench, attempt: int) -> None:
    if attempt:
        holds(bench, entry(attempt=attempt))
    action = TakePartitions((0,), attempt=attempt, size=4, gcds=2, together=False)
    assert await bench.execute(a_job(), action) is ActionResult.DONE
    assert lists(bench) == 0


async def test_nothing_is_listed_while_a_release_waits(bench: OperatorBench) -> None:
    holds(bench, entry())
    bench.refusals.note("u1", (FREEING, FIRST), None)
    assert await bench.execute(a_job(), FREE) is ActionResult.WAITS
    assert lists(bench) == 0


async def test_one_list_serves_all_partitions_of_a_decision(bench: OperatorBench) -> None:
    holds(bench, entry(0), entry(1))
    both = TakePartitions((0, 1), attempt=1, size=4, gcds=2, together=True)
    assert await bench.execute(a_job(), both) is ActionResult.DONE
    assert len(bench.played.asked) == 2
    assert lists(bench) == 1


def orphaned(bench: OperatorBench) -> OrphanCollector:
    holds(bench, entry(0), entry(1))
    bench.api.on("GET", f"{JOBS}/train", GONE)
    return OrphanCollector(bench.client, bench.cluster, bench.executor)


@pytest.mark.parametrize("instance", [0, 1])
async def test_the_partitions_of_a_job_that_is_gone_are_kept_while_pods_of_it_exist(
    bench: OperatorBench, instance: int
) -> None:
    collector = orphaned(bench)
    exist(bench, worker(2 * instance + 1))
    with pytest.raises(Conflict):
        await collector.collect(f"{NS}/train")
    kept = ("DELETE", f"/partitions/{partition(NS, 'train', instance)}")
    assert kept not in bench.played.asked
    exist(bench)
    assert await collector.collect(f"{NS}/train") == AGAIN_S
    assert kept in bench.played.asked


async def test_a_pod_without_its_label_keeps_no_partition_of_a_job_that_is_gone(bench: OperatorBench) -> None:
    collector = orphaned(bench)
    exist(bench, worker(0, **{names.MANAGED_BY: "a-tenant"}))
    assert await collector.collect(f"{NS}/train") == AGAIN_S
    assert [method for method, _ in bench.played.asked] == ["DELETE", "DELETE"]
    assert lists(bench) == 1
