"""Takes off everything of Muster's from nodes, with a tainter that runs or without one.

In both cases a person's word is written into the NodeHealths first: whatever was open is closed by it, so that nothing
but a new firing taints a released node again. Then a tainter that leads takes its taints off itself; where none leads,
they are taken off here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_cli.commands.clear import write_clear
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, NotFound
from muster_kube.api.objects import Node, Object
from muster_kube.api.times import rfc3339, rfc3339_whole
from muster_kube.nodehealth import CLEAR_LIMIT, PATH, ClearEntry, NodeHealth
from muster_tainter.events.recorder import condition_patch
from muster_tainter.faults.desired_state import (
    FAULTY_LABEL,
    MANAGED_LABEL,
    OUR_ANNOTATIONS,
    OUR_LABELS,
    Decision,
    decide,
    is_managed,
    is_ours,
)
from muster_tainter.faults.manual_clear import clear_entries
from muster_tainter.faults.messages import CONDITION, describe_fault, format_taint
from muster_tainter.faults.node_record import LOST_CHECK, NodeRecord, as_our_taint, read_record
from muster_tainter.faults.node_report import read_report
from muster_tainter.policy.rules import OUR_PREFIX, STARTUP_KEY, Policy

NODES = "/api/v1/nodes"
MANAGER = "muster-cli"
AT_ONCE = 24  # nodes: more only queue in the API server
SILENCE_S = 30.0  # of a list of a large fleet
TRIES = 8  # another writer of the same object between reading and writing
PATIENCE_S = 60.0  # without any node becoming free
LOOK_EVERY_S = 0.5

T = TypeVar("T", bound=Object)


@dataclass(frozen=True)
class ReleaseTarget:
    """A node that carries something. taints: ours, as kubectl takes them; faults: open ones, and FAIL findings.

    done, why: what came of it; why is empty where all is off. node: as it was when it was found
    """

    name: str
    taints: tuple[str, ...] = ()
    faults: int = 0
    closed: int = 0
    done: bool = False
    why: str = ""
    node: Node | None = None

    @property
    def heavy(self) -> bool:
        """More than labels and notes."""
        return bool(self.taints or self.faults)


def make_target(node: Node, failing: int) -> ReleaseTarget | None:
    """None: there is nothing of ours on it. failing: FAIL findings in its NodeHealth."""
    memory = read_record(node)
    taints = tuple(format_taint(taint) for taint in node.spec.taints if is_ours(taint, memory))
    notes = any(key in node.metadata.labels for key in OUR_LABELS if key != MANAGED_LABEL) or any(
        key in node.metadata.annotations for key in OUR_ANNOTATIONS
    )
    faults = max(sum(fault.rest or 1 for fault in memory.open), failing)
    if not taints and not faults and not notes and not any(c.type == CONDITION for c in node.status.conditions):
        return None
    return ReleaseTarget(node.metadata.name, taints, faults, node=node)


async def find_targets(client: KubeClient, names: Iterable[str] | None) -> list[ReleaseTarget]:
    """All nodes that carry something of ours, or those of ``names`` (NotFound where one is no Node), by name."""
    found: list[ReleaseTarget] = []
    if names is not None:
        for name in dict.fromkeys(names):
            node = await client.get(f"{NODES}/{name}", type=Node)
            target = make_target(node, _fails(await _health(client, name)))
            found += [] if target is None else [target]
        return found
    failing: dict[str, int] = {}
    try:
        async for health in _pages(client, PATH, NodeHealth):
            if count := _fails(health):
                failing[health.metadata.name] = count
    except NotFound:
        pass  # its CRD is gone: what is left on the nodes goes all the same
    async for node in _pages(client, NODES, Node):
        target = make_target(node, failing.get(node.metadata.name, 0))
        found += [] if target is None else [target]
    return sorted(found, key=lambda target: target.name)


async def _pages(client: KubeClient, path: str, kind: type[T]) -> AsyncIterator[T]:
    async for page in client.list_pages(path, kind, timeout_s=SILENCE_S):
        for item in page.items:
            yield item


def _fails(health: NodeHealth | None) -> int:
    """FAIL findings that no person's word has closed."""
    if health is None:
        return 0
    report = read_report(health)
    findings = (report.findings or {}).items()
    return sum(f.verdict == Verdict.FAIL and report.clear_for(key, f.occurrence) is None for key, f in findings)


