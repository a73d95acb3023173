"""What the operator costs the API server: what a job needs, and nothing for what is at rest."""

import asyncio
import signal
from collections import Counter

import msgspec
from tests.cluster.ipujob.operator_bed import (
    Bed,
    Job,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    training,
    until,
)

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.audit import AuditedRequest

ACCOUNTS = (":muster-operator", ":muster-vipu-proxy")
NOT_OF_JOBS = ("leases", "secrets", "tokenreviews", "subjectaccessreviews")
IDLE_S = 5.0


def of_ours(request: AuditedRequest) -> bool:
    """What is about jobs: leases are renewed by the clock, certificates are a process's own, reviews write nothing."""
    return request.user.endswith(ACCOUNTS) and request.resource not in NOT_OF_JOBS


def writes(bed: Bed, since: int) -> list[AuditedRequest]:
    return [each for each in bed.control_plane.audit.requests(since) if of_ours(each) and each.writes]


class Statuses:
    """Each status that a job has had, by an own watch."""

    def __init__(self, api: KubeClient, job: Job) -> None:
        self.seen: list[dict[str, object]] = []
        self._api = api
        self._job = job
        self._task: asyncio.Task[None] | None = None

    def start(self, version: str) -> None:
        self._task = asyncio.create_task(self._run(version))

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, number: int) -> None:
        async def ask() -> bool:
            return len(self.seen) >= number

        await until(ask, f"{number} statuses, of which there are {len(self.seen)}")

    async def _run(self, version: str) -> None:
        path = self._job.path.rpartition("/")[0]
        params = {"resourceVersion": version, "fieldSelector": f"metadata.name={self._job.name}"}
        async with self._api.watch(path, params, silence_s=600.0) as batches:
            async for lines in batches:
                for line in lines:
                    status = msgspec.json.decode(line)["object"].get("status", {})
                    if not self.seen or self.seen[-1] != status:
                        self.seen.append(status)


async def test_a_job_costs_its_objects_its_status_changes_and_its_partitions_intents(bed: Bed) -> None:
    await bed.start(ipus=16)
    since = bed.control_plane.audit.mark()
    job = bed.job("train")
    statuses = Statuses(bed.api, job)
    # from before it is there, so that no status is missed
    statuses.start((await bed.api.get(job.path.rpartition("/")[0]))["metadata"]["resourceVersion"])
    await bed.submit("train", training(ipus=8, workers=8))
    await job.until("all its workers count", lambda s: s.get("workersStatus", {}).get("active") == 8
                    and s["launcherStatus"] == "Running")  # fmt: skip
    job.finish("train-launcher")
    await job.until("is completed", lambda status: status["launcherStatus"] == "Completed")
    await at_rest(bed)
    # under load a call may fail and be tried again
    found = Counter((each.verb, each.resource) for each in writes(bed, since) if each.status < 300)
    changes = found.pop(("patch", "ipujobs/status"))
    intents = found.pop(("patch", "configmaps"))
    assert found == {
        ("patch", "ipujobs"): 1,  # the finaliser
        ("create", "configmaps"): 1,
        ("create", "serviceaccounts"): 1,
        ("create", "roles"): 1,
        ("create", "rolebindings"): 1,
        ("create", "pods"): 9,
    }
    assert intents == 2  # creating, active

    # each write of the status has changed it: there are as many as a watcher sees, and the one before the first
    await statuses.until(changes + 1)
    await statuses.stop()
    assert len(statuses.seen) == changes + 1


async def at_rest(bed: Bed) -> None:
    """Until nothing of ours has asked anything for a while; far longer than any of it takes, where nothing is to do."""
    for _ in range(40):
        mark = bed.control_plane.audit.mark()
        await asyncio.sleep(IDLE_S)
        if not any(of_ours(each) for each in bed.control_plane.audit.requests(mark)):
            return
    raise AssertionError("the operator does not come to rest")


async def test_an_operator_at_rest_asks_nothing_and_a_restarted_one_changes_nothing(bed: Bed) -> None:
    await bed.start()
    running = await bed.submit("running", training())
    ended = await bed.submit("ended", training())
    serve = await bed.submit("serve", inference(instances=2))
    for job in (running, ended, serve):
        await job.until_running()
    ended.finish("ended-launcher")
    await ended.until("is completed", lambda status: status["launcherStatus"] == "Completed")
    await at_rest(bed)
    since = bed.control_plane.audit.mark()
    await asyncio.sleep(IDLE_S)
    idle = [each for each in bed.control_plane.audit.requests(since) if of_ours(each) and each.verb != "watch"]
    assert idle == []

    versions = {job.name: (await job.get())["metadata"]["resourceVersion"] for job in (running, ended, serve)}
    since = bed.control_plane.audit.mark()
    assert bed.operator is not None
    await bed.operator.stop()
    await bed.start_operator()
    await at_rest(bed)
    assert writes(bed, since) == []
    assert {job.name: (await job.get())["metadata"]["resourceVersion"] for job in (running, ended, serve)} == versions


async def test_two_replicas_one_leads_and_the_other_goes_on_when_that_one_dies(bed: Bed) -> None:
    await bed.start()
    first = bed.operator
    assert first is not None
    job = await bed.submit("serve", inference())
    await job.until_running()
    await bed.start_operator(webhook_port=0)
    await first.stop(signal.SIGKILL)
    await job.scale(3)
    await job.until("is larger", lambda status: status["currentReplicas"] == 3)
    assert len(await bed.vipu_partitions()) == 3


async def test_a_right_that_is_missing_is_named_in_the_log_and_by_readyz(bed: Bed) -> None:
    await bed.start()
    nobody = bed.control_plane.kubeconfig_for("nobody", "muster")
    replica = await bed.start_operator(account=nobody, ready=False, webhook_port=0)

    async def named() -> bool:
        answer = await replica.get("/readyz")
        return answer.status_code == 503 and 'cannot list resource "ipujobs"' in answer.text

    await until(named, "/readyz names the right")
    assert 'cannot list resource "ipujobs"' in replica.lines()  # the API server's own words
