"""A job that was suspended, edited and resumed while nobody looked has partitions of its former size: they go first."""

import msgspec
from tests.operator.plan.decisions import actions_but_events, decide, entries, printed_columns, running_snapshot
from tests.operator.plan.job_factory import make_entry, make_job, partition_of

from muster_operator.job.snapshot import DeletePod, FreePartition, TakePartitions


def test_partitions_of_another_size_are_never_used_and_go_after_their_pods() -> None:
    job = make_job(ipus=8)
    seen = running_snapshot(make_job(ipus=4), "Running")
    seen["entries"] = entries(job, 0, size=4)
    decided = decide(job, **seen)
    assert actions_but_events(decided) == (
        DeletePod("train-worker-0", "pod-train-worker-0"),
        DeletePod("train-launcher", "pod-train-launcher"),
    )
    assert printed_columns(decided)[:2] == ("Pending", 0)
    decided = decide(job, entries=seen["entries"], objects=seen["objects"])
    assert actions_but_events(decided) == (FreePartition(partition_of(job)),)
    going = entries(job, 0, size=4, state="deleting")
    assert actions_but_events(decide(job, entries=going, objects=seen["objects"])) == ()
    [take] = actions_but_events(decide(job, objects=seen["objects"]))
    assert isinstance(take, TakePartitions)
    assert take.size == 8


def test_so_are_those_with_another_number_of_workers() -> None:
    """Which worker has which instance has changed with it."""
    job = make_job(workers=2, instances=2, launcher=False)
    seen = running_snapshot(make_job(instances=2, launcher=False), "Running", "Running")
    seen["entries"] = entries(job, 0, 1, size=4, gcds=1)
    decided = decide(job, **seen)
    assert [each.name for each in decided.actions if isinstance(each, DeletePod)] == [
        "train-worker-1",
        "train-worker-0",
    ]
    assert {type(each) for each in actions_but_events(decided)} == {DeletePod}


def test_a_partition_that_fits_is_left_while_another_one_goes() -> None:
    job = make_job(ipus=4, instances=2, launcher=False)
    fits, other = make_entry(job, 0, size=4), make_entry(job, 1, size=2)
    decided = decide(job, entries={partition_of(job, 0): fits, partition_of(job, 1): other})
    assert actions_but_events(decided) == (FreePartition(partition_of(job, 1)),)
    assert msgspec.structs.asdict(fits)["state"] == "active"
