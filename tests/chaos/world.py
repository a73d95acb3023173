"""What goes on in the cluster while everything breaks: nodes fail and recover, people act, jobs come and go.

Simulated agents, kubelets and people reach the API server directly, and repeat what they do until it is answered. What
they have done is known here only to be able to say what must be at the end.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tests.cluster.ipujob.operator_bed import inference, training
from tests.cluster.tainter.fleet_findings import FATAL, HARMLESS, HEALTHS

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from muster_operator.job.names import LAUNCHER, ROLE, partition
from muster_operator.job.types import API_VERSION, jobs_path
from muster_sandbox.simulation.nodes import NODES, for_each
from muster_sandbox.simulation.pods import PodScript, SimulatedPod

SPACE = "chaos"  # without a hyphen: the names of partitions are readable
FOREIGN = ("example.com/maintenance", "today", "NoSchedule")
AGAIN_S = 0.5
# The cluster is broken for 30 s at a time, again and again. On a busy machine an API server that 2,000 nodes wait for
# has answered no list for five minutes.
GIVES_UP_S = 900.0
LOOK_S = 2.0
WRITERS = 8
CLEARED = 16
AT = "2026-01-01T00:00:00.000Z"
XID = "[{at}.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"

Object = dict[str, Any]


async def insist(act: Callable[[], Awaitable[Any]]) -> Any:
    """Until it is answered. Raises the last error if that takes longer than anything is broken."""
    gives_up = asyncio.get_running_loop().time() + GIVES_UP_S
    while True:
        try:
            return await act()
        except (NotFound, AlreadyExists, Invalid, Forbidden):
            raise
        except (ApiError, httpx2.TransportError):
            if asyncio.get_running_loop().time() > gives_up:
                raise
            await asyncio.sleep(AGAIN_S)


@dataclass
class _Node:
    """As its simulated agent knows it. finding: None: it is well."""

    occurrence: int = 0
    boot: int = 1
    finding: Object | None = None
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    cleared: list[Object] = field(default_factory=list)

    def status(self) -> Object:
        found = [self.finding] if self.finding else []
        verdict = self.finding["verdict"] if self.finding else "PASS"
        check = {"name": "dmesg", "verdict": verdict, "findings": found, "cleared": self.cleared[-CLEARED:]}
        return {"status": {"verdict": verdict, "bootID": f"boot-{self.boot}", "checks": [check], "observedAt": AT}}


@dataclass
class Fleet:
    """most: nodes that may have a fault at a time. alone: nodes without which no job can run. foreign: taints of other
    people, by node."""

    api: KubeClient
    rng: random.Random
    names: list[str]
    most: int
    alone: frozenset[str] = frozenset()
    foreign: dict[str, frozenset[tuple[str, str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = {name: _Node() for name in self.names}
        self._busy: set[str] = set()
        self._events: set[asyncio.Task[None]] = set()  # under way

    async def publish_all(self) -> None:
        """Each agent's status, once the tainter has made its NodeHealth; again, whoever has lost it."""
        left = set(self.names)
        while left:
            there = {each["metadata"]["name"]: each for each in await self._healths()}
            bare = [name for name in left if name in there and not there[name].get("status")]
            await for_each(bare, self._publish, concurrency=WRITERS)
            left -= there.keys() - set(bare)
            if left and not bare:
                await asyncio.sleep(LOOK_S)

    async def _healths(self) -> list[Object]:
        try:
            return list((await insist(lambda: self.api.get(HEALTHS)))["items"])
        except NotFound:  # the CRD is deleted
            return []

    async def _publish(self, name: str) -> None:
        """Nothing, where there is no NodeHealth: :meth:`publish_all` follows. One at a time, as an agent has one
        publisher: what it tells first must not arrive last."""
        node = self._nodes[name]
        async with node.publishing:
            with suppress(NotFound):
                await insist(lambda: self.api.patch(f"{HEALTHS}/{name}/status", node.status()))

    async def live(self, per_s: float) -> None:
        """For ever. per_s: events a second. What has begun when this is cancelled goes on, until :meth:`finish`: a
        write that is cut off may be in the store and, without an answer, not in the audit log."""
        while True:
            await asyncio.sleep(self.rng.expovariate(per_s))
            if len(self._busy) < 64:
                event = asyncio.create_task(self._event(self.rng.choice(self.names)))
                self._events.add(event)
                event.add_done_callback(self._events.discard)

    async def _event(self, name: str) -> None:
        if name in self._busy:
            return
        self._busy.add(name)
        try:
            node = self._nodes[name]
            fatal = node.finding is not None and node.finding["verdict"] == "FAIL"
            if self.rng.random() < 0.2:
                await self._foreign_taint(name)
            elif node.finding is None:
                await self._fail(name, node)
            elif fatal and node.finding["class"] not in ("reset", "reboot"):
                await self._clear(name, node)
            elif self.rng.random() < 0.5:
                await self._reboot(name, node)
            else:
                await self._clear(name, node)
        finally:
            self._busy.discard(name)

    async def finish(self) -> None:
        """Some of what is broken is repaired, until about as many are left as the budget allows, and a few more; and
        people end their maintenance of the nodes that jobs wait for: their taints on all of these would be a reason why
        no job may run."""
        await asyncio.gather(*self._events)
        for name in sorted(self.alone):
            if self.foreign.get(name):
                await self._foreign_taint(name)
        broken = [name for name, node in self._nodes.items() if node.finding is not None]
        for name in broken[self.most :]:
            await self._clear(name, self._nodes[name])

    async def _fail(self, name: str, node: _Node) -> None:
        broken = sum(each.finding is not None and each.finding["verdict"] == "FAIL" for each in self._nodes.values())
        kinds = FATAL if self.rng.random() < 0.7 and broken < 2 * self.most else HARMLESS
        node.occurrence += 1
        node.finding = self.rng.choice(kinds) | {"occurrence": node.occurrence}
        await self._publish(name)

    async def _reboot(self, name: str, node: _Node) -> None:
        node.boot += 1
        node.finding = None
        await self._publish(name)

    async def _clear(self, name: str, node: _Node) -> None:
        """A person does, and the agent carries it out."""
        assert node.finding is not None
        found = node.finding
        entry = {"check": "dmesg", "component": found["component"], "occurrence": found["occurrence"], "by": "ada"}
        with suppress(NotFound):  # there is no NodeHealth at the moment: the agent is told directly
            await insist(lambda: self.api.patch(f"{HEALTHS}/{name}", {"spec": {"clear": [entry]}}))
        over = {"component": found["component"], "reason": found["reason"], "occurrence": found["occurrence"]}
        node.cleared.append(over | {"how": "request", "at": AT})
        node.finding = None
        await self._publish(name)

    async def _foreign_taint(self, name: str) -> None:
        """A person sets or removes a taint of their own, with the Node as they have just read it."""

        async def write() -> None:
            node = await self.api.get(f"{NODES}/{name}")
            taints = node["spec"].get("taints") or []
            others = [each for each in taints if each["key"] != FOREIGN[0]]
            if len(others) == len(taints):
                others.append(dict(zip(("key", "value", "effect"), FOREIGN, strict=True)))
            body = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": others}}
            after = await self.api.patch(f"{NODES}/{name}", body)
            left = [each for each in after["spec"].get("taints") or () if each["key"] == FOREIGN[0]]
            self.foreign[name] = frozenset([FOREIGN] if left else [])

        await insist(write)


