"""The partition of a pod with IPUs goes once the API server itself says that the pod is gone or has ended."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import JOBS, NS, PODS, OperatorBench, bench_around, failure

from muster_kube.api.errors import NotFound
from muster_operator.act.orphans import AGAIN_LIMIT_S, AGAIN_S, OrphanCollector
from muster_operator.job.names import partition
from muster_operator.job.partition_api import PartitionEntry

KEY, UID = f"{NS}/pod/web-0", "uid-1"
NAME = partition(NS, "pod/web-0", 0)
JOB = f"/apis/graphcore.ai/v1alpha1/namespaces/{NS}/ipujobs/pod/web-0"


@pytest.fixture
async def bench() -> AsyncIterator[OperatorBench]:
    async with bench_around() as made:
        entry = PartitionEntry(job=UID, namespace=NS, name="pod/web-0", size=4, state="active")
        made.cluster.tracker.update({NAME: msgspec.json.encode(entry).decode()})
        made.played.on("DELETE", f"/partitions/{NAME}", 202, entry)
        yield made


def pod(uid: str, phase: str) -> Reply:
    metadata: dict[str, Any] = {"name": "web-0", "namespace": NS, "uid": uid}
    return Reply(200, {"metadata": metadata, "status": {"phase": phase}})


@pytest.mark.parametrize(
    ("found", "frees"),
    [
        (pod(UID, "Pending"), False),
        (pod(UID, "Running"), False),
        (pod(UID, "Succeeded"), True),
        (pod(UID, "Failed"), True),
        (pod("uid-2", "Running"), True),  # another pod of its name
        (failure(404, "NotFound"), True),
    ],
    ids=["pending", "running", "succeeded", "failed", "another", "gone"],
)
async def test_a_partition_is_released_only_if_its_pod_cannot_use_it(
    bench: OperatorBench, found: Reply, frees: bool
) -> None:
    """Without the watch of pods, as after the setting ipu_pods was switched off."""
    bench.api.on("GET", f"{PODS}/web-0", found)
    collector = OrphanCollector(bench.client, bench.cluster, bench.executor)
    assert await collector.collect(KEY) == AGAIN_S
    assert (("DELETE", f"/partitions/{NAME}") in bench.played.asked) is frees
    assert JOB not in [asked.path for asked in bench.api.asked]


@pytest.mark.parametrize(("key", "path"), [(KEY, f"{PODS}/web-0"), (f"{NS}/train", f"{JOBS}/train")])
async def test_a_partition_is_kept_if_the_server_does_not_serve_the_owners_kind(
    bench: OperatorBench, key: str, path: str
) -> None:
    """As while it starts: then its 404 is no Status, and does not mean that the owner is gone."""
    owned = PartitionEntry(job=UID, namespace=NS, name=key.removeprefix(f"{NS}/"), size=4, state="active")
    bench.cluster.tracker.update({NAME: msgspec.json.encode(owned).decode()})
    bench.api.on("GET", path, Reply(404, b"404 page not found\n"))
    collector = OrphanCollector(bench.client, bench.cluster, bench.executor)
    with pytest.raises(NotFound):
        await collector.collect(key)
    assert bench.played.asked == []
    bench.api.on("GET", path, failure(404, "NotFound"))
    assert await collector.collect(key) == AGAIN_S
    assert bench.played.asked == [("DELETE", f"/partitions/{NAME}")]


async def test_a_pod_that_runs_on_is_read_less_and_less_often(bench: OperatorBench) -> None:
    collector = OrphanCollector(bench.client, bench.cluster, bench.executor)
    bench.api.on("GET", f"{PODS}/web-0", pod(UID, "Running"))
    assert [await collector.collect(KEY) for _ in range(6)] == [5, 10, 20, 40, AGAIN_LIMIT_S, AGAIN_LIMIT_S]
    bench.api.on("GET", f"{PODS}/web-0", failure(404, "NotFound"))
    assert await collector.collect(KEY) == AGAIN_S
