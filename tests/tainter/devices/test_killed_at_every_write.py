"""A life of one node whose leader is killed at one of its writes: each in turn, before and after it was applied.

The writes are those of the rules and of the Node. While a Node's PATCH is under way, its rules are written too, so both
orders are tried.
"""

import asyncio
import itertools

import pytest
from tests.tainter.devices.device_world import (
    Died,
    FakeRules,
    Leader,
    finding,
    gpu,
    health,
    protected,
    resource_slice,
    taints,
)

from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.record.node_record import read_record

# one GPU, another, a third (more than half: the node), a reboot that leaves one of them, and none; then a fault of the
# whole node beside one of a GPU, and again none
LIFE: list[tuple[NodeHealth, set[str], bool]] = [
    (health(finding(0)), {gpu(0)}, False),
    (health(finding(0), finding(1, occurrence=2)), {gpu(0), gpu(1)}, False),
    (health(finding(0), finding(1, occurrence=2), finding(2, occurrence=3)), {gpu(0), gpu(1), gpu(2)}, True),
    (health(finding(0, occurrence=4), boot="boot-2"), {gpu(0)}, False),
    (health(boot="boot-3"), set(), False),
    (health(finding(1, occurrence=5), boot="boot-3"), {gpu(1)}, False),
    (
        health(finding(1, occurrence=5), finding(1, "reboot", 6, reason="Xid79"), boot="boot-3"),
        {gpu(1)},
        True,
    ),
    (health(finding(1, occurrence=7), boot="boot-4"), {gpu(1)}, False),
    (health(boot="boot-5"), set(), False),
]
ORDERS = ("patch first", "rules first")


class Life:
    """kill_at: the number of the write at which the leader dies, once; None: it lives."""

    def __init__(self, order: str, kill_at: int | None, *, applied: bool) -> None:
        self.api = FakeRules({"n1": Node(metadata=Metadata(name="n1", resource_version="1"))}, strike=self.strike)
        self.slices = {"s": resource_slice()}
        self.leader = Leader(self.api, self.slices)
        self.order, self.kill_at, self.applied = order, kill_at, applied
        self.begun = self.ended = 0
        self.safe: set[str] = set()

    def strike(self, after: bool) -> None:
        self.look()
        number = self.ended if after else self.begun
        self.begun, self.ended = self.begun + (not after), self.ended + after
        if number == self.kill_at and after == self.applied:
            self.kill_at = None
            raise Died

    def look(self) -> None:
        """A GPU whose fault is open and that was protected once is protected still."""
        opened = {fault.component for fault in read_record(self.api.nodes["n1"]).open}
        now = protected(self.leader)
        assert self.safe & opened <= now
        self.safe = opened & now

    def patch(self, decision: object) -> None:
        self.strike(False)
        self.leader.apply(decision)  # type: ignore[arg-type]
        self.strike(True)

    async def round(self, report: NodeHealth) -> bool:
        """Whether anything was written."""
        before = self.begun
        self.leader.see_rules()
        decision = self.leader.decide(report)
        if decision.writes and self.order == "patch first":
            self.patch(decision)
        elif decision.writes:
            await self.leader.write_ahead(decision)
            self.patch(decision)
        again = await self.leader.write_rules()
        return again or self.begun > before

    async def settle(self, report: NodeHealth) -> None:
        for _ in range(20):
            try:
                if not await self.round(report):
                    return
            except Died:
                now = self.leader.now
                self.leader = Leader(self.api, self.slices)
                self.leader.now = now
        raise AssertionError("the decisions do not settle")

    async def live(self) -> None:
        for report, ill, tainted in LIFE:
            self.leader.now += 86_400.0 * 30  # no flap penalty is left
            await self.settle(report)
            self.look()
            assert bool(taints(self.leader)) is tainted
            assert {fault.component for fault in read_record(self.api.nodes["n1"]).open} == ill
            assert ill <= protected(self.leader), "an ill device without a rule or a taint"
            ruled = {rule["metadata"]["annotations"]["muster.dev/component"] for rule in self.api.rules.values()}
            assert ruled == (set() if tainted else ill), "an orphan rule"


@pytest.mark.parametrize("order", ORDERS)
def test_a_leader_that_is_killed_at_any_write_leaves_no_orphan_rule_and_no_ill_device_without_one(order: str) -> None:
    calm = Life(order, None, applied=True)
    asyncio.run(calm.live())
    assert calm.begun > 2 * len(LIFE)
    for kill_at, applied in itertools.product(range(calm.begun), (False, True)):
        life = Life(order, kill_at, applied=applied)
        asyncio.run(life.live())
        assert life.kill_at is None
