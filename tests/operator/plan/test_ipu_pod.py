"""What is planned for one pod with IPUs, state by state."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.test_ipu_pod_machine import NODES, NS, TAINTS, make_pod
from tests.wording.facts import missing_facts

from muster_operator.job import names
from muster_operator.job.ipu_pod import IpuPod, as_job
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.snapshot import (
    Action,
    CreateObject,
    FreePartition,
    JobPlan,
    NodeCapacity,
    NodeProblem,
    OwnedObject,
    PatchObject,
    RecordEvent,
    Snapshot,
    TakePartitions,
)
from muster_operator.plan.ipu_pod import plan_ipu_pod
from muster_operator.resources.ipu_pods import config_map

NAME = names.partition(NS, "pod/a", 0)
NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z
TOLD_TO_END = {"deletion_timestamp": "2023-11-14T22:13:20Z"}
GONE, AWAY, BAD = (NodeProblem(kind, "it is bad") for kind in ("Gone", "NotReady", "Faulty"))


def entry(state: str = "active", **fields: Any) -> PartitionEntry:
    given = {"job": "uid-1", "namespace": NS, "name": "pod/a", "size": 4, "state": state}
    return msgspec.convert(given | {"controller": "h:8090", "selector": "ipunode=rack1"} | fields, PartitionEntry)


def pod(
    *,
    gated: bool = True,
    node: str = "",
    phase: str = "Pending",
    selector: str = "",
    queued: bool = False,
    **meta: Any,
) -> IpuPod:
    made = make_pod("a", 1, gated=gated, selector=selector, queued=queued)
    return msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, **meta),
        spec=msgspec.structs.replace(made.spec, node_name=node),
        status=msgspec.structs.replace(made.status, phase=phase),
    )


def planned(found: IpuPod, held: PartitionEntry | None = None, **seen: Any) -> JobPlan:
    job = as_job(found)
    assert job is not None
    given: dict[str, Any] = {"now": NOW, "node_capacity": NodeCapacity(nodes=1, healthy=1)}
    snapshot = Snapshot(**given | {"entries": {} if held is None else {NAME: held}} | seen)
    return plan_ipu_pod(found, job, snapshot, NODES.get(found.spec.node_name), TAINTS)


def with_config(found: IpuPod, held: PartitionEntry) -> dict[tuple[str, str], OwnedObject]:
    body = config_map(found, held, NAME)
    return {("ConfigMap", body["metadata"]["name"]): msgspec.convert({"metadata": body["metadata"]}, OwnedObject)}


def reasons(plan: JobPlan) -> list[str]:
    return [action.reason for action in plan.actions if isinstance(action, RecordEvent)]


def kinds(plan: JobPlan) -> list[type[Action]]:
    return [type(action) for action in plan.actions]


@pytest.mark.parametrize(
    ("found", "problem", "seconds", "frees"),
    [
        (pod(gated=False, node="n1", phase="Running"), None, 0, False),
        (pod(gated=False, node="n1", phase="Succeeded"), None, 0, True),
        (pod(gated=False, node="n1", phase="Failed"), None, 0, True),
        (pod(gated=False, node="n1", phase="Running", **TOLD_TO_END), None, 3600, False),  # it may still compute
        (pod(gated=False, node="n1", phase="Running"), GONE, 0, True),
        (pod(gated=False, node="n1", phase="Running"), AWAY, 3600, False),  # it may come back
        (pod(gated=False, node="n1", phase="Running", **TOLD_TO_END), AWAY, 29, False),
        (pod(gated=False, node="n1", phase="Running", **TOLD_TO_END), AWAY, 31, True),
        (pod(gated=False, node="n1", phase="Running", **TOLD_TO_END), BAD, 3600, False),
    ],
)
def test_its_partition_is_released_once_nothing_can_use_it(
    found: IpuPod, problem: NodeProblem | None, seconds: float, frees: bool
) -> None:
    bad = {} if problem is None else {"n1": problem}
    plan = planned(found, entry(), now=NOW + seconds, bad_nodes=bad)
    assert (FreePartition in kinds(plan)) is frees
    if frees:
        assert kinds(planned(found, entry("deleting"), now=NOW + seconds, bad_nodes=bad)) == []
        assert kinds(planned(found, None, now=NOW + seconds, bad_nodes=bad)) == []


def test_it_looks_again_when_a_pod_that_is_lost_with_its_node_counts_as_ended() -> None:
    lost = pod(gated=False, node="n1", phase="Running", **TOLD_TO_END)
    assert planned(lost, entry(), bad_nodes={"n1": AWAY}).again_s == 30


def test_it_takes_one_partition_as_a_gang_of_one_and_waits_for_room() -> None:
    plan = planned(pod())
    assert plan.actions == (TakePartitions((0,), attempt=0, size=4, gcds=1, together=True),)
    assert plan.waits_for_room
    refused = {NAME: PartitionRefusal(why="NoRoom", message="room for 0")}
    assert reasons(planned(pod(), refusals=refused)) == ["WaitingForIPUs"]


def test_a_pod_that_is_told_to_end_takes_none() -> None:
    assert planned(pod(gated=False, node="n1", **TOLD_TO_END)).actions == ()


def test_a_pod_without_a_gate_takes_none_before_it_has_a_node() -> None:
    assert planned(pod(gated=False)).actions == ()
    assert kinds(planned(pod(gated=False, node="n1"))) == [TakePartitions]


def test_a_pod_that_waits_at_the_gate_of_another_takes_none() -> None:
    assert planned(pod(queued=True)) == JobPlan()
    assert planned(pod(queued=True, gated=False)) == JobPlan()


def test_while_no_node_is_healthy_a_pod_at_its_gate_takes_none() -> None:
    plan = planned(pod(), node_capacity=NodeCapacity(nodes=2))
    assert (reasons(plan), kinds(plan), plan.waits_for_room) == (["NoHealthyNode"], [RecordEvent], True)


@pytest.mark.parametrize("state", ["creating", "deleting"])
def test_nothing_is_handed_over_before_the_partition_is_active(state: str) -> None:
    plan = planned(pod(), entry(state, message="V-IPU is slow"))
    assert (kinds(plan), reasons(plan)) == ([RecordEvent], ["WaitingForIPUs"])


def test_first_the_config_map_then_the_gate_and_no_other() -> None:
    found, held = pod(queued=True), entry()
    (made,) = planned(found, held).actions
    assert isinstance(made, CreateObject)
    assert made.body["data"] == {
        "IPUOF_VIPU_API_HOST": "h",
        "IPUOF_VIPU_API_PORT": "8090",
        "IPUOF_VIPU_API_PARTITION_ID": NAME,
    }
    (opened,) = planned(found, held, objects=with_config(found, held)).actions
    assert isinstance(opened, PatchObject)
    assert opened.body == {
        "metadata": {"uid": "uid-1", "resourceVersion": "1", "annotations": {"muster.dev/partition": NAME}},
        "spec": {"schedulingGates": [{"name": "others"}], "nodeSelector": {"ipunode": "rack1"}},
    }


def test_a_pod_on_its_node_is_only_told_its_partition() -> None:
    found, held = pod(gated=False, node="n1"), entry()
    (told,) = planned(found, held, objects=with_config(found, held)).actions
    assert isinstance(told, PatchObject)
    assert "spec" not in told.body
    knows = pod(gated=False, node="n1", annotations={"muster.dev/partition": NAME})
    assert planned(knows, held, objects=with_config(found, held)).actions == ()


def test_a_config_map_of_another_controller_is_corrected() -> None:
    found, held = pod(gated=False, node="n1"), entry()
    older = with_config(found, entry(controller="other:8090"))
    (corrected,) = planned(found, held, objects=older).actions
    assert isinstance(corrected, PatchObject)
    assert (corrected.kind, corrected.body["data"]["IPUOF_VIPU_API_HOST"]) == ("ConfigMap", "h")


@pytest.mark.parametrize(
    "found", [pod(selector="rack2"), pod(gated=False, node="n2")], ids=["by its own selector", "by its node"]
)
def test_a_pod_that_cannot_reach_its_partition_does_not_go_on_and_says_why(found: IpuPod) -> None:
    plan = planned(found, entry())
    assert reasons(plan) == ["NodeSelectorConflict"]
    returned, event = plan.actions
    assert returned == FreePartition(NAME, unsuitable=True)
    assert isinstance(event, RecordEvent)
    assert missing_facts(event.message, "ipunode=rack1") == []


def test_a_pod_that_may_have_started_keeps_its_partition_though_the_label_of_its_node_changes() -> None:
    found = pod(gated=False, node="n2", phase="Running")
    plan = planned(found, entry(), objects=with_config(found, entry()))
    assert (kinds(plan), reasons(plan)) == ([RecordEvent], ["NodeSelectorConflict"])
    knows = pod(gated=False, node="n2", phase="Running", annotations={"muster.dev/partition": NAME})
    assert FreePartition not in kinds(planned(knows, entry()))


def test_quarantined_ipus_under_a_pod_are_told() -> None:
    found, held = pod(gated=False, node="n1", annotations={"muster.dev/partition": NAME}), entry()
    plan = planned(found, held, objects=with_config(found, held), bad_ipus={NAME: ("IPU 10.1.1.1/0 is quarantined",)})
    assert reasons(plan) == ["HealthDegraded"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("team", "pod/a", 0), ("team", "a", 0)),
        (("c", "pod/a-b", 0), ("b-c", "pod/a", 0)),
        (("team", "pod/p", 0), ("team", "pod-p", 0)),
    ],
)
def test_no_two_have_a_partition_of_one_name(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert names.partition(*one) != names.partition(*other)
