"""What is made for a job, and in what order. Numbers are of the behaviours that are to be kept."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import (
    actions_but_events,
    created_objects,
    decide,
    entries,
    last_message,
    launcher,
    objects,
    printed_columns,
    running_snapshot,
    with_status,
    workers,
)
from tests.operator.plan.job_factory import (
    make_entry,
    make_job,
    make_pod,
    partition_of,
)
from tests.wording.facts import missing_facts

from muster_operator.job.snapshot import (
    AddFinalizer,
    CreateObject,
    DeletePod,
    FreePartition,
    JobPlan,
    PatchObject,
    RemoveFinalizer,
    TakePartitions,
)
from muster_operator.job.status import NOT_READY, is_written_first


def test_16_the_finalizer_is_added_first() -> None:
    assert decide(make_job(finalizers=())) == JobPlan((AddFinalizer(),))
    assert decide(make_job(finalizers=("foregroundDeletion",))) == JobPlan((AddFinalizer(),))


def test_29_31_then_partitions_and_nothing_else() -> None:
    decided = decide(make_job(instances=2, workers=2, ipus=8))
    assert decided.actions == (TakePartitions((0, 1), attempt=0, size=8, gcds=2, together=True),)
    assert printed_columns(decided) == ("Pending", 0, 2, NOT_READY * 2)
    assert decided.waits_for_room


def test_29_instances_without_a_launcher_need_not_come_together() -> None:
    decided = decide(make_job(instances=2, launcher=False))
    assert decided.actions == (TakePartitions((0, 1), attempt=0, size=4, gcds=1, together=False),)


@pytest.mark.parametrize("state", ["creating", "deleting"])
def test_31_a_partition_on_its_way_is_waited_for(state: str) -> None:
    job = make_job(instances=1)
    decided = decide(job, entries=entries(job, 0, state=state))
    assert decided.actions == ()
    assert printed_columns(decided) == ("Pending", 0, 1, NOT_READY)


def test_31_a_partition_of_an_earlier_attempt_is_asked_for_again() -> None:
    """So that it is reset (behaviours 30, 42)."""
    job = make_job()
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, attempt=1))
    decided = decide(job, entries=entries(job, 0, attempt=0))
    assert decided.actions == (TakePartitions((0,), attempt=1, size=4, gcds=1, together=True),)


def test_42_a_partition_that_is_being_freed_is_not_asked_for() -> None:
    job = make_job()
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, attempt=1))
    assert decide(job, entries=entries(job, 0, attempt=0, state="deleting")).actions == ()


def test_42_pods_of_an_earlier_attempt_go_before_its_partition_is_reset() -> None:
    job = make_job()
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, attempt=1))
    old = workers(job, "Running") | launcher(job)
    decided = decide(job, entries=entries(job, 0, attempt=0), objects=objects(job), pods=old)
    assert decided.actions == (
        DeletePod("train-worker-0", "pod-train-worker-0"),
        DeletePod("train-launcher", "pod-train-launcher"),
    )


def test_30_the_same_partition_of_another_job_is_not_ones_own() -> None:
    job = make_job()
    decided = decide(job, entries={partition_of(job): make_entry(make_job("other"))})
    assert created_objects(decided) == []
    assert isinstance(decided.actions[0], TakePartitions)


def test_17_19_20_the_small_objects_come_before_the_workers() -> None:
    job = make_job(workers=2)
    decided = decide(job, entries=entries(job, 0))
    assert created_objects(decided) == [
        "ConfigMap train-config",
        "ServiceAccount train-launcher",
        "Role train-launcher",
        "RoleBinding train-launcher",
        "Pod train-worker-0",
        "Pod train-worker-1",
    ]


def test_20_a_job_without_launcher_has_workers_only() -> None:
    job = make_job(instances=2, workers=2, launcher=False)
    assert created_objects(decide(job, entries=entries(job, 0, 1))) == [
        f"Pod train-worker-{number}" for number in range(4)
    ]


def test_21_the_launcher_is_created_after_all_workers() -> None:
    job = make_job(instances=2)
    seen: dict[str, Any] = {"entries": entries(job, 0, 1), "objects": objects(job)}
    assert created_objects(decide(job, **seen, pods=workers(job, "Running"))) == ["Pod train-worker-1"]
    assert created_objects(decide(job, **seen, pods=workers(job, "Running", "Pending"))) == ["Pod train-launcher"]


def test_21_and_when_every_partition_is_ready() -> None:
    job = make_job(instances=2)
    seen: dict[str, Any] = {"entries": entries(job, 0) | entries(job, 1, state="creating"), "objects": objects(job)}
    assert created_objects(decide(job, **seen, pods=workers(job, "Running", "Running"))) == []


def test_31_workers_of_a_ready_instance_do_not_wait_for_the_others() -> None:
    job = make_job(instances=2, launcher=False)
    decided = decide(job, entries=entries(job, 1) | entries(job, 0, state="creating"))
    assert created_objects(decided) == ["Pod train-worker-1"]


def test_24_the_environment_names_the_pods_own_partition() -> None:
    job = make_job(instances=2, launcher=False)
    seen = entries(job, 0, controller="a:1") | entries(job, 1, controller="b:2")
    hosts = []
    for each in decide(job, entries=seen).actions:
        assert isinstance(each, CreateObject)
        env = {one["name"]: one["value"] for one in each.body["spec"]["containers"][0]["env"]}
        hosts.append((env["IPUOF_VIPU_API_HOST"], env["IPUOF_VIPU_API_PARTITION_ID"]))
    assert hosts == [("a", "p-train-default-0"), ("b", "p-train-default-1")]


def test_28_a_deleted_worker_is_recreated_with_its_name() -> None:
    job = make_job(instances=2)
    seen = running_snapshot(job, "Running", "Running")
    del seen["pods"]["train-worker-1"]
    decided = decide(job, **seen)
    assert created_objects(decided) == ["Pod train-worker-1"]
    (again,) = (each for each in decided.actions if isinstance(each, CreateObject))
    env = {one["name"]: one["value"] for one in again.body["spec"]["containers"][0]["env"] if "value" in one}
    assert env["IPUOF_VIPU_API_PARTITION_ID"] == "p-train-default-1"


def test_28_not_before_the_old_one_is_gone() -> None:
    job = make_job()
    seen = running_snapshot(job, "Running")
    metadata = msgspec.structs.replace(
        seen["pods"]["train-worker-0"].metadata, deletion_timestamp="2023-11-14T22:13:20Z"
    )
    seen["pods"]["train-worker-0"] = msgspec.structs.replace(seen["pods"]["train-worker-0"], metadata=metadata)
    assert actions_but_events(decide(job, **seen)) == ()


def test_19_objects_that_depend_on_the_scale_are_patched() -> None:
    before, job = make_job(instances=1), make_job(instances=2)
    decided = decide(job, entries=entries(job, 0, 1), objects=objects(before), pods=workers(job, "Running", "Running"))
    changed = [(each.kind, each.name) for each in decided.actions if isinstance(each, PatchObject)]
    assert changed == [("ConfigMap", "train-config"), ("Role", "train-launcher")]
    assert created_objects(decided) == [], "the launcher comes once they are as they should be"


@pytest.mark.parametrize("wanted", [4, 1])
def test_48_a_scale_is_in_the_status_before_anything_is_made_or_freed(wanted: int) -> None:
    job = make_job(instances=2, launcher=False)
    seen = running_snapshot(job, "Running", "Running")
    job = with_status(job, decide(job, **seen))
    assert decide(job, **seen).status is None
    spec = msgspec.structs.replace(job.spec, job_instances=wanted)
    after = decide(msgspec.structs.replace(job, spec=spec), **seen).status
    assert after is not None
    assert after.desired_replicas == wanted
    assert is_written_first(job.status, after)


def test_a_complete_job_needs_no_action() -> None:
    for job in (make_job(instances=2), make_job(instances=2, launcher=False)):
        decided = decide(job, **running_snapshot(job, "Running", "Running"))
        assert decided.actions == ()
        assert decide(with_status(job, decided), **running_snapshot(job, "Running", "Running")) == JobPlan()


def test_26_a_taken_name_is_reported_and_retried() -> None:
    job = make_job(workers=2)
    decided = decide(job, entries=entries(job, 0), foreign={("Role", "train-launcher"): "Deployment web"})
    assert created_objects(decided) == ["Role train-launcher"], "half a job is not made"
    assert not missing_facts(last_message(decided), "Role train-launcher", "Deployment web")


def test_26_no_partition_is_taken_while_a_name_is_taken() -> None:
    job = make_job()
    assert decide(job, foreign={("Pod", "train-worker-0"): "no owner"}).actions == ()
    job = make_job(launcher=False, instances=2)
    decided = decide(job, entries=entries(job, 0), foreign={("Pod", "train-worker-0"): "no owner"})
    assert [type(each) for each in decided.actions] == [CreateObject, TakePartitions], "instances are each their own"


def test_26_a_name_that_the_job_does_not_need_is_no_obstacle() -> None:
    job = make_job(launcher=False)
    decided = decide(job, foreign={("ConfigMap", "train-config"): "somebody", ("Pod", "train-worker-1"): "somebody"})
    assert isinstance(decided.actions[0], TakePartitions)
    assert last_message(decided) == NOT_READY


@pytest.mark.parametrize("launched", [True, False])
def test_26_a_pod_with_our_labels_that_others_own_is_left_alone(launched: bool) -> None:
    job, other = make_job(instances=1, launcher=launched), make_job(name="other")
    stray = {"train-worker-7": make_pod(other, "train-worker-7")}
    seen = running_snapshot(job, "Running")
    seen["pods"] |= stray
    assert decide(job, **seen).actions == ()
    deleted = make_job(instances=1, launcher=launched, deleted=True)
    assert decide(deleted, pods=stray).actions == (RemoveFinalizer(),)


def test_27_jobs_of_one_name_in_two_namespaces_have_nothing_in_common() -> None:
    one, two = make_job(namespace="a-b", instances=1), make_job(namespace="b", name="train-a", instances=1)
    assert partition_of(one) != partition_of(two)
    same = make_job(namespace="other", instances=2)
    seen = running_snapshot(same, "Running", "Running")
    decided = decide(make_job(namespace="default", instances=1), entries=seen["entries"], pods=seen["pods"])
    assert not [each for each in decided.actions if isinstance(each, DeletePod | FreePartition)]
