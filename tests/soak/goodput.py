"""Pods with accelerators under random ends, with an oracle: whoever makes a pod end knows why, and what it costs.

The API server, its scheduler and the controller of Jobs are real; kubelets and agents are stood in for by writing what
they would write. The clock of the tainter, and so of these kubelets, runs ahead of the API server's, so months pass
in minutes and nothing sleeps.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Metric

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Pod
from muster_sandbox.simulation.nodes import NODES, NodeShape, node_object
from muster_tainter.controller import Tainter
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.goodput.attempt import SETTLE_S
from muster_tainter.goodput.books import split_account
from muster_tainter.goodput.causes import LOST, Cause, Side
from muster_tainter.goodput.feed import BookKeeper
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.repair.pod_eviction import PodEviction

LABEL = "testbed.muster.dev/goodput"
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
POLICY = f"""
rules: [{{name: hardware, match: {{class: reboot}}, action: taint}}]
pools: [{{name: mine, selector: {{matchLabels: {{{LABEL}: here}}}}}}]
incidents: {{nodes: 3, within: 60s}}
goodput: {{checkpoint: 1h, modelLabel: testbed.muster.dev/model}}
"""
CHECKPOINT_S = 3600.0
WAIT_S = 120.0

Object = dict[str, Any]


@dataclass
class Truth:
    """What the injector knows: accelerator-seconds by cause, and how many ends each cause had. wrong: what the ledger
    booked otherwise, in words."""

    held: float = 0.0
    booked: Counter[Cause] = field(default_factory=Counter)
    ends: Counter[Cause] = field(default_factory=Counter)
    found: Counter[Cause] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def closed(self) -> float:
        """What was booked, as a share of what pods held."""
        return sum(self.found.values()) / self.held

    @property
    def attributed(self) -> float:
        """What was booked to its true cause, as a share of what was lost."""
        lost = {cause: value for cause, value in self.booked.items() if cause in LOST}
        right = sum(min(value, self.found[cause]) for cause, value in lost.items())
        return right / sum(lost.values())

    def judge(self) -> list[str]:
        """What must not be, in words."""
        found = list(self.wrong)
        if abs(self.closed - 1.0) > 0.01:
            found.append(f"goodput ledger: {self.closed:.3%} of the hours of pods are booked")
        if self.attributed < 0.99:
            found.append(f"goodput ledger: {self.attributed:.3%} of the lost hours have the right cause")
        return found


@dataclass
class Running:
    """A pod that the injector started. bound, started: seconds since the epoch, of the bed's clock."""

    name: str
    node: str
    job: str
    devices: int
    bound: float
    started: float


