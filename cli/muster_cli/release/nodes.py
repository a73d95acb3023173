"""Removes everything that Muster has set on nodes, whether a tainter leads or not.

First all open faults are closed by a clear entry in the NodeHealths, so that only a new fault taints a released node
again. Then the leading tainter removes its taints; without one, this module removes them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_cli.commands.clear import write_clear
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, Forbidden, NotFound
from muster_kube.api.objects import Node, Object, Taint
from muster_kube.api.times import rfc3339, rfc3339_whole
from muster_kube.nodehealth import CLEAR_LIMIT, PATH, ClearEntry, NodeHealth
from muster_tainter.devices.api_versions import NotServed, find_api
from muster_tainter.devices.rules.taint_rule import SELECTOR, DeviceTaintRule
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
from muster_tainter.faults.node_report import read_report
from muster_tainter.faults.record.node_record import LOST_CHECK, NodeRecord, as_our_taint, read_record
from muster_tainter.faults.record_trust import trusted_record, untrusted_taints
from muster_tainter.policy.rules import NOT_FOR_FAULTS, OUR_PREFIX, SPARE_KEY, STARTUP_KEY, Policy

NODES = "/api/v1/nodes"
MANAGER = "muster-cli"
AT_ONCE = 24  # nodes; more requests would only queue in the API server
SILENCE_S = 30.0  # without a byte of a list, which may be of a large fleet
TRIES = 8  # another client may write the same object between our read and our write
PATIENCE_S = 60.0  # give up when no node was released for so long
LOOK_EVERY_S = 0.5

T = TypeVar("T", bound=Object)


@dataclass(frozen=True)
class ReleaseTarget:
    """A node with something to remove. taints: of Muster, as kubectl writes them. faults: open faults or FAIL findings.

    left: taints of others that the node's record calls Muster's, though no rule of the policy sets them
    done: everything is removed; why: the reason if not. node: as it was when it was listed
    """

    name: str
    taints: tuple[str, ...] = ()
    faults: int = 0
    left: tuple[str, ...] = ()
    closed: int = 0
    done: bool = False
    why: str = ""
    node: Node | None = None

    @property
    def heavy(self) -> bool:
        """It has more than labels and annotations."""
        return bool(self.taints or self.faults)


def make_target(node: Node, failing: int, policy: Policy, *, led: bool = False) -> ReleaseTarget | None:
    """None if Muster has set nothing on the node. failing: FAIL findings in its NodeHealth. led: a tainter leads."""
    stored = read_record(node)
    memory = trusted_record(stored, node, policy)
    taints = tuple(map(format_taint, removable_taints(node, memory, led=led)))
    notes = any(key in node.metadata.labels for key in OUR_LABELS if key != MANAGED_LABEL) or any(
        key in node.metadata.annotations for key in OUR_ANNOTATIONS
    )
    faults = max(sum(fault.rest or 1 for fault in memory.open), failing)
    if not taints and not faults and not notes and not any(c.type == CONDITION for c in node.status.conditions):
        return None
    left = untrusted_taints(node, stored, memory)
    return ReleaseTarget(node.metadata.name, taints, faults, left, node=node)


def removable_taints(node: Node, memory: NodeRecord, *, led: bool) -> tuple[Taint, ...]:
    """Muster's taints. Without that of a spare if a tainter leads: no fault requires it, and the tainter would set it
    again."""
    ours = (taint for taint in node.spec.taints if is_ours(taint, memory))
    return tuple(taint for taint in ours if not (led and taint.key == SPARE_KEY))


async def find_targets(
    client: KubeClient, names: Iterable[str] | None, policy: Policy, *, led: bool = False
) -> list[ReleaseTarget]:
    """The nodes of ``names``, or all, on which Muster has set something. led: a tainter leads. Raises NotFound for an
    unknown name."""
    found: list[ReleaseTarget] = []
    if names is not None:
        for name in dict.fromkeys(names):
            node = await client.get(f"{NODES}/{name}", type=Node)
            target = make_target(node, _fails(await _health(client, name)), policy, led=led)
            found += [] if target is None else [target]
        return found
    failing: dict[str, int] = {}
    try:
        async for health in _pages(client, PATH, NodeHealth):
            if count := _fails(health):
                failing[health.metadata.name] = count
    except NotFound:
        pass  # without the CRD the nodes may still have taints and labels
    async for node in _pages(client, NODES, Node):
        target = make_target(node, failing.get(node.metadata.name, 0), policy, led=led)
        found += [] if target is None else [target]
    return sorted(found, key=lambda target: target.name)


async def _pages(client: KubeClient, path: str, kind: type[T]) -> AsyncIterator[T]:
    async for page in client.list_pages(path, kind, timeout_s=SILENCE_S):
        for item in page.items:
            yield item


def _fails(health: NodeHealth | None) -> int:
    """FAIL findings that no clear entry has closed."""
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
    """by: the user, for the clear entries. policy: whose taints to remove, beside those with Muster's prefix.
    progress(done, of): called for released nodes. now: Unix time"""

    def __init__(
        self,
        client: KubeClient,
        by: str,
        policy: Policy,
        *,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._by = by
        self._policy = policy
        self._progress = progress
        self._now = now
        self._clock = clock
        self._sleep = sleep
        self._rules: dict[str, list[str]] = {}
        self.unread_rules = ""
        """Why Muster's DeviceTaintRules, if there are any, were not removed."""

    async def by_hand(self, targets: list[ReleaseTarget]) -> list[ReleaseTarget]:
        """Without a leading tainter: remove everything here."""
        try:
            self._rules = await find_rules(self._client)
        except Forbidden as error:
            self.unread_rules = str(error)
        return await self._each(targets, self._strip)

    async def by_tainter(self, targets: list[ReleaseTarget]) -> list[ReleaseTarget]:
        """With a leading tainter: close the faults, and wait until it has removed its taints."""
        # nodes that wait for a budget first, so that the tainter taints none of them as others become free
        closed = await self._each([t for t in targets if not t.taints], self._close, counted=False)
        closed += await self._each([t for t in targets if t.taints], self._close, counted=False)
        waiting = {target.name: target for target in closed if not target.why}
        ended: dict[str, ReleaseTarget] = {}
        patience_ends = self._clock() + PATIENCE_S
        while waiting and self._clock() < patience_ends:
            names = waiting.keys() - await self._labelled()
            if not names and len(waiting) <= AT_ONCE:
                names = set(waiting)  # they may have been tainted again
            looked = await self._each([waiting[name] for name in sorted(names)], self._look, counted=False)
            for target in looked:
                if target.done or target.why:
                    waiting.pop(target.name)
                    ended[target.name] = target
                    patience_ends = self._clock() + PATIENCE_S
            self._progress(len(ended), len(targets))
            if waiting:
                await self._sleep(LOOK_EVERY_S)
        late = "faults closed, but the tainter has not removed the taint yet: see its log"
        ended |= {name: replace(target, why=late) for name, target in waiting.items()}
        return [ended.get(target.name, target) for target in closed]

    async def _labelled(self) -> set[str]:
        """Nodes with the label of a tainted node, which the tainter removes in the same write as the taint."""
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
        """Call ``act`` for all targets, AT_ONCE at a time. An API error fails its own target only."""
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
        """Close all open faults, and remove the startup taint, which belongs to no fault."""
        for attempt in range(TRIES):
            try:
                node = await self._node(target, again=attempt > 0)
            except NotFound:
                return replace(target, done=True)
            health = await _health(self._client, target.name)
            if health is None and attempt < TRIES - 1 and is_managed(node):
                await self._sleep(LOOK_EVERY_S)  # the tainter creates one
                continue
            try:
                closed = await self._clear(node, health)
                await self._remove_startup(node)
            except Conflict:
                continue
            return replace(target, closed=closed)
        return replace(target, why=f"{TRIES} writes conflicted with other clients: try again")

    async def _look(self, target: ReleaseTarget) -> ReleaseTarget:
        try:
            node = await self._client.get(f"{NODES}/{target.name}", type=Node)
        except NotFound:
            return replace(target, done=True)
        memory = trusted_record(read_record(node), node, self._policy)
        report = read_report(await _health(self._client, target.name))
        if any(report.clear_for(fault.key, fault.occurrence) for fault in memory.open):
            return target  # the tainter has not processed the clear entry yet
        if not removable_taints(node, memory, led=True):
            return replace(target, done=True)
        return replace(target, why=f"a new fault: {describe_fault(memory.open[0])}") if memory.open else target

    async def _strip(self, target: ReleaseTarget) -> ReleaseTarget:
        closed = target.closed
        for attempt in range(TRIES):
            try:
                node = await self._node(target, again=attempt > 0)
                if target.heavy:
                    closed = max(closed, await self._clear(node, await _health(self._client, target.name)))
                decision = decide_hands_off(node, self._policy, self._now())
                if decision.writes:
                    node = await self._patch(node, decision.patch(node.metadata.resource_version))
                await self._delete_rules(target.name)
                if any(condition.type == CONDITION for condition in node.status.conditions):
                    body = condition_patch(node, None, rfc3339_whole(self._now()))
                    await self._client.patch(f"{NODES}/{target.name}/status", body, kind="strategic", type=Node)
            except Conflict:
                continue
            except NotFound:
                return replace(target, done=True)
            return replace(target, done=True, closed=closed)
        return replace(target, closed=closed, why=f"{TRIES} writes conflicted with other clients: try again")

    async def _delete_rules(self, node: str) -> None:
        """Muster's DeviceTaintRules of a node: only the tainter would delete them."""
        for path in self._rules.get(node, ()):
            with suppress(NotFound):
                await self._client.delete(path)

    async def _node(self, target: ReleaseTarget, *, again: bool) -> Node:
        """First the node as listed, as most have not changed; the API server rejects a write on an old version."""
        if target.node is not None and not again:
            return target.node
        return await self._client.get(f"{NODES}/{target.name}", type=Node)

    async def _clear(self, node: Node, health: NodeHealth | None) -> int:
        """Returns the number of clear entries written. Raises Conflict."""
        if health is None:
            return 0
        new = clear_everything(node, health, self._by, rfc3339(self._now()))
        if not new:
            return 0
        try:
            await write_clear(self._client, health, new)
        except NotFound:  # the NodeHealth was deleted meanwhile, with its findings
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


