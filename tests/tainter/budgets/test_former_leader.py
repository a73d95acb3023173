"""What a new leader does about writes that its predecessor may still send."""

import asyncio
from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Node
from muster_tainter.budgets.reservations import BudgetReservations
from muster_tainter.faults.desired_state import decide
from muster_tainter.policy.file import parse_policy

NOW = 1_800_000_000.0
POLICY = "{{pools: [{{name: all, selector: {{}}, budget: {{tainted: {}}}}}], rules: [{{name: all, action: taint}}]}}"


class Fleet:
    """Nodes n0 and so on with a fault; the first ``tainted`` of them have their taint. Version: 5."""

    def __init__(self, make: Any, size: int, *, budget: int, tainted: int = 0) -> None:
        self.policy = parse_policy(POLICY.format(budget))
        self.fault = make.health(make.finding())
        self.woken: list[str] = []
        self.budgets = BudgetReservations(
            lambda: self.policy, self.woken.append, now=lambda: NOW, clock=lambda: 0.0
        )  # fmt: skip
        self.nodes: dict[str, Node] = {}
        for number in range(size):
            node = make.node()
            if number < tainted:
                node = decide(node, self.fault, self.policy, NOW).applied(node)
            self.see(node, f"n{number}", "5")

    def see(self, node: Node, name: str, version: str) -> None:
        meta = msgspec.structs.replace(node.metadata, name=name, resource_version=version)
        self.nodes[name] = msgspec.structs.replace(node, metadata=meta)
        self.budgets.note(name, self.nodes[name])

    def take_over(self, at: str) -> None:
        self.budgets.take_over(at, [node for node in self.nodes.values() if not node.spec.taints])

    def reserve(self, name: str) -> bool:
        return self.budgets.reserve(name, decide(self.nodes[name], self.fault, self.policy, NOW)) is None

    def fenced(self) -> dict[str, str]:
        return {name: fence for name in self.nodes if (fence := self.budgets.fence(name))}


async def test_with_one_place_left_all_that_wait_are_written_before_it_is_given(make: Any) -> None:
    fleet = Fleet(make, 4, budget=2, tainted=1)
    fleet.take_over("7")
    assert fleet.fenced() == {"n1": "7", "n2": "7", "n3": "7"}
    assert [fleet.reserve(name) for name in ("n1", "n2", "n3")] == [False, False, False]
    for name in ("n1", "n2"):
        fleet.see(fleet.nodes[name], name, "8")
        assert not fleet.reserve("n1")
    fleet.see(fleet.nodes["n3"], "n3", "9")
    assert (fleet.fenced(), fleet.reserve("n1"), fleet.reserve("n2")) == ({}, True, False)


@pytest.mark.parametrize(("budget", "at"), [(1, "7"), (2, "4"), (2, "")], ids=["full", "written since", "not etcd"])
async def test_nothing_is_fenced_where_no_earlier_write_can_take_a_place(make: Any, budget: int, at: str) -> None:
    """The former leader had no place to give; or all Nodes were written since; or versions cannot be compared."""
    fleet = Fleet(make, 4, budget=budget, tainted=1)
    fleet.take_over(at)
    assert fleet.fenced() == {}
    assert fleet.reserve("n1") == (budget == 2)


async def test_with_room_for_all_nobody_waits(make: Any) -> None:
    fleet = Fleet(make, 4, budget=3)
    fleet.take_over("7")
    assert [fleet.reserve(name) for name in ("n0", "n1", "n2", "n3")] == [False] * 4
    roomy = Fleet(make, 4, budget=4)
    roomy.take_over("7")
    assert [roomy.reserve(name) for name in ("n0", "n1", "n2", "n3")] == [True] * 4
    assert roomy.fenced() == {}


async def test_who_waits_is_woken_when_a_worse_node_that_waits_recovers(make: Any) -> None:
    """Its place is kept for the worse one, which leaves without any write."""
    fleet = Fleet(make, 3, budget=1, tainted=1)
    assert [fleet.reserve(name) for name in ("n1", "n2")] == [False, False]
    fleet.see(make.node(), "n0", "6")
    await asyncio.sleep(0)
    assert fleet.woken == ["n1"]
    assert fleet.budgets.reserve("n1", decide(fleet.nodes["n1"], make.health(), fleet.policy, NOW)) is None
    await asyncio.sleep(0)
    assert fleet.woken == ["n1", "n2"]
