"""IPUJobs that really run: operator, proxy and a simulated V-IPU on this machine, the job's pods on a real node.

The seed's training job stands as it was published, but for its image and its program.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.chart.real_node_images import MUSTER
from tests.cluster.chart.real_node_jobs import CONTAINER, ended, logs, printed_by, ranks, state_of, training_job
from tests.cluster.ipujob.operator_bed import SELECTOR, Bed, Job

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_operator.job import names
from muster_operator.resources.pods import WAIT
from muster_sandbox.controlplane.cluster import free_ports
from muster_sandbox.realnode.node import RealNode
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes

FAULTY = "muster.dev/faulty"


@pytest.fixture
async def real_bed(real_node: RealNode, real_namespace: str, tmp_path: Path) -> AsyncIterator[Bed]:
    """All parts run, for the real node's control plane; no node and no kubelet is simulated."""
    node = f"/api/v1/nodes/{real_node.name}"
    real_node.plane.admin.patch(node, {"metadata": {"labels": dict([SELECTOR])}})
    async with KubeClient(load_config(real_node.plane.kubeconfig), timeout_s=30.0) as api:
        bed = Bed(api, real_node.plane, Kubelets(api), SimulatedNodes(api), tmp_path, real_namespace)
        try:
            bed.webhook_port = free_ports(1)[0]
            real_node.lend(bed.webhook_port)
            await bed.start_webhooks()
            await bed.start_simulator()
            await bed.start_proxy()
            await bed.start_operator("--launcher-image", MUSTER, "--launcher-image-pull-policy", "Never")
            await bed.until_admission()
            yield bed
        finally:
            await bed.close()


async def submit(bed: Bed, body: dict[str, Any]) -> Job:
    return await bed.submit(body["metadata"]["name"], body["spec"])


async def until_completed(bed: Bed, job: Job, node: RealNode) -> None:
    launcher = names.launcher_pod(job.name)
    phase = await asyncio.to_thread(ended, node, job.namespace, launcher)
    waited, printed = (logs(node, job.namespace, launcher, each) for each in (WAIT, CONTAINER))
    assert phase == "Succeeded", waited + printed + state_of(node, job.namespace)
    status = await job.until("is completed", lambda status: status["launcherStatus"] == "Completed")
    assert status["currentReplicas"] == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_samples_training_job_runs_to_its_end_and_gives_its_partition_back(
    real_bed: Bed, real_node: RealNode, real_namespace: str, workers: int
) -> None:
    """Behaviours 16 to 21, 24, 29, 34 and 37: `mpirun` reaches the workers through kubeexec and `kubectl exec`."""
    body = training_job(real_namespace, workers)
    body["spec"]["ipusPerJobInstance"] = str(workers)  # as many as there are workers, each with a GCD
    job = await submit(real_bed, body)
    await until_completed(real_bed, job, real_node)
    launcher = names.launcher_pod(job.name)
    assert ranks(logs(real_node, real_namespace, launcher)) == printed_by(workers)
    assert f" {workers} " in logs(real_node, real_namespace, launcher, WAIT), "it names how many there are"
    assert "Completed" in real_node.kubectl("-n", real_namespace, "get", "ipujobs").stdout
    await job.delete()
    await job.until_gone()
    assert await real_bed.vipu_partitions() == {}
    assert await real_bed.tracker() == {}


async def test_a_tainted_node_gets_none_of_a_jobs_pods_even_if_they_tolerate_everything(
    real_bed: Bed, real_node: RealNode, real_namespace: str
) -> None:
    admin = real_node.plane.admin
    node = f"/api/v1/nodes/{real_node.name}"
    taint = {"key": FAULTY, "value": "true", "effect": "NoSchedule"}
    admin.patch(node, {"metadata": {"labels": {FAULTY: "true"}}, "spec": {"taints": [taint]}})
    try:
        body = training_job(real_namespace, 1)
        body["spec"]["workers"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        job = await submit(real_bed, body)
        status = await job.until("says what it waits for", lambda status: FAULTY in status["lastMessage"])
        assert status["launcherStatus"] == "Pending"
        assert [pod for pod in (await job.pods()).values() if pod["spec"].get("nodeName")] == []
    finally:
        admin.patch(node, {"metadata": {"labels": {FAULTY: None}}, "spec": {"taints": None}})
    # it was the taint: without it the same job runs
    await until_completed(real_bed, job, real_node)
