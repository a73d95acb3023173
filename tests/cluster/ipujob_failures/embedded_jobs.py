"""IPUJobs in the hands of an operator and a proxy inside the test's process, side by side on the real API server: each
life in a namespace of its own, which it leaves empty.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from tests.cluster.ipujob_failures.embedded_operator import CALL_S, Installation, ProcessFate, make_vipu
from tests.cluster.ipujob_failures.ipujob_watcher import IPUJobWatcher, watch_ipujobs

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig, load_config
from muster_kube.api.errors import NotFound
from muster_operator.job.names import TRACKER
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.job.types import API_VERSION, IPUJob, jobs_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes, for_each

SIDE_BY_SIDE = 8
SETUP = JobSetup(restart_delay_s=0.0)
JOB = "train"
_numbers = iter(range(1_000_000))

Look = tuple[object, ...]
Mishap = TypeVar("Mishap")


@dataclass
class EmbeddedJob:
    """One job, with a V-IPU of its own."""

    config: ClusterConfig
    api: KubeClient
    kubelets: Kubelets
    watcher: IPUJobWatcher
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
        await self.watcher.until(holds, lambda: f"{what} of {self.namespace}; seen: {self.look()}")

    # what is seen of it

    def is_at_rest(self) -> bool:
        """Nothing is on its way."""
        pods = self.watcher.pods(self.namespace).values()
        entries = self.watcher.tracker(self.namespace)
        held = {each.name for each in self.runs.vipu.clocked_fleet.fleet.partitions}
        return (
            not any(pod.metadata.deletion_timestamp or pod.status.phase == "Pending" for pod in pods)
            and held == entries.keys()
            and all(entry.state == "active" for entry in entries.values())
        )

    def status(self) -> IPUJobStatus:
        job = self.watcher.job(self.namespace, JOB)
        return IPUJobStatus() if job is None else job.status

    def look(self) -> Look:
        """All but times, uids, and how many of its workers were counted last."""
        job = self.watcher.job(self.namespace, JOB)
        held = self.runs.vipu.clocked_fleet.fleet.partitions
        return (
            sorted((n, p.status.phase, p.metadata.labels["muster.dev/attempt"], bool(p.metadata.deletion_timestamp))
                   for n, p in self.watcher.pods(self.namespace).items()),
            self.watcher.small(self.namespace),
            sorted((n.replace(self.namespace, "NS"), e.state, e.attempt, e.message)
                   for n, e in self.watcher.tracker(self.namespace).items()),
            sorted((each.name.replace(self.namespace, "NS"), each.state) for each in held),
            None if job is None else _standing(job, self.namespace),
        )  # fmt: skip


def _standing(job: IPUJob, namespace: str) -> Look:
    said = job.status
    conditions = [(each.type, each.status, each.reason) for each in said.conditions]
    counts = (said.desired_replicas, said.current_replicas, said.restart_count, said.attempt)
    line = said.last_message.replace(namespace, "NS")
    return said.launcher_status, line, counts, conditions, job.metadata.finalizers


def is_empty(life: EmbeddedJob) -> bool:
    pods, small, entries, held, job = life.look()
    return not (pods or small or entries or held or job)


async def live_through(accidents: Iterable[Mishap], happens: Callable[[Mishap], Awaitable[bool]]) -> list[Mishap]:
    """A life with each of the accidents; returns those that did not happen.

    What is written depends on how fast a life is. So those that did not happen side by side are tried again alone, as
    the first life was.
    """
    missed: list[Mishap] = []

    async def live(accident: Mishap) -> None:
        if not await happens(accident):
            missed.append(accident)

    await for_each(accidents, live, concurrency=SIDE_BY_SIDE)
    return [accident for accident in missed if not await happens(accident)]


@dataclass
class JobTestBed:
    """namespaces: those that are free."""

    config: ClusterConfig
    api: KubeClient
    kubelets: Kubelets
    watcher: IPUJobWatcher
    namespaces: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def run_job(
        self,
        operator_fate: ProcessFate | None = None,
        proxy_fate: ProcessFate | None = None,
        *,
        operators: int = 1,
        ipu_pods: bool = False,
        timeout_s: float = CALL_S,
        setup: JobSetup = SETUP,
    ) -> AsyncIterator[EmbeddedJob]:
        namespace = await self.namespaces.get()
        runs = Installation(
            self.config,
            namespace,
            make_vipu(),
            setup=setup,
            operator_fate=operator_fate or ProcessFate(),
            proxy_fate=proxy_fate or ProcessFate(),
            operators=operators,
            ipu_pods=ipu_pods,
            timeout_s=timeout_s,
        )
        async with runs.running():
            yield EmbeddedJob(self.config, self.api, self.kubelets, self.watcher, namespace, runs)
        with suppress(NotFound):
            await self.api.delete(f"/api/v1/namespaces/{namespace}/configmaps/{TRACKER}")
        self.namespaces.put_nowait(namespace)

    def made_twice(self) -> dict[tuple[str, str, str, str], int]:
        """Pods that were made more than once in one attempt."""
        return {found: number for found, number in self.watcher.made.items() if number > 1}


@pytest.fixture(name="job_bed")
async def job_bed_fixture(control_plane: ControlPlane, fleet: SimulatedNodes) -> AsyncIterator[JobTestBed]:
    """Connections of their own for who acts, who runs pods and who looks on."""
    config = load_config(control_plane.kubeconfig)
    number = next(_numbers)
    # one node: its name is in messages, which are compared
    await fleet.create(1, prefix=f"lives{number}", shape=NodeShape(labels={"ipunode": "rack1"}, gpus=0))
    async with (
        KubeClient(config, user_agent="muster-test", timeout_s=120.0) as api,
        KubeClient(config, user_agent="muster-test-kubelets", timeout_s=120.0) as theirs,
        KubeClient(config, user_agent="muster-test-watcher", timeout_s=120.0) as looks,
        Kubelets(theirs) as kubelets,
        watch_ipujobs(looks) as watcher,
    ):
        job_bed = JobTestBed(config, api, kubelets, watcher)
        names = [f"lives{number}x{place}" for place in range(SIDE_BY_SIDE)]
        for name in names:
            control_plane.admin.create_namespace(name)
            job_bed.namespaces.put_nowait(name)
        yield job_bed
        for name in names:
            control_plane.admin.delete(f"/api/v1/namespaces/{name}")
