"""The partitions of a job that is gone stay until the API server itself says that no pod can use them."""

import msgspec
import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import NS, PODS, bench_around, failure, pod_object

from muster_operator.act.orphans import AGAIN_S, OrphanCollector
from muster_operator.job.names import partition
from muster_operator.job.partition_api import PartitionEntry

JOB = f"/apis/graphcore.ai/v1alpha1/namespaces/{NS}/ipujobs/train"
NAMES = [partition(NS, "train", instance) for instance in (0, 1)]


@pytest.mark.parametrize("left", [None, 0, 1])
async def test_they_are_released_once_no_pod_of_the_job_is_left(left: int | None) -> None:
    async with bench_around() as bench:
        entries = {}
        for instance, name in enumerate(NAMES):
            entry = PartitionEntry(job="u1", namespace=NS, name="train", instance=instance, state="active")
            entries[name] = msgspec.json.encode(entry).decode()
            bench.played.on("DELETE", f"/partitions/{name}", 200, {})
            pod = f"train-worker-{instance}"
            found = Reply(200, pod_object(pod)) if instance == left else failure(404, "NotFound")
            bench.api.on("GET", f"{PODS}/{pod}", found)
        bench.cluster.tracker.update(entries)
        bench.api.on("GET", JOB, failure(404, "NotFound"))
        collector = OrphanCollector(bench.client, bench.cluster, bench.executor)
        assert await collector.collect(f"{NS}/train") == AGAIN_S
        freed = [path.rpartition("/")[2] for method, path in bench.played.asked if method == "DELETE"]
        assert freed == (NAMES if left is None else NAMES[:left])
