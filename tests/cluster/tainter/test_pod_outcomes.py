"""How pods end, on a real API server with its scheduler: the bad node is found, and nobody else is blamed for it.

Kubelets are stood in for by writing the status that they would write. The clock of the tainter, and so of these
kubelets, runs ahead of the API server's: attempts lie apart in time, and nothing sleeps.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.cluster.tainter.pod_endings import Jobs, Object, failed, no_image, rejected, succeeded
from tests.cluster.tainter.test_end_to_end import until

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.objects import Node
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes
from muster_tainter.controller import Tainter
from muster_tainter.faults.node_record import read_record
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy

LABEL = "testbed.muster.dev/outcomes"
POLICY = """
rules:
  - {{name: hardware, match: {{class: reboot}}, action: taint}}
  - {{name: suspects, match: {{check: podoutcomes, verdict: WARN}}, action: taint, taint: {{key: example.com/suspect}}}}
pools: [{{name: mine, selector: {{matchLabels: {{{label}: here}}}}, budget: {{tainted: 10%}}}}]
inFlight: {{falseAlarmsPerNodeYear: 0.01, startWithin: 10m}}
"""
HOUR_S = 3600.0
GAP_S = 12.0


@dataclass
class Bed:
    """A tainter in this process over ``names``. ahead_s: how far its clock is ahead of the API server's."""

    api: KubeClient
    names: list[str]
    metrics: TainterMetrics
    ahead_s: float = 60.0

    def now(self) -> float:
        return time.time() + self.ahead_s

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"muster_tainter_outcomes_{name}", labels) or 0.0

    def counted(self) -> float:
        return sum(self.value("pods_total", result=result) for result in ("succeeded", "failed", "unrelated"))

    async def until_counted(self, pods: float) -> None:
        async def all_counted() -> bool:
            return self.counted() >= pods

        await until(all_counted, f"{pods} pods are counted")

    async def tainted(self) -> dict[str, str]:
        """The reason of its fault, by tainted node."""
        page = await self.api.list_page("/api/v1/nodes", Node, params={"labelSelector": f"{LABEL}=here"})
        return {
            node.metadata.name: ",".join(fault.reason for fault in read_record(node).open)
            for node in page.items
            if node.spec.taints
        }


@asynccontextmanager
async def leading(control_plane: ControlPlane, bed: Bed) -> AsyncIterator[Tainter]:
    rules = parse_policy(POLICY.format(label=LABEL))
    config = load_config(control_plane.kubeconfig_for("muster-tainter", "muster"))
    bed.metrics = TainterMetrics()
    async with KubeClient(config, timeout_s=30.0, max_connections=28) as client:
        replica = Replica(may_write=lambda: True, now=bed.now)
        tainter = Tainter(Connections.shared(client), lambda: rules, replica, bed.metrics)
        tasks = asyncio.gather(tainter.watch(), tainter.lead())
        try:
            yield tainter
        finally:
            tasks.cancel()
            await asyncio.gather(tasks, return_exceptions=True)


async def make_bed(api: KubeClient, fleet: SimulatedNodes, nodes: int) -> Bed:
    names = await fleet.create(nodes, prefix="outcome", shape=NodeShape(labels={LABEL: "here"}))
    return Bed(api, names, TainterMetrics())


