"""What is left of an IPUJob that is over, suspended, too late, or a session that has ended; on the real API server."""

from typing import Any

from tests.cluster.ipujob.operator_bed import (
    TEMPLATE,
    WORKERS,
    Bed,
    Job,
    bed_fixture,  # noqa: F401 - the fixture
    training,
    until,
)

from muster_operator.job.names import partition
from muster_operator.job.status import DONE


async def until_over(job: Job, state: str) -> dict[str, Any]:
    return await job.until(f"is {state}", lambda status: status.get("launcherStatus") == state)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})


async def test_36_37_43_none_keeps_pods_and_partition_and_says_so(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("train", training())
    running = await job.until_running()
    assert (condition(running, "Running")["status"], condition(running, "Pending")["status"]) == ("True", "False")
    job.finish("train-launcher")
    over = await until_over(job, "Completed")
    assert over["startTime"] == running["startTime"]
    assert (over["currentReplicas"], over["lastMessage"]) == (0, DONE)
    assert "partitions" in condition(over, "Complete")["message"]
    assert bed.operator is not None
    await bed.operator.stop()
    await bed.start_operator()
    await bed.until_admission()
    later = await bed.submit("later", training())
    await later.until_running()
    assert set(await job.pods()) == {"train-launcher", "train-worker-0", "train-worker-1"}
    assert set(await job.partitions()) == {partition(bed.namespace, "train", 0)}
    assert await job.status() == over


async def test_43_workers_takes_the_workers_and_keeps_the_launcher_and_the_partition(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("train", training(cleanPodPolicy="Workers"))
    await job.until_running()
    job.finish("train-launcher")
    await until_over(job, "Completed")
    await job.until_pods("train-launcher")
    assert set(await job.partitions()) == {partition(bed.namespace, "train", 0)}


async def test_43_a_failed_job_ends_under_workers_what_still_runs(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("train", training(cleanPodPolicy="Workers"))
    await job.until_running()
    await job.until_pods_run()
    job.finish("train-worker-1", 1)  # its mpirun would wait for ever
    await until_over(job, "Failed")
    await job.until_pods()
    assert set(await job.partitions()) == {partition(bed.namespace, "train", 0)}


async def test_44_suspended_it_has_nothing_and_what_is_edited_meanwhile_reaches_its_pods(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("train", training())
    await job.until_running()
    await bed.api.patch(job.path, {"spec": {"suspend": True}})
    await job.until_pods()
    suspended = await job.until("is suspended", lambda s: condition(s, "Suspended").get("status") == "True")
    assert suspended.get("startTime") is None

    async def freed() -> bool:
        return not await job.partitions() and await bed.vipu_partitions() == {}

    await until(freed, "its partition is freed")
    template = {
        "metadata": {"labels": {"queue": "night"}, "annotations": {"why": "moved"}},
        "spec": TEMPLATE["spec"]
        | {
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "night", "operator": "Exists"}],
        },
    }
    workers = WORKERS | {"template": template}
    await bed.api.patch(job.path, {"spec": {"workers": workers, "ipusPerJobInstance": "4", "suspend": False}})
    pods = await job.until_pods("train-launcher", "train-worker-0", "train-worker-1")
    for name in ("train-worker-0", "train-worker-1"):
        meta, spec = pods[name]["metadata"], pods[name]["spec"]
        assert (meta["labels"]["queue"], meta["annotations"]["why"]) == ("night", "moved")
        assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
        assert "night" in [each.get("key") for each in spec["tolerations"]]
    assert (await job.partitions())[partition(bed.namespace, "train", 0)].size == 4
    resumed = await job.until("is resumed", lambda s: condition(s, "Suspended").get("status") == "False")
    assert resumed["startTime"]


async def test_45_a_job_that_is_late_fails_and_is_deleted_after_its_ttl(bed: Bed) -> None:
    await bed.start()
    job = await bed.submit("train", training(activeDeadlineSeconds=2, restartPolicy={"type": "Always"}))
    over = await until_over(job, "Failed")
    assert condition(over, "Failed")["reason"] == "DeadlineExceeded"
    await job.until_pods()
    await bed.api.patch(job.path, {"spec": {"ttlSecondsAfterFinished": 1}})
    await job.until_gone()
    assert await bed.vipu_partitions() == {}
    assert await bed.tracker() == {}


async def test_46_a_session_ends_at_its_time_though_the_operator_was_away(bed: Bed) -> None:
    await bed.start()
    spec = {
        "jobInstances": 1,
        "ipusPerJobInstance": "1",
        "workers": WORKERS,
        "interactive": {"ttl": 3600},
    }
    job = await bed.submit("lab", spec)
    running = await job.until_running()
    began = running["firstRunningTime"]
    assert bed.operator is not None
    await bed.operator.stop()
    await bed.start_operator()
    await bed.until_admission()
    other = await bed.submit("other", training(workers=1))
    await other.until_running()
    assert (await job.status())["firstRunningTime"] == began
    await bed.api.patch(job.path, {"spec": {"interactive": {"ttl": 1}}})  # long over by now, or in a moment
    over = await until_over(job, "Completed")
    assert condition(over, "Complete")["reason"] == "SessionEnded"
    await job.until_pods()

    async def freed() -> bool:
        return not await job.partitions()

    await until(freed, "its partition is freed")
