"""Pods with accelerators under random ends: the goodput ledger's books are compared with what the injector knows, and
`muster simulate` with the ledger."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.soak.goodput_bed import MODEL, WAIT_S, Bed, Running, Truth
from tests.soak.goodput_simulation import disagreements

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_tainter.goodput.books import Figure, split_account
from muster_tainter.goodput.causes import Cause, Side
from muster_tainter.goodput.feed import BookKeeper
from muster_tainter.goodput.ledger import Ledger
from muster_tainter.goodput.pods.attempt import SETTLE_S, Attempt

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
    config: ClusterConfig, space: str, *, rounds: int, seed: int, folder: Path, say: Callable[[str], None]
) -> Truth:
    """``rounds`` of each kind, in a random order, under three leaders one after the other. folder: for the files of
    `muster simulate`."""
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
                say(f"goodput: {len(bed.truth.ends)} ends, leader {bed.leaders}")
            bed.truth.wrong += await asyncio.to_thread(disagreements, bed.truth, folder)
        finally:
            for name in (far, *bed.nodes):
                await bed.remove_node(name)
        return bed.truth


async def _judge(bed: Bed, keeper: BookKeeper, *, last: bool) -> None:
    """Save the books; at the end, compare them with the truth."""
    ledger, truth = keeper.ledger, bed.truth
    assert ledger is not None

    def all_known() -> bool:
        return len(_of_space(ledger, bed.space)) <= (0 if last else 1)

    begun = time.monotonic()
    while True:
        await keeper.book(ledger)
        if all_known():
            break
        if time.monotonic() > begun + WAIT_S:
            truth.wrong.append(f"{len(_of_space(ledger, bed.space))} runs are not booked to their end")
            break
        await asyncio.sleep(0.1)
    await keeper.save(ledger)
    if not last:
        return
    found: Counter[Cause] = Counter()
    for bucket in ledger.books.buckets():
        for place, row in bucket.rows.items():
            if place.model == MODEL:
                truth.interruptions += round(sum(v for name, v in row.items() if name.startswith(Figure.INTERRUPTIONS)))
        for row in bucket.teams.get(bed.space, Counter()).items():
            parts = split_account(row[0])
            if parts is not None and parts[0] is Side.WORK:
                found[parts[1]] += row[1]
    truth.found = found


def _of_space(ledger: Ledger, space: str) -> list[Attempt]:
    """Runs that are not booked to their end; others' pods run beside them."""
    return [each for each in ledger.pods.runs() if ledger.books.teams[each.team] == space]
