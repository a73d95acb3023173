"""How pods end, in words."""

from typing import Any

import pytest
from tests.operator.plan.job_factory import ended_container, make_job, make_pod

from muster_operator.job.pod_outcome import LIMIT, describe_failure, shorten


def describe(**status: Any) -> str:
    return describe_failure(make_pod(make_job(), "train-worker-1", "Failed", **status))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"containerStatuses": [ended_container(exit_code=1, reason="Error")]},
            "pod train-worker-1 on node node1 failed: container main ended with exit code 1",
        ),
        (
            {"containerStatuses": [ended_container(exit_code=137, reason="OOMKilled")]},
            "pod train-worker-1 on node node1 failed: container main ended with exit code 137 (SIGKILL), OOMKilled",
        ),
        (
            {"containerStatuses": [ended_container(exit_code=0, signal=11)]},
            "pod train-worker-1 on node node1 failed: container main ended with exit code 0 (SIGSEGV)",
        ),
        (
            {"containerStatuses": [ended_container(exit_code=255)]},
            "pod train-worker-1 on node node1 failed: container main ended with exit code 255 (signal 127)",
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            "pod train-worker-1 on node node1 failed: Evicted: The node was low on resource: memory.",
        ),
        (
            {"reason": "NodeLost"},
            "pod train-worker-1 on node node1 failed: NodeLost",
        ),
        (
            {
                "initContainerStatuses": [ended_container("load", 2, message="no such\nfile\n")],
                "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "pod train-worker-1 on node node1 failed: init container load ended with exit code 2: no such file",
        ),
        (
            {"containerStatuses": [ended_container(exit_code=0), ended_container("logs", 3)]},
            "pod train-worker-1 on node node1 failed: container logs ended with exit code 3",
        ),
        (
            {},
            "pod train-worker-1 on node node1 failed: its phase is Failed, and nothing says why",
        ),
    ],
)
def test_a_failed_pod_says_which_container_and_why(status: dict[str, Any], words: str) -> None:
    assert describe(**status) == words


def test_a_pod_of_many_failed_containers_keeps_within_the_limit() -> None:
    statuses = [ended_container(f"c{number}", 1, message="x" * 100) for number in range(40)]
    text = describe(containerStatuses=statuses)
    assert len(text) == LIMIT
    assert text.endswith("…")


def test_words_stand_on_one_line() -> None:
    assert shorten("a\n  b\tc ") == "a b c"
    assert shorten("abcdef", 4) == "abc…"