@dataclass
class Bed:
    """ahead_s: how far its clock is ahead of the API server's. nodes: without a fault; made: how many there were."""

    config: ClusterConfig
    api: KubeClient
    space: str
    rng: random.Random
    nodes: list[str] = field(default_factory=list)
    made: int = 0
    ahead_s: float = 300.0
    truth: Truth = field(default_factory=Truth)
    keeper: BookKeeper | None = None
    jobs: int = 0
    leaders: int = 0

    def now(self) -> float:
        return time.time() + self.ahead_s

    # the tainter

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[BookKeeper]:
        policy = parse_policy(POLICY)
        async with KubeClient(self.config, timeout_s=30.0, max_connections=28) as client:
            replica = Replica(may_write=lambda: True, now=self.now, namespace=self.space)
            tainter = Tainter(Connections.shared(client), lambda: policy, replica, TainterMetrics())
            tasks = asyncio.gather(tainter.watch(), tainter.lead())
            self.leaders += 1
            try:
                yield await self._keeper(tainter)
            finally:
                tasks.cancel()
                await asyncio.gather(tasks, return_exceptions=True)

    async def _keeper(self, tainter: Tainter) -> BookKeeper:
        begun = time.monotonic()
        while time.monotonic() < begun + WAIT_S:
            keeper = tainter.goodput.keeper
            if keeper is not None and keeper.keeping:
                self.keeper = keeper
                return keeper
            await asyncio.sleep(0.05)
        raise TimeoutError("the tainter keeps no books")

    async def known(self, what: str, ask: Callable[[], bool]) -> None:
        begun = time.monotonic()
        while not ask():
            if time.monotonic() > begun + WAIT_S:
                raise TimeoutError(what)
            await asyncio.sleep(0.02)

    # pods

    async def start(self, node: str, pods: int = 1, nodes: tuple[str, ...] = (), **more: Any) -> list[Running]:
        """A bare pod on ``node``, or a Job with a pod on each of ``nodes``; bound by the real scheduler."""
        self.jobs += 1
        name = f"g{self.jobs}"
        places = nodes or (node,)
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "affinity": _only_on(places, name),
            "containers": [
                {"name": "main", "image": "muster.invalid/job", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
            ],
            **more,
        }
        at = self.now()
        if nodes:
            template = {"metadata": {"labels": {"job": name}}, "spec": spec}
            body: Object = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": {"parallelism": len(nodes), "completions": len(nodes), "backoffLimit": 0, "template": template},
            }
            await self.api.create(f"/apis/batch/v1/namespaces/{self.space}/jobs", body)
        else:
            await self.api.create(
                f"/api/v1/namespaces/{self.space}/pods",
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"job": name}}, "spec": spec},
            )
        bound = await self._bound(name, len(places))
        started = at + self.rng.randint(5, 120)
        self.ahead_s += started - at
        made = []
        for pod in bound:
            await self._write(pod.metadata.name, _running(at, started))
            running = Running(pod.metadata.name, pod.spec.node_name, name if nodes else "", 8, int(at), int(started))
            made.append(running)
        keeper = self.keeper
        assert keeper is not None
        for each in made:  # before that, the clock must not jump
            await self.known(f"{each.name} runs", partial(_has_started, keeper, f"{self.space}/{each.name}"))
        return made

    async def _bound(self, name: str, pods: int) -> list[Pod]:
        params = {"labelSelector": f"job={name}", "fieldSelector": "spec.nodeName!="}
        begun = time.monotonic()
        while time.monotonic() < begun + WAIT_S:
            page = await self.api.list_page(f"/api/v1/namespaces/{self.space}/pods", Pod, params=params)
            if len(page.items) == pods:
                return page.items
            await asyncio.sleep(0.05)
        raise TimeoutError(f"{name}: its pods are not bound")

    async def _write(self, pod: str, status: Object) -> None:
        path = f"/api/v1/namespaces/{self.space}/pods/{pod}/status"
        await self.api.patch(path, {"status": status}, kind="strategic")

    # ends

    async def exit(self, pod: Running, code: int, cause: Cause) -> None:
        """Its containers end now, and the injector knows why."""
        at = int(self.now())
        await self._write(pod.name, _ended(pod, at, code))
        keeper = self.keeper
        if keeper is not None:
            await self.known(f"the end of {pod.name}", lambda: _has_ended(keeper, f"{self.space}/{pod.name}"))
        self._note(pod, at, cause)

    async def delete(self, pod: Running, cause: Cause) -> None:
        with_status = {"gracePeriodSeconds": 0}
        await self.api.delete(f"/api/v1/namespaces/{self.space}/pods/{pod.name}", with_status)
        await self._gone(pod)
        self._note(pod, self.now(), cause)

    async def _gone(self, pod: Running) -> None:
        """The tainter knows; before that, the clock must not jump."""
        keeper = self.keeper
        assert keeper is not None
        await self.known(f"{pod.name} is gone", lambda: f"{self.space}/{pod.name}" not in keeper.pods.store)

    async def ended_by_its_controller(self, pod: Running, cause: Cause) -> None:
        path = f"/api/v1/namespaces/{self.space}/pods/{pod.name}"
        begun = time.monotonic()
        while time.monotonic() < begun + WAIT_S:
            try:
                await self.api.get(path)
            except NotFound:
                await self._gone(pod)
                self._note(pod, self.now(), cause)
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"{pod.name} is still there")

    async def evict(self, pod: Running, cause: Cause) -> None:
        # API servers before 1.26 do not write it themselves
        await self._write(pod.name, _disrupted("EvictionByEvictionAPI", self.now()))
        found = await self.api.get(f"/api/v1/namespaces/{self.space}/pods/{pod.name}", type=Pod)
        counter = Metric("evictions", "of the injector", ["result"], registry=CollectorRegistry())
        assert not await PodEviction(self.api, counter).evict(found.metadata, pod.node)
        await self._gone(pod)
        self._note(pod, self.now(), cause)

    async def preempt(self, pod: Running, cause: Cause) -> None:
        """As the scheduler does: the condition, then the deletion."""
        await self._write(pod.name, _disrupted("PreemptionByScheduler", self.now()))
        await self.delete(pod, cause)

    def _note(self, pod: Running, at: float, cause: Cause) -> None:
        ran = at - pod.started
        kept = ran if cause is Cause.GOODPUT else ran // CHECKPOINT_S * CHECKPOINT_S
        truth = self.truth
        truth.held += (at - pod.bound) * pod.devices
        truth.booked[Cause.OVERHEAD] += (pod.started - pod.bound) * pod.devices  # type: ignore[assignment]
        truth.booked[Cause.GOODPUT] += kept * pod.devices  # type: ignore[assignment]
        truth.booked[cause] += (ran - kept) * pod.devices  # type: ignore[assignment]
        truth.ends[cause] += 1

    # nodes

    async def make_nodes(self, number: int) -> None:
        for _ in range(number):
            self.nodes.append(await self._make_node())

    async def _make_node(self) -> str:
        self.made += 1
        shape = NodeShape(labels={LABEL: "here", "testbed.muster.dev/model": "H100"})
        name = f"goodput-{self.made}"
        await self.api.create(NODES, node_object(name, self.made, shape))
        return name

    async def break_node(self, name: str, ago_s: float = 0.0) -> None:
        """Its agent reports a fault; returns when the node is tainted."""
        at = _stamp(self.now() - ago_s)
        finding = {
            "component": "gpu/0000:3b:00.0", "reason": "Xid79", "verdict": "FAIL", "class": "reboot", "occurrence": 1,
            "count": 1, "message": "NVRM: Xid 79", "firstSeen": at, "lastSeen": at,
        }  # fmt: skip
        check = {"name": "dmesg", "verdict": "FAIL", "findings": [finding], "cleared": []}
        status = {"verdict": "FAIL", "bootID": "boot-1", "checks": [check], "observedAt": at}
        begun = time.monotonic()
        while True:
            try:
                await self.api.patch(f"{HEALTHS}/{name}/status", {"status": status})
                break
            except NotFound:
                if time.monotonic() > begun + WAIT_S:
                    raise
                await asyncio.sleep(0.05)
        while not (await self.api.get(f"{NODES}/{name}"))["spec"].get("taints"):
            if time.monotonic() > begun + WAIT_S:
                raise TimeoutError(f"{name} is not tainted")
            await asyncio.sleep(0.05)
        assert self.keeper is not None
        ledger = self.keeper.ledger
        assert ledger is not None
        await self.known(f"the fault of {name}", lambda: bool(ledger.nodes.evidence(name).tainted))

    async def replace_node(self, name: str) -> None:
        """By a new machine."""
        await self.remove_node(name)
        self.nodes[self.nodes.index(name)] = await self._make_node()

    async def remove_node(self, name: str) -> None:
        await self.api.delete(f"{NODES}/{name}")
        try:
            await self.api.delete(f"{HEALTHS}/{name}")
        except NotFound:
            return