async def find_rules(client: KubeClient) -> dict[str, list[str]]:
    """The paths of Muster's DeviceTaintRules, by node; none if the API server does not serve them. Raises ApiError."""
    try:
        path = (await find_api(client)).rules
    except NotServed:
        return {}
    page = await client.list_page(path, DeviceTaintRule, params={"labelSelector": SELECTOR}, timeout_s=SILENCE_S)
    found: dict[str, list[str]] = {}
    for rule in page.items:
        if rule.node:
            found.setdefault(rule.node, []).append(f"{path}/{rule.metadata.name}")
    return found


def clear_everything(node: Node, health: NodeHealth, by: str, at: str) -> tuple[ClearEntry, ...]:
    """Clear entries for every open fault and FAIL finding of the node. Warnings stay, as they taint nothing."""
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
    """Whether the record lacks a taint with Muster's prefix. The tainter would keep it, as its fault is unknown."""
    return any(
        taint.key.startswith(OUR_PREFIX) and taint.key not in NOT_FOR_FAULTS and as_our_taint(taint) not in memory.ours
        for taint in node.spec.taints
    )


def decide_hands_off(node: Node, policy: Policy, now: float) -> Decision:
    """The tainter's own decision for an unmanaged node: remove everything."""
    labels = {**node.metadata.labels, MANAGED_LABEL: "false"}
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    return decide(msgspec.structs.replace(node, metadata=metadata), None, policy, now)
