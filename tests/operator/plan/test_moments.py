"""Every time limit of a plan, at its edges: from when to when something counts, also after a clock was set back."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.job_factory import NOW, make_job

from muster_kube.api.times import rfc3339_whole, seconds
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import JobSetup, Snapshot
from muster_operator.job.status_types import (
    FullResetCheck,
    GangHoldStatus,
    InstanceRestart,
    IPUJobCondition,
    IPUJobStatus,
    JobMove,
    PreFlightStatus,
    RejectedNode,
)
from muster_operator.job.types import IPUJob
from muster_operator.plan import gang_hold, instance_restart, move, restart_policy
from muster_operator.plan.hardware import degradation, full_reset, preflight
from muster_operator.plan.hardware.degradation import DEGRADED, JobFault
from muster_operator.plan.job_state import JobState

AT_NOW = rfc3339_whole(NOW)
SETUP = JobSetup(restart_delay_s=10.0, restart_delay_limit_s=360.0)


def job_of(status: IPUJobStatus, **job: Any) -> IPUJob:
    return make_job(status=status, **job)


def state_of(status: IPUJobStatus, now: float, setup: JobSetup = SETUP, **job: Any) -> JobState:
    return JobState(job_of(status, **job), Snapshot(now=now), setup)


@pytest.mark.parametrize(("after_s", "avoided"), [(-61, False), (-60, True), (0, True), (3599, True), (3600, False)])
def test_a_node_that_failed_a_pre_flight_check_is_avoided_for_an_hour(after_s: float, avoided: bool) -> None:
    checked = PreFlightStatus(left=(RejectedNode(name="n1", found_time=AT_NOW),))
    job = job_of(IPUJobStatus(pre_flight=checked))
    assert preflight.avoided_nodes(job, NOW + after_s) == (("n1",) if avoided else ())


@pytest.mark.parametrize(("after_s", "left_s"), [(-2, None), (-1, 301), (0, 300), (299, 1), (300, None)])
def test_agents_are_asked_after_a_full_reset_for_five_minutes(after_s: float, left_s: float | None) -> None:
    status = IPUJobStatus(suspected=FullResetCheck(start_time=AT_NOW, nodes=("n1",)))
    now = NOW + after_s
    assert full_reset.time_left_s(job_of(status), now) == left_s
    assert bool(full_reset.request_ids(job_of(status), now)) is (left_s is not None)
    asked = full_reset.request_checks(job_of(status), Snapshot(now=now, requests={}))
    assert [(each.node, each.request.expires) for each in asked] == (
        [("n1", rfc3339_whole(NOW + 300))] if left_s is not None else []
    )


@pytest.mark.parametrize("job", [{"deleted": True}, {"finalizers": ()}, {"suspend": True}])
def test_nobody_is_asked_after_a_full_reset_for_a_job_that_holds_nothing(job: dict[str, Any]) -> None:
    status = IPUJobStatus(suspected=FullResetCheck(start_time=AT_NOW, nodes=("n1",)))
    assert full_reset.time_left_s(job_of(status, **job), NOW) is None


@pytest.mark.parametrize(("at_s", "left_s"), [(None, 0), (-1, 0), (0, 0), (1, 1), (361, 361), (362, 0)])
def test_the_next_attempt_is_waited_for_no_longer_than_any_delay(at_s: float | None, left_s: float) -> None:
    at = None if at_s is None else rfc3339_whole(NOW + at_s)
    assert restart_policy.delay_left_s(job_of(IPUJobStatus(next_attempt_time=at)), NOW, SETUP) == left_s


@pytest.mark.parametrize(
    ("restarts", "alone", "success", "delay_s"),
    [
        (0, 0, False, 10), (1, 0, False, 20), (5, 0, False, 320), (6, 0, False, 360), (5000, 0, False, 360),
        (5, 3, False, 40), (1, 5, False, 10), (5, 0, True, 10),
    ],
)  # fmt: skip
def test_the_delay_of_a_job_doubles_with_its_own_failures_only(
    restarts: int, alone: int, success: bool, delay_s: float
) -> None:
    job = job_of(IPUJobStatus(restart_count=restarts, instance_restarts={"0": InstanceRestart(count=alone)}))
    for now in (NOW, NOW - 0.5):
        at = restart_policy.next_attempt_time(job, AttemptEnd(success), now, SETUP)
        assert seconds(at) == NOW + delay_s


@pytest.mark.parametrize(("in_a_row", "delay_s"), [(1, 0), (2, 10), (3, 20), (7, 320), (8, 360), (9999, 360)])
def test_the_delay_of_an_instance_doubles_from_its_second_restart_on(in_a_row: int, delay_s: float) -> None:
    assert seconds(restart_policy.instance_start_time(in_a_row, NOW, SETUP)) == NOW + delay_s
    if in_a_row > 1:
        assert seconds(restart_policy.instance_start_time(in_a_row, NOW - 0.5, SETUP)) == NOW + delay_s


@pytest.mark.parametrize(("after_s", "in_a_row"), [(-1, 1), (0, 3), (599, 3), (600, 1)])
def test_ten_minutes_of_running_end_a_row_of_restarts(after_s: float, in_a_row: int) -> None:
    former = InstanceRestart(count=4, attempt=4, start_time=AT_NOW, in_a_row=2)
    state = state_of(IPUJobStatus(instance_restarts={"0": former}), NOW + after_s, launcher=False)
    restart = instance_restart._next_restart(state, 0)
    assert (restart.count, restart.attempt, restart.in_a_row) == (5, 5, in_a_row)


@pytest.mark.parametrize(("after_s", "wait_s"), [(-1, None), (0, 10), (9, 1), (10, None)])
def test_a_job_is_called_healthy_again_after_ten_seconds(after_s: float, wait_s: float | None) -> None:
    bad = IPUJobCondition(type=DEGRADED, status="True", last_update_time=AT_NOW)
    state = state_of(IPUJobStatus(conditions=(bad,)), NOW + after_s)
    assert degradation.recovery_delay_s(state, ()) == wait_s
    assert degradation.recovery_delay_s(state, [JobFault("NodeFaulty", "", 0, ("n1",))]) is None
    good = msgspec.structs.replace(bad, status="False")
    assert degradation.recovery_delay_s(state_of(IPUJobStatus(conditions=(good,)), NOW), ()) is None


@pytest.mark.parametrize(("after_s", "counts"), [(-1, False), (0, True), (3599, True), (3600, False)])
def test_a_move_counts_against_the_limit_for_an_hour(after_s: float, counts: bool) -> None:
    state = state_of(IPUJobStatus(move_starts=(AT_NOW,)), NOW + after_s)
    assert move._recent_moves(state) == ((AT_NOW,) if counts else ())


@pytest.mark.parametrize(
    ("after_s", "moved", "joins"), [(-1, 0, False), (0, 0, True), (59, 0, True), (60, 0, False), (0, 1, False)]
)
def test_a_fault_within_a_minute_of_the_move_of_another_instance_joins_it(
    after_s: float, moved: int, joins: bool
) -> None:
    last = JobMove(start_time=AT_NOW, instances=(moved,))
    state = state_of(IPUJobStatus(last_move=last), NOW + after_s, launcher=False, instances=2)
    assert move._joins_last_move(state, [JobFault("NodeFaulty", "", 1, ("n1",))]) is joins


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_a_gang_that_gave_back_waits_twice_as_long_each_time_and_up_to_half_as_long_again(count: int) -> None:
    base_s = min(3600.0, 60.0 * 2 ** (count - 1))
    delays = {gang_hold._delay_s(make_job(name), count, JobSetup()) for name in map(str, range(40))}
    assert base_s <= min(delays) < base_s * 1.1
    assert base_s * 1.4 < max(delays) < base_s * 1.5


def test_a_gang_waits_no_longer_than_the_delay_of_this_try() -> None:
    job = make_job()
    delay_s = gang_hold._delay_s(job, 2, JobSetup())
    for after_s, waits in ((int(delay_s) + 1, True), (int(delay_s) + 2, False)):
        until = rfc3339_whole(NOW + after_s)
        held = GangHoldStatus(instances=(0,), count=2, until=until)
        state = state_of(IPUJobStatus(given_back=held), NOW, JobSetup())
        assert gang_hold.next_change_at(state) == (seconds(until) if waits else 0.0)
