"""Operator and V-IPU proxy end after every single write of a job's life, on the real API server (59).

A life without an accident says how many writes there are and what is seen after each of its steps; then it is lived
once for each write, and must look the same; and once with no write of the operator's ever answered. Lives go on side by
side, each in a namespace that it leaves empty.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from tests.cluster.embedded import Fate, Installation, a_vipu
from tests.cluster.onlooker import Onlooker, looking_on
from tests.cluster.operator_bed import inference, training

from muster_kube.client import KubeClient
from muster_kube.config import ClusterConfig, load_config
from muster_kube.errors import NotFound
from muster_operator.ipujob import API_VERSION, IPUJob, Status, collection
from muster_operator.names import TRACKER
from muster_operator.seen import Setup
from muster_operator.status import finished
from muster_testbed.controlplane import ControlPlane
from muster_testbed.kubelets import Kubelets
from muster_testbed.nodes import Fleet, NodeShape, each

SIDE_BY_SIDE = 8
SPARE = 3  # a life may have a write more than the first one
SETUP = Setup(restart_delay_s=0.0)
JOB = "train"

_numbers = iter(range(1_000_000))

Look = tuple[object, ...]
Who = Literal["operator", "proxy"]


@dataclass(frozen=True)
class Accident:
    """at: the write after which it ends, from one; 0: none. unanswered: every write of its is."""

    who: Who
    at: int = 0
    unanswered: bool = False

    def fate(self, who: Who) -> Fate:
        return Fate(dies_at=self.at, unanswered=self.unanswered) if who == self.who else Fate()


@dataclass
class Life:
    """One job in a namespace of its own, with an operator, a proxy and a V-IPU of its own."""

    config: ClusterConfig
    api: KubeClient
    kubelets: Kubelets
    onlooker: Onlooker
    namespace: str
    accident: Accident

    def __post_init__(self) -> None:
        self.vipu = a_vipu()
        self.runs = Installation(
            self.config,
            self.namespace,
            self.vipu,
            setup=SETUP,
            operator_fate=self.accident.fate("operator"),
            proxy_fate=self.accident.fate("proxy"),
        )
        self.fate = self.runs.operator_fate if self.accident.who == "operator" else self.runs.proxy_fate

    # what its user does

    @property
    def path(self) -> str:
        return f"{collection(self.namespace)}/{JOB}"

    async def submit(self, spec: dict[str, Any]) -> None:
        meta = {"name": JOB, "namespace": self.namespace}
        body = {"apiVersion": API_VERSION, "kind": "IPUJob", "metadata": meta, "spec": spec}
        await self.api.create(collection(self.namespace), body)

    async def scale(self, instances: int) -> None:
        await self.api.patch(f"{self.path}/scale", {"spec": {"replicas": instances}})

    async def delete(self) -> None:
        await self.api.delete(self.path)

    async def fail(self) -> None:
        self.kubelets.finish(f"{self.namespace}/{JOB}-launcher", 137)

    # what is seen of it

    def is_at_rest(self) -> bool:
        """Nothing is on its way."""
        pods = self.onlooker.pods(self.namespace).values()
        entries = self.onlooker.tracker(self.namespace)
        held = {each.name for each in self.vipu.keeper.fleet.partitions}
        return (
            not any(pod.metadata.deletion_timestamp or pod.status.phase == "Pending" for pod in pods)
            and held == entries.keys()
            and all(entry.state == "active" for entry in entries.values())
        )

    def status(self) -> Status:
        job = self.onlooker.job(self.namespace, JOB)
        return Status() if job is None else job.status

    def look(self) -> Look:
        """All but times, uids, and how many of its workers were counted last."""
        job = self.onlooker.job(self.namespace, JOB)
        return (
            sorted((n, p.status.phase, p.metadata.labels["muster.dev/attempt"], bool(p.metadata.deletion_timestamp))
                   for n, p in self.onlooker.pods(self.namespace).items()),
            self.onlooker.small(self.namespace),
            sorted((n.replace(self.namespace, "NS"), e.state, e.attempt, e.message)
                   for n, e in self.onlooker.tracker(self.namespace).items()),
            sorted((held.name.replace(self.namespace, "NS"), held.state) for held in self.vipu.keeper.fleet.partitions),
            None if job is None else _standing(job, self.namespace),
        )  # fmt: skip


def _standing(job: IPUJob, namespace: str) -> Look:
    said = job.status
    conditions = [(each.type, each.status, each.reason) for each in said.conditions]
    counts = (said.desired_replicas, said.current_replicas, said.restart_count, said.attempt)
    line = said.last_message.replace(namespace, "NS")
    return said.launcher_status, line, counts, conditions, job.metadata.finalizers


Step = tuple[Callable[[Life], Awaitable[None]], Callable[[Life], object]]


def _runs(attempt: int = 0, instances: int = 1) -> Callable[[Life], bool]:
    def holds(life: Life) -> bool:
        said = life.status()
        return (said.launcher_status, said.attempt, said.current_replicas) == ("Running", attempt, instances)

    return holds


def _nothing_is_left(life: Life) -> bool:
    pods, small, entries, held, job = life.look()
    return not (pods or small or entries or held or job)


def _scaled(instances: int) -> Step:
    def holds(life: Life) -> bool:
        return _runs(0, instances)(life) and len(life.onlooker.tracker(life.namespace)) == instances

    return lambda life: life.scale(instances), holds


TRAINING = training(restartPolicy={"type": "OnFailure", "backOffLimit": 1})
INFERENCE = inference()
DELETED: Step = (lambda life: life.delete(), _nothing_is_left)
FAILS: Step = (lambda life: life.fail(), _runs(1))
FAILS_FOR_GOOD: Step = (lambda life: life.fail(), lambda life: finished(life.status()) and len(life.look()[0]) == 1)
LIVES: dict[str, list[Step]] = {
    "with a launcher": [(lambda life: life.submit(TRAINING), _runs()), FAILS, FAILS_FOR_GOOD, DELETED],
    "without a launcher": [(lambda life: life.submit(INFERENCE), _runs()), _scaled(3), _scaled(1), DELETED],
}


@dataclass
class Lived:
    looks: list[Look]
    written: list[str]


@dataclass
class Bed:
    config: ClusterConfig
    api: KubeClient
    kubelets: Kubelets
    onlooker: Onlooker
    namespaces: asyncio.Queue[str]

    async def live(self, steps: list[Step], accident: Accident, expected: list[Look] | None = None) -> Lived:
        """expected: what is to be seen after each step; None: what its own condition says."""
        namespace = await self.namespaces.get()
        life = Life(self.config, self.api, self.kubelets, self.onlooker, namespace, accident)
        looks: list[Look] = []
        async with life.runs.running():
            for number, (act, holds) in enumerate(steps):
                await act(life)
                wanted = None if expected is None else expected[number]
                await self.onlooker.until(
                    lambda holds=holds, wanted=wanted: (
                        holds(life) and life.is_at_rest() if wanted is None else life.look() == wanted
                    ),
                    lambda number=number, wanted=wanted: (
                        f"{accident}, step {number} of {namespace}; written: {life.fate.written}\n"
                        f"seen:     {life.look()}\nexpected: {wanted}"
                    ),
                )
                looks.append(life.look())
        with suppress(NotFound):
            await self.api.delete(f"/api/v1/namespaces/{namespace}/configmaps/{TRACKER}")
        self.namespaces.put_nowait(namespace)
        return Lived(looks, life.fate.written)


@pytest.fixture
async def bed(control_plane: ControlPlane, fleet: Fleet) -> AsyncIterator[Bed]:
    """Connections of their own for who acts, who runs pods and who looks on."""
    config = load_config(control_plane.kubeconfig)
    await fleet.create(
        1, prefix="crash", shape=NodeShape(labels={"ipunode": "rack1"}, gpus=0)
    )  # its name is in messages
    async with (
        KubeClient(config, user_agent="muster-test", timeout_s=120.0) as api,
        KubeClient(config, user_agent="muster-test-kubelets", timeout_s=120.0) as theirs,
        KubeClient(config, user_agent="muster-test-onlooker", timeout_s=120.0) as looks,
        Kubelets(theirs) as kubelets,
        looking_on(looks) as onlooker,
    ):
        namespaces: asyncio.Queue[str] = asyncio.Queue()
        names = [f"crash{next(_numbers)}" for _ in range(SIDE_BY_SIDE)]
        for name in names:
            control_plane.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for name in names:
            control_plane.admin.wait_until_exists(f"/api/v1/namespaces/{name}/serviceaccounts/default")
            namespaces.put_nowait(name)
        yield Bed(config, api, kubelets, onlooker, namespaces)
        for name in names:
            control_plane.admin.delete(f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("steps", LIVES.values(), ids=LIVES)
async def test_59_whoever_ends_after_any_write_is_followed_by_the_same_end(bed: Bed, steps: list[Step]) -> None:
    without = await bed.live(steps, Accident("operator"))
    proxys = await bed.live(steps, Accident("proxy"), without.looks)
    accidents = [
        *(Accident("operator", at) for at in range(1, len(without.written) + SPARE)),
        *(Accident("proxy", at) for at in range(1, len(proxys.written) + SPARE)),
        Accident("operator", unanswered=True),
    ]
    assert len(accidents) > 30, "a life has more writes than that"

    missed: list[Accident] = []

    async def live(accident: Accident) -> None:
        lived = await bed.live(steps, accident, without.looks)
        if accident.at > len(lived.written):
            missed.append(accident)

    await each(accidents, live, concurrency=SIDE_BY_SIDE)
    # how often its status is written is not quite the same in each life
    first = {"operator": len(without.written), "proxy": len(proxys.written)}
    assert [late for late in missed if late.at < first[late.who] - SPARE] == []
    again = {found: number for found, number in bed.onlooker.made.items() if number > 1}
    assert not again, "pods that were made more than once in one attempt"
