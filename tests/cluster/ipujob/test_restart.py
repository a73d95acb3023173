"""IPUJobs that run again, on the real API server with the real proxy and operator: by which policy, how often, and what
becomes of pods and partitions in between."""

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

from muster_operator.job.names import partition


async def begin(bed: Bed, delay_s: float = 0.0) -> None:
    """delay_s: before a restart; the default of ten seconds and more is tested where time is played."""
    file = bed.folder / "operator.yaml"
    file.write_text(f"restart_delay_s: {delay_s}\n")
    await bed.start("--config", str(file))


def by(kind: str, **more: Any) -> dict[str, Any]:
    return {"restartPolicy": {"type": kind, **more}}


async def until_attempt(job: Job, number: int) -> dict[str, Any]:
    """It runs in that attempt; its pods."""
    await job.until(
        f"runs in attempt {number}", lambda s: (s.get("attempt", 0), s.get("launcherStatus")) == (number, "Running")
    )
    pods = await job.until_pods_run()
    assert {pod["metadata"]["labels"]["muster.dev/attempt"] for pod in pods.values()} == {str(number)}
    return pods


async def until_over(job: Job, state: str) -> dict[str, Any]:
    return await job.until(f"is {state}", lambda status: status.get("launcherStatus") == state)


async def test_38_never_fails_at_the_first_failure(bed: Bed) -> None:
    await begin(bed)
    job = await bed.submit("train", training(**by("Never")))
    await job.until_running()
    job.finish("train-launcher", 1)
    over = await until_over(job, "Failed")
    assert (over["restartCount"], over["attempt"]) == (0, 0)
    # cleanPodPolicy None: the workers run on, also after the operator has looked at other jobs
    other = await bed.submit("other", training(workers=1))
    await other.until_running()
    pods = await job.pods()
    assert {name: pod["status"]["phase"] for name, pod in pods.items()} == {
        "train-launcher": "Failed",
        "train-worker-0": "Running",
        "train-worker-1": "Running",
    }
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in pods.values())


async def test_39_on_failure_restarts_to_its_limit_and_a_success_never(bed: Bed) -> None:
    await begin(bed)
    job = await bed.submit("train", training(**by("OnFailure", backOffLimit=2)))
    for attempt in range(3):
        await until_attempt(job, attempt)
        job.finish("train-launcher", 7)
    over = await until_over(job, "Failed")
    assert over["restartCount"] == 2
    assert "pod train-launcher" in over["lastMessage"]
    for fact in ("7", " 2 "):
        assert fact in over["lastMessage"]
    await job.until_event("IPUJobRestarting")

    fine = await bed.submit("fine", training(**by("OnFailure")))
    await fine.until_running()
    fine.finish("fine-launcher")
    assert (await until_over(fine, "Completed"))["restartCount"] == 0
    assert 'muster_operator_job_restarts_total{cause="exit"} 2.0' in await bed.metrics()


async def test_40_always_restarts_after_a_success_and_after_a_failure(bed: Bed) -> None:
    await begin(bed)
    job = await bed.submit("serve", inference(**by("Always", backOffLimit=2)))
    for attempt, code in enumerate((0, 3)):
        await until_attempt(job, attempt)
        job.finish("serve-worker-0", code)
    await until_attempt(job, 2)
    job.finish("serve-worker-0")
    assert (await until_over(job, "Completed"))["restartCount"] == 2


async def test_41_exit_codes_choose_and_a_lost_worker_restarts_the_launcher_too(bed: Bed) -> None:
    await begin(bed)
    job = await bed.submit("train", training(**by("ExitCode")))
    before = await until_attempt(job, 0)
    job.finish("train-worker-1", 137)
    after = await until_attempt(job, 1)
    assert set(before) == set(after)
    for name, pod in after.items():
        assert pod["metadata"]["uid"] != before[name]["metadata"]["uid"]
    job.finish("train-launcher", 1)
    over = await until_over(job, "Failed")
    assert over["restartCount"] == 1
    for fact in (" 1 ", "128-255"):
        assert fact in over["lastMessage"]

    other = await bed.submit("other", training(**by("ExitCode", exitCodes="3,5-6")))
    await until_attempt(other, 0)
    other.finish("other-launcher", 5)
    await until_attempt(other, 1)
    other.finish("other-launcher", 137)
    await until_over(other, "Failed")


async def test_42_old_pods_are_gone_then_the_partition_is_reset_once_then_new_ones_come(bed: Bed) -> None:
    await begin(bed)
    name = partition(bed.namespace, "train", 0)
    job = await bed.submit("train", training(**by("OnFailure")))
    await until_attempt(job, 0)
    before = bed.control_plane.audit.mark()
    job.finish("train-launcher", 1)
    await until_attempt(job, 1)
    assert (await bed.tracker())[name].attempt == 1
    # what is tried again counts once
    asked = [each for each in bed.control_plane.audit.requests(before) if each.writes and each.status < 300]
    ours = [each for each in asked if each.user.endswith((":muster-operator", ":muster-vipu-proxy"))]
    said = next(n for n, each in enumerate(ours) if (each.resource, each.verb) == ("ipujobs/status", "patch"))
    removed = [n for n, each in enumerate(ours) if (each.resource, each.verb) == ("pods", "delete")]
    tracked = [n for n, each in enumerate(ours) if each.resource == "configmaps"]
    made = [n for n, each in enumerate(ours) if (each.resource, each.verb) == ("pods", "create")]
    assert len(removed) == len(made) == 3
    assert said < removed[0]
    assert removed[-1] < tracked[0] <= tracked[-1] < made[0]


async def test_39_the_delay_is_in_the_status_and_survives_the_operator(bed: Bed) -> None:
    await begin(bed, delay_s=3600.0)  # which the limit of six minutes cuts
    job = await bed.submit("train", training(**by("OnFailure")))
    await until_attempt(job, 0)
    job.finish("train-launcher", 1)
    pods = await job.until_pods("train-launcher")
    assert pods["train-launcher"]["status"]["phase"] == "Failed", "its logs can be read until the next attempt"
    waits = await job.until("waits", lambda status: status.get("nextAttemptTime"))
    [said] = [each for each in waits["conditions"] if each["type"] == "Restarting"]
    assert said["status"] == "True"
    assert bed.operator is not None
    await bed.operator.stop()
    file = bed.folder / "operator.yaml"
    file.write_text("restart_delay_s: 0\n")
    await bed.start_operator("--config", str(file))
    await bed.until_admission()
    other = await bed.submit("other", training(workers=1))
    await other.until_running()  # so the new operator has looked at all jobs
    again = await job.status()
    assert (again["nextAttemptTime"], again["restartCount"]) == (waits["nextAttemptTime"], 1)
    assert list(await job.pods()) == ["train-launcher"]


@pytest.mark.parametrize("kind", ["Always", "OnFailure"])
async def test_43_clean_pod_policy_all_restarts_nothing_and_frees_everything(bed: Bed, kind: str) -> None:
    await begin(bed)
    job = await bed.submit("train", training(cleanPodPolicy="All", **by(kind)))
    await job.until_running()
    job.finish("train-launcher", 1)
    assert (await until_over(job, "Failed"))["restartCount"] == 0
    await job.until_pods()

    async def freed() -> bool:
        return not await job.partitions() and await bed.vipu_partitions() == {}

    await until(freed, "its partitions are freed")
