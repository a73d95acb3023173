"""What a simulated pod's status should say at which moment: no cluster, no clock."""

import msgspec
import pytest

from muster_kube.api.objects import Metadata, NodeCondition
from muster_sandbox.simulation.pods import (
    SCRIPT,
    BadScript,
    DesiredPodState,
    PodScript,
    SimulatedPod,
    SimulatedPodStatus,
    desired_state,
    read_script,
    status_patch,
)

JOB = PodScript(start_after_s=2, ready_after_s=3, run_s=10, exit_code=7)


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (0, DesiredPodState("Pending", False, 2)),
        (1.5, DesiredPodState("Pending", False, 0.5)),
        (2, DesiredPodState("Running", False, 3)),
        (5, DesiredPodState("Running", True, 7)),
        (12, DesiredPodState("Failed", False, None)),
    ],
)
def test_a_script_is_played_moment_by_moment(age_s: float, expected: DesiredPodState) -> None:
    assert desired_state(JOB, age_s) == expected


def test_a_service_needs_no_second_look() -> None:
    assert desired_state(PodScript(), 0) == DesiredPodState("Running", True, None)


def test_a_probe_outranks_the_script() -> None:
    assert desired_state(PodScript(), 5, ready=False) == DesiredPodState("Running", False, None)
    assert desired_state(PodScript(ready_after_s=None), 5, ready=True) == DesiredPodState("Running", True, None)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_last_phase_never_goes_back(phase: str) -> None:
    assert desired_state(PodScript(), 0, phase=phase) == DesiredPodState(phase, False, None)


def test_a_deleted_pod_lingers_as_long_as_it_takes_to_stop() -> None:
    slow = PodScript(stop_after_s=4)
    assert desired_state(slow, 9, deleted_since_s=1, phase="Running") == DesiredPodState("Running", False, 3)
    assert desired_state(slow, 9, deleted_since_s=4, phase="Running").gone
    assert desired_state(PodScript(), 0, deleted_since_s=0, phase="Pending").gone


def test_nothing_is_written_where_the_status_says_so_already() -> None:
    ready = (NodeCondition(type="Ready", status="True"),)
    pod = SimulatedPod(metadata=Metadata(name="a"), status=SimulatedPodStatus(phase="Running", conditions=ready))
    say = {"exit_code": 0, "address": "127.64.0.1", "now": "2026-01-01T00:00:00Z"}
    assert status_patch(pod, DesiredPodState("Running", True, None), **say) is None  # type: ignore[arg-type] # one dict for all
    patch = status_patch(pod, DesiredPodState("Running", False, None), **say)  # type: ignore[arg-type] # one dict for all
    assert patch is not None
    assert patch["status"]["conditions"][1] == {
        "type": "Ready",
        "status": "False",
        "reason": "ContainersNotReady",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_a_script_that_cannot_be_read_names_the_pod_and_the_field() -> None:
    notes = {SCRIPT: msgspec.json.encode({"exit_code": "one"}).decode()}
    pod = SimulatedPod(metadata=Metadata(name="a", namespace="b", annotations=notes))
    with pytest.raises(BadScript, match=r"b/a: annotation testbed.muster.dev/script: .*exit_code"):
        read_script(pod)
