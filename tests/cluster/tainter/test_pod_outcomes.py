"""How pods end, on a real API server with its scheduler: the bad node is found, and nobody else is blamed for it.

Kubelets are stood in for by writing the status that they would write. The clock of the tainter, and so of these
kubelets, runs ahead of the API server's: attempts lie apart in time, and nothing sleeps.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.cluster.tainter.pod_endings import Jobs, Object, failed, no_image, rejected, running, succeeded
from tests.cluster.tainter.test_end_to_end import until
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.__main__ import main
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.objects import Node, Pod
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes
from muster_tainter.controller import Tainter
from muster_tainter.faults.record.node_record import ANNOTATION, read_record
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.outcomes.evidence import Verdict as Evidence
from muster_tainter.outcomes.findings import OutcomeFindings
from muster_tainter.outcomes.kinds import KINDS
from muster_tainter.policy.file import parse_policy

LABEL = "testbed.muster.dev/outcomes"
POLICY = """
rules:
  - {{name: hardware, match: {{class: reboot}}, action: taint}}
  - {{name: suspects, match: {{check: podoutcomes, verdict: WARN}}, action: taint, taint: {{key: example.com/suspect}}}}
pools: [{{name: mine, selector: {{matchLabels: {{{label}: here}}}}, budget: {{tainted: 10%}}}}]
inFlight: {{falseAlarmsPerNodeYear: 0.01, startWithin: 10m}}
"""
WARNS = "{{rules: [{{name: warns, match: {{check: podoutcomes, verdict: WARN}}, action: event}}], inFlight: {{}}}}"
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

    def proven(self) -> float:
        return sum(self.value("proven_total", kind=kind.name) for kind in KINDS)

    async def until_counted(self, pods: float) -> None:
        async def all_counted() -> bool:
            return self.counted() >= pods

        await until(all_counted, f"{pods} pods are counted")

    async def watches(self) -> bool:
        """The tainter leads, and has its watch of pods."""
        return self.metrics.registry.get_sample_value("muster_tainter_source_up", {"source": "inFlight"}) == 1.0

    async def tainted(self) -> dict[str, str]:
        """The reason of its fault, by tainted node."""
        page = await self.api.list_page("/api/v1/nodes", Node, params={"labelSelector": f"{LABEL}=here"})
        return {
            node.metadata.name: ",".join(fault.reason for fault in read_record(node).open)
            for node in page.items
            if node.spec.taints
        }


@asynccontextmanager
async def leading(control_plane: ControlPlane, bed: Bed, policy: str = POLICY) -> AsyncIterator[Tainter]:
    rules = parse_policy(policy.format(label=LABEL))
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


async def explained(capsys: pytest.CaptureFixture[str], control_plane: ControlPlane, node: str) -> Any:
    """What ``muster explain`` prints as JSON."""
    capsys.readouterr()
    await asyncio.to_thread(main, ["explain", node, "-o", "json", "--kubeconfig", str(control_plane.kubeconfig)])
    return json.loads(capsys.readouterr().out)


def missing_evidence(chain: Any) -> list[str]:
    """Which of attempts, owners, rate and value it does not show."""
    saw = " ".join(text for label, text in chain["links"] if label == "saw")
    return missing_facts(saw, "attempts", "failed here", "expected", "evidence")


async def test_a_node_that_rejects_the_pods_of_one_controller_is_tainted_within_five(
    control_plane: ControlPlane,
    api: KubeClient,
    fleet: SimulatedNodes,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
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
            if bed.proven():
                await until(bed.tainted, "tainted on proof")
        assert await bed.tainted() == {bad: "DeviceAllocation"}
        faults = read_record(await api.get(f"/api/v1/nodes/{bad}", type=Node)).open
        number = faults[0].occurrence
        [chain] = (await explained(capsys, control_plane, bad))["chains"]
        assert (chain["fault"], chain["state"]) == ("podoutcomes host DeviceAllocation", "tainted")
        assert missing_evidence(chain) == []
    # the next leader reads the same pods again
    async with leading(control_plane, bed):
        await bed.until_counted(attempts)
        faults = read_record(await api.get(f"/api/v1/nodes/{bad}", type=Node)).open
        assert [fault.occurrence for fault in faults] == [number]
        assert await bed.tainted() == {bad: "DeviceAllocation"}


async def test_a_warning_that_opens_no_fault_is_explained_by_its_event(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = await make_bed(api, fleet, 1)
    [node] = bed.names
    evidence = Evidence(
        node, "ApplicationExit", proven=True, value=9e4, threshold=5e4, attempts=30, failures=28, namespaces=2,
        expected_rate=0.02, since=bed.now() - HOUR_S,
    )  # fmt: skip
    async with leading(control_plane, bed, WARNS) as tainter:
        await until(bed.watches, "the tainter leads")
        findings = OutcomeFindings(tainter.fleet, lambda _node, _kind: None)
        assert findings.take(evidence, Verdict.WARN, None, bed.now())

        async def told() -> bool:
            return bool((await explained(capsys, control_plane, node))["findings"])

        await until(told, "the Event is there")
    answer = await explained(capsys, control_plane, node)
    [found] = answer["findings"]
    assert (found["fault"], found["state"], answer["chains"]) == ("podoutcomes host ApplicationExit", "WARN", [])
    assert missing_evidence(found) == []


End = Callable[[float], Object]


@dataclass(frozen=True)
class Trouble:
    """ends: how a job's pod on a node ends: whether that is the bad node, the job's number, chance. found: whether the
    bad node has to be."""

    name: str
    ends: Callable[[bool, int, random.Random], End]
    found: bool = False
    jobs: int = 4


def _bad_node(bad: bool, _job: int, _rng: random.Random) -> End:
    return failed if bad else succeeded


def _bad_image(_bad: bool, job: int, _rng: random.Random) -> End:
    return no_image if job % 2 else succeeded


def _bad_user(_bad: bool, job: int, _rng: random.Random) -> End:
    return failed if job % 2 else succeeded


def _flaky(_bad: bool, job: int, rng: random.Random) -> End:
    return failed if rng.random() < (0.3 if job % 2 else 0.05) else succeeded


def _all(bad: bool, job: int, rng: random.Random) -> End:
    troubles = (_bad_node, _flaky, _bad_image, _bad_node, _bad_user, _bad_node)
    return failed if bad and job % 6 != 2 else troubles[job % 6](bad, 1, rng)


TROUBLES = (
    Trouble("bad-image", _bad_image),
    Trouble("bad-user", _bad_user),
    Trouble("flaky-job", _flaky),
    Trouble("bad-node", _bad_node, found=True, jobs=12),
    Trouble("all-together", _all, found=True, jobs=36),
)
PODS = 32  # of a job
NAMESPACES = 8


async def test_over_two_hundred_nodes_only_the_bad_node_is_named(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes
) -> None:
    bed = await make_bed(api, fleet, 200)
    for number, trouble in enumerate(TROUBLES):
        spaces = [f"outcomes-{trouble.name}-{i}" for i in range(NAMESPACES)]
        bad = bed.names[37 * (number + 1)]
        for space in spaces:
            control_plane.admin.create_namespace(space)
        try:
            async with leading(control_plane, bed) as tainter:
                tainted = await run_jobs(bed, tainter, trouble, spaces, bad)
        finally:
            for space in spaces:
                control_plane.admin.delete(f"/api/v1/namespaces/{space}/pods", grace_s=0)
                control_plane.admin.delete(f"/api/v1/namespaces/{space}")
        await until(partial(no_pods_left, api), "the pods are gone")
        assert tainted == ({bad: "ApplicationExit"} if trouble.found else {}), trouble.name
        for name in tainted:
            notes = {ANNOTATION: None}
            await api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": notes}, "spec": {"taints": None}})


async def no_pods_left(api: KubeClient) -> bool:
    """Also for a list of the next leader, which the API server answers from its cache."""
    params = {"labelSelector": "job", "resourceVersion": "0"}
    return not (await api.list_page("/api/v1/pods", Pod, params=params)).items


async def run_jobs(bed: Bed, tainter: Tainter, trouble: Trouble, spaces: list[str], bad: str) -> dict[str, str]:
    """One job after the other, until a node is tainted. Returns the tainted nodes."""
    rng = random.Random(trouble.name)
    jobs = Jobs(bed.api, bed.now)
    ended = waiting = 0
    for job in range(trouble.jobs):
        others = [name for name in bed.names if name != bad]
        # a node on which pods fail at once is free for each job; the others are any of the fleet's
        nodes = [bad, *rng.sample(others, PODS - 1)]
        pods = await jobs.create(spaces[job % len(spaces)], f"job-{job}", PODS, nodes=nodes)
        how = {pod.spec.node_name: trouble.ends(pod.spec.node_name == bad, job, rng) for pod in pods}
        await jobs.end(pods, partial(_end_of, how, bed.now))
        waits = sum(end is no_image for end in how.values())
        ended, waiting = ended + len(pods) - waits, waiting + waits
        await bed.until_counted(ended)
        if bed.proven():
            await until(bed.tainted, "tainted on proof")
            break
    bed.ahead_s += HOUR_S  # now it is time for those that have not started
    tainter.look_at_all()
    await bed.until_counted(ended + waiting)
    assert bed.value("failures_total", kind="ImagePull") == waiting
    bed.ahead_s -= HOUR_S
    return await bed.tainted()


def _end_of(how: dict[str, End], now: Callable[[], float], node: str) -> Object:
    return how[node](now())


async def test_containers_that_restart_in_place_count_if_the_policy_says_so(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes, namespace: str
) -> None:
    """Of pods with the restart policy OnFailure, and those alone."""
    bed = await make_bed(api, fleet, 1)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for name, policy in (("job", "OnFailure"), ("service", "Always"), ("well", "OnFailure")):
        container = {"name": "main", "image": "muster.invalid/job"}
        spec = {"nodeName": bed.names[0], "restartPolicy": policy, "automountServiceAccountToken": False}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {**spec, "containers": [container]},
        }
        await api.create(pods, body)
        status = running(time.time() - 30, failed=name != "well")
        await api.patch(f"{pods}/{name}/status", {"status": status}, kind="strategic")
    async with leading(control_plane, bed):
        jobs = Jobs(api, bed.now)
        [done] = await jobs.create(namespace, "done", 1, {LABEL: "here"})
        await jobs.end([done], lambda _: succeeded(bed.now()))
        await bed.until_counted(1)  # the tainter has read all pods that count
        assert bed.value("failures_total", kind="ApplicationExit") == 0
    async with leading(control_plane, bed, POLICY.replace("startWithin", "restarts: true, startWithin")):
        await bed.until_counted(2)
        assert bed.value("failures_total", kind="ApplicationExit") == 1