@dataclass
class RealAgents:
    """Nodes with a real agent, whose kernel log is a file. faulty: those whose last line came after the last clear;
    doubtful: those that somebody began to clear, which a deleted CRD may have undone."""

    api: KubeClient
    rng: random.Random
    logs: Mapping[str, Any]
    faulty: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    lines: int = 0

    async def live(self) -> None:
        """For ever: lines, and clears of what is found."""
        while True:
            await asyncio.sleep(self.rng.uniform(2.0, 6.0))
            name = self.rng.choice(list(self.logs))
            if name in self.faulty:
                await self._clear(name)
            else:
                self._write(name)

    def _write(self, name: str) -> None:
        self.lines += 1
        with self.logs[name].open("a") as log:
            log.write(XID.format(at=100 + self.lines))
        self.faulty.add(name)

    async def _clear(self, name: str) -> None:
        """What is reported; no person clears what nobody has seen."""
        try:
            health = await self.api.get(f"{HEALTHS}/{name}")
        except (ApiError, httpx2.TransportError):
            return
        found = [each for check in health.get("status", {}).get("checks", ()) for each in check.get("findings", ())]
        if not found:
            return
        entry = {
            "check": "dmesg",
            "component": found[0]["component"],
            "occurrence": found[0]["occurrence"],
            "by": "ada",
        }
        self.doubtful.add(name)
        with suppress(NotFound):
            await insist(lambda: self.api.patch(f"{HEALTHS}/{name}", {"spec": {"clear": [entry]}}))
        if all(each["occurrence"] <= entry["occurrence"] for each in found):
            await self._until_cleared(name, entry["occurrence"])

    async def _until_cleared(self, name: str, occurrence: int) -> None:
        """The agent has carried it out, so that a later line is a new occurrence."""
        while True:
            with suppress(ApiError, httpx2.TransportError):
                health = await self.api.get(f"{HEALTHS}/{name}")
                checks = health.get("status", {}).get("checks", ())
                open_ = [each for check in checks for each in check.get("findings", ())]
                if checks and not any(each["occurrence"] <= occurrence for each in open_):
                    self.faulty.discard(name)
                    self.doubtful.discard(name)
                    return
                if not health.get("spec", {}).get("clear"):  # the CRD was deleted meanwhile: nobody asks any more
                    return
            await asyncio.sleep(AGAIN_S)


