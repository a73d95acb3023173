"""Replicas of a service: an instance that has ended runs again by restartPolicy, while the others run on."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.operator.plan.job_factory import ended_container, make_job, partition_of
from tests.operator.plan.simulated_cluster import SimulatedCluster
from tests.wording.facts import missing_facts

from muster_kube.api import times
from muster_operator.job import names
from muster_operator.job.snapshot import JobPod, JobSetup, RecordEvent
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.job.types import RestartPolicy
from muster_operator.plan.phase_table import plan

SPACE = "default"


@dataclass
class Service:
    """A job without launcher that runs."""

    cluster: SimulatedCluster
    uid: str
    states: list[str] = field(default_factory=list)  # of every turn

    @property
    def status(self) -> IPUJobStatus:
        return self.cluster.jobs[self.uid].status

    def pod(self, number: int) -> JobPod | None:
        return self.cluster.pods.get((SPACE, names.worker_pod("train", number)))

    def attempts(self) -> dict[int, str]:
        """Of its pods, by number."""
        found = {number: self.pod(number) for number in range(8)}
        return {number: pod.metadata.labels[names.ATTEMPT] for number, pod in found.items() if pod is not None}

    def end(self, number: int, phase: str = "Failed", exit_code: int = 137) -> None:
        key = SPACE, names.worker_pod("train", number)
        self.cluster.set_phase(key, phase)
        ended = msgspec.convert([ended_container("main", exit_code)], tuple[Any, ...])
        told = msgspec.convert({"phase": phase, "containerStatuses": ended}, type(self.cluster.pods[key].status))
        self.cluster.pods[key] = msgspec.structs.replace(self.cluster.pods[key], status=told)

    def go(self, rounds: int = 5) -> None:
        for _ in range(rounds):
            self.cluster.turn(self.uid)
            self.states.append(self.status.launcher_status)
            self.cluster.settle_partitions()
            self.cluster.end_deletions()
            for key, pod in list(self.cluster.pods.items()):
                if pod.status.phase == "Pending":
                    self.cluster.set_phase(key, "Running")

    def events(self) -> list[RecordEvent]:
        """Of what it would do now."""
        job = self.cluster.jobs[self.uid]
        decided = plan(job, self.cluster.snapshot(job, {}, {}), self.cluster.setup)
        return [each for each in decided.actions if isinstance(each, RecordEvent)]

    def edit_policy(self, **fields: Any) -> None:
        policy = self.cluster.jobs[self.uid].spec.restart_policy
        assert isinstance(policy, RestartPolicy)
        self.cluster.edit(self.uid, restart_policy=msgspec.structs.replace(policy, **fields))


def running(instances: int = 2, *, workers: int = 1, setup: JobSetup | None = None, **policy: Any) -> Service:
    job = make_job(launcher=False, instances=instances, workers=workers, restartPolicy={"type": "OnFailure", **policy})
    cluster = SimulatedCluster(setup=setup or JobSetup())
    cluster.add(job)
    service = Service(cluster, job.metadata.uid)
    service.go()
    assert service.status.launcher_status == "Running"
    service.states.clear()
    return service


def test_a_failed_instance_is_replaced_at_once_and_the_other_runs_on() -> None:
    service = running()
    other = service.pod(1)
    service.end(0)
    service.go(3)
    assert service.attempts() == {0: "1", 1: "0"}
    assert service.pod(1) == other
    assert set(service.states) == {"Running"}
    found = service.status
    assert (found.restart_count, found.attempt, found.instance_restarts["0"].count) == (1, 0, 1)
    name = partition_of(service.cluster.jobs[service.uid], 0)
    assert service.cluster.resets == {(service.uid, name, 1): 1}
    service.go(1)
    assert service.status.current_replicas == 2


def test_all_workers_of_the_instance_are_replaced_together() -> None:
    service = running(workers=2)
    service.end(1)
    service.go(3)
    assert service.attempts() == {0: "1", 1: "1", 2: "0", 3: "0"}


def test_the_restart_is_in_the_status_before_anything_is_done() -> None:
    service = running()
    service.end(1)
    job = service.cluster.jobs[service.uid]
    decided = plan(job, service.cluster.snapshot(job, {}, {}), service.cluster.setup)
    assert [type(each) for each in decided.actions] == [RecordEvent]
    (event,) = service.events()
    assert event.reason == "InstanceRestarting"
    assert not missing_facts(event.message, "instance 1", "1 of 3", "train-worker-1", "137", "SIGKILL")


@pytest.mark.parametrize(
    ("policy", "phase", "exit_code", "again"),
    [
        ({"type": "Never"}, "Failed", 137, False),
        ({"type": "OnFailure"}, "Failed", 1, True),
        ({"type": "OnFailure"}, "Succeeded", 0, False),
        ({"type": "OnFailure", "backOffLimit": 0}, "Failed", 1, False),
        ({"type": "Always"}, "Failed", 1, True),
        ({"type": "Always"}, "Succeeded", 0, True),
        ({"type": "ExitCode"}, "Failed", 1, False),
        ({"type": "ExitCode"}, "Failed", 137, True),
        ({"type": "ExitCode", "exitCodes": "1-9"}, "Failed", 1, True),
    ],
)
def test_the_policy_decides_for_each_instance(policy: dict[str, Any], phase: str, exit_code: int, again: bool) -> None:
    service = running(**policy)
    service.end(0, phase, exit_code)
    service.go()
    assert service.attempts() == {0: "1" if again else "0", 1: "0"}
    assert service.status.restart_count == again
    assert set(service.states) == {"Running"}


def test_each_restart_in_a_row_waits_longer_and_ten_minutes_of_running_end_the_row() -> None:
    service = running(backOffLimit=100)
    delays = []
    for number in range(1, 10):
        service.end(0)
        service.go(1)
        begun = service.cluster.now
        while service.status.instance_restarts["0"].count < number or service.attempts().get(0) != str(number):
            service.go(1)
            service.cluster.now += 1
        delays.append(service.cluster.now - begun)
    expected = [0, 10, 20, 40, 80, 160, 320, 360, 360]
    assert all(wanted <= found <= wanted + 10 for found, wanted in zip(delays, expected, strict=True)), delays
    assert set(service.states) == {"Running"}
    service.cluster.now += 600
    service.end(0)
    service.go(3)
    assert service.attempts() == {0: "10", 1: "0"}


def test_during_the_delay_ended_pods_can_be_read_and_running_ones_end() -> None:
    service = running(workers=2)
    service.end(0)
    service.go()
    service.end(0)
    service.go()
    assert service.attempts() == {0: "1", 2: "0", 3: "0"}
    assert not missing_facts(service.status.last_message, "instance 0", "train-worker-0", "137")
    assert service.status.launcher_status == "Running"
    assert service.status.current_replicas == 1
    service.cluster.now += 10
    service.go()
    assert service.attempts() == {0: "2", 1: "2", 2: "0", 3: "0"}


def test_a_pod_that_is_deleted_during_the_delay_shortens_it_not() -> None:
    service = running()
    service.end(0)
    service.go()
    service.end(0)
    service.go(1)
    del service.cluster.pods[SPACE, names.worker_pod("train", 0)]
    service.go()
    assert service.attempts() == {1: "0"}
    service.cluster.now += 10
    service.go()
    assert service.attempts() == {0: "2", 1: "0"}


def test_a_clock_that_was_set_back_does_not_hold_an_instance_for_ever() -> None:
    service = running()
    for _ in range(2):
        service.end(0)
        service.go(1)
        service.go()
    service.cluster.now -= 86400
    service.go()
    assert service.attempts() == {0: "2", 1: "0"}


def test_at_the_limit_it_stays_down_until_the_limit_is_raised() -> None:
    service = running(backOffLimit=1)
    service.end(0)
    service.go()
    service.end(1)
    service.go()
    assert service.attempts() == {0: "1", 1: "0"}
    assert service.status.launcher_status == "Running"
    assert not missing_facts(service.status.last_message, "train-worker-1", "backOffLimit 1")
    assert [event.reason for event in service.events()] == ["BackoffLimitExceeded"]
    service.edit_policy(back_off_limit=2)
    service.go()
    assert service.attempts() == {0: "1", 1: "1"}
    service.end(0)
    service.end(1)
    service.go()
    assert (service.status.launcher_status, service.status.restart_count) == ("Failed", 2)


def test_several_at_once_restart_as_far_as_the_limit_allows() -> None:
    service = running(4, backOffLimit=2)
    for number in range(3):
        service.end(number)
    service.go()
    assert service.attempts() == {0: "1", 1: "1", 2: "0", 3: "0"}
    assert service.status.restart_count == 2


def test_if_none_runs_on_the_whole_job_restarts() -> None:
    service = running()
    service.end(0)
    service.end(1)
    service.go(1)
    found = service.status
    assert (found.attempt, found.restart_count, found.instance_restarts) == (1, 1, {})


def test_an_instance_that_restarted_alone_restarts_with_the_job_and_rolls_out_with_it() -> None:
    service = running(setup=JobSetup(restart_delay_s=0.0))
    service.end(0)
    service.go()
    service.end(0)
    service.end(1)
    service.go()
    assert service.attempts() == {0: "2", 1: "1"}
    workers = service.cluster.jobs[service.uid].spec.workers
    template = {"spec": {"containers": [{"name": "main", "image": "poplar:4"}]}}
    service.cluster.edit(service.uid, workers=msgspec.structs.replace(workers, template=template))
    service.go(12)
    assert service.attempts() == {0: "3", 1: "2"}
    assert (service.status.launcher_status, service.status.restart_count) == ("Running", 2)


def test_a_new_template_that_fails_is_restarted_and_stops_the_rollout_at_the_limit() -> None:
    service = running(4, backOffLimit=1)
    workers = service.cluster.jobs[service.uid].spec.workers
    template = {"spec": {"containers": [{"name": "main", "image": "broken:1"}]}}
    service.cluster.edit(service.uid, workers=msgspec.structs.replace(workers, template=template))
    for _ in range(12):
        service.go(1)
        for number in range(8):
            pod = service.pod(number)
            if pod is not None and pod.status.phase == "Running" and pod.metadata.labels[names.ATTEMPT] != "0":
                service.end(number, exit_code=1)
    running_on = [number for number, attempt in service.attempts().items() if attempt == "0"]
    assert len(running_on) >= 3
    assert service.status.restart_count == 1
    assert "RollingUpdateStopped" in [event.reason for event in service.events()]


def test_an_instance_that_is_scaled_away_while_it_waits_leaves_nothing() -> None:
    service = running(3)
    for _ in range(2):
        service.end(2)
        service.go()
    service.cluster.edit(service.uid, job_instances=2)
    service.go()
    assert service.attempts() == {0: "0", 1: "0"}
    assert len(service.cluster.tracker) == 2
    service.cluster.edit(service.uid, job_instances=3)
    service.cluster.now += 10
    service.go()
    assert service.attempts() == {0: "0", 1: "0", 2: "2"}


def test_restarts_of_single_instances_do_not_delay_the_first_one_of_the_whole_job() -> None:
    service = running(backOffLimit=100)
    for _ in range(6):
        service.cluster.now += 3600
        service.end(0)
        service.go()
    assert service.status.restart_count == 6
    service.end(0)
    service.end(1)
    now = service.cluster.now
    service.cluster.turn(service.uid)
    assert service.status.next_attempt_time is not None
    assert times.seconds(service.status.next_attempt_time) == now + 10
