"""What a job waits for, how it is scaled, and how kubectl prints that."""

from typing import Any

import pytest
from tests.operator.plan.decisions import (
    actions_but_events,
    decide,
    entries,
    last_message,
    printed_columns,
    running_snapshot,
)
from tests.operator.plan.job_factory import (
    make_job,
    make_pod,
    partition_of,
    template,
)
from tests.wording.facts import missing_facts

from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.job.snapshot import (
    DeletePod,
    FreePartition,
    NodeCapacity,
    RecordEvent,
    TakePartitions,
)
from muster_operator.job.status import NOT_READY, RECONCILED


def test_48_the_highest_go_first_and_partitions_after_their_pods() -> None:
    job = make_job(instances=1, launcher=False)
    seen = running_snapshot(job, *["Running"] * 12)
    assert decide(job, **seen).actions == tuple(
        DeletePod(f"train-worker-{number}", f"pod-train-worker-{number}") for number in range(11, 0, -1)
    )
    for number in range(2, 12):
        del seen["pods"][f"train-worker-{number}"]
    assert decide(job, **seen).actions == (
        DeletePod("train-worker-1", "pod-train-worker-1"),
        *(FreePartition(f"p-train-default-{number}") for number in (10, 11, *range(2, 10))),
    )


def test_the_scale_transcript_as_kubectl_prints_it() -> None:
    """data/ipu/kubectl_scale_transcript.txt, row by row."""
    job = make_job("job-inference-1", launcher=False, instances=1, ipus=1)
    seen = running_snapshot(job, "Running")
    assert printed_columns(decide(job, **seen)) == ("Running", 1, 1, RECONCILED)
    job = make_job("job-inference-1", launcher=False, instances=2, ipus=1)
    seen = running_snapshot(job, "Running", "Pending")
    assert printed_columns(decide(job, **seen)) == ("Running", 2, 2, RECONCILED)
    job = make_job("job-inference-1", launcher=False, instances=4, ipus=1)
    seen = running_snapshot(job, "Running", "Running")
    assert printed_columns(decide(job, **seen)) == ("Pending", 2, 4, NOT_READY * 2)
    seen = running_snapshot(job, "Running", "Running", "Pending")
    assert printed_columns(decide(job, **seen)) == ("Pending", 3, 4, NOT_READY)
    seen = running_snapshot(job, "Running", "Running", "Running", "Pending")
    assert printed_columns(decide(job, **seen)) == ("Running", 4, 4, RECONCILED)


def test_many_waiting_instances_are_counted() -> None:
    decided = decide(make_job(instances=9, launcher=False))
    assert last_message(decided).count(NOT_READY) == 1
    assert not missing_facts(last_message(decided), "9 of 9")


def test_a_job_of_no_instances_waits_for_some() -> None:
    job = make_job(instances=0, launcher=False)
    decided = decide(job)
    assert actions_but_events(decided) == ()
    assert printed_columns(decided)[:3] == ("Pending", 0, 0)
    assert not missing_facts(last_message(decided), "jobInstances")


def test_the_proxys_words_are_shown() -> None:
    job = make_job(instances=2, launcher=False)
    refusal = PartitionRefusal(why="NoRoom", message="no aligned block of 4 IPUs is free")
    refusals = {partition_of(job, number): refusal for number in (0, 1)}
    decided = decide(job, refusals=refusals)
    assert last_message(decided) == f"{NOT_READY * 2} {refusal.message}"
    assert decided.waits_for_room
    assert isinstance(decided.actions[0], TakePartitions), "when to ask again is not its business"


def test_the_message_of_a_partition_is_shown() -> None:
    job = make_job()
    decided = decide(job, entries=entries(job, 0, state="creating", message="ERROR: link training"))
    assert last_message(decided).startswith(NOT_READY)
    assert not missing_facts(last_message(decided), "p-train-default-0", "ERROR: link training")


@pytest.mark.parametrize(
    ("places", "facts"),
    [
        (NodeCapacity(3, 0), ("3", "muster.dev/faulty")),
        (NodeCapacity(1, 0), ("1", "muster.dev/faulty")),
        (NodeCapacity(0, 0), ("Ready",)),
        (NodeCapacity(0, 0, spares=7), ("Ready", "spares", "7")),
        (NodeCapacity(3, 0, spares=7), ("3", "muster.dev/faulty", "spares", "7")),
    ],
)
def test_no_partition_is_taken_without_a_healthy_node(places: NodeCapacity, facts: tuple[str, ...]) -> None:
    decided = decide(make_job(), node_capacity=places)
    assert not missing_facts(last_message(decided), *facts)
    assert decided.actions == (RecordEvent("Warning", "NoHealthyNode", last_message(decided)),)
    assert printed_columns(decided)[:3] == ("Pending", 0, 1)
    assert decided.waits_for_room


