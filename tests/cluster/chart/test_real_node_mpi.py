"""What MPI jobs stand on, on a real node: mpirun reaches workers by kubeexec and `kubectl exec`, by the launcher's own
Role and nothing more. The test plays the operator: it creates what that decides on, in its order."""

import json
from typing import Any

import msgspec
import pytest
from tests.cluster.chart.real_node_images import MUSTER
from tests.cluster.chart.real_node_jobs import (
    CONTAINER,
    ended,
    logs,
    printed_by,
    ranks,
    state_of,
    training_job,
    until,
)

from muster_operator.job import names
from muster_operator.job import types as ipujob
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobSetup
from muster_operator.resources import access, config, pods
from muster_sandbox.realnode.node import RealNode

UID = "0f5c52a2-1f3c-4f06-8f9c-6c5b6c7f6a01"


def decoded(namespace: str, workers: int) -> ipujob.IPUJob:
    """As the API server would give it back."""
    body = training_job(namespace, workers)
    body["metadata"]["uid"] = UID
    body["spec"]["workersPerJobInstance"] = body["spec"].pop("workerPerJobInstance")
    return msgspec.convert(body, ipujob.IPUJob)


def create(node: RealNode, body: dict[str, Any]) -> None:
    """Without its owner: there is no IPUJob of that uid, and what has no owner any more is collected."""
    body = json.loads(json.dumps(body))
    del body["metadata"]["ownerReferences"]
    group = "/api/v1" if body["apiVersion"] == "v1" else f"/apis/{body['apiVersion']}"
    path = f"{group}/namespaces/{body['metadata']['namespace']}/{body['kind'].lower()}s"
    node.plane.admin.create(path, body)


def entry(job: ipujob.IPUJob) -> PartitionEntry:
    meta = job.metadata
    return PartitionEntry(job=meta.uid, namespace=meta.namespace, name=meta.name, controller="10.1.5.10:8090")


def start_launcher(node: RealNode, job: ipujob.IPUJob, setup: JobSetup) -> None:
    """Returns once it says that it waits: there are no workers yet."""
    for body in (config.config_map(job), access.service_account(job), access.role(job), access.role_binding(job)):
        create(node, body)
    create(node, pods.build_launcher(job, [entry(job)], 0, setup))
    last = names.worker_pod(job.metadata.name, ipujob.workers_per_instance(job.spec) - 1)
    space, launcher = job.metadata.namespace, names.launcher_pod(job.metadata.name)
    until(
        lambda: last in logs(node, space, launcher, pods.WAIT),
        lambda: logs(node, space, launcher, pods.WAIT) + state_of(node, space),
    )


def start_workers(node: RealNode, job: ipujob.IPUJob, setup: JobSetup) -> None:
    for index in range(ipujob.workers_per_instance(job.spec)):
        create(node, pods.build_worker(job, index, entry(job), 0, setup))


@pytest.mark.parametrize("host_network", [True, False])
def test_mpirun_reaches_each_worker_and_ranks_reach_one_another(
    real_node: RealNode, real_namespace: str, host_network: bool
) -> None:
    """Behaviours 17 to 21, 23 and 24, as far as they are about what runs."""
    workers = 2
    job = decoded(real_namespace, workers)
    setup = JobSetup(launcher_image=MUSTER, host_network=host_network)
    start_launcher(real_node, job, setup)
    start_workers(real_node, job, setup)
    launcher = names.launcher_pod(job.metadata.name)
    phase = ended(real_node, real_namespace, launcher)
    waited = logs(real_node, real_namespace, launcher, pods.WAIT)
    printed = logs(real_node, real_namespace, launcher)
    assert phase == "Succeeded", waited + printed
    assert ranks(printed) == printed_by(workers)
    assert f" {workers} " in waited, "it names how many there are"


def test_a_launcher_execs_into_its_own_workers_only(real_node: RealNode, real_namespace: str) -> None:
    """Behaviour 19, by the API server's word."""
    job = decoded(real_namespace, 1)
    for body in (access.service_account(job), access.role(job), access.role_binding(job)):
        create(real_node, body)
    account = f"--as=system:serviceaccount:{real_namespace}:{names.launcher_account(job.metadata.name)}"

    def may(*words: str) -> str:
        return real_node.kubectl("-n", real_namespace, "auth", "can-i", account, *words).stdout.strip()

    allowed = {pod: may("create", f"pods/{pod}", "--subresource=exec") for pod in ("ipujob-sample-worker-0", "other")}
    assert allowed == {"ipujob-sample-worker-0": "yes", "other": "no"}
    assert may("delete", "pods/ipujob-sample-worker-0") == "no"


def test_a_worker_that_fails_ends_the_wait_with_its_reason(real_node: RealNode, real_namespace: str) -> None:
    """Behaviour 21: the launcher does not wait for ever for a worker that will never be ready."""
    job = decoded(real_namespace, 1)
    setup = JobSetup(launcher_image=MUSTER)
    start_launcher(real_node, job, setup)
    body = pods.build_worker(job, 0, entry(job), 0, setup)
    assert body["spec"]["containers"][0]["name"] == CONTAINER
    # not ready for a moment before it ends: that would be enough for the launcher to begin
    never = {"exec": {"command": ["true"]}, "initialDelaySeconds": 3600}
    body["spec"]["containers"][0] |= {"command": ["sh", "-c", "exit 3"], "readinessProbe": never}
    create(real_node, body)
    launcher = names.launcher_pod(job.metadata.name)
    assert ended(real_node, real_namespace, launcher) == "Failed"
    waited = logs(real_node, real_namespace, launcher, pods.WAIT)
    [failed] = [line for line in waited.splitlines() if "ERROR" in line]
    for fact in ("ipujob-sample-worker-0", CONTAINER, "Error", " 3"):
        assert fact in failed
