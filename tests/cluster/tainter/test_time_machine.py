"""The simulation of a soak's own faults gives the soak's own result: the real tainter, API server, scheduler and
evictions on one side, `muster simulate` on the other.

A second of the soak is a minute of the simulation, because simulated time has whole seconds. The soak's faults are
recorded when they happen, so a slow machine has other faults, not another answer.
"""

import asyncio
import csv
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import Cluster, Tainters, finding, until

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.times import rfc3339_whole
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.comparison import INTERRUPTIONS, Measure, estimate
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import make_scenario, simulate
from muster_tainter.simulation.scenario.fault_file import FaultFile
from muster_tainter.simulation.scenario.fleet_file import FleetFile
from muster_tainter.simulation.scenario.nodes import make_nodes

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

NODES, FAULTS, SEED = 6, 14, 7
MINUTE_S = 60.0  # of the simulation, in a second of the soak
BEGIN = 1_767_225_600.0  # of the simulation: 2026-01-01T00:00:00Z
REPLICATES = 25


def policy_text(hold_s: float, longest_s: float) -> str:
    return f"""
rules: [{{name: hardware, match: {{class: [reboot]}}, action: taint, closeOn: [boot]}}]
holdDown: {{base: {hold_s:g}s, longest: {longest_s:g}s, halfLife: 10d}}
pools: [{{name: all, selector: {{}}, drain: {{when: now}}}}]
"""


@dataclass
class SoakFault:
    """start, end: seconds since the begin of the soak."""

    node: str
    start: float
    end: float
    fatal: bool


@dataclass
class Soak:
    """A job of one pod for each node, and an injector that is its oracle.

    interruptions: pods that failed or were evicted. out_s: node-seconds in which a node was broken or tainted
    """

    api: KubeClient
    cluster: Cluster
    kubelets: Kubelets
    namespace: str
    nodes: list[str]
    faults: list[SoakFault] = field(default_factory=list)
    interruptions: int = 0
    out_s: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    _number: int = 0
    _broken: set[str] = field(default_factory=set)
    _unreported: set[str] = field(default_factory=set)  # broken, and not tainted yet

    @property
    def now(self) -> float:
        return time.monotonic() - self.begun

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _running(self, node: str) -> str:
        """Key of the job's pod there; empty without one."""
        for key, pod in self.kubelets.pods.items():
            alive = pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
            if key.startswith(f"{self.namespace}/{node}-") and alive:
                return key
        return ""

    async def run_jobs(self, node: str) -> None:
        """For ever: a pod that ended is interrupted work, and the next one waits for the scheduler."""
        while True:
            self._number += 1
            name = f"{node}-{self._number}"
            resources = {"limits": {"nvidia.com/gpu": "8"}}
            spec = {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "restartPolicy": "Never",
                "containers": [{"name": "job", "image": "x", "resources": resources}],
            }
            await self.api.create(self._pods, {"metadata": {"name": name}, "spec": spec})
            while await self._goes_on(name):  # noqa: ASYNC110 - the API server changes it
                await asyncio.sleep(0.1)
            self.interruptions += 1
            with suppress(NotFound):
                await self.api.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
            # backs off as a Job does: the next pod must not be there before the taint, however slow the machine is
            while node in self._unreported:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _goes_on(self, name: str) -> bool:
        try:
            pod = await self.api.get(f"{self._pods}/{name}")
        except NotFound:
            return False
        return pod["status"].get("phase") in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")

    async def watch(self) -> None:
        """For ever: book the time in which nodes are out of use."""
        last = self.now
        while True:
            found = (await self.api.get("/api/v1/nodes"))["items"]
            tainted = {
                node["metadata"]["name"] for node in found
                if any(taint["key"] == "muster.dev/faulty" for taint in node["spec"].get("taints", []))
            }  # fmt: skip
            now = self.now
            self.out_s += len((tainted | self._broken) & {*self.nodes}) * (now - last)
            last = now
            await asyncio.sleep(0.1)

    async def inject(self, node: str, lasts_s: float, number: int, *, fatal: bool) -> None:
        """A fault while a job runs there, until its end and, if the job survives it, until it is drained."""

        async def running() -> str:
            return self._running(node)

        await until(running, f"a job runs on {node}")
        # the tainter counts from whole seconds, so it gives a node back up to one second before the simulation does,
        # in which the next fault must interrupt a job, too. Some schedulers wait longer than that
        await asyncio.sleep(1.0)
        key = await until(running, f"a job runs on {node}")
        start = self.now
        self._broken.add(node)
        self._unreported.add(node)
        if fatal:
            self.kubelets.finish(key, 137)
        await self.cluster.report(node, finding(occurrence=number), boot=f"boot-{number}")

        async def gone() -> bool:
            return self._running(node) != key

        await self.cluster.until_faulty(node)
        await self.cluster.scheduler_shuns(node, self.namespace)
        self._unreported.discard(node)
        await until(gone, f"the job on {node} is interrupted")
        await asyncio.sleep(max(0.0, start + lasts_s - self.now))
        # before the report: the tainter may see it long before the answer is here, and the simulation, in which nothing
        # takes time, must not give the node back later than the tainter, or the next fault interrupts nothing there
        end = self.now
        await self.cluster.report(node, boot=f"boot-{number}-again")
        self._broken.discard(node)
        self.faults.append(SoakFault(node, start, end, fatal))

    async def until_all_work(self) -> None:
        async def working() -> bool:
            return all(map(self._running, self.nodes))

        await until(working, "a job runs on every node")


