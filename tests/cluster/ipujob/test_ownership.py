"""What is another's: objects under a job's names, and the job of the same name in another namespace."""

from collections.abc import Iterator

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
from muster_sandbox.controlplane.cluster import ControlPlane

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def second_namespace(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    name = f"{namespace}-b"
    control_plane.admin.create_namespace(name)
    yield name
    control_plane.admin.delete(f"/api/v1/namespaces/{name}/pods", grace_s=0)
    control_plane.admin.delete(f"/api/v1/namespaces/{name}")


async def test_26_objects_of_others_are_left_alone_and_named_in_status_and_event(bed: Bed) -> None:
    await bed.start()
    core = f"/api/v1/namespaces/{bed.namespace}"
    labels = {"app.kubernetes.io/managed-by": "muster-operator"}  # a label makes nothing ours
    theirs = {
        "Pod train-worker-1": (f"{core}/pods", {
            "metadata": {"name": "train-worker-1", "labels": labels},
            "spec": {"containers": [{"name": "mine", "image": "mine:1"}]},
        }),
        "ConfigMap conf-config": (f"{core}/configmaps", {"metadata": {"name": "conf-config"}, "data": {"a": "1"}}),
        "ServiceAccount acc-launcher": (f"{core}/serviceaccounts", {"metadata": {"name": "acc-launcher"}}),
        "Role role-launcher": (f"{RBAC}/namespaces/{bed.namespace}/roles", {
            "metadata": {"name": "role-launcher"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }),
    }  # fmt: skip
    made = {what: await bed.api.create(path, body) for what, (path, body) in theirs.items()}
    for what, (path, _) in theirs.items():
        kind, name = what.split()
        job = await bed.submit(name.split("-")[0], training())
        await job.until_says(what)

        async def told(job: Job = job) -> str:
            return (await job.events()).get("ErrResourceExists", "")

        assert what in await until(told, "the Event")
        now = await bed.api.get(f"{path}/{name}")
        then = made[what]
        assert now["metadata"]["uid"] == then["metadata"]["uid"], kind
        for field in ("data", "rules"):
            assert now.get(field) == then.get(field), kind
        assert "ownerReferences" not in now["metadata"]
    # once it is out of the way the job goes on by itself
    await bed.api.delete(f"{core}/configmaps/conf-config")
    job = bed.job("conf")
    await job.until_running()


async def test_27_two_jobs_of_one_name_in_two_namespaces_do_not_see_each_other(bed: Bed, second_namespace: str) -> None:
    await bed.start()
    one, two = await bed.submit("twin", inference(instances=2)), await bed.submit("twin", inference(instances=2),
                                                                                  second_namespace)  # fmt: skip
    for job in (one, two):
        await job.until("is whole", lambda status: status["currentReplicas"] == 2)
    names = {partition(job.namespace, "twin", number) for job in (one, two) for number in range(2)}
    assert set(await bed.vipu_partitions()) == names
    pods, partitions = await two.pods(), await two.partitions()
    await one.scale(1)
    await one.until("is smaller", lambda status: status["desiredReplicas"] == 1)
    await one.until_pods("twin-worker-0")

    async def freed() -> bool:
        return set(await bed.vipu_partitions()) == names - {partition(one.namespace, "twin", 1)}

    await until(freed, "its partition is freed, and no other")
    await one.delete()
    await one.until_gone()
    after = await two.pods()
    assert {n: p["metadata"]["uid"] for n, p in after.items()} == {n: p["metadata"]["uid"] for n, p in pods.items()}
    assert await two.partitions() == partitions


async def test_a_job_that_follows_one_of_its_name_gets_its_own(bed: Bed) -> None:
    await bed.start()
    first = await bed.submit("again", training())
    await first.until_running()
    old, old_uid = await first.pods(), await first.uid()
    await first.delete()
    await first.until_gone()
    second = await bed.submit("again", training())
    await second.until_running()
    new = await second.pods()
    assert not {p["metadata"]["uid"] for p in new.values()} & {p["metadata"]["uid"] for p in old.values()}
    entry = (await second.partitions())[partition(second.namespace, "again", 0)]
    assert entry.job == await second.uid() != old_uid
