"""Who may be tainted now, by pool, failure domain, level and rate."""

import asyncio
import random
from typing import Any

import pytest
from pydantic import ValidationError

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from muster_kube.controller.reflector import SILENCE_MARGIN_S, WATCH_S
from muster_tainter.budgets.allocator import UNCERTAIN_S, BudgetAllocator
from muster_tainter.budgets.pool_usage import BudgetedNode, Shortage, budgeted_node
from muster_tainter.policy.budgets import Budget
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.sections.heavy_checks import AtOnce

NOW = 1.8e9
RACK = "topology.kubernetes.io/rack"
MILD, SEVERE = (1.0,), (2.0,)


class Clock:
    """Monotonic seconds."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def pool(name: str = "h100", **budget: Any) -> Pool:
    return Pool.model_validate(
        {"name": name, "selector": {"matchLabels": {"gpu": "h100"}}, "domain": RACK, "budget": budget}
    )


def fleet(count: int, *pools: Pool, racks: int = 1, clock: Clock | None = None) -> BudgetAllocator:
    """Nodes n0, n1 … in all of the pools, dealt out to racks r0, r1 …"""
    allocator = BudgetAllocator(clock or Clock(), pools)
    for number in range(count):
        allocator.note(f"n{number}", standing(number % racks, *pools), "1")
    return allocator


def standing(rack: int | str, *pools: Pool, **fields: Any) -> BudgetedNode:
    domain = f"r{rack}" if isinstance(rack, int) else rack
    return BudgetedNode(tuple((pool.name, domain) for pool in pools), **fields)


def reason(allocator: BudgetAllocator, name: str, severity: tuple[float, ...] = MILD, now: float = NOW) -> str:
    shortage = allocator.ask(name, severity, now)
    return "" if shortage is None else shortage.reason


def taint(allocator: BudgetAllocator, name: str, *pools: Pool, rack: int = 0, now: float = NOW) -> None:
    """Asked, written and seen."""
    assert reason(allocator, name, now=now) == ""
    allocator.note(name, standing(rack, *pools, blocked=True, ours=True, tainted_at=now), "2")
    allocator.confirm(name)


# the level


def test_no_more_nodes_of_a_pool_are_tainted_than_its_budget_says() -> None:
    allocator = fleet(10, pool(tainted="30%"))
    assert [reason(allocator, f"n{i}") for i in range(3)] == ["", "", ""]
    assert allocator.ask("n3", MILD, NOW) == Shortage("h100", "tainted", 3, 3, AtOnce(percent=30), 10)


def test_a_share_is_rounded_up() -> None:
    allocator = fleet(10, pool(tainted="21%"))
    assert [reason(allocator, f"n{i}") == "" for i in range(4)] == [True, True, True, False]


def test_a_budget_of_nothing_taints_nothing_ever() -> None:
    for nothing in (0, "0%"):
        allocator = fleet(3, pool(tainted=nothing))
        shortage = allocator.ask("n0", SEVERE, NOW)
        assert shortage is not None
        assert shortage[:4] == ("h100", "tainted", 0, 0)
        assert allocator.ready(NOW + 1e6) == []
        assert allocator.next_room_at(NOW) == float("inf")


def test_a_rate_of_nothing_taints_nothing_ever() -> None:
    allocator = fleet(3, pool(rate={"nodes": 0, "within": "10m"}))
    assert allocator.ask("n0", MILD, NOW) == Shortage("h100", "rate", 0, 0, AtOnce(0), 3, within=600.0)
    assert allocator.next_room_at(NOW) == float("inf")


def test_a_budget_of_200_percent_is_refused_with_its_path() -> None:
    with pytest.raises(ValidationError) as error:
        pool(tainted="200%")
    (detail,) = error.value.errors()
    assert (detail["loc"], detail["input"]) == (("budget", "tainted"), "200%")


@pytest.mark.parametrize(
    "budget",
    [{"tainted": -1}, {"tainted": True}, {"perDomain": "5"}, {"rate": {"nodes": 1}}, {"rate": "20%"}, {"percent": 1}],
)
def test_a_budget_that_says_nothing_sensible_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Budget.model_validate(budget)


def test_without_a_budget_every_node_may_be_tainted() -> None:
    allocator = fleet(50, pool())
    assert {reason(allocator, f"n{i}") for i in range(50)} == {""}


def test_a_node_of_no_pool_has_no_budget() -> None:
    allocator = fleet(0, pool(tainted=0))
    allocator.note("lone", BudgetedNode())
    assert reason(allocator, "lone") == ""


def test_a_node_that_is_not_known_may_not_be_tainted() -> None:
    shortage = fleet(1, pool()).ask("gone", MILD, NOW)
    assert shortage is not None
    assert shortage.what == "unknown"


def test_asking_again_is_free() -> None:
    h100 = pool(tainted=1)
    allocator = fleet(3, h100)
    assert reason(allocator, "n0") == reason(allocator, "n0") == ""
    taint(allocator, "n0", h100)
    assert reason(allocator, "n0") == ""


def test_a_taint_whose_node_forgot_it_for_a_moment_keeps_its_place() -> None:
    """Another controller wrote a stale copy of the taints; the memory knows better."""
    h100 = pool(tainted=1)
    allocator = fleet(2, h100)
    taint(allocator, "n0", h100)
    allocator.note("n0", standing(0, h100, blocked=False, ours=True, tainted_at=NOW), "3")
    assert reason(allocator, "n1") != ""
    assert reason(allocator, "n0") == ""


def test_a_removed_taint_that_is_set_again_makes_the_node_unhealthy() -> None:
    h100 = pool(healthyPerDomain=2)
    allocator = fleet(4, h100)
    allocator.note("n0", standing(0, h100, ours=True), "2")
    assert [reason(allocator, f"n{number}") == "" for number in (1, 2, 3)] == [True, True, False]
    allocator.release("n1")
    assert allocator.ready(NOW) == ["n3"]
    assert reason(allocator, "n0") == ""
    assert allocator.ready(NOW) == []


# domains


def test_no_more_nodes_of_one_domain_are_tainted_than_its_budget_says() -> None:
    allocator = fleet(8, pool(perDomain="50%"), racks=2)
    assert [reason(allocator, name) for name in ("n0", "n2", "n1")] == ["", "", ""]
    half = AtOnce(percent=50)
    shortage = Shortage("h100", "perDomain", 2, 2, half, 4, RACK, "r0")
    assert allocator.ask("n4", MILD, NOW) == shortage
    assert f"{RACK}=r0" in shortage.reason


def test_so_many_nodes_of_each_domain_stay_healthy() -> None:
    allocator = fleet(6, pool(healthyPerDomain=2), racks=2)
    assert [reason(allocator, name) for name in ("n0", "n1")] == ["", ""]
    assert allocator.ask("n2", MILD, NOW) == Shortage("h100", "healthyPerDomain", 2, 2, AtOnce(2), 3, RACK, "r0")


@pytest.mark.parametrize("fields", [{"ready": False}, {"schedulable": False}, {"blocked": True}])
def test_a_node_that_others_made_unhealthy_leaves_less_room(fields: dict[str, bool]) -> None:
    h100 = pool(healthyPerDomain=1)
    allocator = fleet(2, h100)
    allocator.note("n1", standing(0, h100, **fields), "2")
    assert reason(allocator, "n0") != ""
    assert reason(allocator, "n1") == ""  # that one is not healthy anyway
    allocator.release("n1")
    allocator.note("n1", standing(0, h100), "3")
    assert allocator.ready(NOW) == ["n0"]


def test_a_domain_that_falls_below_its_floor_is_left_alone() -> None:
    h100 = pool(healthyPerDomain=2)
    allocator = fleet(4, h100)
    taint(allocator, "n0", h100)
    allocator.note("n1", standing(0, h100, ready=False), "2")
    allocator.note("n2", standing(0, h100, ready=False), "2")
    assert allocator.ask("n3", MILD, NOW) == Shortage("h100", "healthyPerDomain", 1, 2, AtOnce(2), 4, RACK, "r0")


def test_nodes_without_the_label_are_a_domain_too() -> None:
    h100 = pool(perDomain=1, healthyPerDomain=1)
    allocator = BudgetAllocator(Clock(), [h100])
    for name in ("a", "b", "c"):
        allocator.note(name, standing("", h100))
    assert reason(allocator, "a") == ""
    assert allocator.ask("b", MILD, NOW) == Shortage("h100", "perDomain", 1, 1, AtOnce(1), 3, RACK, domain="")


# the rate


def test_no_more_nodes_are_newly_tainted_within_a_time_than_the_rate_says() -> None:
    h100 = pool(rate={"nodes": "20%", "within": "10m"})
    allocator = fleet(10, h100)
    allocator.note("n9", standing(0, h100, tainted_at=NOW - 600), "2")  # long ago
    taint(allocator, "n0", h100)
    taint(allocator, "n1", h100, now=NOW + 60)
    fifth = AtOnce(percent=20)
    assert allocator.ask("n2", MILD, NOW + 100) == Shortage("h100", "rate", 2, 2, fifth, 10, within=600.0)
    assert allocator.next_room_at(NOW + 100) == NOW + 600
    assert allocator.ready(NOW + 599) == []
    assert allocator.ready(NOW + 600) == ["n2"]


def test_a_node_that_was_released_counts_for_the_rate_until_its_time_is_over() -> None:
    h100 = pool(rate={"nodes": 1, "within": "10m"})
    allocator = fleet(2, h100)
    taint(allocator, "n0", h100)
    allocator.note("n0", standing(0, h100, tainted_at=NOW), "3")
    assert reason(allocator, "n1", now=NOW + 10) != ""
    assert reason(allocator, "n0", now=NOW + 10) == ""  # one node counts once


@pytest.mark.parametrize("edge", [NOW - 600, NOW + 600])
def test_a_taint_as_old_or_as_far_ahead_as_the_window_counts_no_more_and_spares_its_node_nothing(edge: float) -> None:
    h100 = pool(rate={"nodes": 1, "within": "10m"})
    allocator = fleet(2, h100)
    allocator.note("n0", standing(0, h100, tainted_at=edge), "2")
    assert reason(allocator, "n1") == ""
    assert allocator.ask("n0", MILD, NOW) == Shortage("h100", "rate", 1, 1, AtOnce(1), 2, within=600.0)


def test_a_clock_set_forward_lets_the_rate_pass_and_never_the_level() -> None:
    h100 = pool(tainted=2, rate={"nodes": 1, "within": "10m"})
    allocator = fleet(5, h100)
    taint(allocator, "n0", h100)
    assert reason(allocator, "n1") != ""
    taint(allocator, "n1", h100, now=NOW + 3600)
    assert allocator.ask("n2", MILD, NOW + 7200) == Shortage("h100", "tainted", 2, 2, AtOnce(2), 5)


@pytest.mark.parametrize(("within", "at_once"), [("10m", True), ("2h", False)])
def test_a_clock_set_back_an_hour_holds_up_a_rate_no_longer_than_its_window_and_the_jump(
    within: str, at_once: bool
) -> None:
    h100 = pool(rate={"nodes": 1, "within": within})
    allocator = fleet(2, h100)
    taint(allocator, "n0", h100)
    back = NOW - 3600
    assert (reason(allocator, "n1", now=back) == "") == at_once
    if not at_once:
        assert allocator.next_room_at(back) == NOW + 7200
        assert allocator.ready(NOW + 7200) == ["n1"]


def test_a_time_from_a_memory_edited_by_hand_blocks_nothing() -> None:
    h100 = pool(rate={"nodes": 1, "within": "10m"})
    allocator = fleet(1, h100)
    allocator.note("odd", standing(0, h100, tainted_at=2.5e11))
    assert reason(allocator, "n0") == ""


# overlapping pools


def test_the_budgets_of_all_pools_of_a_node_apply() -> None:
    every, h100 = pool("every", tainted=2), pool(tainted=1)
    allocator = BudgetAllocator(Clock(), [every, h100])
    for name in ("a", "b"):
        allocator.note(name, standing(0, every, h100))
    for name in ("c", "d"):
        allocator.note(name, standing(0, every))
    assert reason(allocator, "a") == ""
    assert allocator.ask("b", MILD, NOW) == Shortage("h100", "tainted", 1, 1, AtOnce(1), 2)
    assert reason(allocator, "c") == ""
    assert allocator.ask("d", MILD, NOW) == Shortage("every", "tainted", 2, 2, AtOnce(2), 4)


# promises


def test_a_place_is_taken_from_the_moment_it_is_asked_for() -> None:
    allocator = fleet(2, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1") != ""
    assert allocator.release("n0")
    assert allocator.ready(NOW) == ["n1"]


def test_a_place_stays_taken_while_nobody_knows_what_came_of_its_write() -> None:
    clock = Clock()
    allocator = fleet(2, pool(tainted=1), clock=clock)
    assert reason(allocator, "n0") == ""
    allocator.mark_uncertain("n0", "1")
    assert reason(allocator, "n1") != ""
    allocator.withdraw("n0")  # the finding went meanwhile
    clock.s += 60.0 + WATCH_S[1] + SILENCE_MARGIN_S  # carried out at the last moment, and hidden by a dead watch
    assert allocator.ready(NOW) == []
    clock.s = UNCERTAIN_S - 1
    assert allocator.ready(NOW) == []
    assert allocator.next_room_at(NOW) == NOW + 1
    clock.s += 1
    assert allocator.ready(NOW) == ["n1"]


def test_a_later_version_of_the_node_shows_what_came_of_its_write() -> None:
    h100 = pool(tainted=1)
    allocator = fleet(2, h100)
    assert reason(allocator, "n0") == ""
    allocator.mark_uncertain("n0", "1")
    assert reason(allocator, "n1") != ""
    assert not allocator.note("n0", standing(0, h100), "1")
    assert not allocator.note("n1", standing(0, h100), "2")
    assert allocator.ready(NOW) == []
    assert allocator.note("n0", standing(0, h100), "2")
    assert allocator.ready(NOW) == ["n1"]


def test_a_clock_that_jumps_does_not_void_a_promise() -> None:
    allocator = fleet(2, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    allocator.mark_uncertain("n0", "1")
    assert reason(allocator, "n1", now=NOW + 3600) != ""
    assert allocator.ready(NOW + 3600) == []


def test_another_try_keeps_the_place_of_the_one_that_nobody_answered() -> None:
    clock = Clock()
    allocator = fleet(2, pool(tainted=1), clock=clock)
    assert reason(allocator, "n0") == ""
    allocator.mark_uncertain("n0", "1")
    assert reason(allocator, "n0") == ""
    allocator.release("n0")  # refused: the first one may still be carried out
    assert reason(allocator, "n1") != ""
    assert reason(allocator, "n0") == ""
    clock.s += UNCERTAIN_S + 1
    assert reason(allocator, "n1") != ""  # this try is under way


def test_a_node_that_is_released_gives_its_place_free() -> None:
    h100 = pool(tainted=1)
    allocator = fleet(2, h100)
    taint(allocator, "n0", h100)
    assert reason(allocator, "n1") != ""
    assert allocator.note("n0", standing(0, h100), "3")
    assert allocator.ready(NOW) == ["n1"]


def test_a_node_that_another_leader_tainted_waits_no_longer() -> None:
    h100 = pool(tainted=1)
    allocator = fleet(2, h100)
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1") != ""
    allocator.note("n1", standing(0, h100, ours=True, blocked=True), "2")
    assert allocator.waiting == 0


def test_a_waiting_node_that_leaves_its_pools_and_is_tainted_by_another_leader_is_not_called() -> None:
    allocator = fleet(2, pool(tainted=0))
    assert reason(allocator, "n0") != ""
    allocator.note("n0", standing(0), "2")
    assert allocator.ready(NOW) == ["n0"]
    allocator.note("n0", standing(0, ours=True, blocked=True), "3")
    assert allocator.ready(NOW) == []


def test_a_node_that_goes_gives_its_place_free() -> None:
    allocator = fleet(3, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1") != ""
    assert allocator.note("n0", None)
    assert allocator.ready(NOW) == ["n1"]
    allocator.confirm("n0")
    allocator.release("n0")
    allocator.mark_uncertain("n0", "1")
    assert allocator.ready(NOW) == ["n1"]


def test_writers_that_take_turns_never_exceed_a_budget() -> None:
    """24 of one loop, each asking and writing between the others' awaits."""
    h100 = pool(tainted=5, perDomain=2, rate={"nodes": 4, "within": "10m"})
    dice = random.Random(7)
    allocator = fleet(120, h100, racks=6)
    failing = [f"n{number}" for number in range(120)]
    tainted: set[str] = set()

    async def write(name: str) -> None:
        if reason(allocator, name) != "":
            return
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        if dice.random() < 0.5:
            allocator.release(name)
            failing.append(name)
            return
        tainted.add(name)
        await asyncio.sleep(0)
        rack = int(name[1:]) % 6
        allocator.note(name, standing(rack, h100, ours=True, blocked=True, tainted_at=NOW), "2")
        allocator.confirm(name)

    async def work() -> None:
        for _ in range(1000):
            if failing:
                await write(failing.pop(0))
                failing.extend(allocator.ready(NOW))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(24):
                group.create_task(work())

    asyncio.run(main())
    assert len(tainted) == 4


