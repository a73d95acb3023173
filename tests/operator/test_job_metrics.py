"""What is counted of a job's life: once an event, by cause, in IPU-seconds."""

from typing import Any

import msgspec
import pytest
from tests.operator.operator_bench import a_job

from muster_kube.api.objects import Metadata
from muster_kube.api.pods import ContainerState, ContainerStatus, ContainerTerminated, PodProgress
from muster_kube.api.times import rfc3339_whole
from muster_operator.job.lost_pods import LOST
from muster_operator.job.snapshot import JobPod
from muster_operator.job.status_types import InstanceRestart, IPUJobCondition, IPUJobStatus, JobMove
from muster_operator.job.types import IPUJob
from muster_operator.job_metrics import LifeEvents, count_life_events
from muster_operator.metrics import OperatorMetrics

T0 = 1_800_000_000.0
IPUS = 8  # two instances of four


def at(seconds: float) -> str:
    return rfc3339_whole(T0 + seconds)


def condition(
    kind: str, status: str = "True", since: float = 0.0, reason: str = "", message: str = ""
) -> IPUJobCondition:
    return IPUJobCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=at(since))


def job(*conditions: IPUJobCondition, **status: Any) -> IPUJob:
    """Made at T0."""
    made = a_job()
    meta = msgspec.structs.replace(made.metadata, creation_timestamp=at(0))
    return msgspec.structs.replace(made, metadata=meta, status=IPUJobStatus(conditions=conditions, **status))


def count(
    before: IPUJob, *conditions: IPUJobCondition, now: float = 100.0, pods: Any = (), to: float = 0.0, **status: Any
) -> LifeEvents:
    after = msgspec.structs.replace(before.status, **({"conditions": conditions} if conditions else {}), **status)
    return count_life_events(before, after, pods, T0 + now, T0 + to)


def failed_pod(reason: str = "", init: bool = False, **ended: Any) -> JobPod:
    state = (ContainerStatus(name="c", state=ContainerState(terminated=ContainerTerminated(**ended))),) if ended else ()
    kind = "init_container_statuses" if init else "container_statuses"
    return JobPod(metadata=Metadata(name="p"), status=PodProgress(phase="Failed", reason=reason, **{kind: state}))


def test_54_a_job_waits_for_partitions_once() -> None:
    assert count(job(), ipu_partition_created=True, now=30.0).queued_s == 30.0
    assert count(job(ipu_partition_created=True), ipu_partition_created=True).queued_s is None
    assert count(job(), condition("Suspended"), ipu_partition_created=True).queued_s is None
    grown = job(first_running_time=at(40))
    assert count(grown, ipu_partition_created=True).queued_s is None
    assert count(job(attempt=1), ipu_partition_created=True).queued_s is None
    resumed = job(condition("Suspended", "False"), start_time=at(90))
    assert count(resumed, ipu_partition_created=True, now=100.0).queued_s == 10.0


def test_54_it_first_runs_once() -> None:
    assert count(job(), first_running_time=at(50), now=50.0).first_running_s == 50.0
    assert count(job(first_running_time=at(50)), first_running_time=at(50)).first_running_s is None


@pytest.mark.parametrize(
    ("pods", "cause"),
    [
        ([failed_pod(exit_code=3)], "exit"),
        ([failed_pod(exit_code=137)], "signal"),
        ([failed_pod(signal=9)], "signal"),
        ([failed_pod(exit_code=137, reason="", signal=0)], "signal"),
        ([failed_pod(exit_code=1, init=True)], "init"),
        ([failed_pod("Evicted")], "evicted"),
        ([failed_pod("NodeLost")], "node"),
        ([failed_pod("Odd")], "other"),
        ([failed_pod(exit_code=1), failed_pod("Evicted")], "evicted"),
        ([], "success"),
    ],
)
def test_57_a_restart_has_a_cause(pods: list[JobPod], cause: str) -> None:
    running = job(condition("Running", since=20))
    found = count(running, condition("Restarting", since=100), pods=pods, restart_count=1, attempt=1)
    assert found.restarted == cause
    assert found.lost_ipu_s == (None if cause == "success" else (cause, 80.0 * IPUS))
    assert found.ran_ipu_s == 80.0 * IPUS
    again = count(job(condition("Restarting", since=100), restart_count=1), restart_count=1)
    assert (again.restarted, again.lost_ipu_s, again.ran_ipu_s) == (None, None, 0.0)


def test_57_out_of_memory_is_a_cause_of_its_own() -> None:
    ended = ContainerTerminated(exit_code=137, reason="OOMKilled")
    status = PodProgress(
        phase="Failed", container_statuses=(ContainerStatus(name="c", state=ContainerState(terminated=ended)),)
    )
    pod = JobPod(metadata=Metadata(name="p"), status=status)
    assert count(job(condition("Running")), pods=[pod], restart_count=1).restarted == "oom"


@pytest.mark.parametrize("pods", [[], [failed_pod(exit_code=1)]])
def test_57_a_restart_after_a_pod_was_lost_with_its_node_is_no_success(pods: list[JobPod]) -> None:
    said = condition("Restarting", message=f"restart 1 of 3: pod p {LOST} n: it is not Ready")
    found = count(job(condition("Running")), said, pods=pods, restart_count=1, attempt=1)
    assert (found.restarted, found.lost_ipu_s) == ("node", ("node", 100.0 * IPUS))


