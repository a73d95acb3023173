"""A changed template on the real API server: how many pods go and come at once, and in which order."""

from typing import Any

import pytest
from tests.cluster.ipujob.operator_bed import (
    Bed,
    Job,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_kube.api.errors import Invalid
from muster_operator.job.names import TEMPLATE, partition


def with_image(image: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "image": image}]}}


def by(kind: str, surge: int = 0, unavailable: int = 0) -> dict[str, Any]:
    bounds = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    return {"type": kind} | (bounds if kind == "RollingUpdate" else {})


async def roll(bed: Bed, job: Job, image: str, strategy: dict[str, Any]) -> list[str]:
    """Edits the template; what the operator then did to pods, as ``verb name``, until all of them are of it."""
    mark = bed.control_plane.audit.mark()
    await bed.api.patch(job.path, {"spec": {"workers": {"strategy": strategy, "template": with_image(image)}}})

    async def done() -> bool:
        pods = (await job.pods()).values()
        images = {pod["spec"]["containers"][0]["image"] for pod in pods}
        ready = [pod for pod in pods if pod["status"]["phase"] == "Running" and not _is_going(pod)]
        return images == {image} and len(ready) == len(pods) == 3

    await until(done, f"all are of {image}")
    await job.until("is at rest", lambda s: s["lastMessage"] == "Successfully reconciled IPUJob")
    asked = bed.control_plane.audit.requests(mark)
    return [
        f"{each.verb} {each.name}"
        for each in asked
        if each.resource == "pods"
        and each.writes
        and each.user.endswith(":muster-operator")
        and each.status < 300  # what is tried again counts once
    ]


def _is_going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


async def test_51_a_changed_template_is_rolled_out_within_its_bounds_and_recreate_takes_all_down_first(
    bed: Bed,
) -> None:
    await bed.start()
    job = await bed.submit("serve", inference(instances=3))
    await job.until_running()
    await job.until_pods_run(3)  # those that do not run are replaced first
    workers = [f"serve-worker-{number}" for number in range(3)]

    did = await roll(bed, job, "poplar:2", by("RollingUpdate", unavailable=1))
    assert [each.partition(" ")[0] for each in did] == ["delete", "create"] * 3, "one is missing at most"
    assert [each for each in did if each.startswith("delete")] == [f"delete {name}" for name in reversed(workers)]
    status = await job.status()
    assert (status["launcherStatus"], status["currentReplicas"], status["restartCount"]) == ("Running", 3, 0)
    entries = await bed.tracker()
    assert {entries[partition(bed.namespace, "serve", number)].attempt for number in range(3)} == {1}

    did = await roll(bed, job, "poplar:3", by("RollingUpdate", surge=1))
    assert [each.partition(" ")[0] for each in did] == ["create", "delete"] * 4, "none is missing, one is there more"
    assert did[-1] == "delete serve-worker-3"

    async def freed() -> bool:
        return set(await bed.vipu_partitions()) == {partition(bed.namespace, "serve", number) for number in range(3)}

    await until(freed, "the extra partition is free")

    # as an operator left them that knew no such label
    for name in workers:
        path = f"/api/v1/namespaces/{bed.namespace}/pods/{name}"
        await bed.api.patch(path, {"metadata": {"labels": {TEMPLATE: None}}})
    await job.until("knows what they count as", lambda status: status.get("adoptedTemplate"))
    did = await roll(bed, job, "poplar:4", by("RollingUpdate", unavailable=3))
    assert sorted(did) == sorted(f"{verb} {name}" for verb in ("create", "delete") for name in workers)
    await job.until("has forgotten it", lambda status: not status.get("adoptedTemplate"))

    did = await roll(bed, job, "poplar:5", by("Recreate"))
    assert [each.partition(" ")[0] for each in did] == ["delete"] * 3 + ["create"] * 3
    await job.until_event("RollingUpdate")

    gang = await bed.submit("gang", training())
    with pytest.raises(Invalid, match=r"spec\.workers\.template: "):
        await bed.api.patch(gang.path, {"spec": {"workers": {"template": with_image("poplar:2")}}})