# one round: (the pods of a round, their ends). Each takes its own nodes.


async def _success(bed: Bed, nodes: list[str]) -> None:
    pods = await bed.start("", nodes=(nodes[0], nodes[1]))
    bed.ahead_s += bed.rng.randint(60, 20_000)
    for pod in pods:
        await bed.exit(pod, 0, Cause.GOODPUT)


async def _own_failure(bed: Bed, nodes: list[str]) -> None:
    [pod] = await bed.start(nodes[0])
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.exit(pod, bed.rng.choice((1, 137)), Cause.USER)


async def _deleted(bed: Bed, nodes: list[str]) -> None:
    [pod] = await bed.start(nodes[0])
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.delete(pod, Cause.USER)


async def _broken_job(bed: Bed, nodes: list[str]) -> None:
    """One node breaks and its pod fails; the controller of Jobs deletes the pods on the others."""
    pods = await bed.start("", nodes=(nodes[0], nodes[1], nodes[2]))
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.break_node(pods[0].node, ago_s=bed.rng.randint(0, 30))
    await bed.exit(pods[0], 1, Cause.FAULT)
    for pod in pods[1:]:
        await bed.ended_by_its_controller(pod, Cause.FAULT)
    await bed.replace_node(pods[0].node)


async def _late_fault(bed: Bed, nodes: list[str]) -> None:
    """The pod fails first; the fault is found a minute later."""
    [pod] = await bed.start(nodes[0])
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.exit(pod, 1, Cause.FAULT)
    bed.ahead_s += 60
    await bed.break_node(pod.node)
    await bed.replace_node(pod.node)


async def _incident(bed: Bed, nodes: list[str]) -> None:
    pods = [(await bed.start(node))[0] for node in nodes[:3]]
    bed.ahead_s += bed.rng.randint(60, 20_000)
    for pod in pods:
        await bed.break_node(pod.node)
    for pod in pods:
        await bed.exit(pod, 1, Cause.INCIDENT)
    for pod in pods:
        await bed.replace_node(pod.node)


