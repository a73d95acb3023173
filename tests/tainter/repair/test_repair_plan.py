"""Repairs: one attempt at a time, counted, escalated, given up; nothing twice, nothing forgotten."""

from typing import Any

import msgspec
import pytest
from tests.tainter.repair.fake_cluster import Died, FakeCluster
from tests.tainter.repair.repair_rounds import JOB, LABEL, RULES, attempt, go_on, one_node, with_repair

from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.record.node_record import ANNOTATION, RepairAttempt
from muster_tainter.policy.file import parse_policy
from muster_tainter.repair.repair_plan import FORGET_S, GAVE_UP_LABEL, RepairStage


def reasons(world: FakeCluster) -> list[str]:
    return [notice.reason for _, notice in world.told]


def test_a_tainted_empty_node_is_repaired_by_a_job_of_its_own() -> None:
    world = one_node("reset")
    go_on(world)
    [path] = world.made
    body = world.objects[path]
    assert path.startswith("/apis/batch/v1/namespaces/muster/jobs/muster-reset-")
    assert (body["apiVersion"], body["kind"]) == ("batch/v1", "Job")
    pod = body["spec"]["template"]
    assert (pod["spec"]["nodeName"], pod["spec"]["containers"][0]["args"]) == ("n1", ["0000:3b:00.0"])
    assert (pod["metadata"]["labels"], body["metadata"]["labels"]) == ({LABEL: "reset"}, {LABEL: "reset"})
    assert body["spec"]["ttlSecondsAfterFinished"] == 86_400
    assert body["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}]
    assert (attempt(world), world.nodes["n1"].metadata.labels) == ((1, "running"), {LABEL: "reset"})
    assert reasons(world) == ["RepairBegun"]


def test_a_job_runs_in_the_namespace_of_repairs() -> None:
    world = one_node("reset")
    world.repairs_in = "muster-repairs"
    go_on(world)
    [path] = world.made
    assert path.startswith("/apis/batch/v1/namespaces/muster-repairs/jobs/muster-reset-")
    assert world.objects[path]["metadata"]["namespace"] == "muster-repairs"


def test_nothing_begins_while_pods_are_left() -> None:
    world = one_node("reset")
    world.busy.add("n1")
    leader = go_on(world)
    assert (world.made, world.memory("n1").attempts) == ([], {})
    world.busy.clear()
    go_on(world, leader=leader)
    assert len(world.made) == 1


def test_nothing_begins_while_it_is_paused_and_what_runs_may_end() -> None:
    world = one_node("reset")
    world.withheld = "paused by ada"
    leader = go_on(world)
    assert world.made == []
    world.withheld = ""
    go_on(world, leader=leader)
    world.withheld = "paused by ada"
    world.now += 601
    go_on(world, leader=leader)
    assert (len(world.made), attempt(world)) == (1, (1, "failed"))


def test_what_was_begun_before_a_pause_is_made_after_it() -> None:
    world = one_node("reset")
    leader = go_on(world, rounds=1)
    assert attempt(world) == (1, "begun")
    world.withheld = "paused by ada"
    go_on(world, leader=leader)
    assert world.made == []
    world.withheld = ""
    go_on(world, leader=leader)
    assert (len(world.made), attempt(world)) == (1, (1, "running"))


def test_nothing_is_repaired_without_a_taint_of_ours() -> None:
    world = one_node()
    world.open_fault("n1")
    world.remember("n1", world.memory("n1"), tainted=False)
    go_on(world)
    assert world.made == []


def test_what_closes_the_faults_ends_the_attempt_and_its_job() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.close_faults("n1")
    go_on(world, leader=leader)
    assert (attempt(world), world.nodes["n1"].metadata.labels) == ((1, "done"), {})
    assert world.objects == {}  # it would reset a GPU that jobs have again
    assert reasons(world) == ["RepairBegun", "RepairEnded"]


def test_a_job_that_has_ended_is_left_for_its_log() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.end_jobs("Complete")
    go_on(world, leader=leader)
    assert attempt(world) == (1, "running")  # its end proves nothing
    world.close_faults("n1")
    go_on(world, leader=leader)
    assert (attempt(world), list(world.objects)) == ((1, "done"), world.made)


def test_attempts_are_counted_escalated_and_given_up_with_a_label_that_says_so() -> None:
    world = one_node("reset")
    leader = go_on(world)
    for _ in range(4):
        world.now += 1201
        go_on(world, leader=leader)
    kinds = [path.rpartition("/")[2].split("-")[1] for path in world.made]
    assert (kinds, len(set(world.made))) == (["reset", "reset", "reboot"], 3)
    assert (attempt(world), attempt(world, "reboot")) == ((2, "failed"), (1, "gave-up"))
    assert world.nodes["n1"].metadata.labels == {LABEL: GAVE_UP_LABEL}
    assert world.unfinished() == set()
    assert reasons(world).count("RepairGaveUp") == 1
    for attempts in ("reset 2", "reboot 1"):
        assert attempts in world.told[-1][1].message


def test_a_failed_job_is_not_waited_for() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.end_jobs("Failed")
    go_on(world, leader=leader)
    assert (attempt(world), len(world.made)) == ((2, "running"), 2)


def test_a_job_that_its_own_reboot_has_killed_is_waited_for() -> None:
    world = one_node("reboot")
    leader = go_on(world)
    world.end_jobs("Failed")
    go_on(world, leader=leader)
    assert attempt(world, "reboot") == (1, "running")


def test_a_node_that_was_given_up_is_told_no_more_once_its_faults_are_over() -> None:
    world = one_node("reboot")
    leader = go_on(world)
    world.now += 1201
    go_on(world, leader=leader)
    assert world.nodes["n1"].metadata.labels == {LABEL: GAVE_UP_LABEL}
    world.close_faults("n1", "proof")
    go_on(world, leader=leader)
    assert (attempt(world, "reboot"), world.nodes["n1"].metadata.labels) == ((1, "done"), {})


def test_what_comes_back_within_a_week_counts_on_and_later_from_one() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.close_faults("n1")
    go_on(world, leader=leader)
    world.now += FORGET_S - 3600
    world.open_fault("n1")
    go_on(world, leader=leader)
    assert attempt(world) == (2, "running")
    world.close_faults("n1")
    go_on(world, leader=leader)
    world.now += FORGET_S
    world.open_fault("n1")
    go_on(world, leader=leader)
    assert attempt(world) == (1, "running")


def test_of_a_fault_that_stays_open_no_attempt_is_forgotten() -> None:
    world = one_node("reset")
    world.withheld = "paused by ada"
    world.remember(
        "n1",
        msgspec.structs.replace(
            world.memory("n1"),
            attempts={"reset": RepairAttempt(n=1, at=rfc3339_whole(world.now), stage=RepairStage.FAILED)},
        ),
    )
    world.now += FORGET_S + 86_400
    world.withheld = ""
    go_on(world)
    assert attempt(world) == (2, "running")


def test_a_persons_word_that_it_is_well_starts_the_count_anew() -> None:
    world = one_node("reboot")
    leader = go_on(world)
    world.now += 1201
    go_on(world, leader=leader)
    world.close_faults("n1", "person")
    go_on(world, leader=leader)
    assert world.memory("n1").attempts == {}
    world.open_fault("n1", "reboot")
    go_on(world, leader=leader)
    assert attempt(world, "reboot") == (1, "running")


def test_the_heaviest_class_is_repaired_first_and_one_at_a_time() -> None:
    world = one_node("reset", "reboot")
    leader = go_on(world)
    assert ([*world.memory("n1").attempts], len(world.made)) == (["reboot"], 1)
    world.now += 1201
    go_on(world, leader=leader)
    assert len(world.under_repair()) <= 1
    assert world.nodes["n1"].metadata.labels == {LABEL: GAVE_UP_LABEL}  # a reset would not help where a reboot did not


def test_what_opens_during_an_attempt_is_not_what_it_was_for() -> None:
    world = one_node("reset")
    leader = go_on(world)
    memory = world.memory("n1")
    world.now += 5
    world.open_fault("n1", component="gpu/0000:5e:00.0")
    later = world.memory("n1").open[1]
    world.remember("n1", msgspec.structs.replace(world.memory("n1"), open=(later,), closed=memory.closed))
    go_on(world, leader=leader)
    assert (attempt(world), len(world.made)) == ((2, "running"), 2)


@pytest.mark.parametrize("fault", [{"rest": 3}, {"over": "2027-01-15T08:00:00Z", "how": "driver"}])
def test_what_counts_the_rest_or_is_only_held_is_not_repaired(fault: dict[str, Any]) -> None:
    world = one_node()
    world.open_fault("n1", **fault)
    go_on(world)
    assert world.made == []


def test_an_annotation_asks_for_a_repair_in_the_same_write_that_counts_it() -> None:
    asks = with_repair("{reboot: {annotate: {example.com/reboot: 'please-${attempt}'}, wait: 10m, attempts: 2}}")
    world = one_node("reboot")
    leader = go_on(world, asks)
    assert world.nodes["n1"].metadata.annotations["example.com/reboot"] == "please-1"
    assert attempt(world, "reboot") == (1, "running")
    world.now += 601
    go_on(world, asks, leader)
    assert world.nodes["n1"].metadata.annotations["example.com/reboot"] == "please-2"
    world.close_faults("n1", "boot")
    go_on(world, asks, leader)
    assert set(world.nodes["n1"].metadata.annotations) == {ANNOTATION}


def test_an_object_of_any_kind_is_made_and_deleted_again() -> None:
    remedy = "{apiVersion: example.com/v1, kind: Remedy, metadata: {name: '${node}', namespace: ops}, spec: {n: 1}}"
    asks = with_repair(f"{{reboot: {{create: {{manifest: {remedy}}}, wait: 10m, attempts: 2}}}}")
    world = one_node("reboot")
    leader = go_on(world, asks)
    path = "/apis/example.com/v1/namespaces/ops/remedies/n1"
    assert list(world.objects) == [path]
    first = world.objects[path]["metadata"]["annotations"]["muster.dev/attempt"]
    world.now += 601
    go_on(world, asks, leader)
    assert world.objects[path]["metadata"]["annotations"]["muster.dev/attempt"] != first
    world.close_faults("n1", "boot")
    go_on(world, asks, leader)
    assert world.objects == {}


def test_an_object_of_somebody_else_is_neither_taken_nor_deleted() -> None:
    remedy = "{apiVersion: example.com/v1, kind: Remedy, metadata: {name: '${node}'}}"
    asks = with_repair(f"{{reboot: {{create: {{manifest: {remedy}}}, wait: 10m, attempts: 1}}}}")
    world = one_node("reboot")
    path = "/apis/example.com/v1/namespaces/muster/remedies/n1"
    world.objects[path] = {"metadata": {"name": "n1", "uid": "theirs"}}
    leader = go_on(world, asks)
    assert (attempt(world, "reboot"), "RepairNotMade" in reasons(world)) == ((1, "begun"), True)
    world.now += 601
    go_on(world, asks, leader)
    assert (list(world.objects), attempt(world, "reboot")) == ([path], (1, "gave-up"))


def test_an_annotation_that_names_others_objects_deletes_none() -> None:
    """A Node's kubelet may write it."""
    world = one_node("reset")
    path = "/apis/batch/v1/namespaces/muster/jobs/payroll"
    world.objects[path] = {"metadata": {"name": "payroll", "uid": "theirs"}}
    for ref in (path, "/api/v1/namespaces/kube-system/../../nodes/n2", "/api/v1/nodes?x=y"):
        begun = RepairAttempt(n=1, at=rfc3339_whole(world.now - 86_400), stage=RepairStage.RUNNING, ref=ref)
        world.remember("n1", msgspec.structs.replace(world.memory("n1"), attempts={"reset": begun}))
        go_on(world)
        assert path in world.objects


def test_no_value_of_a_fault_becomes_part_of_a_command() -> None:
    for component in ("gpu/$(reboot)", "gpu/a b", "gpu/`x`", "gpu/a;b", 'gpu/"', "gpu/a\nb", "-rf"):
        world = one_node()
        world.open_fault("n1", component=component)
        go_on(world)
        assert (world.made, world.memory("n1").attempts) == ([], {}), component
        assert set(reasons(world)) == {"RepairNotPossible"}


def test_values_are_not_templates_themselves() -> None:
    world = one_node()
    world.open_fault("n1", component="gpu/x")
    asks = with_repair(f"{{reset: {{{JOB.replace('device', 'label:node-restriction.kubernetes.io/b')}}}}}")
    world.nodes["n1"] = msgspec.structs.replace(
        world.nodes["n1"],
        metadata=msgspec.structs.replace(
            world.nodes["n1"].metadata, labels={"node-restriction.kubernetes.io/b": "node"}
        ),
    )
    go_on(world, asks)
    [path] = world.made
    assert world.objects[path]["spec"]["template"]["spec"]["containers"][0]["args"] == ["node"]


def test_at_most_so_many_nodes_of_a_pool_at_once() -> None:
    world = FakeCluster()
    for number in range(10):
        world.add(f"n{number}")
        world.open_fault(f"n{number}")
    leader = go_on(world)
    assert len(world.under_repair()) == 1
    share = with_repair(f"{{atOnce: 25%, reset: {{{JOB}}}}}")
    go_on(world, share)
    assert len(world.under_repair()) == 3
    del leader


def test_what_is_taken_off_by_hand_is_not_repaired_behind_ones_back() -> None:
    world = one_node("reset")
    leader = go_on(world)
    meta = world.nodes["n1"].metadata
    world.nodes["n1"] = msgspec.structs.replace(
        world.nodes["n1"],
        metadata=msgspec.structs.replace(
            meta, labels={"muster.dev/managed": "false"}, annotations={}, resource_version="999"
        ),
    )
    go_on(world, leader=leader)
    assert (world.objects, world.under_repair()) == ({}, [])


def test_a_policy_that_repairs_no_more_ends_what_is_under_way() -> None:
    world = one_node("reset")
    go_on(world)
    go_on(world, parse_policy(f"{RULES}  - {{name: all, selector: {{}}}}"))
    assert (world.objects, attempt(world), world.nodes["n1"].metadata.labels) == ({}, (1, "done"), {})


@pytest.mark.parametrize("call", ["before create", "after create"])
def test_a_leader_that_dies_beside_the_making_is_followed_by_one_that_makes_it_once(call: str) -> None:
    world = one_node("reset")

    def die(at: str) -> None:
        if at.startswith(call):
            raise Died

    world.fail = die
    with pytest.raises(Died):
        go_on(world)
    assert attempt(world) == (1, "begun")
    world.fail = lambda _: None
    go_on(world)
    assert (len(world.made), attempt(world)) == (1, (1, "running"))