async def _health(client: KubeClient, name: str) -> NodeHealth | None:
    try:
        return await client.get(f"{PATH}/{name}", type=NodeHealth)
    except NotFound:
        return None


class NodeRelease:
    """by: whose word it is. progress(done, of): called as nodes become free. now: seconds since the epoch"""

    def __init__(
        self,
        client: KubeClient,
        by: str,
        *,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._by = by
        self._progress = progress
        self._now = now
        self._clock = clock
        self._sleep = sleep

    async def by_hand(self, targets: list[ReleaseTarget]) -> list[ReleaseTarget]:
        """No tainter leads: everything is taken off here."""
        return await self._each(targets, self._strip)

    async def by_tainter(self, targets: list[ReleaseTarget]) -> list[ReleaseTarget]:
        """A tainter leads: faults are closed by a person's word, and it takes its taints off."""
        # those first that wait for a place under a budget: no place that becomes free is given to one of them
        told = await self._each([t for t in targets if not t.taints], self._close, counted=False)
        told += await self._each([t for t in targets if t.taints], self._close, counted=False)
        waiting = {target.name: target for target in told if not target.why}
        ended: dict[str, ReleaseTarget] = {}
        patience_ends = self._clock() + PATIENCE_S
        while waiting and self._clock() < patience_ends:
            names = waiting.keys() - await self._labelled()
            if not names and len(waiting) <= AT_ONCE:
                names = set(waiting)  # they may have been tainted anew
            looked = await self._each([waiting[name] for name in sorted(names)], self._look, counted=False)
            for target in looked:
                if target.done or target.why:
                    waiting.pop(target.name)
                    ended[target.name] = target
                    patience_ends = self._clock() + PATIENCE_S
            self._progress(len(ended), len(targets))
            if waiting:
                await self._sleep(LOOK_EVERY_S)
        late = "closed, but the tainter has not taken the taint off yet: see its log"
        ended |= {name: replace(target, why=late) for name, target in waiting.items()}
        return [ended.get(target.name, target) for target in told]

    async def _labelled(self) -> set[str]:
        """Nodes whose label says that a taint of ours is there; few, and the label goes in the same write."""
        faulty = {"labelSelector": FAULTY_LABEL}
        pages = self._client.list_pages(NODES, Node, params=faulty, timeout_s=SILENCE_S)
        return {node.metadata.name async for page in pages for node in page.items}

    async def _each(
        self,
        targets: list[ReleaseTarget],
        act: Callable[[ReleaseTarget], Awaitable[ReleaseTarget]],
        *,
        counted: bool = True,
    ) -> list[ReleaseTarget]:
        """``act`` on all of them, AT_ONCE at a time, in their order; an error is that node's alone."""
        results: dict[str, ReleaseTarget] = {}
        left = iter(targets)
        done = 0

        async def work() -> None:
            nonlocal done
            for target in left:
                try:
                    results[target.name] = await act(target)
                except ApiError as error:
                    results[target.name] = replace(target, why=f"{error.reason}: {error.message}")
                if counted:
                    done += results[target.name].done
                    self._progress(done, len(targets))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(targets))):
                group.create_task(work())
        return [results[target.name] for target in targets]

    async def _close(self, target: ReleaseTarget) -> ReleaseTarget:
        """Everything open is closed by a person's word; and a taint that no fault stands behind comes off."""
        for attempt in range(TRIES):
            try:
                node = await self._node(target, again=attempt > 0)
            except NotFound:
                return replace(target, done=True)
            health = await _health(self._client, target.name)
            if health is None and attempt < TRIES - 1 and is_managed(node):
                await self._sleep(LOOK_EVERY_S)  # the tainter makes one
                continue
            try:
                closed = await self._clear(node, health)
                await self._remove_startup(node)
            except Conflict:
                continue
            return replace(target, closed=closed)
        return replace(target, why=f"written by others {TRIES} times meanwhile: try again")

    async def _look(self, target: ReleaseTarget) -> ReleaseTarget:
        try:
            node = await self._client.get(f"{NODES}/{target.name}", type=Node)
        except NotFound:
            return replace(target, done=True)
        memory = read_record(node)
        report = read_report(await _health(self._client, target.name))
        if any(report.clear_for(fault.key, fault.occurrence) for fault in memory.open):
            return target  # the tainter has not come to it yet
        if not any(is_ours(taint, memory) for taint in node.spec.taints):
            return replace(target, done=True)
        return replace(target, why=f"fired anew: {describe_fault(memory.open[0])}") if memory.open else target

    async def _strip(self, target: ReleaseTarget) -> ReleaseTarget:
        closed = target.closed
        for attempt in range(TRIES):
            try:
                node = await self._node(target, again=attempt > 0)
                if target.heavy:
                    closed = max(closed, await self._clear(node, await _health(self._client, target.name)))
                decision = decide_hands_off(node, self._now())
                if decision.writes:
                    node = await self._patch(node, decision.patch(node.metadata.resource_version))
                if any(condition.type == CONDITION for condition in node.status.conditions):
                    body = condition_patch(node, None, rfc3339_whole(self._now()))
                    await self._client.patch(f"{NODES}/{target.name}/status", body, kind="strategic", type=Node)
            except Conflict:
                continue
            except NotFound:
                return replace(target, done=True)
            return replace(target, done=True, closed=closed)
        return replace(target, closed=closed, why=f"written by others {TRIES} times meanwhile: try again")

    async def _node(self, target: ReleaseTarget, *, again: bool) -> Node:
        """As it was found, at first: most have not changed since, and a write on an older one is refused."""
        if target.node is not None and not again:
            return target.node
        return await self._client.get(f"{NODES}/{target.name}", type=Node)

    async def _clear(self, node: Node, health: NodeHealth | None) -> int:
        """Entries written. Raises Conflict."""
        if health is None:
            return 0
        new = clear_everything(node, health, self._by, rfc3339(self._now()))
        if not new:
            return 0
        try:
            await write_clear(self._client, health, new)
        except NotFound:  # the NodeHealth went meanwhile, and with it what it reported
            return 0
        return len(new)

    async def _remove_startup(self, node: Node) -> None:
        kept = tuple(taint for taint in node.spec.taints if taint.key != STARTUP_KEY)
        if kept != node.spec.taints:
            metadata = {"resourceVersion": node.metadata.resource_version}
            await self._patch(node, {"metadata": metadata, "spec": {"taints": kept or None}})

    async def _patch(self, node: Node, body: object) -> Node:
        path = f"{NODES}/{node.metadata.name}"
        return await self._client.patch(path, body, type=Node, params={"fieldManager": MANAGER})