# who comes first


def test_when_there_is_room_the_worst_come_first_and_of_those_who_has_waited_longest() -> None:
    allocator = fleet(6, pool(tainted=2))
    assert reason(allocator, "n0") == reason(allocator, "n1") == ""
    for name, severity in (("n2", MILD), ("n3", SEVERE), ("n4", MILD), ("n5", SEVERE)):
        assert reason(allocator, name, severity) != ""
    allocator.release("n0")
    assert allocator.ready(NOW) == ["n3"]
    allocator.release("n1")
    assert allocator.ready(NOW) == ["n3", "n5"]
    allocator.withdraw("n3")
    allocator.withdraw("n5")
    assert allocator.ready(NOW) == ["n2", "n4"]


def test_a_milder_node_does_not_take_the_place_that_a_worse_one_waits_for() -> None:
    allocator = fleet(3, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1", SEVERE) != ""
    allocator.release("n0")
    shortage = allocator.ask("n2", MILD, NOW)
    assert shortage is not None
    assert (shortage.pool, shortage.what, shortage.for_worse) == ("h100", "tainted", True)
    assert reason(allocator, "n1", SEVERE) == ""


def test_a_milder_node_takes_the_place_that_no_worse_one_can_use() -> None:
    """The worse one's own rack has no room."""
    h100 = pool(tainted=3, perDomain=1)
    allocator = fleet(4, h100, racks=2)
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n2", SEVERE) != ""
    assert reason(allocator, "n1", MILD) == ""


def test_a_worse_node_comes_before_milder_ones_that_wait() -> None:
    allocator = fleet(3, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1", MILD) != ""
    allocator.release("n0")
    assert reason(allocator, "n2", SEVERE) == ""
    assert allocator.ready(NOW) == []


def test_a_node_that_has_become_worse_is_moved_up() -> None:
    allocator = fleet(3, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1", MILD) != ""
    assert reason(allocator, "n2", MILD) != ""
    assert reason(allocator, "n2", SEVERE) != ""
    allocator.release("n0")
    assert allocator.ready(NOW) == ["n2"]


def test_a_node_that_has_become_milder_is_moved_down() -> None:
    allocator = fleet(3, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1", (3.0,)) != ""
    assert reason(allocator, "n2", SEVERE) != ""
    allocator.release("n0")
    assert allocator.ready(NOW) == ["n1"]
    assert reason(allocator, "n1", MILD) != ""
    assert allocator.ready(NOW) == ["n2"]


# the policy


def test_a_budget_that_is_raised_makes_room() -> None:
    allocator = fleet(4, pool(tainted=1))
    assert reason(allocator, "n0") == ""
    assert reason(allocator, "n1") != ""
    assert allocator.ready(NOW) == []
    assert allocator.policy([pool(tainted=2)])
    assert allocator.ready(NOW) == ["n1"]


def test_a_budget_lowered_below_what_is_tainted_untaints_nobody_and_gives_nothing() -> None:
    h100 = pool(tainted=3)
    allocator = fleet(4, h100)
    for name in ("n0", "n1", "n2"):
        taint(allocator, name, h100)
    allocator.policy([pool(tainted=1)])
    assert allocator.ask("n3", MILD, NOW) == Shortage("h100", "tainted", 3, 1, AtOnce(1), 4)
    assert reason(allocator, "n0") == ""
    row = allocator.usage(NOW)[0]
    assert (row.used, row.limit, row.left) == (3, 1, 0)


def test_a_pool_that_the_policy_drops_limits_nothing_and_is_forgotten_with_its_nodes() -> None:
    allocator = fleet(2, pool(tainted=0))
    assert reason(allocator, "n0") != ""
    allocator.policy([])
    assert allocator.ready(NOW) == ["n0"]
    for name in ("n0", "n1"):
        allocator.note(name, BudgetedNode())
    assert allocator.usage(NOW) == []


# what people see


def test_usage_says_how_much_is_taken_and_left_of_what_and_how_many_wait() -> None:
    h100 = pool(tainted="50%", perDomain=1, healthyPerDomain=1, rate={"nodes": 3, "within": "10m"})
    allocator = fleet(4, h100, racks=2)
    taint(allocator, "n0", h100)
    assert reason(allocator, "n2") != ""
    assert [(row.domain, row.what, row.used, row.limit, row.left, row.waiting) for row in allocator.usage(NOW)] == [
        ("", "tainted", 1, 2, 1, 1),
        ("", "rate", 1, 3, 2, 1),
        ("r0", "perDomain", 1, 1, 0, 1),
        ("r0", "healthyPerDomain", 1, 1, 0, 1),
        ("r1", "perDomain", 0, 1, 1, 0),
        ("r1", "healthyPerDomain", 2, 1, 1, 0),
    ]


def test_the_reason_stays_the_same_while_the_figures_do() -> None:
    """It stands in a condition: another text would be a write for each node that waits."""
    h100 = pool(tainted=1, rate={"nodes": 1, "within": "10m"})
    allocator = fleet(5, h100)
    taint(allocator, "n0", h100)
    first = allocator.ask("n1", MILD, NOW)
    reason(allocator, "n2")
    assert isinstance(first, Shortage)
    assert reason(allocator, "n1", now=NOW + 5) == first.reason


# a node


def test_a_nodes_standing_is_read_from_its_labels_conditions_and_taints() -> None:
    h100, other = pool(), Pool.model_validate({"name": "all", "selector": {}})
    node = Node(
        metadata=Metadata(name="n", labels={"gpu": "h100", RACK: "r7"}),
        spec=NodeSpec(taints=(Taint(key="a", effect="PreferNoSchedule"),)),
        status=NodeStatus(conditions=(NodeCondition(type="Ready", status="True"),)),
    )
    assert budgeted_node(node, [h100, other], ours=False, tainted_at=5.0) == BudgetedNode(
        (("h100", "r7"), ("all", "")), ready=True, schedulable=True, blocked=False, ours=False, tainted_at=5.0
    )


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_node_with_anybodys_taint_is_not_healthy(effect: str) -> None:
    node = Node(metadata=Metadata(name="n"), spec=NodeSpec(taints=(Taint(key="a", effect=effect),), unschedulable=True))
    read = budgeted_node(node, [pool()], ours=True, tainted_at=0.0)
    assert (read.pools, read.ready, read.schedulable, read.blocked, read.ours) == ((), False, False, True, True)


def test_a_large_fleet_that_fails_at_once_gets_the_places_that_there_are() -> None:
    """15,000 nodes fail at once, and only the places that the budget leaves are given."""
    h100 = pool(tainted="30%", perDomain="50%", healthyPerDomain=1, rate={"nodes": "20%", "within": "10m"})
    allocator = fleet(15_000, h100, racks=1000)
    given = [name for name in (f"n{i}" for i in range(15_000)) if allocator.ask(name, MILD, NOW) is None]
    assert len(given) == 3000
    assert allocator.waiting == 12_000
    for name in given:
        allocator.note(name, standing(int(name[1:]) % 1000, h100, ours=True, blocked=True, tainted_at=NOW), "2")
        allocator.confirm(name)
    called = allocator.ready(NOW + 600)
    assert len(called) == 1500
    for name in reversed(called):
        assert allocator.ask(name, MILD, NOW + 600) is None
    assert allocator.ready(NOW + 600) == []


# writes of a former leader


def test_a_node_that_a_former_leader_may_taint_takes_the_last_place_from_all() -> None:
    allocator = fleet(4, pool(tainted=1))
    allocator.block("n0", "5")
    assert reason(allocator, "n1", SEVERE) != ""
    assert reason(allocator, "n0", SEVERE) != "", "n1 waits for longer"
    assert (allocator.blocked("n0"), allocator.blocked("n1")) == (True, False)
    assert allocator.ready(NOW) == []


def test_the_place_is_free_once_the_node_is_seen_in_a_later_version() -> None:
    h100 = pool(tainted=1)
    allocator = fleet(4, h100)
    allocator.block("n0", "5")
    assert [bool(reason(allocator, name)) for name in ("n1", "n0")] == [True, True]
    allocator.note("n0", standing(0, h100), "5")
    assert allocator.blocked("n0"), "that version is the one which the write may name"
    allocator.note("n0", standing(0, h100), "6")
    assert (allocator.blocked("n0"), allocator.ready(NOW)) == (False, ["n1"])


def test_the_worst_get_the_places_that_blocked_nodes_free() -> None:
    h100 = pool(tainted=2)
    allocator = fleet(4, h100)
    for number in range(4):
        allocator.block(f"n{number}", "5")
    assert all(reason(allocator, f"n{number}", (float(number),)) for number in range(4))
    for number in range(4):
        allocator.note(f"n{number}", standing(0, h100), "6")
    assert allocator.ready(NOW) == ["n3", "n2"]


def test_with_room_for_all_a_blocked_node_gets_a_place_at_once() -> None:
    allocator = fleet(4, pool(tainted=3))
    allocator.block("n0", "5")
    assert (reason(allocator, "n0"), allocator.blocked("n0")) == ("", False)
    allocator.release("n0")
    assert allocator.holds("n0"), "its own write failed; that of the former leader may still come"
    assert [bool(reason(allocator, name)) for name in ("n1", "n2", "n3")] == [False, False, True]


def test_a_place_is_not_kept_free_for_a_former_leader_for_ever() -> None:
    clock = Clock()
    allocator = fleet(4, pool(tainted=1), clock=clock)
    allocator.block("n0", "5")
    assert reason(allocator, "n1") != ""
    clock.s = UNCERTAIN_S
    assert (allocator.ready(NOW), allocator.blocked("n0")) == (["n1"], False)


def test_a_node_with_a_taint_or_none_at_all_is_not_blocked() -> None:
    h100 = pool(tainted=2)
    allocator = fleet(2, h100)
    taint(allocator, "n0", h100)
    for name in ("n0", "unknown"):
        allocator.block(name, "5")
        assert not allocator.holds(name)


def test_an_own_write_of_unknown_outcome_does_not_end_the_doubt_about_an_earlier_one() -> None:
    h100 = pool(tainted=2)
    allocator = fleet(4, h100)
    allocator.block("n0", "5")
    assert reason(allocator, "n0") == ""
    allocator.mark_uncertain("n0", "1")
    allocator.note("n0", standing(0, h100), "3")
    assert allocator.holds("n0")
    allocator.note("n0", standing(0, h100), "6")
    assert not allocator.holds("n0")
