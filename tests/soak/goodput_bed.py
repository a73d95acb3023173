"""Where pods with accelerators run and end, with an oracle: whoever makes a pod end knows why, and what it costs.

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
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Metric
from tests.soak.pod_status import Object, disrupted, ended, running, stamp

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Pod
from muster_sandbox.simulation.nodes import NODES, NodeShape, node_object
from muster_tainter.controller import Tainter
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.goodput.causes import INTERRUPTS, LOST, Cause
from muster_tainter.goodput.feed import BookKeeper
from muster_tainter.goodput.pods.attempt import Attempt
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.repair.pod_eviction import PodEviction

LABEL = "testbed.muster.dev/goodput"
MODEL = "H100"
GPU_ONLY = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}  # keeps pods without accelerators off, such as IPUJobs'
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
POLICY = f"""
rules: [{{name: hardware, match: {{class: reboot}}, action: taint}}]
pools: [{{name: mine, selector: {{matchLabels: {{{LABEL}: here}}}}}}]
incidents: {{nodes: 3, within: 60s}}
goodput: {{checkpoint: 1h, modelLabel: testbed.muster.dev/model}}
"""
CHECKPOINT_S = 3600.0
WAIT_S = 120.0


@dataclass
class Running:
    """A pod that the injector started. bound, started: seconds since the epoch, of the bed's clock. job: of several
    pods; empty for a bare pod."""

    uid: str
    name: str
    node: str
    job: str
    devices: int
    bound: float
    started: float


@dataclass(frozen=True)
class PodEnd:
    """at: seconds since the epoch; cause: the injector's; attempt: the ledger's, which gets its own cause later."""

    pod: Running
    at: float
    cause: Cause
    attempt: Attempt


@dataclass
class Truth:
    """What the injector knows: accelerator-seconds by cause, and each end of a pod. found, interruptions: what the
    ledger has booked. wrong: what must not be, in words."""

    held: float = 0.0
    booked: Counter[Cause] = field(default_factory=Counter)
    ends: list[PodEnd] = field(default_factory=list)
    found: Counter[Cause] = field(default_factory=Counter)
    interruptions: int = 0
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

    @property
    def faults_attributed(self) -> float:
        """Ends by an injected fault that have its cause, as a share of all of them."""
        injected = [end for end in self.ends if end.cause in INTERRUPTS]
        return sum(end.attempt.cause is end.cause for end in injected) / len(injected)

    def judge(self) -> list[str]:
        """What must not be, in words."""
        found = list(self.wrong)
        if abs(self.closed - 1.0) > 0.01:
            found.append(f"goodput ledger: {self.closed:.3%} of the hours of pods are booked")
        if self.attributed < 0.99:
            found.append(f"goodput ledger: {self.attributed:.3%} of the lost hours have the right cause")
        if self.faults_attributed < 0.99:
            wrong = [f"{end.cause} as {end.attempt.cause}" for end in self.ends if end.attempt.cause is not end.cause]
            found.append(f"goodput ledger: {self.faults_attributed:.3%} of the faults have the right cause: {wrong}")
        return found


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
            "tolerations": [{"operator": "Exists", **GPU_ONLY}],
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
            await self._write(pod.metadata.name, running(at, started))
            uid, node = pod.metadata.uid, pod.spec.node_name
            job = name if nodes else ""
            made.append(Running(uid, pod.metadata.name, node, job, 8, int(at), int(started)))
        keeper = self.keeper
        assert keeper is not None
        for each in made:  # before that, the clock must not jump
            await self.known(f"{each.name} runs", partial(has_started, keeper, f"{self.space}/{each.name}"))
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
        await self._write(pod.name, ended(pod.started, at, code))
        keeper = self.keeper
        if keeper is not None:
            await self.known(f"the end of {pod.name}", lambda: has_ended(keeper, f"{self.space}/{pod.name}"))
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
        await self._write(pod.name, disrupted("EvictionByEvictionAPI", self.now()))
        found = await self.api.get(f"/api/v1/namespaces/{self.space}/pods/{pod.name}", type=Pod)
        counter = Metric("evictions", "of the injector", ["result"], registry=CollectorRegistry())
        assert not await PodEviction(self.api, counter).evict(found.metadata, pod.node)
        await self._gone(pod)
        self._note(pod, self.now(), cause)

    async def preempt(self, pod: Running, cause: Cause) -> None:
        """As the scheduler does: the condition, then the deletion."""
        await self._write(pod.name, disrupted("PreemptionByScheduler", self.now()))
        await self.delete(pod, cause)

    def _note(self, pod: Running, at: float, cause: Cause) -> None:
        ran = at - pod.started
        kept = ran if cause is Cause.GOODPUT else ran // CHECKPOINT_S * CHECKPOINT_S
        truth = self.truth
        truth.held += (at - pod.bound) * pod.devices
        truth.booked[Cause.OVERHEAD] += (pod.started - pod.bound) * pod.devices  # type: ignore[assignment]
        truth.booked[Cause.GOODPUT] += kept * pod.devices  # type: ignore[assignment]
        truth.booked[cause] += (ran - kept) * pod.devices  # type: ignore[assignment]
        assert self.keeper is not None
        assert self.keeper.ledger is not None
        [attempt] = [each for each in self.keeper.ledger.pods.runs() if each.uid == pod.uid]
        truth.ends.append(PodEnd(pod, at, cause, attempt))

    # nodes

    async def make_nodes(self, number: int) -> None:
        for _ in range(number):
            self.nodes.append(await self._make_node())

    async def _make_node(self) -> str:
        self.made += 1
        shape = NodeShape(labels={LABEL: "here", "testbed.muster.dev/model": MODEL}, taints=(GPU_ONLY,))
        name = f"goodput-{self.made}"
        await self.api.create(NODES, node_object(name, self.made, shape))
        return name

    async def break_node(self, name: str, ago_s: float = 0.0) -> None:
        """Its agent reports a fault; returns when the node is tainted."""
        at = stamp(self.now() - ago_s)
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
        while len((await self.api.get(f"{NODES}/{name}"))["spec"]["taints"]) < 2:  # beside GPU_ONLY
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


def has_started(keeper: BookKeeper, key: str) -> bool:
    pod = keeper.pods.store.get(key)
    return pod is not None and pod.facts is not None and bool(pod.facts.started)


def has_ended(keeper: BookKeeper, key: str) -> bool:
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
