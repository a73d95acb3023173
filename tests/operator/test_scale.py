"""What keeps a thousand jobs from standing in each other's way."""

import asyncio

from tests.operator.operator_bench import NS, bench_around, job_object, pod_object
from tests.operator.test_controller import LeadingOperator

from muster_kube.controller.workqueue import WorkQueue
from muster_operator.job.snapshot import JobPlan


async def test_jobs_that_have_pods_or_are_going_stand_before_those_that_have_not_begun() -> None:
    going = job_object("going", uid="u3")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    async with bench_around() as bench:
        bench.lists(ipujobs=[job_object("new", uid="u2"), job_object("train"), going], pods=[pod_object("p")])
        operator = LeadingOperator(bench, lambda *_: JobPlan(), job_object(), ()).operator
        operator._queue = queue = WorkQueue[str]()
        watching = asyncio.create_task(operator.watch())
        try:
            async with asyncio.timeout(60):
                await operator.cluster.wait_synced()
            assert len(queue) == 3
            order = [await queue.get() for _ in range(3)]
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    assert set(order[:2]) == {f"{NS}/train", f"{NS}/going"}
    assert order[2] == f"{NS}/new"
