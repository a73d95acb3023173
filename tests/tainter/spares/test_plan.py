"""Which nodes are spares: examples, and random fleets in which every write may be the last of its leader."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_tainter.policy.file import PolicyError, parse_policy
from muster_tainter.policy.spares import SpareRole, Spares
from muster_tainter.spares.plan import SpareNode, SparePlan, plan_spares

SPARE, REPLACEMENT, NONE = SpareRole.SPARE, SpareRole.REPLACEMENT, SpareRole.NONE
NOW = 1_000_000.0
DAY_S = 86_400.0


def node(name: str, domain: str = "", **more: Any) -> SpareNode:
    return replace(SpareNode(name, domain, tested_at=NOW - 60), **more)


def fleet(number: int = 20) -> list[SpareNode]:
    return [node(f"n{i:02}", f"r{i % 4}") for i in range(number)]


def plan(nodes: list[SpareNode], /, paused: bool = False, **spares: Any) -> SparePlan:
    policy = Spares.model_validate(spares or {"nodes": 2})
    return plan_spares(nodes, policy, ready_after=NOW - DAY_S, paused=paused)


def step(nodes: list[SpareNode], name: str, role: SpareRole) -> list[SpareNode]:
    return [replace(each, role=role) if each.name == name else each for each in nodes]


def settled(nodes: list[SpareNode], /, **spares: Any) -> list[SpareNode]:
    """One write at a time, each decided anew, as by a leader that is killed after each."""
    for _ in range(4 * len(nodes) + 4):
        changes = plan(nodes, **spares).changes
        if not changes:
            return nodes
        nodes = step(nodes, *next(iter(changes.items())))
    raise AssertionError(f"does not settle: {changes}")


def names(nodes: list[SpareNode], role: SpareRole) -> set[str]:
    return {each.name for each in nodes if each.role is role}


def with_fault(nodes: list[SpareNode], name: str, at: float = NOW) -> list[SpareNode]:
    return [replace(each, out=at, usable=False) if each.name == name else each for each in nodes]


def repaired(nodes: list[SpareNode], name: str) -> list[SpareNode]:
    return [replace(each, out=0.0, usable=True, proven=True) if each.name == name else each for each in nodes]


def test_spares_are_spread_over_the_domains() -> None:
    spares = names(settled(fleet(), nodes=4), SPARE)
    assert {int(name[1:]) % 4 for name in spares} == {0, 1, 2, 3}


def test_a_fault_releases_a_ready_spare_of_its_domain_and_repair_makes_the_node_a_spare() -> None:
    nodes = settled(fleet(), nodes=4)
    failed = next(each for each in nodes if each.role is NONE and each.domain == "r2")
    nodes = settled(with_fault(nodes, failed.name), nodes=4)
    (released,) = names(nodes, REPLACEMENT)
    assert int(released[1:]) % 4 == 2
    assert len(names(nodes, SPARE)) == 3
    nodes = settled(repaired(nodes, failed.name), nodes=4)
    assert failed.name in names(nodes, SPARE)
    assert len(names(nodes, SPARE)) == 4
    assert names(nodes, REPLACEMENT) == set()


def test_three_faults_exhaust_two_spares() -> None:
    nodes = settled(fleet())
    for name in sorted(names(nodes, NONE))[:3]:
        nodes = settled(with_fault(nodes, name))
    assert (names(nodes, SPARE), len(names(nodes, REPLACEMENT))) == (set(), 2)


def test_a_ready_spare_of_another_domain_goes_before_an_untested_one_of_the_same() -> None:
    nodes = [node("a", "r1", role=SPARE, tested_at=0.0), node("b", "r2", role=SPARE), node("c", "r1"), node("d", "r2")]
    assert plan(with_fault(nodes, "c")).changes == {"b": REPLACEMENT}


def test_the_freshest_is_released_if_none_is_ready_or_held() -> None:
    stale = [
        node("a", role=SPARE, tested_at=NOW - 3 * DAY_S),
        node("b", role=SPARE, tested_at=NOW - 2 * DAY_S),
        node("c"),
        node("d"),
    ]
    made = plan(with_fault(stale, "c"))
    assert (made.changes, made.untested) == ({"b": REPLACEMENT}, frozenset({"b"}))
    made = plan(with_fault(stale, "c"), nodes=2, noneReady="hold")
    assert (made.changes, made.held) == ({}, 1)


@pytest.mark.parametrize(
    "broken", [{"usable": False}, {"foreign": (("example.com/maintenance", "NoSchedule"),)}], ids=str
)
def test_a_spare_that_cannot_take_work_is_not_released(broken: dict[str, Any]) -> None:
    nodes = [node("a", role=SPARE, **broken), node("b"), node("c")]
    assert plan(with_fault(nodes, "c"), nodes=1).held == 1


@pytest.mark.parametrize(
    "broken",
    [{"usable": False}, {"choice": False}, {"idle": False}, {"foreign": (("example.com/maintenance", "NoSchedule"),)}],
    ids=str,
)
def test_a_node_that_cannot_be_a_spare_does_not_become_one(broken: dict[str, Any]) -> None:
    assert plan([node("a", **broken), node("b"), node("c")], nodes=1).changes == {"b": SPARE}


def test_a_taint_that_most_nodes_have_is_permanent() -> None:
    gpu = (("nvidia.com/gpu", "NoSchedule"),)
    assert plan([node("a", foreign=gpu), node("b", foreign=gpu), node("c")], nodes=1).changes == {"a": SPARE}


def test_a_persons_choice_replaces_another_spare() -> None:
    nodes = [node("a", role=SPARE), node("b"), node("c", choice=True, idle=False), node("d")]
    assert names(settled(nodes, nodes=1), SPARE) == {"c"}
    nodes = [node("a", role=SPARE, choice=False), node("b"), node("c")]
    assert names(settled(nodes, nodes=1), SPARE) == {"b"}


def test_no_node_becomes_a_spare_during_a_pause_but_spares_are_released() -> None:
    assert plan(fleet(), paused=True).changes == {}
    nodes = with_fault(settled(fleet()), "n15")
    assert set(plan(nodes, paused=True).changes.values()) == {REPLACEMENT}


@pytest.mark.parametrize("number", [20, 21, 100_000])
def test_spares_that_leave_no_node_for_work_are_none(number: int) -> None:
    made = plan(fleet(), nodes=number)
    assert (made.changes, made.asked, made.wanted) == ({}, number, 0)


def test_fewer_spares_in_the_policy_release_the_least_ready() -> None:
    nodes = [node("a", role=SPARE, tested_at=0.0), node("b", role=SPARE), node("c"), node("d")]
    assert plan(nodes, nodes=1).changes == {"a": NONE}


@pytest.mark.parametrize(
    ("spares", "where"),
    [
        ("{}", "pools[0].spares:"),
        ("{nodes: 1, perDomain: 1}", "pools[0].spares:"),
        ("{perDomain: 1}", "pools[0]:"),
        ("{nodes: -1}", "pools[0].spares.nodes: -1:"),
        ("{nodes: 0}", "pools[0].spares.nodes: 0:"),
        ("{nodes: 0%}", 'pools[0].spares.nodes: "0%":'),
        ("{perDomain: 0}", "pools[0].spares.perDomain: 0:"),
        ("{nodes: 100001}", "pools[0].spares.nodes: 100001:"),
        ("{nodes: true}", "pools[0].spares.nodes: true:"),
        ("{nodes: 100%}", 'pools[0].spares.nodes: "100%":'),
        ("{nodes: many}", 'pools[0].spares.nodes: "many":'),
        ("{nodes: 1, noneReady: panic}", 'pools[0].spares.noneReady: "panic":'),
        ("{nodes: 1, readyWithin: 0s}", 'pools[0].spares.readyWithin: "0s":'),
        ("{nodes: 1, ready: 1d}", "pools[0].spares.ready:"),
    ],
)
def test_a_bad_policy_names_the_place(spares: str, where: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(f"rules: []\npools:\n  - {{name: a, selector: {{}}, spares: {spares}}}\n")
    assert where in str(error.value)


shares = st.sampled_from([{"nodes": 1}, {"nodes": 2}, {"nodes": 3}, {"nodes": "30%"}])
roles = st.sampled_from(list(SpareRole))
any_node = st.builds(
    SpareNode,
    name=st.just(""),
    domain=st.sampled_from(["r1", "r2", ""]),
    role=roles,
    out=st.sampled_from([0.0, 0.0, 0.0, NOW]),
    usable=st.booleans(),
    idle=st.booleans(),
    proven=st.booleans(),
    choice=st.sampled_from([None, None, True, False]),
    tested_at=st.sampled_from([0.0, NOW - 2 * DAY_S, NOW - 60, NOW]),
    foreign=st.sampled_from([(), (), (("example.com/x", "NoExecute"),)]),
)
any_fleet = st.lists(any_node, max_size=8).map(
    lambda nodes: [replace(each, name=f"n{i}") for i, each in enumerate(nodes)]
)
events = st.lists(
    st.tuples(st.sampled_from(["fault", "repair", "write", "write"]), st.integers(0, 7)), min_size=1, max_size=30
)


@given(nodes=any_fleet, share=shares, policy=st.sampled_from(["release", "hold"]))
def test_any_fleet_settles_and_what_is_missing_or_too_many_has_a_cause(
    nodes: list[SpareNode], share: dict[str, Any], policy: str
) -> None:
    nodes = settled(nodes, noneReady=policy, **share)
    made = plan(nodes, noneReady=policy, **share)
    spares = [each for each in nodes if each.role is SPARE]
    assert not any(each.out or each.choice is False for each in spares)
    assert len(names(nodes, REPLACEMENT)) <= sum(bool(each.out) for each in nodes)
    assert len(spares) == made.target + made.held or len(spares) < made.target
    if len(spares) < made.target:  # nobody else could be one
        common = {taint for each in nodes for taint in each.foreign} and sum(
            bool(each.foreign) for each in nodes
        ) * 2 > len(nodes)
        assert not [
            each
            for each in nodes
            if each.role is not SPARE
            and not each.out
            and each.usable
            and each.choice is not False
            and (not each.foreign or common)
            and (each.idle or each.proven or each.choice)
        ]


@given(share=shares, changes=events)
@settings(max_examples=50)
def test_never_one_too_many_or_too_few_at_rest_wherever_the_leader_is_killed(
    share: dict[str, Any], changes: list[tuple[str, int]]
) -> None:
    nodes = settled(fleet(8), **share)
    for what, number in changes:
        name = f"n{number:02}"
        match what:
            case "fault":
                nodes = with_fault(nodes, name)
            case "repair":
                nodes = repaired(nodes, name)
            case "write":
                due = plan(nodes, **share).changes
                if due:
                    nodes = step(nodes, *sorted(due.items())[number % len(due)])
    nodes = settled(nodes, **share)
    out = sum(bool(each.out) for each in nodes)
    wanted = plan(nodes, **share).wanted
    assert len(names(nodes, SPARE)) == max(wanted - out, 0)
    working = [each for each in nodes if not each.out and each.role is not SPARE]
    assert len(working) == min(8 - wanted, 8 - out)


@given(nodes=any_fleet, share=shares)
def test_a_plan_is_carried_out_in_any_order(nodes: list[SpareNode], share: dict[str, Any]) -> None:
    nodes = [replace(each, choice=None) for each in nodes]  # a person's choice may take another round
    changed = nodes
    for name, role in sorted(plan(nodes, **share).changes.items()):
        changed = step(changed, name, role)
    assert plan(changed, **share).changes == {}