async def _drained(bed: Bed, nodes: list[str]) -> None:
    [pod] = await bed.start(nodes[0])
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.break_node(pod.node)
    await bed.evict(pod, Cause.DRAIN)
    await bed.replace_node(pod.node)


async def _preempted(bed: Bed, nodes: list[str]) -> None:
    [pod] = await bed.start(nodes[0])
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.preempt(pod, Cause.PREEMPTION)


async def _chose_a_broken_node(bed: Bed, nodes: list[str]) -> None:
    """A tenant's pod tolerates the taint, fails, and blames the node."""
    bed.ahead_s += 600
    await bed.break_node(nodes[0], ago_s=60)
    bed.ahead_s += 5
    [pod] = await bed.start(nodes[0], tolerations=[{"operator": "Exists"}])
    bed.ahead_s += bed.rng.randint(60, 20_000)
    await bed.exit(pod, 1, Cause.USER)
    await bed.replace_node(nodes[0])


ROUNDS = (
    _success, _own_failure, _deleted, _broken_job, _late_fault, _incident, _drained, _preempted, _chose_a_broken_node,
)  # fmt: skip


async def goodput_soak(
    config: ClusterConfig, space: str, *, rounds: int, seed: int, say: Callable[[str], None]
) -> Truth:
    """``rounds`` of each kind, in a random order, under three leaders one after the other."""
    rng = random.Random(seed)
    async with KubeClient(config, timeout_s=30.0) as api:
        bed = Bed(config, api, space, rng)
        await bed.make_nodes(4)
        far = bed.nodes.pop()
        try:
            long: list[Running] = []  # a pod that runs under all leaders
            order = list(ROUNDS) * rounds
            rng.shuffle(order)
            parts = [order[i::3] for i in range(3)]
            for number, part in enumerate(parts):
                async with bed.leading() as keeper:
                    long = long or await bed.start(far)
                    for play in part:
                        bed.ahead_s += 2 * SETTLE_S  # rounds explain nothing of each other
                        await play(bed, list(bed.nodes))
                    if number == len(parts) - 1:
                        await bed.exit(long[0], 0, Cause.GOODPUT)
                    bed.ahead_s += 2 * SETTLE_S
                    await _judge(bed, keeper, last=number == len(parts) - 1)
                say(f"goodput: {sum(bed.truth.ends.values())} ends, leader {bed.leaders}")
        finally:
            for name in (far, *bed.nodes):
                await bed.remove_node(name)
        return bed.truth


async def _judge(bed: Bed, keeper: BookKeeper, *, last: bool) -> None:
    """Save the books; at the end, compare them with the truth."""
    ledger, truth = keeper.ledger, bed.truth
    assert ledger is not None

    def all_known() -> bool:
        return len(ledger.pods) <= (0 if last else 1)

    begun = time.monotonic()
    while True:
        await keeper.book(ledger)
        if all_known():
            break
        if time.monotonic() > begun + WAIT_S:
            truth.wrong.append(f"{len(ledger.pods)} runs are not booked to their end")
            break
        await asyncio.sleep(0.1)
    await keeper.save(ledger)
    if not last:
        return
    found: Counter[Cause] = Counter()
    for bucket in ledger.books.buckets():
        for row in bucket.teams.get(bed.space, Counter()).items():
            parts = split_account(row[0])
            if parts is not None and parts[0] is Side.WORK:
                found[parts[1]] += row[1]
    truth.found = found


def _has_started(keeper: BookKeeper, key: str) -> bool:
    pod = keeper.pods.store.get(key)
    return pod is not None and pod.facts is not None and bool(pod.facts.started)


def _has_ended(keeper: BookKeeper, key: str) -> bool:
    pod = keeper.pods.store.get(key)
    return pod is None or (pod.facts is not None and bool(pod.facts.end))


def _only_on(nodes: tuple[str, ...], job: str) -> Object:
    names = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]
    apart = {"labelSelector": {"matchLabels": {"job": job}}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": names}]}
        },
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }


def _bound(at: float) -> Object:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": _stamp(at)}


def _running(at: float, started: float) -> Object:
    state = {"running": {"startedAt": _stamp(started)}}
    return {"phase": "Running", "conditions": [_bound(at)], "containerStatuses": [_container(state)]}


def _ended(pod: Running, at: float, code: int) -> Object:
    state = {
        "terminated": {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": _stamp(pod.started),
            "finishedAt": _stamp(at),
        }
    }
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [_container(state)]}


def _container(state: Object) -> Object:
    return {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def _disrupted(reason: str, at: float) -> Object:
    return {
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": _stamp(at)}
        ]
    }


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
