"""Who measures with whom over the fleet, and whether that names those who are slow, and nobody else."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_agent.fleet.round_plan import (
    FURTHER,
    Meeting,
    first_rounds,
    further_round,
    meetings_each,
    round_of_the_slow,
    rounds_at_most,
    tally_of,
)
from muster_checks.base.vocabulary import Verdict
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.judge import find_slow_pairs, judge
from muster_checks.iperf.pair import NicPair, NicSide

LIMITS = IperfParameters()
Rate = Callable[[str, str, str], float]  # Gbit/s by sender, receiver and NIC


def names(number: int) -> list[str]:
    return [f"node-{index:04}" for index in range(number)]


def index(node: str) -> int:
    return int(node.removeprefix("node-"))


@given(st.integers(0, 70), st.integers(0, 1 << 30))
def test_pairs_of_a_round_are_disjoint_and_nobody_meets_the_same_node_twice(number: int, seed: int):
    rounds = first_rounds(names(number), random.Random(seed))
    for each in rounds:
        there = [node for meeting in each for node in (meeting.client, meeting.server)]
        assert len(there) == len(set(there))
        assert len(each) == number // 2
    met = Counter(meeting.nodes for each in rounds for meeting in each)
    assert all(times == 1 for times in met.values())


@given(st.integers(1, 70), st.integers(0, 1 << 30))
def test_everybody_meets_as_many_as_promised(number: int, seed: int):
    rounds = first_rounds(names(number), random.Random(seed))
    met = Counter(node for each in rounds for meeting in each for node in meeting.nodes)
    for node in names(number):
        assert meetings_each(number) <= met[node] <= meetings_each(number) + 1


@pytest.mark.parametrize(("number", "least"), [(1, 0), (2, 1), (3, 2), (4, 3), (9, 5), (1_000, 11), (15_000, 15)])
def test_rounds_grow_with_the_logarithm(number: int, least: int):
    assert meetings_each(number) == least
    assert rounds_at_most(number) <= least + 1 + FURTHER


def test_one_node_alone_meets_nobody():
    assert first_rounds(["node-1"], random.Random(1)) == []
    assert rounds_at_most(1) == 0


def test_a_large_odd_fleet_leaves_a_different_node_out_each_round():
    nodes = names(15_001)
    rounds = first_rounds(nodes, random.Random(1))
    out = [set(nodes) - {node for meeting in each for node in meeting.nodes} for each in rounds]
    assert [len(each) for each in out] == [1] * len(rounds)
    assert len(set.union(*out)) == len(rounds)


def test_those_in_doubt_meet_sound_nodes_that_they_have_not_met():
    tally = {"doubtful": (3, 4), "sound-1": (1, 5), "sound-2": (0, 4), "met": (0, 4)}
    found = further_round(tally, {frozenset(("doubtful", "met"))}, random.Random(1))
    assert [meeting.nodes for meeting in found] == [{"doubtful", "sound-2"}]


def test_nobody_in_doubt_is_no_further_round():
    tally = {"a": (0, 4), "b": (0, 4), "c": (0, 0)}
    assert further_round(tally, set(), random.Random(1)) == []
    assert round_of_the_slow(tally, set(), random.Random(1)) == []


def test_the_slow_meet_one_another():
    tally = {"a": (4, 4), "b": (4, 4), "c": (3, 4), "d": (1, 4)}
    found = round_of_the_slow(tally, {frozenset("ab")}, random.Random(1))
    assert len(found) == 1
    assert found[0].nodes in ({"a", "c"}, {"b", "c"})


@given(st.dictionaries(st.sampled_from(names(30)), st.tuples(st.integers(0, 5), st.just(5))), st.integers(0, 1 << 30))
def test_further_rounds_are_disjoint_and_new(tally: dict[str, tuple[int, int]], seed: int):
    rng = random.Random(seed)
    met = {meeting.nodes for each in first_rounds(list(tally), rng)[:2] for meeting in each}
    for found in (further_round(tally, met, rng), round_of_the_slow(tally, met, rng)):
        there = [node for meeting in found for node in (meeting.client, meeting.server)]
        assert len(there) == len(set(there))
        assert not met & {meeting.nodes for meeting in found}


# --- simulations: the rates are drawn, rounds and judge are the real ones


def simulate(number: int, rate: Rate, seed: int, nics: tuple[str, ...] = ("eth1",)) -> set[str]:
    """Who is blamed: ``node nic/…``, sound links doing 90 to 100 Gbit/s of 100."""
    rng = random.Random(seed)

    def measured(meeting: Meeting) -> list[NicPair]:
        return [
            NicPair(NicSide(one, nic, 100), NicSide(other, nic, 100), rate(one, other, nic) * rng.uniform(0.9, 1.0))
            for nic in nics
            for one, other in ((meeting.client, meeting.server), (meeting.server, meeting.client))
        ]

    meetings = [meeting for each in first_rounds(names(number), rng) for meeting in each]
    pairs = [pair for meeting in meetings for pair in measured(meeting)]
    for step in range(FURTHER):
        bad = {frozenset((pair.sender.node, pair.receiver.node)) for pair in find_slow_pairs(pairs, LIMITS)}
        tally, met = tally_of(meetings, bad), {meeting.nodes for meeting in meetings}
        more = (round_of_the_slow if step == FURTHER - 1 else further_round)(tally, met, rng)
        meetings += more
        pairs += [pair for meeting in more for pair in measured(meeting)]
    return {
        f"{node} {finding.component}"
        for node, findings in judge(pairs, LIMITS).items()
        for finding in findings
        if finding.verdict is Verdict.FAIL
    }


SIMULATED = [(4, 1, 25), (5, 2, 25), (9, 3, 25), (16, 1, 10), (16, 3, 10), (64, 3, 10), (200, 3, 5), (1_000, 3, 1)]


@pytest.mark.parametrize(("number", "slow", "seeds"), SIMULATED)
def test_exactly_the_slow_nodes_are_named(number: int, slow: int, seeds: int):
    for seed in range(seeds):
        guilty = set(random.Random(seed).sample(names(number), slow))
        found = simulate(number, lambda one, other, _, guilty=guilty: 20 if {one, other} & guilty else 100, seed)
        assert found == {f"{node} nic/eth1" for node in guilty}, seed


@pytest.mark.parametrize(("number", "seeds"), [(4, 20), (33, 10), (1_000, 1)])
def test_the_slow_nic_of_two_is_named(number: int, seeds: int):
    for seed in range(seeds):
        guilty = random.Random(seed).choice(names(number))
        slow = {(guilty, "eth2")}
        found = simulate(
            number,
            lambda one, other, nic, slow=slow: 20 if {(one, nic), (other, nic)} & slow else 100,
            seed,
            ("eth1", "eth2"),
        )
        assert found == {f"{guilty} nic/eth2"}, seed


@pytest.mark.parametrize(("number", "seeds"), [(4, 20), (64, 10)])
def test_a_node_that_is_slow_one_way_is_named(number: int, seeds: int):
    for seed in range(seeds):
        guilty = random.Random(seed).choice(names(number))
        found = simulate(number, lambda one, _other, _nic, guilty=guilty: 20 if one == guilty else 100, seed)
        assert found == {f"{guilty} nic/eth1"}, seed


@pytest.mark.parametrize(("number", "rack", "seeds"), [(32, 8, 10), (64, 16, 10), (200, 16, 3), (1_000, 16, 1)])
def test_all_behind_a_slow_switch_are_named(number: int, rack: int, seeds: int):
    for seed in range(seeds):
        behind = random.Random(seed).randrange(number // rack)
        found = simulate(
            number,
            lambda one, other, _, behind=behind: (
                20 if (index(one) // rack == behind) != (index(other) // rack == behind) else 100
            ),
            seed,
        )
        assert found == {f"{node} nic/eth1" for node in names(number) if index(node) // rack == behind}, seed


@pytest.mark.parametrize("number", [4, 8, 16, 64])
def test_two_halves_that_are_slow_towards_each_other_blame_nobody(number: int):
    for seed in range(10):
        half = number // 2
        found = simulate(
            number, lambda one, other, _, half=half: 20 if (index(one) < half) != (index(other) < half) else 100, seed
        )
        assert found == set(), seed


def test_a_lone_slow_pair_of_two_nodes_blames_nobody():
    assert simulate(2, lambda *_: 20, 1) == set()


@pytest.mark.parametrize("number", [8, 64, 200])
def test_a_slow_pair_here_and_there_blames_nobody(number: int):
    for seed in range(10):
        chance = random.Random(seed)
        assert simulate(number, lambda *_, chance=chance: 20 if chance.random() < 0.01 else 100, seed) == set(), seed
