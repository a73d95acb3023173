"""What the ledger reads of a pod."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.times import seconds
from muster_tainter.goodput.pods.pod_facts import DEVICE_LIMIT, End, LedgerPod, PodFacts, count_devices, read_pod
from muster_tainter.settings import ACCELERATORS

T0, T1, T2, T3 = (f"2026-01-01T00:0{minute}:00Z" for minute in range(4))
Object = dict[str, Any]


def facts(spec: Object | None = None, status: Object | None = None, **meta: Any) -> PodFacts | None:
    gpu = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    body = {
        "metadata": {"name": "p", "namespace": "team-a", "uid": "u", "creationTimestamp": T0, **meta},
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [gpu], **(spec or {})},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": T1}],
            **(status or {}),
        },
    }
    return read_pod(msgspec.json.decode(msgspec.json.encode(body), type=LedgerPod), ACCELERATORS)


def terminated(code: int = 1, reason: str = "Error") -> Object:
    return {"exitCode": code, "reason": reason, "startedAt": T1, "finishedAt": T2}


def ran(**state: Any) -> list[Object]:
    return [{"name": "main", "state": state}]


def test_a_running_pod() -> None:
    found = facts(status={"containerStatuses": ran(running={"startedAt": T2})})
    assert found is not None
    assert (found.devices, found.on_node, found.service, found.end) == (4, True, False, End.NONE)
    assert (found.bound, found.started, found.ended) == (seconds(T1), seconds(T2), 0.0)


@pytest.mark.parametrize(
    ("status", "meta", "end"),
    [
        ({"phase": "Succeeded", "containerStatuses": ran(terminated=terminated(0, "Completed"))}, {}, End.SUCCEEDED),
        ({"phase": "Failed", "containerStatuses": ran(terminated=terminated())}, {}, End.OWN),
        ({"phase": "Failed", "containerStatuses": ran(terminated=terminated(137, "OOMKilled"))}, {}, End.OWN),
        ({"phase": "Failed", "reason": "NodeShutdown"}, {}, End.STOPPED),
        ({"phase": "Failed", "reason": "Evicted"}, {}, End.STOPPED),
        ({"phase": "Failed", "reason": "Preempting"}, {}, End.PREEMPTED),
        ({"phase": "Failed", "reason": "InvalidNodeInfo"}, {}, End.NODE),
        # its node may be to blame: see test_feed.py
        (
            {
                "phase": "Failed",
                "reason": "UnexpectedAdmissionError",
                "message": "Allocate failed due to no healthy devices present",
            },
            {},
            End.OWN,
        ),
        # its deletion was requested before it ended
        (
            {"phase": "Failed", "containerStatuses": ran(terminated=terminated(143))},
            {"deletionTimestamp": T2, "deletionGracePeriodSeconds": 30},
            End.DELETED,
        ),
        # ... and after: the end is its own
        (
            {"phase": "Failed", "containerStatuses": ran(terminated=terminated())},
            {"deletionTimestamp": T3, "deletionGracePeriodSeconds": 30},
            End.OWN,
        ),
    ],
)
def test_how_a_pod_ended(status: Object, meta: Object, end: End) -> None:
    found = facts(status=status, **meta)
    assert found is not None
    assert found.end is end
    assert found.ended >= found.bound


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("EvictionByEvictionAPI", End.EVICTED),
        ("DeletionByTaintManager", End.TAINTED),
        ("PreemptionByScheduler", End.PREEMPTED),
        ("DeletionByPodGC", End.LOST),
        ("TerminationByKubelet", End.STOPPED),
    ],
)
def test_a_disruption_says_how_a_pod_leaves(reason: str, end: End) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    running = facts(status={"conditions": [condition]})
    failed = facts(
        status={"phase": "Failed", "conditions": [condition], "containerStatuses": ran(terminated=terminated())}
    )
    assert running is not None
    assert failed is not None
    assert (running.end, running.leaving, failed.end) == (End.NONE, end, end)


def test_a_restart_in_place() -> None:
    states = [{"name": "main", "state": {"running": {"startedAt": T3}}, "lastState": {"terminated": terminated()}}]
    found = facts({"restartPolicy": "OnFailure"}, {"containerStatuses": states})
    assert found is not None
    assert (found.started, found.crashed, found.crash) == (seconds(T3), seconds(T2), End.OWN)


def test_what_counts_as_a_service_and_what_the_owner_says_of_checkpoints() -> None:
    service = facts({"restartPolicy": "Always"})
    trainer = facts({"restartPolicy": "Always"}, annotations={"muster.dev/checkpoint-interval": "30m"})
    nonsense = facts(annotations={"muster.dev/checkpoint-interval": "often"})
    assert service is not None
    assert service.service
    assert trainer is not None
    assert (trainer.service, trainer.checkpoint) == (False, 1800.0)
    assert nonsense is not None
    assert nonsense.checkpoint == 0.0


def test_devices_are_counted_as_the_scheduler_does_and_shares_of_memory_are_none() -> None:
    assert count_devices({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "cpu": "4"}, ACCELERATORS) == 2
    assert count_devices({"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "8"}, ACCELERATORS) == 1
    assert count_devices({"nvidia.com/gpu": "9999999"}, ACCELERATORS) == DEVICE_LIMIT
    first = {"name": "init", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    found = facts({"initContainers": [first]})
    assert found is not None
    assert found.devices == 8


def test_pods_without_accelerators_or_without_a_node_are_not_booked() -> None:
    assert facts({"containers": [{"name": "main", "resources": {"limits": {"cpu": "4"}}}]}) is None
    assert facts({"nodeName": ""}) is None


def test_workers_of_ipujobs_and_claims_have_devices_that_are_not_the_node_s() -> None:
    owner = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "j", "uid": "ju", "controller": True}
    bare = {"containers": [{"name": "main"}]}
    worker = facts(bare, ownerReferences=[owner], annotations={"muster.dev/worker-ipus": "4"})
    claim = facts({**bare, "resourceClaims": [{"name": "gpu"}]})
    stranger = facts(bare, annotations={"muster.dev/worker-ipus": "4"})
    assert worker is not None
    assert (worker.devices, worker.on_node) == (4, False)
    assert claim is not None
    assert (claim.devices, claim.on_node) == (1, False)
    assert stranger is None