def clear_everything(node: Node, health: NodeHealth, by: str, at: str) -> tuple[ClearEntry, ...]:
    """What closes every open fault and every FAIL finding of the node. Warnings stay: they taint nothing."""
    checks = tuple(
        msgspec.structs.replace(check, findings=tuple(f for f in check.findings if f.verdict == Verdict.FAIL))
        for check in health.status.checks
    )
    failing = msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, checks=checks))
    memory = read_record(node)
    found = clear_entries(failing, memory, None, None, by, at)
    if _has_lost(node, memory):
        found = (*found, ClearEntry(check=LOST_CHECK, component="*", occurrence=1, by=by, at=at))
    return found[:CLEAR_LIMIT]


def _has_lost(node: Node, memory: NodeRecord) -> bool:
    """A taint of ours by name that no memory knows: a tainter would keep it, as its reason is lost."""
    return any(
        taint.key.startswith(OUR_PREFIX) and taint.key != STARTUP_KEY and as_our_taint(taint) not in memory.ours
        for taint in node.spec.taints
    )


_NO_RULES = Policy.model_validate({"rules": ()})


def decide_hands_off(node: Node, now: float) -> Decision:
    """What the tainter itself does about a node that is not its own any more: everything comes off."""
    labels = {**node.metadata.labels, MANAGED_LABEL: "false"}
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    return decide(msgspec.structs.replace(node, metadata=metadata), None, _NO_RULES, now)
