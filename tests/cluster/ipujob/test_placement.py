"""Jobs keep to healthy nodes: counted before a partition is taken, and left to the real scheduler."""

from tests.cluster.ipujob.operator_bed import (
    SELECTOR,
    TEMPLATE,
    Bed,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    until,
)

from muster_operator.job.status import NOT_READY
from muster_sandbox.simulation.nodes import NodeShape

FAULTY = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
TOLERANT = {"spec": TEMPLATE["spec"] | {"tolerations": [{"operator": "Exists"}]}}


async def taint(bed: Bed, node: str, *, on: bool) -> None:
    """As the tainter does it: taint and label in one write."""
    body = {
        "metadata": {"labels": {"muster.dev/faulty": "true" if on else None}},
        "spec": {"taints": [FAULTY] if on else []},
    }
    await bed.api.patch(f"/api/v1/nodes/{node}", body)


def is_degraded(status: Object) -> bool:
    return ("HealthDegraded", "True") in [(each["type"], each["status"]) for each in status["conditions"]]


async def test_a_tainted_node_gets_no_pod_and_a_job_that_finds_no_other_waits_and_says_so(bed: Bed) -> None:
    await bed.start(nodes=2)
    bad, good = bed.nodes
    await taint(bed, bad, on=True)
    placed = await bed.submit("placed", inference(instances=4, template=TOLERANT))
    await placed.until_running()

    async def bound() -> bool:
        nodes = [pod["spec"].get("nodeName") for pod in (await placed.pods()).values()]
        return len(nodes) == 4 and all(nodes)

    await until(bound, "all are bound")
    assert {pod["spec"]["nodeName"] for pod in (await placed.pods()).values()} == {good}

    await taint(bed, good, on=True)
    await placed.until("is degraded: the operator has seen the taint", is_degraded)
    waits = await bed.submit("waits", inference(template=TOLERANT))
    said = await waits.until_says("2 ", "muster.dev/faulty")
    assert said["launcherStatus"] == "Pending"
    assert await waits.partitions() == {}
    await waits.until_event("NoHealthyNode")
    insists = await bed.submit("insists", inference(healthPolicy={"tolerateFaulty": True}))
    await insists.until_running()
    await taint(bed, bad, on=False)
    await waits.until_running()
    [pod] = (await waits.pods()).values()
    assert pod["spec"]["nodeName"] == bad


async def test_a_job_that_no_node_matches_waits_for_one(bed: Bed) -> None:
    await bed.start(nodes=0)
    job = await bed.submit("serve", inference())
    await job.until_event("NoHealthyNode")
    await bed.fleet.create(1, prefix=f"late-{bed.namespace}", shape=NodeShape(labels=dict([SELECTOR]), gpus=0))
    await job.until_running()


async def test_49_what_waits_for_room_goes_on_when_there_is_some_and_half_a_gang_holds_nothing(bed: Bed) -> None:
    await bed.start(ipus=8)
    first = await bed.submit("first", inference(instances=1, ipus=4))
    await first.until_running()
    spec = inference(instances=2, ipus=4) | {"launcher": {"command": ["true"]}}
    gang = await bed.submit("gang", spec)
    await gang.until_says(NOT_READY)
    parts = await bed.submit("parts", inference(instances=4, ipus=2))
    await parts.until("has what there is room for", lambda status: status["currentReplicas"] == 2)
    assert await gang.partitions() == {}
    await first.delete()
    await parts.until("has all", lambda status: status["currentReplicas"] == 4)
    await parts.delete()
    await gang.until_running()
