"""From a pod's outcome, and the node that it names, to an attempt."""

from typing import Any

import msgspec
import pytest
from tests.tainter.outcomes.pod_objects import GPU_LOST, ended, node_object, outcome

from muster_kube.api.objects import Metadata, Node, NodeStatus
from muster_tainter.outcomes.attempts import attempt_of, kind_on
from muster_tainter.outcomes.kinds import KIND_OF, KINDS, Stage

HOST = frozenset(kind.name for kind in KINDS if not kind.tenant)
REJECTED: dict[str, Any] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": GPU_LOST}
EXIT: dict[str, Any] = {"phase": "Failed", "containers": [ended("Error")]}


def kind_and_passed(host: frozenset[str] = HOST, **fields: Any) -> tuple[str, set[str]]:
    pod = outcome(**fields)
    attempt = attempt_of(pod, kind_on(node_object(), pod), host)
    assert attempt is not None
    assert attempt.failed == bool(attempt.kind)
    return attempt.kind, set(attempt.passed)


def test_a_pod_with_devices_that_was_admitted_passed_all_that_the_host_does() -> None:
    assert kind_and_passed(gpus=1) == ("", HOST)
    assert kind_and_passed(**EXIT, gpus=1) == ("ApplicationExit", HOST)


def test_a_pod_without_devices_says_nothing_about_their_allocation() -> None:
    assert kind_and_passed() == ("", HOST - {"DeviceAllocation"})


def test_a_pod_that_was_rejected_has_passed_nothing() -> None:
    assert kind_and_passed(phase="Failed", reason="OutOfcpu", gpus=1) == ("Admission", set())
    assert kind_and_passed(**REJECTED, gpus=1) == ("DeviceAllocation", set())


def test_kinds_that_the_policy_ignores_are_not_passed() -> None:
    assert kind_and_passed(frozenset(), gpus=1) == ("", set())


def test_an_end_that_says_nothing_is_no_attempt() -> None:
    pod = outcome(phase="Failed", reason="Preempting")
    assert attempt_of(pod, kind_on(node_object(), pod), HOST) is None


@pytest.mark.parametrize(
    ("offered", "asked", "kind"),
    [
        ({"nvidia.com/gpu": "8"}, 8, "DeviceAllocation"),
        ({"nvidia.com/gpu": "2k"}, 2000, "DeviceAllocation"),
        ({"nvidia.com/gpu": "8"}, 9, "Admission"),
        ({"nvidia.com/gpu": "0"}, 1, "Admission"),
        ({"cpu": "64"}, 1, "Admission"),
        ({"nvidia.com/gpu": "8"}, 0, "Admission"),
        ({"nvidia.com/gpu": "-8k"}, 1, "Admission"),
        ({"nvidia.com/gpu": "many"}, 1, "Admission"),
        ({"nvidia.com/gpu": ""}, 1, "Admission"),
    ],
)
def test_only_devices_that_the_node_offers_can_be_missing(offered: dict[str, str], asked: int, kind: str) -> None:
    node = Node(metadata=Metadata(name="n1"), status=NodeStatus(allocatable=offered))
    assert kind_on(node, outcome(**REJECTED, gpus=asked)) == kind


def test_what_a_node_offers_now_says_nothing_about_a_pod_that_was_listed() -> None:
    listed = msgspec.structs.replace(outcome(**REJECTED, gpus=1), listed=True)
    assert kind_on(node_object(), listed) == "Admission"


def test_every_stage_has_kinds_and_the_first_ones_are_the_hosts() -> None:
    assert {kind.stage for kind in KINDS} == set(Stage)
    assert sorted(HOST) == ["DeviceAllocation", "KubeletAdmission"]
    assert len(KIND_OF) == len(KINDS)
