"""From a pod's outcome to attempts of each kind."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.outcomes.pod_objects import NO_DEVICES, ended, outcome

from muster_tainter.outcomes.attempts import AttemptMaker
from muster_tainter.outcomes.devices import AllocatedDevices
from muster_tainter.outcomes.kinds import KIND_OF, KINDS, Stage

HOST = {kind.name for kind in KINDS if not kind.tenant}
ALL = [kind.name for kind in KINDS]
REJECTED: dict[str, Any] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": NO_DEVICES}
EXIT: dict[str, Any] = {"phase": "Failed", "containers": [ended("Error")]}


def kind_and_passed(maker: AttemptMaker, **fields: Any) -> tuple[str, set[str]]:
    attempt = maker.attempt(outcome(**fields))
    assert attempt is not None
    assert attempt.failed == bool(attempt.kind)
    return attempt.kind, set(attempt.passed)


def test_a_pod_with_devices_that_was_admitted_passed_all_that_the_host_does() -> None:
    assert kind_and_passed(AttemptMaker(ALL), gpus=1) == ("", HOST)
    assert kind_and_passed(AttemptMaker(ALL), **EXIT, gpus=1) == ("ApplicationExit", HOST)


def test_a_pod_without_devices_says_nothing_about_their_allocation() -> None:
    assert kind_and_passed(AttemptMaker(ALL)) == ("", HOST - {"DeviceAllocation"})


def test_a_pod_that_was_rejected_has_passed_nothing() -> None:
    assert kind_and_passed(AttemptMaker(ALL), phase="Failed", reason="OutOfcpu", gpus=1) == ("Admission", set())


def test_kinds_that_the_policy_ignores_are_not_passed() -> None:
    assert kind_and_passed(AttemptMaker(["PodStart"]), gpus=1) == ("", set())


def test_an_end_that_says_nothing_is_no_attempt() -> None:
    assert AttemptMaker(ALL).attempt(outcome(phase="Failed", reason="Preempting")) is None


def test_a_request_for_one_device_is_not_too_large() -> None:
    assert kind_and_passed(AttemptMaker(ALL), **REJECTED, gpus=1)[0] == "DeviceAllocation"


def test_a_large_request_counts_only_on_a_node_that_has_allocated_as_many() -> None:
    maker = AttemptMaker(ALL)
    assert kind_and_passed(maker, **REJECTED, gpus=8) == ("Admission", set())
    kind_and_passed(maker, **EXIT, gpus=8, node="n2")
    assert kind_and_passed(maker, **REJECTED, gpus=8) == ("Admission", set())
    kind_and_passed(maker, **EXIT, gpus=8, node="n1")
    assert kind_and_passed(maker, **REJECTED, gpus=8)[0] == "DeviceAllocation"
    assert kind_and_passed(maker, **REJECTED, gpus=16)[0] == "Admission"


def test_a_pod_without_devices_is_not_rejected_for_them() -> None:
    assert kind_and_passed(AttemptMaker(ALL), **REJECTED)[0] == "Admission"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(1, 9)), max_size=300))
def test_the_memory_of_devices_is_bounded(seen: list[tuple[int, int, int]]) -> None:
    devices = AllocatedDevices(limit=10)
    for node, resource, count in seen:
        devices.allocated(f"n{node}", ((f"r{resource}", count),))
        assert len(devices._nodes) <= 10
        assert all(len(known) <= 8 for known in devices._nodes.values())
        # whatever was forgotten: one device may always be asked for, and the last size is known
        assert devices.can(f"n{node}", ((f"r{resource}", 1),))


def test_every_stage_has_kinds_and_the_first_ones_are_the_hosts() -> None:
    assert {kind.stage for kind in KINDS} == set(Stage)
    assert sorted(HOST) == ["DeviceAllocation", "KubeletAdmission"]
    assert len(KIND_OF) == len(KINDS)
