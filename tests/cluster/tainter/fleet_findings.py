"""Findings of a whole fleet at once, and all that becomes of its Nodes.

Agents are not run here: what they would publish is written as fast as the API server takes it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists
from muster_kube.api.objects import Node
from muster_sandbox.simulation.nodes import CONCURRENCY, for_each

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
NODES = "/api/v1/nodes"
KIND = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth"}
KEY = "muster.dev/faulty"
LABEL = "muster.dev/faulty"
HEALTH = "muster.dev/health"
ANNOTATION = "muster.dev/faults"
SILENCE_S = 600.0

Object = dict[str, Any]


def finding(reason: str, fault_class: str, verdict: str = "FAIL") -> Object:
    """As an agent publishes what it found in the kernel log; ``fault_class`` empty: it asks for nothing."""
    asks = {"class": fault_class} if fault_class else {}
    return asks | {
        "component": "gpu/0000:3b:00.0", "reason": reason, "verdict": verdict, "occurrence": 1, "count": 1,
        "message": f"NVRM: Xid (PCI:0000:3b:00): {reason.removeprefix('Xid')}, pid=1234, name=train",
        "firstSeen": "2026-01-01T00:00:00.000Z", "lastSeen": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip


FATAL = (
    finding("Xid79", "reboot"),
    finding("Xid95", "reset"),
    finding("Xid64", "contact"),
    finding("Xid48", "replace"),
)
"""Each asks for a repair of hardware."""

HARMLESS = (
    finding("Xid31", "restart-app"),  # fails, and a restart of the application cures it
    finding("Xid13", "restart-app", "WARN"),
    finding("Xid63", "", "WARN"),
    finding("Xid94", "restart-app"),
    finding("Xid92", "reset", "WARN"),  # what it asks for is not certain enough for a verdict of FAIL
    finding("Xid79", "reboot", "UNKNOWN"),  # could not be measured
)
"""None of these is a reason to take a node away by the shipped policy."""


def status(*findings: Object, boot: str = "boot-1") -> Object:
    order = ("FAIL", "WARN", "UNKNOWN")
    verdict = min((each["verdict"] for each in findings), key=order.index, default="PASS")
    check = {"name": "dmesg", "verdict": verdict, "findings": list(findings), "cleared": []}
    at = "2026-01-01T00:00:01.000Z"
    return {"status": {"verdict": verdict, "bootID": boot, "checks": [check], "observedAt": at}}


def finding_of_each(names: Sequence[str], findings: Sequence[Object]) -> dict[str, Object]:
    """The nodes take turns with ``findings``."""
    return {name: findings[number % len(findings)] for number, name in enumerate(names)}


async def healths(api: KubeClient, names: Sequence[str], *findings: Object) -> None:
    """A NodeHealth for each node, with what its agent has said until now; one that is there is written anew."""

    async def report(name: str) -> None:
        with suppress(AlreadyExists):
            await api.create(HEALTHS, KIND | {"metadata": {"name": name}})
        await api.patch(f"{HEALTHS}/{name}/status", status(*findings))

    await for_each(names, report)


async def publish(
    api: KubeClient,
    said: Mapping[str, Object],
    concurrency: int = CONCURRENCY,
    written: dict[str, float] | None = None,
) -> None:
    """``said``: a finding for each node. As fast as the server takes them, in that order.

    ``written`` is given when each was, in monotonic seconds.
    """

    async def report(name: str) -> None:
        await api.patch(f"{HEALTHS}/{name}/status", status(said[name]))
        if written is not None:
            written[name] = time.monotonic()

    await for_each(list(said), report, concurrency=concurrency)


class _Meta(msgspec.Struct, frozen=True):
    name: str
    resourceVersion: str = ""  # noqa: N815 - the API's name
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Taint(msgspec.Struct, frozen=True):
    key: str


class _Spec(msgspec.Struct, frozen=True):
    taints: tuple[_Taint, ...] = ()


class _Seen(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Seen


@dataclass(frozen=True)
class State:
    """What one write made of a Node. at: monotonic seconds when this process heard of it."""

    at: float
    name: str
    tainted: bool
    labelled: bool
    health: str
    memory: str
    role: str = ""


@dataclass
class Recorder:
    """Every state of some Nodes, in the order in which the server made them; ``tainted``: those that are so now."""

    names: frozenset[str]
    states: list[State] = field(default_factory=list)
    now: dict[str, State] = field(default_factory=dict)
    tainted: set[str] = field(default_factory=set)
    most: int = 0
    released: list[str] = field(default_factory=list)
    first_tainted: dict[str, float] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, event: _Event) -> None:
        node = event.object
        name = node.metadata.name
        if name not in self.names or event.type not in ("ADDED", "MODIFIED"):
            return
        state = State(
            time.monotonic(),
            name,
            any(taint.key == KEY for taint in node.spec.taints),
            node.metadata.labels.get(LABEL) == "true",
            node.metadata.labels.get(HEALTH, ""),
            node.metadata.annotations.get(ANNOTATION, ""),
            node.metadata.labels.get("muster.dev/role", ""),
        )
        self.states.append(state)
        self.now[name] = state
        if state.tainted:
            self.tainted.add(name)
            self.first_tainted.setdefault(name, state.at)
        elif name in self.tainted:
            self.tainted.discard(name)
            self.released.append(name)
        self.most = max(self.most, len(self.tainted))
        self.moved.set()

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
        """``timeout_s``: far more than anything takes."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.moved.clear()
                    await self.moved.wait()
        except TimeoutError:
            raise AssertionError(
                f"not within {timeout_s} s: {what}; {len(self.tainted)} tainted, at most {self.most} were"
            ) from None


@asynccontextmanager
async def recording(api: KubeClient, names: Iterable[str]) -> AsyncIterator[Recorder]:
    """``names``: the Nodes to follow, from now on. An end of the watch is an error: a state might be missed."""
    recorder = Recorder(frozenset(names))
    decoder = msgspec.json.Decoder(_Event)
    version = (await api.list_page(NODES, Node, params={"limit": 1})).resource_version
    begun = asyncio.Event()

    async def follow() -> None:
        query: dict[str, str | int | bool] = {"resourceVersion": version, "timeoutSeconds": 3000}
        async with api.watch(NODES, query, silence_s=SILENCE_S) as batches:
            begun.set()
            async for lines in batches:
                for line in lines:
                    recorder.note(decoder.decode(line))
        raise RuntimeError("the watch of Nodes has ended")

    task = asyncio.create_task(follow())
    watching = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        yield recorder
        if task.done():
            await task
    finally:
        for each_one in (task, watching):
            each_one.cancel()
        await asyncio.gather(task, watching, return_exceptions=True)
