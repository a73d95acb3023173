"""Leaders that are killed or frozen in the middle of many taints: what comes of it is what would have come anyway.

A frozen leader wakes up when another leads already, with writes in hand that it had decided on. Each state that any
write makes of a Node is seen here, so a budget that is exceeded for a moment only is seen, too.
"""

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.fleet_findings import (
    FATAL,
    HARMLESS,
    HEALTHS,
    Recorder,
    finding,
    healths,
    publish,
    recording,
)
from tests.cluster.tainter.test_end_to_end import Cluster, Replica, Tainters, leader_of, until

from muster_kube.api.errors import ApiError, NotFound
from muster_kube.api.times import rfc3339_micro
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

LEASES = "/apis/coordination.k8s.io/v1/namespaces/muster/leases"
LEASE = "muster-tainter"
POOL = "testbed.muster.dev/pool"
WORST = finding("Xid48", "replace")
MILD = finding("Xid95", "reset")
LOST = ("ERROR", LEASE)  # in the log line of a leader that lost its lease


class Standbys:
    """Replicas that are warm and wait for the lease, which this test holds until ``begin``.

    A slow machine may have one of them lose the lease by itself: nothing here hangs on who leads.
    """

    def __init__(self, cluster: Cluster, tainters: Tainters) -> None:
        self._cluster = cluster
        self._tainters = tainters
        self._running: list[Replica] = []
        self._free = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None

    async def start(self, count: int, policy: Path) -> None:
        await self._hold("the test")
        self._holding = asyncio.create_task(self._keep_hold())
        started = [self._tainters.start("--policy", str(policy), wait=False) for _ in range(count)]
        self._running += await asyncio.gather(*started)

    async def begin(self) -> Replica:
        """The lease is free; who has taken it?"""
        assert self._holding is not None
        self._free.set()
        await self._holding
        await self._hold("")
        return await self.leader()

    async def _keep_hold(self) -> None:
        """A hold lasts for a minute at most, which a slow machine may need to start the replicas."""
        while not self._free.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._free.wait(), 10.0)
            with suppress(ApiError):  # the next turn comes before the hold ends
                await self._hold("the test")

    async def close(self) -> None:
        if self._holding is not None:  # a test may have failed before `begin`
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)

    async def _hold(self, holder: str) -> None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 60, "leaseTransitions": 1}
        spec["renewTime"] = rfc3339_micro(time.time())
        try:
            await self._cluster.api.patch(f"{LEASES}/{LEASE}", {"spec": spec})
        except NotFound:
            await self._cluster.api.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec})

    async def leader(self) -> Replica:
        """Who leads of those that run."""
        return await leader_of(self._running)

    async def kill(self, replica: Replica) -> None:
        replica.process.send_signal(signal.SIGKILL)
        self._running.remove(replica)
        await asyncio.to_thread(replica.process.wait)

    def freeze(self, replica: Replica) -> None:
        replica.process.send_signal(signal.SIGSTOP)
        self._running.remove(replica)

    async def wake(self, replica: Replica) -> None:
        """Until it has let go of all that it had in hand."""
        before = replica.logged(*LOST)
        replica.process.send_signal(signal.SIGCONT)
        self._running.append(replica)

        async def knows() -> bool:
            return not await replica.leads() or replica.logged(*LOST) > before

        await until(knows, "the woken replica knows that it does not lead")


@pytest.fixture
async def standbys(cluster: Cluster, tainters: Tainters) -> AsyncIterator[Standbys]:
    made = Standbys(cluster, tainters)
    yield made
    await made.close()


def policy_file(folder: Path, pool: str, budget: str) -> Path:
    file = folder / f"{pool}.yaml"
    pools = f"[{{name: {pool}, selector: {{matchLabels: {{{POOL}: {pool}}}}}, budget: {budget}}}]"
    rules = "[{name: hardware, match: {class: [reset, reboot, replace, contact]}, action: taint}]"
    file.write_text(f"pools: {pools}\nrules: {rules}\nincidents: {{nodes: 100000}}\n")
    return file


async def make_nodes(fleet: SimulatedNodes, cluster: Cluster, pool: str, count: int) -> list[str]:
    """Nodes of a pool that their agents called well."""
    names = await fleet.create(count, prefix=pool, shape=NodeShape(labels={POOL: pool}))
    await healths(cluster.api, names)
    return names


async def nothing_is_left_to_do(standbys: Standbys, seen: Recorder) -> None:
    """Every queue of the leader is empty, and each state of each Node was whole."""
    leader = await standbys.leader()

    async def empty() -> bool:
        page = (await leader.get("/metrics")).text
        depths = [line for line in page.splitlines() if line.startswith("muster_tainter_queue_depth")]
        return bool(depths) and all(line.endswith(" 0.0") for line in depths)

    await until(empty, "its queues are empty")
    for state in seen.states:
        assert state.tainted == state.labelled, f"{state.name}: taint and label come in one write"
    for name in seen.tainted:
        memory = json.loads(seen.now[name].memory)
        assert (len(memory["ours"]), bool(memory["open"])) == (1, True), memory