async def test_a_node_that_rejects_the_pods_of_one_controller_is_tainted_within_five(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes, namespace: str
) -> None:
    bed = await make_bed(api, fleet, 20)
    jobs, bad = Jobs(api, bed.now), bed.names[3]
    only_there = {"kubernetes.io/hostname": bad}  # the only node with free devices, as in a full cluster
    async with leading(control_plane, bed):
        attempts = 0
        while bad not in await bed.tainted():
            attempts += 1
            assert attempts <= 5
            bed.ahead_s += GAP_S
            pods = await jobs.create(namespace, f"runner-{attempts}", 1, only_there)
            await jobs.end(pods, lambda _node: rejected(bed.now()))
            await bed.until_counted(attempts)
            proven = bed.value("proven_total", kind="DeviceAllocation")
            if proven:

                async def is_tainted() -> bool:
                    return bad in await bed.tainted()

                await until(is_tainted, "tainted on proof")
        assert await bed.tainted() == {bad: "DeviceAllocation"}
        faults = read_record(await api.get(f"/api/v1/nodes/{bad}", type=Node)).open
        number = faults[0].occurrence
    # the next leader reads the same pods again
    async with leading(control_plane, bed):
        await bed.until_counted(attempts)
        faults = read_record(await api.get(f"/api/v1/nodes/{bad}", type=Node)).open
        assert [fault.occurrence for fault in faults] == [number]
        assert await bed.tainted() == {bad: "DeviceAllocation"}


@dataclass(frozen=True)
class Trouble:
    """What goes wrong: a job's name -> how its pod on a node ends."""

    name: str
    ends: Callable[[str, int, str, random.Random], Callable[[float], Object]]
    found: bool


def _bad_node(_node: str, _turn: int, bad: str, _rng: random.Random) -> Callable[[float], Object]:
    return failed if _node == bad else succeeded


def _bad_image(_node: str, turn: int, _bad: str, _rng: random.Random) -> Callable[[float], Object]:
    return no_image if turn % 3 == 0 else succeeded


def _bad_user(_node: str, turn: int, _bad: str, _rng: random.Random) -> Callable[[float], Object]:
    return failed if turn % 3 == 1 else succeeded


def _flaky(_node: str, turn: int, _bad: str, rng: random.Random) -> Callable[[float], Object]:
    return failed if rng.random() < (0.3 if turn % 2 else 0.05) else succeeded


def _all(node: str, turn: int, bad: str, rng: random.Random) -> Callable[[float], Object]:
    if node == bad and turn % 3 != 0:
        return failed
    return (_bad_image, _bad_user, _flaky)[turn % 3](node, turn, bad, rng)


TROUBLES = (
    Trouble("bad-node", _bad_node, found=True),
    Trouble("bad-image", _bad_image, found=False),
    Trouble("bad-user", _bad_user, found=False),
    Trouble("flaky-job", _flaky, found=False),
    Trouble("all-together", _all, found=True),
)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_over_two_hundred_nodes_only_the_bad_node_is_named(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes, trouble: Trouble
) -> None:
    rng = random.Random(trouble.name)
    bed = await make_bed(api, fleet, 200)
    jobs, bad = Jobs(api, bed.now), bed.names[77]
    group = bed.names[64:96]  # where the jobs run: a pool of 32
    spaces = [f"outcomes-{trouble.name}-{i}" for i in range(2)]
    for name in group:
        await api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"job-pool": "big"}}})
    for space in spaces:
        control_plane.admin.create_namespace(space)
    try:
        async with leading(control_plane, bed):
            counted = 0.0
            for turn in range(12 if trouble.found else 6):
                pods = await jobs.create(
                    spaces[turn % 2], f"job-{turn}", 32 - len(await bed.tainted()), {"job-pool": "big"}
                )
                bed.ahead_s += 60.0
                how = {pod.spec.node_name: trouble.ends(pod.spec.node_name, turn, bad, rng) for pod in pods}
                await jobs.end(pods, lambda node, how=how: how[node](bed.now()))  # type: ignore[misc]
                bed.ahead_s += 2 * HOUR_S  # pods that have not started count by then
                counted += len(pods)
                await bed.until_counted(counted)
                if trouble.found and await bed.tainted():
                    break
            tainted = await bed.tainted()
    finally:
        for space in spaces:
            control_plane.admin.delete(f"/api/v1/namespaces/{space}/pods", grace_s=0)
            control_plane.admin.delete(f"/api/v1/namespaces/{space}")
    assert tainted == ({bad: "ApplicationExit"} if trouble.found else {})
