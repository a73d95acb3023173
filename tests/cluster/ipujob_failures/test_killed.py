"""A real operator process, killed as soon as the audit log has a certain write of its (59). All points, in one process:
test_crash.py."""

import asyncio
import signal

from tests.cluster.ipujob.operator_bed import (
    OWN,
    Bed,
    Job,
    bed_fixture,  # noqa: F401 - the fixture
    training,
    until,
)

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases/muster-operator"
ACCOUNT = ":muster-operator"


async def killed_after(bed: Bed, since: int, verb: str, resource: str) -> None:
    """And followed by another, which need not wait for the lease to run out."""

    async def written() -> bool:
        asked = await asyncio.to_thread(lambda: list(bed.control_plane.audit.requests(since)))
        return any((r.verb, r.resource) == (verb, resource) and r.user.endswith(ACCOUNT) for r in asked)

    await until(written, f"the operator has written: {verb} {resource}")
    assert bed.operator is not None
    await bed.operator.stop(signal.SIGKILL)
    await bed.api.delete(LEASE)
    await bed.start_operator("--config", str(bed.folder / "operator.yaml"))


async def runs(job: Job, attempt: int) -> None:
    await job.until(
        f"runs in attempt {attempt}", lambda s: (s.get("attempt", 0), s.get("launcherStatus")) == (attempt, "Running")
    )


async def test_59_a_real_operator_that_is_killed_after_a_write_is_followed_by_the_same_end(bed: Bed) -> None:
    (bed.folder / "operator.yaml").write_text("restart_delay_s: 0\n")
    await bed.start("--config", str(bed.folder / "operator.yaml"))
    since = bed.control_plane.audit.mark()
    job = await bed.submit("train", training(restartPolicy={"type": "OnFailure"}))
    await killed_after(bed, since, "create", "pods")
    await runs(job, 0)
    assert set(await job.pods()) == {"train-launcher", "train-worker-0", "train-worker-1"}
    since = bed.control_plane.audit.mark()
    job.finish("train-launcher", 1)
    await killed_after(bed, since, "delete", "pods")
    await runs(job, 1)
    assert (await job.status())["restartCount"] == 1
    since = bed.control_plane.audit.mark()
    await job.delete()
    await killed_after(bed, since, "delete", "pods")
    await job.until_gone()
    assert (await bed.vipu_partitions(), await bed.tracker()) == ({}, {})
    assert (await bed.api.get(f"/api/v1/namespaces/{bed.namespace}/pods"))["items"] == []