async def lose_two_leaders(standbys: Standbys, seen: Recorder, end: int) -> None:
    """The first is killed at some point; the second frozen, and awake again when the third is at work. ``end``: so many
    are tainted when all is done."""
    chance = random.Random()
    first = await standbys.begin()
    at = chance.randint(1, end // 3)
    await seen.until(lambda: len(seen.tainted) >= at, "the first has begun")
    await standbys.kill(first)
    done = min(len(seen.tainted), end - 1)  # on some machine all may be done before the signal comes
    await seen.until(lambda: len(seen.tainted) > done, "the second goes on")
    second = await standbys.leader()
    standbys.freeze(second)
    await standbys.leader()
    at = min(len(seen.tainted) + chance.randint(1, end // 6), end)
    await seen.until(lambda: len(seen.tainted) >= at, "the third goes on")
    await standbys.wake(second)
    await seen.until(lambda: len(seen.tainted) >= end, "all is done")
    await nothing_is_left_to_do(standbys, seen)


async def test_a_burst_is_finished_by_whoever_leads(
    standbys: Standbys, fleet: SimulatedNodes, cluster: Cluster, tmp_path: Path
) -> None:
    names = await make_nodes(fleet, cluster, "burst", 120)
    await publish(cluster.api, {name: FATAL[i % len(FATAL)] for i, name in enumerate(names)})
    async with recording(cluster.api, names) as seen:
        await standbys.start(3, policy_file(tmp_path, "burst", "{}"))
        await lose_two_leaders(standbys, seen, 120)
        assert (seen.tainted, seen.released) == (set(names), [])


async def test_under_a_budget_the_worst_are_tainted_and_never_too_many_whoever_leads(
    standbys: Standbys, fleet: SimulatedNodes, cluster: Cluster, tmp_path: Path
) -> None:
    names = await make_nodes(fleet, cluster, "tight", 120)
    worst = set(random.Random().sample(names, 40))
    await publish(cluster.api, {name: WORST if name in worst else MILD for name in names})
    async with recording(cluster.api, names) as seen:
        await standbys.start(3, policy_file(tmp_path, "tight", "{tainted: 60}"))
        await lose_two_leaders(standbys, seen, 60)
        assert (seen.most, len(seen.tainted), worst - seen.tainted, seen.released) == (60, 60, set(), [])


async def test_of_fatal_and_harmless_findings_the_fatal_ones_taint_whoever_leads(
    standbys: Standbys, fleet: SimulatedNodes, cluster: Cluster, tmp_path: Path
) -> None:
    names = await make_nodes(fleet, cluster, "pick", 150)
    reported = random.Random().sample(names, 130)
    fatal = set(reported[:50])
    said = {
        name: FATAL[i % len(FATAL)] if name in fatal else HARMLESS[i % len(HARMLESS)] for i, name in enumerate(reported)
    }
    order = random.Random().sample(reported, len(reported))
    async with recording(cluster.api, names) as seen:
        await standbys.start(3, policy_file(tmp_path, "pick", "{}"))
        async with asyncio.TaskGroup() as both:
            both.create_task(publish(cluster.api, {name: said[name] for name in order}))
            await lose_two_leaders(standbys, seen, 50)

        def all_are_taken_in() -> bool:
            return all(seen.now[name].health == told(said[name]) for name in reported if name in seen.now)

        await seen.until(all_are_taken_in, "every finding has its label")
        assert (seen.tainted, set(seen.first_tainted), seen.released) == (fatal, fatal, [])


def told(found: dict[str, Any]) -> str:
    return str(found["verdict"]).lower()


async def test_a_place_that_a_frozen_leader_was_about_to_give_is_not_given_twice(
    standbys: Standbys, fleet: SimulatedNodes, cluster: Cluster, tmp_path: Path
) -> None:
    names = await make_nodes(fleet, cluster, "free", 90)
    first, waiting = names[:30], names[30:]
    await publish(cluster.api, dict.fromkeys(first, MILD))
    async with recording(cluster.api, names) as seen:
        await standbys.start(2, policy_file(tmp_path, "free", "{tainted: 30}"))
        leader = await standbys.begin()
        await seen.until(lambda: seen.tainted == set(first), "the budget is used")
        await publish(cluster.api, dict.fromkeys(waiting, WORST))

        def all_wait() -> bool:
            return all(name in seen.now and seen.now[name].memory for name in waiting)

        await seen.until(all_wait, "each is remembered as faulty, and withheld")
        over = {"spec": {"clear": [{"check": "dmesg", "component": "*", "occurrence": 1, "by": "ada"}]}}
        await asyncio.gather(*(cluster.api.patch(f"{HEALTHS}/{name}", over) for name in first))
        await seen.until(lambda: len(seen.tainted & set(waiting)) > 8, "places are given")
        standbys.freeze(leader)
        await standbys.leader()
        await seen.until(lambda: len(seen.tainted & set(waiting)) == 30, "its successor gives the others")
        await standbys.wake(leader)
        await nothing_is_left_to_do(standbys, seen)
        assert (seen.most, len(seen.tainted), seen.tainted & set(first)) == (30, 30, set())
