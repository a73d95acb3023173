"""How far a trial came, from a pod's status; what the pod and the claim look like."""

import json

import msgspec
import pytest

from muster_kube.volume_trial import find_stage
from muster_kube.volume_trial_objects import TrialPod, make_claim, make_pod

NO_ROOM = "0/3 nodes are available: 3 Insufficient cpu."
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"


def pod(status: dict[str, object], node: str = "n1") -> TrialPod:
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": node} if node else {}, "status": status}
    return msgspec.json.decode(json.dumps(body), type=TrialPod)


def waiting(reason: str, message: str = "") -> dict[str, object]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "write", "state": state}]}


def unscheduled(message: str) -> dict[str, object]:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


@pytest.mark.parametrize(
    ("status", "node", "bound", "expected"),
    [
        ({"phase": "Succeeded"}, "n1", True, ("written", "")),
        (
            {"phase": "Failed", "containerStatuses": [{"name": "w", "state": {"terminated": {"exitCode": 1}}}]},
            "n1",
            True,
            ("unwritten", "1"),
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "n1", True, ("not-started", "Evicted: disk")),
        (
            {"phase": "Running", "containerStatuses": [{"name": "w", "state": {"running": {"startedAt": "x"}}}]},
            "n1",
            True,
            ("unwritten", ""),
        ),
        (waiting("ImagePullBackOff", "no such image"), "n1", True, ("not-started", "ImagePullBackOff: no such image")),
        (waiting("ContainerCreating"), "n1", True, ("unmounted", "")),
        (unscheduled(NO_ROOM), "", True, ("unplaced", NO_ROOM)),
        (unscheduled(NO_ROOM), "", False, ("unplaced", NO_ROOM)),
        (unscheduled(NO_VOLUME), "", False, ("unbound", NO_VOLUME)),
        ({}, "", False, ("unbound", "")),
    ],
)
def test_the_stage_is_the_first_thing_that_stands_in_the_way(status, node, bound, expected):
    stage, said = find_stage(pod(status, node), bound=bound)
    assert stage == expected[0]
    assert expected[1] in said


def test_the_pod_goes_to_its_node_whatever_taints_that_has_and_gets_no_token():
    spec = make_pod("p", "node-7", "busybox", 100)["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert "node-7" in json.dumps(spec["affinity"])
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] == 100


def test_a_label_holds_the_longest_node_name():
    (value,) = make_pod("p", "n" * 253, "busybox", 100)["metadata"]["labels"].values()
    assert len(value) <= 63


def test_without_a_class_the_claim_names_none_so_that_the_default_is_taken():
    assert "storageClassName" not in make_claim("p", "n1", "", 16)["spec"]
    assert make_claim("p", "n1", "fast", 16)["spec"]["storageClassName"] == "fast"
