"""Hardware that goes bad under IPUJobs that run, on the real API server with the real proxy and operator."""

import json
from typing import Any

from tests.cluster.ipujob.operator_bed import (
    OWN,
    Bed,
    Job,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_operator.job.names import partition
from muster_operator.job.partition_api import ipus_of

TAINT = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
FAULT = {"check": "pciebw", "component": "host", "reason": "LowBandwidth", "occurrence": 1, "message": "3 GB/s"}
QUARANTINE = f"/api/v1/namespaces/{OWN}/configmaps"


async def taint(bed: Bed, node: str) -> None:
    """As the tainter writes it: taint, label and annotation at once."""
    await bed.api.patch(
        f"/api/v1/nodes/{node}",
        {
            "metadata": {
                "labels": {"muster.dev/faulty": "true"},
                "annotations": {"muster.dev/faults": json.dumps({"open": [FAULT]})},
            },
            "spec": {"taints": [TAINT]},
        },
    )


async def free(bed: Bed, node: str) -> None:
    await bed.api.patch(
        f"/api/v1/nodes/{node}",
        {
            "metadata": {"labels": {"muster.dev/faulty": None}, "annotations": {"muster.dev/faults": None}},
            "spec": {"taints": None},
        },
    )


def moves(**more: Any) -> Object:
    return {"healthPolicy": {"onFault": "Move", "gracePeriodSeconds": 5, **more}}


def health(status: Object) -> tuple[str, str]:
    """Status and reason of the condition; empty: there is none."""
    found = [each for each in status.get("conditions", []) if each["type"] == "HealthDegraded"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def words(status: Object) -> str:
    return str(next(each["message"] for each in status["conditions"] if each["type"] == "HealthDegraded"))


async def nodes_of(job: Job) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in (await job.until_pods_run()).values()}


async def until_moved(job: Job, number: int) -> Object:
    return await job.until(
        f"has moved {number} times and runs",
        lambda s: (
            (s.get("moves", 0), s.get("launcherStatus"), *health(s)) == (number, "Running", "False", "IPUJobMoved")
        ),
    )


async def test_63_a_fault_under_a_running_job_is_told_and_by_policy_the_job_stays_moves_or_fails(bed: Bed) -> None:
    await bed.start(nodes=2)
    first, second = bed.nodes
    await taint(bed, second)
    stays = await bed.submit("stays", training(healthPolicy={"onFault": "Keep"}))
    going = await bed.submit(
        "goes", training(restartPolicy={"type": "Never"}, **moves(checkpoint={"signal": "SIGUSR1"}))
    )
    fails = await bed.submit("fails", training(healthPolicy={"onFault": "Fail"}, restartPolicy={"type": "Always"}))
    for job in (stays, going, fails):
        await job.until_running()
    before = {name: pod["metadata"]["uid"] for name, pod in (await stays.pods()).items()}
    hook = (await going.pods())["goes-launcher"]["spec"]["containers"][0]["lifecycle"]["preStop"]
    assert hook["exec"]["command"][2].startswith("kill -s USR1 1;")

    # nowhere to go: it keeps its place, and says so
    await taint(bed, first)
    told = await going.until("is told", lambda s: health(s) == ("True", "NodeFaulty"))
    for fact in ("rank 0", "goes-worker-0", first, "pciebw: LowBandwidth: 3 GB/s", " 0 "):
        assert fact in words(told)
    await fails.until("is Failed", lambda s: (s.get("launcherStatus"), s["restartCount"]) == ("Failed", 0))
    await free(bed, second)
    moved = await until_moved(going, 1)
    assert (moved["attempt"], moved["restartCount"], moved["lastMove"]["nodes"]) == (1, 0, [first])
    assert await nodes_of(going) == {second}
    [entry] = (await going.partitions()).values()
    assert entry.attempt == 1

    async def events() -> dict[str, str] | None:
        found = await going.events()
        return found if {"HealthDegraded", "IPUJobMoving", "IPUJobMoved"} <= found.keys() else None

    of_the_move = await until(events, "Events of the move")
    for node in (first, second):
        assert node in of_the_move["IPUJobMoved"]
    kept = await stays.until("is told", lambda s: health(s) == ("True", "NodeFaulty"))
    assert (kept["launcherStatus"], kept["moves"]) == ("Running", 0)
    assert {name: pod["metadata"]["uid"] for name, pod in (await stays.pods()).items()} == before
    await free(bed, first)

    # a quarantined IPU: another partition, on the same node
    name = partition(bed.namespace, "goes", 0)
    [machine, index] = min(ipus_of((await going.partitions())[name]))
    value = {"machine": machine, "index": index, "faults": [{"check": "ipu", "reason": "IpuErrorState"}]}
    await bed.api.create(QUARANTINE, {"metadata": {"name": "muster-ipu-quarantine"}, "data": {"x": json.dumps(value)}})
    try:
        moved = await until_moved(going, 2)
        assert "ipu: IpuErrorState" in moved["lastMove"]["message"]
        assert (machine, index) not in ipus_of((await going.partitions())[name])
    finally:
        await bed.api.delete(f"{QUARANTINE}/muster-ipu-quarantine")
    await stays.until("is told that it is over", lambda s: health(s) == ("False", "HealthRestored"))


async def poplar_says(job: Job, action: str) -> None:
    """60: the words of a launcher that failed. The job is of restart type ExitCode, and its code is permanent."""
    await job.bed.api.patch(job.path, {"spec": {"restartPolicy": {"type": "ExitCode", "exitCodes": "3"}}})
    error = f"recoverable_runtime_error: [Recovery action: {action}] CIUERRVR.IPUSOFTERR error on IPU 0"
    await job.fail_launcher(error)
    await job.until("runs again", lambda s: (s.get("attempt"), s.get("launcherStatus")) == (2, "Running"))
    [entry] = (await job.partitions()).values()
    assert entry.attempt == 2, "it was reset once more"


async def test_57_60_a_node_that_is_lost_ends_the_attempt_by_policy_or_moves_what_was_on_it(bed: Bed) -> None:
    file = bed.folder / "operator.yaml"
    file.write_text("restart_delay_s: 0\n")
    await bed.start("--config", str(file), nodes=3)
    away = bed.nodes[0]
    for other in bed.nodes[1:]:
        await taint(bed, other)
    once = await bed.submit("once", training(restartPolicy={"type": "Never"}))
    again = await bed.submit("again", training(restartPolicy={"type": "OnFailure"}))
    serve = await bed.submit("serve", inference(**moves()))
    for job in (once, again, serve):
        await job.until_running()
        assert await nodes_of(job) == {away}
    for other in bed.nodes[1:]:
        await free(bed, other)
    await bed.api.delete(f"/api/v1/nodes/{away}")
    over = await once.until("is Failed", lambda s: s.get("launcherStatus") == "Failed")
    for fact in (f"node {away}", "pod once-"):
        assert fact in over["lastMessage"]
    restarted = await again.until("runs again", lambda s: (s.get("attempt"), s.get("launcherStatus")) == (1, "Running"))
    assert (restarted["restartCount"], restarted["moves"]) == (1, 0)
    assert away not in await nodes_of(again)
    moved = await until_moved(serve, 1)
    await poplar_says(again, "PARTITION_RESET")
    assert (moved["attempt"], moved["instanceMoves"]) == (0, {"0": 1})
    assert away not in await nodes_of(serve)