async def soaked(soak: Soak) -> None:
    rng = random.Random(SEED)

    async def break_node(node: str, faults: list[tuple[float, float, bool]]) -> None:
        for number, (pause_s, lasts_s, fatal) in enumerate(faults, 1):
            await asyncio.sleep(pause_s)
            await soak.inject(node, lasts_s, number, fatal=fatal)

    plans: dict[str, list[tuple[float, float, bool]]] = {node: [] for node in soak.nodes}
    for _ in range(FAULTS):
        plans[rng.choice(soak.nodes)].append((rng.uniform(0, 3), rng.uniform(2, 5), rng.random() < 0.5))
    forever = [asyncio.create_task(soak.run_jobs(node)) for node in soak.nodes]
    try:
        await soak.until_all_work()
        soak.begun, soak.interruptions = time.monotonic(), 0
        forever.append(asyncio.create_task(soak.watch()))
        await asyncio.gather(*(break_node(node, faults) for node, faults in plans.items()))
        await soak.until_all_work()
    finally:
        for task in forever:
            task.cancel()
        await asyncio.gather(*forever, return_exceptions=True)


def simulated(soak: Soak, folder: Path, policy: Policy) -> list[Outcome]:
    """Under the same faults, read from a fault file as a person would write it."""

    def moment(at: float) -> str:
        return rfc3339_whole(BEGIN + MINUTE_S * at)

    path = folder / "faults.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["node", "start", "end", "class", "component", "fatal"])
        for each in sorted(soak.faults, key=lambda each: each.start):
            row = [each.node, moment(each.start), moment(each.end), "reboot", "gpu/0", "yes" if each.fatal else "no"]
            writer.writerow(row)
    kind = {"name": "one", "nodes": 1, "lasts": "300d", "checkpointCost": "0s", "restart": "0s"}
    fleet = FleetFile.model_validate(
        {
            "groups": [{"name": "gpu", "names": soak.nodes}],
            "start": moment(0.0),
            "end": moment(soak.now),
            "agents": {"detect": "0s"},
            "workload": {"queue": 1, "kinds": [kind], "requeue": "6s"},
        }
    )
    scenario = make_scenario(fleet, make_nodes(fleet), FaultFile(path, soak.nodes))
    return [simulate(scenario, policy, replicate) for replicate in range(REPLICATES + 1)]


def out_h(outcome: Outcome) -> float:
    """Node-hours."""
    return sum(outcome.hours[cause] for cause in (Cause.FAULT, Cause.HOLD, Cause.TEST)) / 8


@pytest.mark.timeout(1800)
async def test_simulation_of_a_soaks_faults_gives_the_soaks_result(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, kubelets: Kubelets, namespace: str, tmp_path: Path
) -> None:
    nodes = await fleet.create(NODES, prefix="soak")
    hold_s, longest_s = 1.0, 4.0
    (tmp_path / "policy.yaml").write_text(policy_text(hold_s, longest_s))
    await tainters.start("--policy", str(tmp_path / "policy.yaml"))
    soak = Soak(cluster.api, cluster, kubelets, namespace, nodes)
    await soaked(soak)
    policy = parse_policy(policy_text(hold_s * MINUTE_S, longest_s * MINUTE_S))
    outcomes = simulated(soak, tmp_path, policy)

    assert len(soak.faults) == soak.interruptions == FAULTS
    out = Measure("out", "nodes out of use", out_h, "h")
    for measure, measured in ((INTERRUPTIONS, soak.interruptions), (out, soak.out_s * MINUTE_S / 3600)):
        found = estimate(outcomes, measure)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= measured <= found.high, (measure.name, measured, found)
    assert outcomes[0].interruptions == FAULTS
    print(f"out of use: {soak.out_s * MINUTE_S / 3600:.2f} node-hours; simulated: {estimate(outcomes, out)}")
