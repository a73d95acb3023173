"""Rounds of an owner's pods, and what the order of their failures says about a node."""

import math
from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product
from random import Random

import pytest
from tests.tainter.outcomes.simulated_fleets import DAY_S, settings

from muster_tainter.outcomes.evidence import HOUR_S, Attempt, EvidenceSettings
from muster_tainter.outcomes.evidence_rounds import ODDS, OPEN, PODS, TIED_S, Record, Round, Rounds, compare

FAR = 2 * TIED_S
RESULTS = [(math.inf, ""), (0.0, "A"), (1.0, "A"), (FAR, "A"), (2 * FAR, "A"), (FAR, "B")]


def records(results: tuple[tuple[float, str], ...]) -> dict[str, Record]:
    return {f"n{number}": Record(0.0, "", at, kind) for number, (at, kind) in enumerate(results)}


def factors_of(node: str, results: tuple[tuple[float, str], ...], kind: str) -> tuple[float, ...]:
    found = [each for each in compare(records(results)) if (each.node, each.kind) == (node, kind)]
    return found[0].factors if found else (1.0,) * len(ODDS)


@pytest.mark.parametrize("pods", [2, 3, 4])
def test_expected_factor_is_1_over_all_permutations_of_any_results(pods: int) -> None:
    for results in combinations_with_replacement(RESULTS, pods):
        orders = list(permutations(results))
        for kind in "AB":
            for factors in zip(*(factors_of("n0", order, kind) for order in orders), strict=True):
                assert math.fsum(factors) / len(orders) == pytest.approx(1, abs=1e-12), results


@pytest.mark.parametrize("others", [0.3, 0.5, 0.9])
def test_expected_factor_is_at_most_1_if_the_other_nodes_are_worse(others: float) -> None:
    """Exact, over all results of four pods. With ``others`` = 0.3 all nodes are equal."""
    chances = [0.3, others, 0.3, others]
    for number in range(len(ODDS)):
        mean = math.fsum(
            math.prod(p if fails else 1 - p for p, fails in zip(chances, outcome, strict=True))
            * factors_of("n0", tuple((0.0, "A") if fails else (math.inf, "") for fails in outcome), "A")[number]
            for outcome in product((True, False), repeat=4)
        )
        assert mean <= 1 + 1e-12
        assert others > 0.3 or mean == pytest.approx(1)


def test_factor_is_that_of_the_formula() -> None:
    """Of five pods, first one fails, then two at once (n0 among them)."""
    results = ((FAR, "A"), (0.0, "A"), (FAR, "A"), (math.inf, ""), (math.inf, ""))
    for theta, factor in zip(ODDS, factors_of("n0", results, "A"), strict=True):
        odds = Fraction(theta)
        exact = 1 / (1 + (odds - 1) * Fraction(1, 5)) * odds / (1 + (odds - 1) * Fraction(2, 4))
        assert factor == pytest.approx(float(exact))


@pytest.mark.parametrize(
    "results",
    [
        ((0.0, "A"),),
        ((math.inf, ""), (math.inf, "")),
        ((0.0, "A"), (0.0, "A"), (TIED_S, "A")),  # an owner that fails everywhere
    ],
)
def test_round_without_a_difference_says_nothing(results: tuple[tuple[float, str], ...]) -> None:
    assert list(compare(records(results))) == []


def test_first_of_a_gang_to_fail_is_told_from_those_that_follow() -> None:
    results = ((0.0, "A"), *((FAR, "A"),) * 7)
    assert min(factors_of("n0", results, "A")) > 1
    assert max(factors_of("n1", results, "A")) < 1
    found = next(each for each in compare(records(results)) if each.node == "n0")
    assert (found.failed, found.expected) == (True, 1 / 8)


def pod(node: str, started: float, at: float, kind: str = "", owner: str = "o", uid: str = "u") -> Attempt:
    return Attempt(node, owner, "ns", kind, bool(kind), at, started, uid)


def ended(rounds: Rounds, *pods: Attempt) -> list[Round]:
    found = [each for attempt in pods for each in rounds.add(attempt)]
    return found + list(rounds.due(100 * DAY_S))


def test_retry_is_not_compared_with_the_pods_that_were_created_before_it() -> None:
    found = ended(Rounds(settings()), pod("a", 0, 10, "A"), pod("b", 0, 20), pod("c", 11, 30), pod("d", 9, 40))
    assert [sorted(each.records) for each in found] == [["a", "b", "d"], ["c"]]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_one_pod_counts_on_a_node_and_its_result_does_not_choose_it(order: tuple[int, ...]) -> None:
    pods = [pod("a", 2, 10, "A"), pod("a", 1, 10, "A", uid="w"), pod("a", 1, 10, uid="v")]
    rounds = Rounds(settings())
    (found,) = ended(rounds, *(pods[number] for number in order))
    assert found.records == {"a": Record(1, "v")}
    assert rounds.records == 0


def test_round_ends_when_it_is_full() -> None:
    rounds = Rounds(settings())
    found = [each for number in range(PODS) for each in rounds.add(pod(f"n{number}", 0, number + 1))]
    assert [len(each.records) for each in found] == [PODS]
    assert rounds.add(pod("late", 0, 99)) == []
    assert list(rounds.due(100 * DAY_S)) == []  # what comes after the end of its round is left out


def test_round_ends_after_its_time() -> None:
    rounds = Rounds(settings())
    rounds.add(pod("a", 0, 10))
    assert list(rounds.due(6 * HOUR_S)) == []
    assert len(list(rounds.due(6 * HOUR_S + 10))) == 1


def test_owner_with_many_generations_of_pods_has_few_open_rounds() -> None:
    rounds = Rounds(settings())
    found = [each for number in range(100) for each in rounds.add(pod("a", 10 * number, 10 * number + 10))]
    assert len(found) == 100 - OPEN == 100 - rounds.records


def test_records_are_bounded_whatever_owners_there_are() -> None:
    few = EvidenceSettings(frozenset(), frozenset("A"), records=100)
    rounds, random = Rounds(few), Random(5)
    ends = 0
    for number in range(5000):
        started = random.uniform(0, 100)
        owner = f"o{random.randrange(300)}"
        ends += len(rounds.add(pod(f"n{random.randrange(9)}", started, started + number, owner=owner, uid=str(number))))
        assert rounds.records == sum(len(each.records) for each in rounds._open) <= 100
        assert sum(map(len, rounds._by_owner.values())) == len(rounds._open)
        assert len(rounds._ended) <= 100
    assert ends > 1000
