"""What the end of a pod says."""

from typing import Any

import pytest
from tests.tainter.outcomes.pod_objects import (
    ALLOCATE,
    GPU_LOST,
    NONE_FREE,
    NOW,
    ended,
    outcome,
    pod_object,
    reduced,
    restarted,
    running,
    waiting,
)

from muster_tainter.outcomes.kinds import ADMINISTRATIVE, KINDS, Place

UNEXPECTED = "UnexpectedAdmissionError"
REJECTED: dict[str, Any] = {"phase": "Failed", "reason": UNEXPECTED}


def kind_of(**fields: Any) -> str | None:
    return outcome(**fields).kind


@pytest.mark.parametrize(
    "error",
    [
        "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
        "can't allocate unregistered device nvidia.com/gpu",
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = GPU is lost",
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices nvidia.com/gpu",
    ],
)
@pytest.mark.parametrize("prefix", ["Pod was rejected: ", "Pod ", ""])  # Kubernetes 1.29, 1.20, 1.23
def test_errors_of_the_device_manager(error: str, prefix: str) -> None:
    message = f"{prefix}Allocate failed due to {error}, which is unexpected"
    assert kind_of(**REJECTED, message=message) == "DeviceAllocation"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Pod was rejected: Update plugin resources failed due to lost, which is unexpected.", "KubeletAdmission"),
        (NONE_FREE, "Admission"),
        (ALLOCATE + "rpc error: code = Unknown desc = no binding pod found", "Admission"),
        (ALLOCATE + "not enough cpus available to satisfy request: requested=2, available=1", "Admission"),
        # a name that a tenant chooses, with the text of the device manager in it
        (ALLOCATE + "claim x: no healthy devices present", "Admission"),
        ("", "Admission"),
    ],
)
def test_other_unexpected_rejections(message: str, kind: str) -> None:
    assert kind_of(**REJECTED, message=message) == kind


@pytest.mark.parametrize(("kind", "reason"), [(kind, reason) for kind in KINDS for reason in kind.reasons])
def test_each_reason_of_the_table_gives_its_kind(kind: Any, reason: Any) -> None:
    if reason.name == UNEXPECTED:
        return  # by its message: above
    name = reason.name.replace("*", "example.com/fpga")
    if reason.place is Place.POD:
        found = outcome(phase="Failed", reason=name)
    elif reason.place is Place.ENDED:
        found = outcome(phase="Failed", containers=[ended("Completed", exit_code=0), ended(name)])
    else:
        found = outcome(phase="Pending", containers=[waiting("PodInitializing"), waiting(name)])
    assert found.kind == kind.name
    assert found.pending == (reason.place is Place.WAITING)


@pytest.mark.parametrize("reason", ADMINISTRATIVE, ids=lambda reason: reason.name)
def test_ends_that_others_decide_say_nothing(reason: Any) -> None:
    assert kind_of(phase="Failed", reason=reason.name.replace("*", "Toleration"), containers=[ended("Error")]) is None


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"])
def test_a_disrupted_pod_says_nothing(reason: str) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    assert kind_of(phase="Failed", containers=[ended("Error")], conditions=[condition]) is None


def test_a_pod_that_somebody_deletes_says_nothing() -> None:
    assert kind_of(phase="Failed", containers=[ended("Error", exit_code=137)], deleted=True) is None


def test_an_eviction_by_the_kubelet_is_a_failure_although_it_is_a_disruption() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    assert kind_of(phase="Failed", reason="Evicted", conditions=[condition]) == "Evicted"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"phase": "Succeeded", "containers": [ended("Completed", exit_code=0)]}, ""),
        ({"phase": "Failed", "containers": [ended("Error", exit_code=1)]}, "ApplicationExit"),
        ({"phase": "Failed", "containers": [ended("", exit_code=3)]}, "ApplicationExit"),
        ({"phase": "Failed", "containers": [ended("SomethingNew", exit_code=3)]}, "ApplicationExit"),
        ({"phase": "Failed", "containers": [ended("Error"), ended("OOMKilled", exit_code=137)]}, "OutOfMemory"),
        ({"phase": "Failed", "init_containers": [ended("StartError", exit_code=128)]}, "ContainerStart"),
        ({"phase": "Failed"}, "ApplicationExit"),
        ({"phase": "Failed", "reason": "ARejectionOfTheFuture"}, "Admission"),
        ({"phase": "Pending"}, "PodStart"),
        ({"phase": "Pending", "containers": [waiting("AReasonOfTheFuture")]}, "PodStart"),
    ],
)
def test_ends_of_pods(fields: dict[str, Any], kind: str) -> None:
    assert kind_of(**fields) == kind


def test_times_are_those_of_the_end_and_of_the_binding() -> None:
    done = outcome(phase="Failed", containers=[ended("Error", at=NOW - 5), ended("Error", at=NOW - 8)])
    assert (done.at, done.created) == (NOW - 5, NOW - 100)
    assert outcome(**REJECTED, message=GPU_LOST, bound=NOW - 60).at == NOW - 60
    assert outcome(phase="Pending", bound=NOW - 60).at == NOW - 60
    # a node's clock that is behind: a pod does not end before it is bound
    assert outcome(phase="Failed", containers=[ended("Error", at=NOW - 9999)], bound=NOW - 60).at == NOW - 60


@pytest.mark.parametrize("finished", [None, "", "yesterday"])
def test_a_time_that_is_no_time_is_ignored(finished: str | None) -> None:
    status = ended("Error")
    status["state"]["terminated"]["finishedAt"] = finished
    assert outcome(phase="Failed", containers=[status], bound=NOW - 60).at == NOW - 60


def test_devices_are_what_no_kubelet_manages_itself() -> None:
    assert outcome(gpus=8).devices == (("nvidia.com/gpu", 8),)
    assert outcome().devices == ()


def test_nothing_of_the_pod_is_kept_that_is_not_needed() -> None:
    pod = reduced(pod_object(message="x" * 10_000, labels={f"l{i}": "v" for i in range(50)}, reason="y" * 300))
    assert pod.metadata.labels == {}
    assert pod.status.message == ""
    assert pod.outcome is not None
    assert len(pod.outcome.reason) <= 64


def test_a_static_pod_has_no_outcome() -> None:
    assert reduced(pod_object(owner=("Node", "n1"))).outcome is None
    assert reduced(pod_object(node="")).outcome is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (restarted("Error"), "ApplicationExit"),
        (restarted("OOMKilled", exit_code=137), "OutOfMemory"),
        (restarted("StartError", exit_code=128), "ContainerStart"),
        (restarted("Error", now={"waiting": {"reason": "CrashLoopBackOff"}}), "ApplicationExit"),
        (restarted("SomethingNew", exit_code=3), "ApplicationExit"),
        (restarted("Completed", exit_code=0), None),
        ({"name": "main", "state": {"running": {}}}, None),
    ],
)
def test_a_container_that_was_started_again_says_how_it_failed(status: dict[str, Any], kind: str | None) -> None:
    found = running(pod_object(phase="Running", containers=[status]))
    assert (found.kind if found else None) == kind
    if found is not None:
        assert (found.at, found.pending) == (NOW, False)


def test_only_pods_that_run_are_asked_about_restarts() -> None:
    for fields in ({"phase": "Succeeded"}, {"phase": "Running", "deleted": True}, {"phase": "Running", "node": ""}):
        assert running(pod_object(containers=[restarted("Error")], **fields)) is None