def test_a_final_failure_counts_its_ipu_time_as_lost() -> None:
    bad = count(job(condition("Running")), condition("Failed", reason="HealthDegraded"))
    assert bad.lost_ipu_s == ("fault", 100.0 * IPUS)
    found = count(job(condition("Running")), condition("Failed", reason="DeadlineExceeded"))
    assert found.lost_ipu_s == ("deadline", 100.0 * IPUS)
    done = count(job(condition("Running")), condition("Complete"))
    assert (done.lost_ipu_s, done.ran_ipu_s) == (None, 100.0 * IPUS)


@pytest.mark.parametrize(
    ("told", "moves_for", "kind"),
    [
        ("NodeNotReady", "NodeFaulty", "NodeNotReady"),
        ("IPUJobMoving", "NodeFaulty", "NodeFaulty"),
        ("", "IPUQuarantined", "IPUQuarantined"),
        ("", "PoplarRecovery", "PoplarRecovery"),
        ("", "PreFlightFailed", "NodeFaulty"),
        ("", "", "other"),
    ],
)
def test_63_a_move_has_the_kind_of_its_fault_and_is_no_restart(told: str, moves_for: str, kind: str) -> None:
    bad = condition("HealthDegraded", reason=told)
    running = job(condition("Running", since=40), *([bad] if told else []))
    found = count(running, bad, moves=1, attempt=1, last_move=JobMove(reason=moves_for))
    assert (found.moved, found.restarted, found.lost_ipu_s) == (kind, None, ("fault", 60.0 * IPUS))


def test_63_one_instance_that_moves_loses_its_own_work_only() -> None:
    running = condition("Running", since=40)
    found = count(job(running), running, moves=1, instance_moves={"1": 1}, last_move=JobMove(instances=(1,)))
    assert (found.lost_ipu_s, found.ran_ipu_s) == (("fault", 60.0 * 4), 0.0)
    before = job(running, moves=1, instance_moves={"1": 1}, last_move=JobMove(instances=(1,)))
    both = JobMove(instances=(0, 1))
    joined = count(before, running, moves=1, instance_moves={"0": 1, "1": 1}, last_move=both)
    assert joined.lost_ipu_s == ("fault", 60.0 * 4), "the other one is counted already"


def test_instances_that_restart_alone_lose_their_own_work_since_they_last_began() -> None:
    running = condition("Running", since=40)
    once = {"1": InstanceRestart(count=1, attempt=1, start_time=at(100))}
    found = count(job(running), running, pods=(failed_pod(exit_code=1),), restart_count=1, instance_restarts=once)
    assert (found.restarted, found.lost_ipu_s, found.ran_ipu_s) == ("exit", ("exit", 60.0 * 4), 0.0)
    twice = {"0": InstanceRestart(count=1, attempt=1), "1": InstanceRestart(count=2, attempt=2, start_time=at(130))}
    before = job(running, restart_count=1, instance_restarts=once)
    pods = (failed_pod(exit_code=1),)
    found = count(before, running, now=130.0, pods=pods, restart_count=3, instance_restarts=twice)
    assert found.lost_ipu_s == ("exit", (90.0 + 30.0) * 4)


def test_54_several_instances_that_restart_at_once_count_each() -> None:
    metrics = OperatorMetrics()
    before = job(condition("Running"))
    after = msgspec.structs.replace(before.status, restart_count=2)
    metrics.status_written(before, after, (failed_pod(exit_code=1),), T0)
    assert metrics.registry.get_sample_value("muster_operator_job_restarts_total", {"cause": "exit"}) == 2.0


def test_the_time_between_attempts_is_counted_when_the_job_runs_again() -> None:
    assert count(job(condition("Restarting", since=70)), condition("Running", since=100)).waited_ipu_s == 30.0 * IPUS
    assert count(job(condition("Running")), condition("Running")).waited_ipu_s == 0.0


def test_54_ipu_time_is_counted_once_across_leaders_and_scrapes() -> None:
    now = T0 + 1000.0
    running = job(condition("Running", since=0))
    jobs = [running]
    metrics = OperatorMetrics()
    metrics.watch(lambda: jobs, list, lambda: 0, lambda: now)

    def used() -> float:
        return metrics.registry.get_sample_value("muster_operator_ipu_seconds_used_total") or 0.0

    assert used() == 0.0, "another replica leads"
    metrics.leads(now)
    assert used() == 0.0, "what ran before was another's to count"
    now += 10.0
    assert [used(), used()] == [10.0 * IPUS] * 2
    now += 5.0
    ended = msgspec.structs.replace(running.status, conditions=(condition("Complete", since=1015),))
    metrics.status_written(running, ended, (), now)
    jobs[:] = [msgspec.structs.replace(running, status=ended)]
    now += 60.0
    assert used() == 15.0 * IPUS
    metrics.leads(None)
    now += 60.0
    assert used() == 15.0 * IPUS