@dataclass
class Jobs:
    """``count`` IPUJobs of five kinds, each with an end that is known from the start."""

    api: KubeClient
    rng: random.Random
    count: int
    right: dict[str, tuple[str, int]] = field(default_factory=dict)
    partitions: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    _end: dict[str, tuple[float, int]] = field(default_factory=dict)  # of the launcher: seconds, exit code

    def script(self, pod: SimulatedPod) -> PodScript:
        """Of simulated kubelets: launchers end as their job's kind says, workers run for ever."""
        job = pod.metadata.name.rsplit(f"-{LAUNCHER}", 1)[0]
        if pod.metadata.labels.get(ROLE) == LAUNCHER and job in self._end:
            run_s, code = self._end[job]
            return PodScript(run_s=run_s, exit_code=code)
        return PodScript()

    async def live(self, over_s: float) -> None:
        """Submits all of them over this time, and returns when the last of their users has acted."""
        async with asyncio.TaskGroup() as users:
            for number in range(self.count):
                await asyncio.sleep(self.rng.uniform(0.0, 2 * over_s / self.count))
                users.create_task(self._user(f"j{number}", number % 5))

    async def _user(self, name: str, kind: int) -> None:
        match kind:
            case 0 | 1:
                code = kind * 3
                self._end[name] = (self.rng.uniform(2.0, 10.0), code)
                await self._submit(name, training(restartPolicy={"type": "Never"}))
                self.right[name] = ("Failed" if code else "Completed", 0)
                self.optional.add(partition(SPACE, name, 0))
            case 2:
                await self._submit(name, inference())
                self._serves(name, 1)
            case 3:
                await self._submit(name, inference())
                await asyncio.sleep(self.rng.uniform(0.0, 10.0))
                scale = {"spec": {"replicas": 2}}
                await insist(lambda: self.api.patch(f"{jobs_path(SPACE)}/{name}/scale", scale))
                self._serves(name, 2)
            case _:
                await self._submit(name, training())
                await asyncio.sleep(self.rng.uniform(0.0, 15.0))
                with suppress(NotFound):
                    await insist(lambda: self.api.delete(f"{jobs_path(SPACE)}/{name}"))

    def _serves(self, name: str, instances: int) -> None:
        self.right[name] = ("Running", instances)
        self.partitions.update(partition(SPACE, name, number) for number in range(instances))

    async def _submit(self, name: str, spec: Object) -> None:
        body = {"apiVersion": API_VERSION, "kind": "IPUJob", "metadata": {"name": name, "namespace": SPACE}}
        with suppress(AlreadyExists):  # the answer to the first attempt was lost
            await insist(lambda: self.api.create(jobs_path(SPACE), body | {"spec": spec}))
