"""Which attempt an instance is in, and of which earlier ones its pods and partition may still be used."""

import pytest
from tests.operator.plan.job_factory import make_entry, make_job

from muster_operator.job.status_types import InstanceRestart, IPUJobStatus, JobMove
from muster_operator.plan.attempts import attempt_of, former_attempts, has_restarted, last_restart, moved_instances

STATUS = IPUJobStatus(
    attempt=3,
    instance_moves={"1": 2},
    instance_restarts={"1": InstanceRestart(count=4, attempt=8), "2": InstanceRestart(count=1, attempt=4)},
)


def test_moves_and_restarts_of_an_instance_add_to_the_attempt_of_the_job() -> None:
    assert [attempt_of(STATUS, instance) for instance in range(4)] == [3, 9, 4, 3]
    assert (last_restart(STATUS, 1).count, last_restart(STATUS, 0)) == (4, InstanceRestart())


def test_an_instance_has_restarted_if_nothing_else_began_its_attempt() -> None:
    assert [has_restarted(STATUS, instance) for instance in range(4)] == [False, False, True, False]
    zero = IPUJobStatus(instance_restarts={"0": InstanceRestart()})
    assert not has_restarted(zero, 0)


@pytest.mark.parametrize(
    ("move", "moved"),
    [(None, ()), (JobMove(attempt=3, instances=(1,)), (1,)), (JobMove(attempt=2, instances=(1,)), ())],
)
def test_those_of_the_last_move_have_moved_in_this_attempt(move: JobMove | None, moved: tuple[int, ...]) -> None:
    assert moved_instances(IPUJobStatus(attempt=3, last_move=move)) == moved


@pytest.mark.parametrize(
    ("attempt", "state", "move", "used"),
    [
        (4, "active", None, False),  # this one
        (3, "active", None, True),
        (2, "active", None, True),
        (1, "active", None, False),  # ended by a restart of the instance alone
        (3, "creating", None, True),
        (3, "deleting", None, False),
        (3, "active", JobMove(attempt=2, instances=(0,)), False),
        (3, "active", JobMove(attempt=2, instances=(1,)), True),
        (3, "active", JobMove(attempt=1, instances=(0,)), True),
    ],
)
def test_an_earlier_attempt_may_be_used_until_a_move_or_restart_of_the_instance_ends_it(
    attempt: int, state: str, move: JobMove | None, used: bool
) -> None:
    status = IPUJobStatus(
        attempt=2, last_move=move, instance_moves={"0": 1}, instance_restarts={"0": InstanceRestart(count=1, attempt=2)}
    )
    assert attempt_of(status, 0) == 4
    entry = make_entry(make_job(), 0, state, attempt=attempt)
    assert former_attempts(status, [entry]) == ({"0": str(attempt)} if used else {})
