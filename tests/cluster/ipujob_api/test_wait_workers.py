"""`muster wait-workers` as a process with a launcher's own account, on the real API server."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from muster_operator.job import names
from muster_operator.job import types as ipujob
from muster_operator.resources import access
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_sandbox.simulation.pods import SCRIPT

LIMIT_S = 120.0
UID = "6a7d3c0e-8b5f-4f0e-9d43-0b9a3f6f3c11"
JOB = "job"
WORKERS = 2


def create_account(plane: ControlPlane, namespace: str) -> Path:
    """The launcher's, with its Role; its kubeconfig."""
    job = msgspec.convert(
        {
            "metadata": {"name": JOB, "namespace": namespace, "uid": UID},
            "spec": {
                "jobInstances": 1,
                "workersPerJobInstance": str(WORKERS),
                "workers": {"template": {"spec": {"containers": [{"name": "main"}]}}},
            },
        },
        ipujob.IPUJob,
    )
    kubeconfig = plane.kubeconfig_for(names.launcher_account(JOB), namespace)
    for body in (access.role(job), access.role_binding(job)):
        # there is no IPUJob of that uid, and what has no owner any more is collected
        body["metadata"].pop("ownerReferences")
        plane.admin.create(f"/apis/{body['apiVersion']}/namespaces/{namespace}/{body['kind'].lower()}s", body)
    return kubeconfig


def create_worker(plane: ControlPlane, namespace: str, node: str, index: int, script: str, uid: str = UID) -> None:
    name = names.worker_pod(JOB, index)
    labels = {names.JOB: JOB, names.JOB_UID: uid, names.ROLE: names.WORKER}
    plane.admin.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {
            "metadata": {"name": name, "labels": labels, "annotations": {SCRIPT: script}},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "poplar:1"}],
            },
        },
    )


class Running:
    """The process, and what it has logged so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""

    async def says(self, *facts: str) -> None:
        """Until a line of its log, after the one that was waited for last, holds all of them."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while True:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"it has ended without {facts}:\n{self.log}"
                self.log += line
                if all(fact in line for fact in facts):
                    return

    async def ends(self) -> int:
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            self.log += (await self.process.stderr.read()).decode()
            return await self.process.wait()


@asynccontextmanager
async def waiting(plane: ControlPlane, namespace: str, folder: Path) -> AsyncIterator[Running]:
    program = folder / "bin"
    program.mkdir()
    (program / "kubectl").write_text("#!/bin/sh\n")
    (program / "kubectl").chmod(0o755)
    words = ["wait-workers", "--namespace", namespace, "--job", JOB, "--uid", UID, "--workers", str(WORKERS)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster_cli", *words, "--kubectl-to", str(folder / "kube"),
        "--kubeconfig", str(create_account(plane, namespace)),
        env={"PATH": str(program)}, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_waits_for_every_worker_while_the_api_server_goes_and_comes(
    control_plane: ControlPlane, namespace: str, fleet: SimulatedNodes, kubelets: Kubelets, tmp_path: Path
) -> None:
    """Behaviour 21."""
    [node] = await fleet.create(1)
    # of an earlier job of that name: ready, and none of ours
    create_worker(control_plane, namespace, node, 2, "{}", uid="another")
    async with waiting(control_plane, namespace, tmp_path) as running:
        await running.says("job-worker-1")
        create_worker(control_plane, namespace, node, 0, '{"ready_after_s": null}')
        await running.says("job-worker-0", "Running")
        create_worker(control_plane, namespace, node, 1, "{}")
        await running.says("job-worker-1", "ready")
        control_plane.kill_apiserver()
        await running.says("WARNING", f"/namespaces/{namespace}/pods")
        await asyncio.to_thread(control_plane.restart_apiserver)
        control_plane.admin.delete(f"/api/v1/namespaces/{namespace}/pods/job-worker-0", grace_s=0)
        await running.says("job-worker-0")
        create_worker(control_plane, namespace, node, 0, "{}")
        assert await running.ends() == 0
    assert (tmp_path / "kube/kubectl").exists()


async def test_a_worker_that_fails_for_good_ends_it(
    control_plane: ControlPlane, namespace: str, fleet: SimulatedNodes, kubelets: Kubelets, tmp_path: Path
) -> None:
    [node] = await fleet.create(1)
    async with waiting(control_plane, namespace, tmp_path) as running:
        create_worker(control_plane, namespace, node, 1, '{"run_s": 0, "exit_code": 3}')
        assert await running.ends() == 1
    assert any("ERROR" in line and "job-worker-1" in line for line in running.log.splitlines())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_it_ends_when_told_to(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    async with waiting(control_plane, namespace, tmp_path) as running:
        await running.says("job-worker-1")
        running.process.send_signal(number)
        assert await running.ends() == code
