"""What a new leader does for a job for the first time waits until it has read the job itself."""

from collections.abc import AsyncIterator

import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import JOBS, OperatorBench, a_job, bench_around, failure, job_object

from muster_kube.api.errors import NotFound
from muster_operator.act.leader_check import LeaderCheck
from muster_operator.job.snapshot import (
    Action,
    AddFinalizer,
    CreateObject,
    DeletePod,
    FreePartition,
    JobPlan,
    PatchObject,
    QueryCapacity,
    RemoveFinalizer,
    TakePartitions,
    WithdrawRequests,
)

UNBOUND: list[Action] = [
    CreateObject("Pod", "train-worker-0", {}),
    PatchObject("ConfigMap", "train", {}),
    DeletePod("train-worker-0", "pod-train-worker-0"),
    TakePartitions((0,), attempt=0, size=4, gcds=1, together=False),
    FreePartition("p"),
    WithdrawRequests("node-1"),
]


@pytest.fixture
async def bench() -> AsyncIterator[OperatorBench]:
    async with bench_around() as made:
        yield made


def finds(bench: OperatorBench, version: str, uid: str = "u1") -> None:
    job = job_object(uid=uid)
    job["metadata"]["resourceVersion"] = version
    bench.api.on("GET", f"{JOBS}/train", Reply(200, job))


def reads(bench: OperatorBench) -> int:
    return len(bench.api.asked_for("GET", f"{JOBS}/train"))


@pytest.mark.parametrize("action", UNBOUND, ids=lambda each: type(each).__name__)
async def test_an_old_job_is_read_before_anything_is_made_changed_or_deleted(
    bench: OperatorBench, action: Action
) -> None:
    finds(bench, "6")
    check = LeaderCheck(bench.client, bench.cluster)
    assert await check.is_stale(a_job(), JobPlan(actions=(action,)))
    # once in a term
    assert not await check.is_stale(a_job(), JobPlan(actions=(action,)))
    assert reads(bench) == 1
    check.clear()
    assert await check.is_stale(a_job(), JobPlan(actions=(action,)))


@pytest.mark.parametrize("action", UNBOUND, ids=lambda each: type(each).__name__)
async def test_a_job_that_has_not_changed_is_not_stale(bench: OperatorBench, action: Action) -> None:
    finds(bench, "5")
    assert not await LeaderCheck(bench.client, bench.cluster).is_stale(a_job(), JobPlan(actions=(action,)))
    assert reads(bench) == 1


@pytest.mark.parametrize(
    "actions", [(), (QueryCapacity(4),), (RemoveFinalizer(),), (AddFinalizer(), CreateObject("Pod", "p", {}))]
)
async def test_what_asks_or_is_bound_to_the_jobs_version_needs_no_read(
    bench: OperatorBench, actions: tuple[Action, ...]
) -> None:
    assert not await LeaderCheck(bench.client, bench.cluster).is_stale(a_job(), JobPlan(actions=actions))
    assert reads(bench) == 0


@pytest.mark.parametrize("gone", [True, False])
async def test_a_job_that_is_gone_or_another_one_is_told_by_the_watch(bench: OperatorBench, gone: bool) -> None:
    finds(bench, "9", uid="u2")
    if gone:
        bench.api.on("GET", f"{JOBS}/train", failure(404, "NotFound"))
    check = LeaderCheck(bench.client, bench.cluster)
    with pytest.raises(NotFound):
        await check.is_stale(a_job(), JobPlan(actions=(DeletePod("train-worker-0", "x"),)))