def test_a_partition_that_was_asked_for_is_waited_for_whatever_the_nodes() -> None:
    job = make_job()
    decided = decide(job, node_capacity=NodeCapacity(1, 0), entries=entries(job, 0, state="creating"))
    assert last_message(decided) == NOT_READY


def test_one_healthy_node_is_enough_for_several_workers() -> None:
    assert isinstance(decide(make_job(workers=4), node_capacity=NodeCapacity(1, 1)).actions[0], TakePartitions)


def test_a_job_that_tolerates_faulty_nodes_takes_its_partition() -> None:
    job = make_job(healthPolicy={"tolerateFaulty": True})
    assert isinstance(decide(job, node_capacity=NodeCapacity(1, 0)).actions[0], TakePartitions)
    assert not actions_but_events(decide(job, node_capacity=NodeCapacity(0, 0)))


def test_a_running_job_does_not_wait_for_nodes() -> None:
    job = make_job()
    assert (
        printed_columns(decide(job, node_capacity=NodeCapacity(1, 0), **running_snapshot(job, "Running")))[0]
        == "Running"
    )


def test_25_a_node_selector_that_excludes_the_partition_is_reported() -> None:
    job = make_job(launcher=False, pods=template(nodeSelector={"ipunode": "node2"}))
    decided = decide(job, entries=entries(job, 0))
    assert not missing_facts(
        last_message(decided), "nodeSelector", "workers.template", "ipunode=node2", "ipunode=node1"
    )
    assert decided.actions == (RecordEvent("Warning", "NodeSelectorConflict", last_message(decided)),)
    assert printed_columns(decided)[:3] == ("Pending", 0, 1)


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available",
                    }
                ]
            },
            ("train-worker-0", "0/1 nodes are available"),
        ),
        (
            {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            ("train-worker-0", "main", "image"),
        ),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "load",
                        "state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'no secret "s"'}},
                    }
                ]
            },
            ("train-worker-0", "load", "CreateContainerConfigError", 'no secret "s'),
        ),
    ],
)
def test_a_pod_that_cannot_start_says_why(status: dict[str, Any], facts: tuple[str, ...]) -> None:
    job = make_job(launcher=False)
    pods = {"train-worker-0": make_pod(job, "train-worker-0", "Pending", **status)}
    decided = decide(job, entries=entries(job, 0), pods=pods)
    assert printed_columns(decided)[:3] == ("Pending", 1, 1)
    assert not missing_facts(last_message(decided), *facts)


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/9 nodes are available: 5 node(s) had untolerated taint(s)",
}


def test_tainted_nodes_are_named_where_the_scheduler_does_not() -> None:
    job = make_job(launcher=False)
    pods = {"train-worker-0": make_pod(job, "train-worker-0", "Pending", conditions=[UNSCHEDULABLE])}

    def message(places: NodeCapacity | None, **of_job: Any) -> str:
        mine = make_job(launcher=False, **of_job)
        return last_message(decide(mine, entries=entries(mine, 0), pods=pods, node_capacity=places))

    some = message(NodeCapacity(9, 3, avoided=1, tainted=("n1", "n2", "n3")))
    assert not missing_facts(some, "0/9 nodes", "9 matching nodes", "muster.dev/faulty", "n1", "n2", "n3", "2 more")
    one = message(NodeCapacity(2, 1, tainted=("n1",)))
    assert not missing_facts(one, "1 tainted", "n1")
    assert " more" not in one
    assert "muster.dev/faulty" not in message(NodeCapacity(2, 2))
    assert "muster.dev/faulty" not in message(None)
    tolerant = message(NodeCapacity(2, 1, tainted=("n1",)), healthPolicy={"tolerateFaulty": True})
    assert "muster.dev/faulty" not in tolerant


def test_a_transient_wait_is_not_reported() -> None:
    job = make_job(launcher=False)
    creating = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
    pods = {"train-worker-0": make_pod(job, "train-worker-0", "Pending", **creating)}
    decided = decide(job, entries=entries(job, 0), pods=pods)
    assert printed_columns(decided) == ("Pending", 1, 1, RECONCILED)
