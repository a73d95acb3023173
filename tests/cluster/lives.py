"""IPUJobs in the hands of an operator and a proxy inside the test's process, side by side on the real API server: each
life in a namespace of its own, which it leaves empty.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.cluster.embedded import CALL_S, Fate, Installation, a_vipu
from tests.cluster.onlooker import Onlooker, looking_on

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig, load_config
from muster_kube.api.errors import NotFound
from muster_operator.job.names import TRACKER
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import API_VERSION, IPUJob, IPUJobStatus, jobs_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import Fleet, NodeShape

SIDE_BY_SIDE = 8
SETUP = JobSetup(restart_delay_s=0.0)
JOB = "train"
_numbers = iter(range(1_000_000))

Look = tuple[object, ...]


@dataclass
class Life:
    """One job, with a V-IPU of its own."""

    config: ClusterConfig
    api: KubeClient
    kubelets: Kubelets
    onlooker: Onlooker
    namespace: str
    runs: Installation

    # what its user does

    @property
    def path(self) -> str:
        return f"{jobs_path(self.namespace)}/{JOB}"

    async def submit(self, spec: dict[str, Any]) -> None:
        meta = {"name": JOB, "namespace": self.namespace}
        body = {"apiVersion": API_VERSION, "kind": "IPUJob", "metadata": meta, "spec": spec}
        await self.api.create(jobs_path(self.namespace), body)

    async def scale(self, instances: int) -> None:
        await self.api.patch(f"{self.path}/scale", {"spec": {"replicas": instances}})

    async def delete(self) -> None:
        await self.api.delete(self.path)

    async def end_pod(self, name: str, exit_code: int) -> None:
        self.kubelets.finish(f"{self.namespace}/{JOB}-{name}", exit_code)

    async def until(self, holds: Any, what: str = "") -> None:
        """Raises AssertionError with what is seen of it."""
        await self.onlooker.until(holds, lambda: f"{what} of {self.namespace}; seen: {self.look()}")

    # what is seen of it

    def is_at_rest(self) -> bool:
        """Nothing is on its way."""
        pods = self.onlooker.pods(self.namespace).values()
        entries = self.onlooker.tracker(self.namespace)
        held = {each.name for each in self.runs.vipu.keeper.fleet.partitions}
        return (
            not any(pod.metadata.deletion_timestamp or pod.status.phase == "Pending" for pod in pods)
            and held == entries.keys()
            and all(entry.state == "active" for entry in entries.values())
        )

    def status(self) -> IPUJobStatus:
        job = self.onlooker.job(self.namespace, JOB)
        return IPUJobStatus() if job is None else job.status

    def look(self) -> Look:
        """All but times, uids, and how many of its workers were counted last."""
        job = self.onlooker.job(self.namespace, JOB)
        held = self.runs.vipu.keeper.fleet.partitions
        return (
            sorted((n, p.status.phase, p.metadata.labels["muster.dev/attempt"], bool(p.metadata.deletion_timestamp))
                   for n, p in self.onlooker.pods(self.namespace).items()),
            self.onlooker.small(self.namespace),
            sorted((n.replace(self.namespace, "NS"), e.state, e.attempt, e.message)
                   for n, e in self.onlooker.tracker(self.namespace).items()),
            sorted((each.name.replace(self.namespace, "NS"), each.state) for each in held),
            None if job is None else _standing(job, self.namespace),
        )  # fmt: skip


def _standing(job: IPUJob, namespace: str) -> Look:
    said = job.status
    conditions = [(each.type, each.status, each.reason) for each in said.conditions]
    counts = (said.desired_replicas, said.current_replicas, said.restart_count, said.attempt)
    line = said.last_message.replace(namespace, "NS")
    return said.launcher_status, line, counts, conditions, job.metadata.finalizers


def nothing_is_left(life: Life) -> bool:
    pods, small, entries, held, job = life.look()
    return not (pods or small or entries or held or job)


@dataclass
class Ground:
    """namespaces: those that are free."""

    config: ClusterConfig
    api: KubeClient
    kubelets: Kubelets
    onlooker: Onlooker
    namespaces: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def life(
        self,
        operator_fate: Fate | None = None,
        proxy_fate: Fate | None = None,
        *,
        operators: int = 1,
        timeout_s: float = CALL_S,
        setup: JobSetup = SETUP,
    ) -> AsyncIterator[Life]:
        namespace = await self.namespaces.get()
        runs = Installation(
            self.config,
            namespace,
            a_vipu(),
            setup=setup,
            operator_fate=operator_fate or Fate(),
            proxy_fate=proxy_fate or Fate(),
            operators=operators,
            timeout_s=timeout_s,
        )
        async with runs.running():
            yield Life(self.config, self.api, self.kubelets, self.onlooker, namespace, runs)
        with suppress(NotFound):
            await self.api.delete(f"/api/v1/namespaces/{namespace}/configmaps/{TRACKER}")
        self.namespaces.put_nowait(namespace)

    def made_twice(self) -> dict[tuple[str, str, str, str], int]:
        """Pods that were made more than once in one attempt."""
        return {found: number for found, number in self.onlooker.made.items() if number > 1}


@pytest.fixture(name="ground")
async def ground_fixture(control_plane: ControlPlane, fleet: Fleet) -> AsyncIterator[Ground]:
    """Connections of their own for who acts, who runs pods and who looks on."""
    config = load_config(control_plane.kubeconfig)
    number = next(_numbers)
    # one node: its name is in messages, which are compared
    await fleet.create(1, prefix=f"lives{number}", shape=NodeShape(labels={"ipunode": "rack1"}, gpus=0))
    async with (
        KubeClient(config, user_agent="muster-test", timeout_s=120.0) as api,
        KubeClient(config, user_agent="muster-test-kubelets", timeout_s=120.0) as theirs,
        KubeClient(config, user_agent="muster-test-onlooker", timeout_s=120.0) as looks,
        Kubelets(theirs) as kubelets,
        looking_on(looks) as onlooker,
    ):
        ground = Ground(config, api, kubelets, onlooker)
        names = [f"lives{number}x{place}" for place in range(SIDE_BY_SIDE)]
        for name in names:
            control_plane.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for name in names:
            control_plane.admin.wait_until_exists(f"/api/v1/namespaces/{name}/serviceaccounts/default")
            ground.namespaces.put_nowait(name)
        yield ground
        for name in names:
            control_plane.admin.delete(f"/api/v1/namespaces/{name}")
