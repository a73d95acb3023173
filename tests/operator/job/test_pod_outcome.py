"""How pods end: which container, its exit code or signal, and why."""

from typing import Any

import pytest
from tests.operator.plan.job_factory import ended_container, make_job, make_pod
from tests.wording.facts import missing_facts

from muster_operator.job.pod_outcome import LIMIT, describe_failure, shorten


def describe(**status: Any) -> str:
    return describe_failure(make_pod(make_job(), "train-worker-1", "Failed", **status))


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (
            {"containerStatuses": [ended_container(exit_code=1, reason="Error")]},
            ("main", "1"),
        ),
        (
            {"containerStatuses": [ended_container(exit_code=137, reason="OOMKilled")]},
            ("main", "137", "SIGKILL", "OOMKilled"),
        ),
        (
            {"containerStatuses": [ended_container(exit_code=0, signal=11)]},
            ("main", "0", "SIGSEGV"),
        ),
        (
            {"containerStatuses": [ended_container(exit_code=255)]},
            ("main", "255", "127"),
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            ("Evicted", "The node was low on resource: memory"),
        ),
        (
            {"reason": "NodeLost"},
            ("NodeLost",),
        ),
        (
            {
                "initContainerStatuses": [ended_container("load", 2, message="no such\nfile\n")],
                "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            ("init", "load", "2", "no such file"),
        ),
        (
            {"containerStatuses": [ended_container(exit_code=0), ended_container("logs", 3)]},
            ("logs", "3"),
        ),
        (
            {},
            ("no reason",),
        ),
    ],
)
def test_a_failed_pod_says_which_container_and_why(status: dict[str, Any], facts: tuple[str, ...]) -> None:
    assert not missing_facts(describe(**status), "train-worker-1", "node1", *facts)


def test_error_is_no_reason_of_its_own_and_containers_that_did_well_are_left_out() -> None:
    failed = describe(containerStatuses=[ended_container(exit_code=1, reason="Error")])
    assert "Error" not in failed
    beside = describe(containerStatuses=[ended_container("fine", exit_code=0), ended_container("logs", 3)])
    assert "fine" not in beside


def test_a_pod_of_many_failed_containers_keeps_within_the_limit() -> None:
    statuses = [ended_container(f"c{number}", 1, message="x" * 100) for number in range(40)]
    text = describe(containerStatuses=statuses)
    assert len(text) == LIMIT
    assert text.endswith("…")


def test_words_stand_on_one_line() -> None:
    assert shorten("a\n  b\tc ") == "a b c"
    assert shorten("abcdef", 4) == "abc…"
