"""Pods with IPUs on a real node: nothing of them starts before they have their partition, and then they know it.

The test plays webhook and operator: it creates what they decide on, in their order.
"""

from typing import Any

import msgspec
import pytest
from tests.cluster.chart.real_node_images import MPI, MUSTER
from tests.cluster.chart.real_node_jobs import ended, logs, state_of, until

from muster_operator.admission.ipu_pods import GATES_MINOR
from muster_operator.job import names
from muster_operator.job.ipu_pod import IpuPod, as_job
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobSetup, OwnedObject, PatchObject, Snapshot
from muster_operator.plan.ipu_pod import plan_ipu_pod
from muster_operator.resources.ipu_pods import MOUNTED_AT, PARTITION, WAIT, config_map, inject
from muster_sandbox.controlplane.admin import RequestRefused
from muster_sandbox.realnode.node import RealNode

SETUP = JobSetup(launcher_image=MUSTER)
ENVIRONMENT = 'echo "$IPUOF_VIPU_API_HOST $IPUOF_VIPU_API_PORT $IPUOF_VIPU_API_GCD_ID $MINE"'
FILE = f"cat {MOUNTED_AT}/{PARTITION}"


def pod(name: str, says: str, *, gated: bool) -> dict[str, Any]:
    # a user's variable may refer to the partition
    env = [{"name": "MINE", "value": f"$({PARTITION})"}]
    container = {"name": "main", "image": MPI, "imagePullPolicy": "Never", "command": ["sh", "-c", says], "env": env}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return inject({"metadata": {"name": name}, "spec": spec}, 4, "0123456789abcdef", SETUP, gated=gated)


def waiting_reasons(found: dict[str, Any]) -> set[str]:
    statuses = found["status"].get("containerStatuses", [])
    return {each["state"]["waiting"]["reason"] for each in statuses if "waiting" in each["state"]}


def hand_over(node: RealNode, namespace: str, name: str) -> str:
    """As the operator does once the partition is active: the ConfigMap, then the pod. The partition's name."""
    admin, path = node.plane.admin, f"/api/v1/namespaces/{namespace}/pods/{name}"
    seen = msgspec.convert(admin.get(path), IpuPod)
    job = as_job(seen)
    assert job is not None
    partition = names.partition(namespace, f"pod/{name}", 0)
    entry = PartitionEntry(
        job=seen.metadata.uid, namespace=namespace, name=job.metadata.name, controller="10.1.5.10:8090", state="active"
    )
    body = config_map(seen, entry, partition)
    admin.create(f"/api/v1/namespaces/{namespace}/configmaps", body)
    there = {("ConfigMap", body["metadata"]["name"]): msgspec.convert({"metadata": body["metadata"]}, OwnedObject)}

    def opened() -> bool:
        pod = msgspec.convert(admin.get(path), IpuPod)
        snapshot = Snapshot(now=0.0, entries={partition: entry}, objects=there)
        for action in plan_ipu_pod(pod, job, snapshot, None, ()).actions:
            assert isinstance(action, PatchObject)
            assert action.kind == "Pod"
            try:
                admin.patch(path, dict(action.body))
            except RequestRefused as error:
                if error.status != 409:  # the kubelet was faster
                    raise
            return False
        return True

    until(opened, lambda: state_of(node, namespace))
    return partition


@pytest.mark.parametrize("meddled", [False, True], ids=["as admitted", "gate or init container removed"])
def test_a_pod_starts_once_it_has_its_partition_and_knows_it(
    real_node: RealNode, real_namespace: str, meddled: bool
) -> None:
    gated = real_node.plane.minor >= GATES_MINOR
    # without gate and init container, the kubelet may start the container before it has written the file
    says = ENVIRONMENT if meddled else f"{ENVIRONMENT}; {FILE}"
    body = pod("train", says, gated=gated)
    if meddled:
        body["spec"].pop("schedulingGates" if gated else "initContainers")
    pods = f"/api/v1/namespaces/{real_namespace}/pods"
    real_node.plane.admin.create(pods, body)

    def waits() -> bool:
        found = real_node.plane.admin.get(f"{pods}/train")
        if meddled:
            return "CreateContainerConfigError" in waiting_reasons(found)
        if gated:
            conditions = found["status"].get("conditions", [])
            return "SchedulingGated" in {each.get("reason") for each in conditions}
        return "4" in logs(real_node, real_namespace, "train", WAIT).split()

    until(waits, lambda: state_of(real_node, real_namespace))
    partition = hand_over(real_node, real_namespace, "train")
    assert ended(real_node, real_namespace, "train") == "Succeeded", state_of(real_node, real_namespace)
    said = logs(real_node, real_namespace, "train", "main").split()
    assert said == ["10.1.5.10", "8090", "0", partition, *([] if meddled else [partition])]
