"""Operator and V-IPU proxy end after every single write of the lives of two pods with IPUs, on the real API server: no
partition and no ConfigMap is left, and none is given twice.
"""

from typing import Any

import pytest
from tests.cluster.ipujob_failures.embedded_jobs import (
    SETUP,
    EmbeddedJob,
    JobTestBed,
    job_bed_fixture,  # noqa: F401 - the fixture
    live_through,
)
from tests.cluster.ipujob_failures.embedded_operator import ProcessFate

from muster_operator.admission.ipu_pods import GATES_MINOR
from muster_operator.job.ipu_pod import config_map_name
from muster_operator.job.names import PARTITION, partition
from muster_operator.resources.ipu_pods import inject
from muster_sandbox.controlplane.cluster import ControlPlane

NAME = "web-0"
SPARE = 2  # a life may have a write less than the first one


def admitted(number: int, *, gated: bool) -> dict[str, Any]:
    """As the webhook leaves it."""
    spec = {"containers": [{"name": "main", "image": "poplar:3"}], "terminationGracePeriodSeconds": 1}
    return inject({"metadata": {"name": NAME}, "spec": spec}, 4, f"{number:016x}", SETUP, gated=gated)


def holds_nothing(life: EmbeddedJob) -> bool:
    return not (life.watcher.tracker(life.namespace) or life.runs.vipu.clocked_fleet.fleet.partitions)


async def live(job_bed: JobTestBed, operators: ProcessFate, proxys: ProcessFate, *, gated: bool) -> None:
    """Of two pods of one name: the first one ends by itself, the second one is deleted while it runs."""
    async with job_bed.run_job(operators, proxys, ipu_pods=True) as life:
        pods = f"/api/v1/namespaces/{life.namespace}/pods"
        name = partition(life.namespace, f"pod/{NAME}", 0)
        for number in (1, 2):
            made = await life.api.create(pods, admitted(number, gated=gated))
            uid = made["metadata"]["uid"]
            key = f"{life.namespace}/{NAME}"

            config = f"ConfigMap/{config_map_name(4, f'{number:016x}')}"

            def runs(key: str = key, uid: str = uid, config: str = config) -> bool:
                pod = life.kubelets.pods.get(key)
                entries = life.watcher.tracker(life.namespace).values()
                return (
                    pod is not None
                    and (pod.metadata.uid, pod.status.phase) == (uid, "Running")
                    and pod.metadata.annotations.get(PARTITION) == name
                    and [(each.job, each.state, each.size) for each in entries] == [(uid, "active", 4)]
                    and config in life.watcher.small(life.namespace)
                )

            await life.until(runs, f"pod {number} has its partition")
            if number == 1:
                life.kubelets.finish(key)
                await life.until(lambda: holds_nothing(life), "the partition of the pod that ended is returned")
            await life.api.delete(f"{pods}/{NAME}")
            await life.until(lambda key=key: key not in life.kubelets.pods, f"pod {number} is gone")
        await life.until(lambda: holds_nothing(life), "the partition of the pod that was deleted is returned")
        await life.until(lambda: not life.watcher.small(life.namespace), "the ConfigMaps go with their pods")


@pytest.mark.timeout(1800)  # dozens of lives, on however slow a machine
async def test_59_whoever_ends_after_any_write_leaves_no_partition_behind(
    job_bed: JobTestBed, control_plane: ControlPlane
) -> None:
    gated = control_plane.minor >= GATES_MINOR
    operators, proxys = ProcessFate(), ProcessFate()
    await live(job_bed, operators, proxys, gated=gated)
    accidents = [("operator", at) for at in range(1, len(operators.written) + 1)]
    accidents += [("proxy", at) for at in range(1, len(proxys.written) + 1)]
    assert len(accidents) > 12, (operators.written, proxys.written)

    async def happens(accident: tuple[str, int]) -> bool:
        who, at = accident
        fate = ProcessFate(dies_at=at)
        fates = (fate, ProcessFate()) if who == "operator" else (ProcessFate(), fate)
        await live(job_bed, *fates, gated=gated)
        return at <= len(fate.written)

    missed = await live_through(accidents, happens)
    first = {"operator": len(operators.written), "proxy": len(proxys.written)}
    assert [late for late in missed if late[1] < first[late[0]] - SPARE] == []
    await live(job_bed, ProcessFate(unanswered=True), ProcessFate(), gated=gated)
