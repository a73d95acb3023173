"""From a pod's outcome to attempts of each kind."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.outcomes.pod_objects import NO_DEVICES, ended, outcome

from muster_tainter.outcomes.attempts import AttemptMaker
from muster_tainter.outcomes.devices import AllocatedDevices
from muster_tainter.outcomes.kinds import KIND_OF, KINDS, Stage

ALL = [kind.name for kind in KINDS]
REJECTED: dict[str, Any] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": NO_DEVICES}
EXIT: dict[str, Any] = {"phase": "Failed", "containers": [ended("Error")]}


def attempts(maker: AttemptMaker, **fields: Any) -> dict[str, bool]:
    return {attempt.kind: attempt.failed for attempt in maker.attempts(outcome(**fields))}


def test_a_success_is_one_of_every_kind() -> None:
    assert attempts(AttemptMaker(ALL)) == dict.fromkeys(ALL, False)


def test_a_failure_says_nothing_about_later_stages_and_other_kinds_of_its_stage() -> None:
    found = attempts(AttemptMaker(ALL), phase="Pending")
    assert found == {"DeviceAllocation": False, "KubeletAdmission": False, "Admission": False, "PodStart": True}


def test_kinds_that_the_policy_ignores_give_no_attempts() -> None:
    maker = AttemptMaker(["DeviceAllocation", "PodStart"])
    assert attempts(maker, **EXIT) == {"DeviceAllocation": False, "PodStart": False}


def test_an_end_that_says_nothing_gives_no_attempt() -> None:
    assert attempts(AttemptMaker(ALL), phase="Failed", reason="Preempting") == {}


def test_a_request_for_one_device_is_not_too_large() -> None:
    assert attempts(AttemptMaker(ALL), **REJECTED, gpus=1) == {"DeviceAllocation": True}


def test_a_large_request_counts_only_on_a_node_that_has_allocated_as_many() -> None:
    maker = AttemptMaker(ALL)
    assert attempts(maker, **REJECTED, gpus=8) == {"Admission": True}
    attempts(maker, **EXIT, gpus=8, node="n2")
    assert attempts(maker, **REJECTED, gpus=8) == {"Admission": True}
    attempts(maker, **EXIT, gpus=8, node="n1")
    assert attempts(maker, **REJECTED, gpus=8) == {"DeviceAllocation": True}
    assert attempts(maker, **REJECTED, gpus=16) == {"Admission": True}


def test_a_pod_without_devices_is_not_rejected_for_them() -> None:
    assert attempts(AttemptMaker(ALL), **REJECTED) == {"Admission": True}


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
    assert {kind.name for kind in KINDS if not kind.tenant} == {"DeviceAllocation", "KubeletAdmission"}
    assert len(KIND_OF) == len(KINDS)
