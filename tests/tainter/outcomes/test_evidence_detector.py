"""The e-detector: fair to healthy nodes at every time, never more capital than time brings."""

import math
from itertools import product
from random import Random

import pytest

from muster_tainter.outcomes.evidence import HOUR_S, WEEK_S
from muster_tainter.outcomes.evidence_base_rate import RATE_WEIGHTS, RATES, factors
from muster_tainter.outcomes.evidence_detector import NAMESPACES, Detector

START = 1e9
ONE = (1.0,)


def detector(begin: float = -math.inf) -> Detector:
    return Detector(ONE, begin, distrust=True)


def feed(each: Detector, factor: float, namespace: str = "ns", after: float = 60.0) -> float:
    each.let_time_pass(START if each.last == -math.inf else each.last + after)
    return each.multiply((factor,), namespace)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("limit", [0.01, 0.1, 1.0])
def test_capital_paid_by_alarms_is_at_most_what_time_brings(rate: float, limit: float) -> None:
    """Exact, over all sequences of ten outcomes at random times, with a restart after each alarm."""
    times = [START + each for each in sorted(Random(3).uniform(0, 3 * HOUR_S) for _ in range(10))]
    paid = 0.0
    for outcome in product((True, False), repeat=len(times)):
        chance = math.prod(rate if fails else 1 - rate for fails in outcome)
        each = Detector(RATE_WEIGHTS, -math.inf, distrust=False)
        for at, fails in zip(times, outcome, strict=True):
            each.let_time_pass(at)
            each.multiply(factors(rate, fails), "ns")
            if each.value >= limit:
                paid += chance * limit
                each.restart()
    assert paid <= (HOUR_S + times[-1] - times[0]) / WEEK_S + 1e-12
    assert rate > 0.01 or paid > 0  # the limits are low enough to be reached


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5, 0.96, 1.0])
def test_factor_of_an_outcome_is_fair_up_to_the_rate(rate: float) -> None:
    for chance in (rate, rate / 2, 0.0):
        for failure, success in zip(factors(rate, True), factors(rate, False), strict=True):
            mean = chance * failure + (1 - chance) * success
            assert 0 <= success <= 1 <= failure
            assert mean <= 1 + 1e-12
            assert chance < rate or mean == pytest.approx(1)


def test_no_time_back_or_forward_brings_more_than_an_hours_capital() -> None:
    each = detector()
    each.let_time_pass(START)
    first = each.value
    assert first == pytest.approx(HOUR_S / WEEK_S)
    each.let_time_pass(START - HOUR_S)
    assert each.value == first
    assert each.last == START
    each.let_time_pass(START + 1000 * WEEK_S)
    assert each.value == pytest.approx(HOUR_S / WEEK_S)


def test_quiet_node_never_has_more_than_a_weeks_capital() -> None:
    each = detector()
    for hour in range(2000):
        each.let_time_pass(START + hour * HOUR_S)
    assert 0.95 < each.value < 1.01


def test_restart_brings_no_capital_in_twice() -> None:
    each = detector()
    feed(each, 50.0)
    each.restart()
    each.let_time_pass(each.last)
    assert each.value == 0
    assert not each.without
    assert not each.proven


def test_old_evidence_is_forgotten() -> None:
    each = detector()
    feed(each, 1e6)
    before = sum(each.bets)
    each.let_time_pass(START + WEEK_S)
    assert sum(each.bets) == pytest.approx(before / math.e, rel=1e-3)


def test_one_namespace_raises_no_value_however_often_it_fails() -> None:
    each = detector()
    for _ in range(500):
        feed(each, 10.0)
    assert math.isfinite(sum(each.bets))
    assert each.value <= 500 * HOUR_S / WEEK_S


@pytest.mark.parametrize("attacker", [[1e6] * 9, [1e-3] * 9, [1e6, 1e-9] * 5])
def test_value_is_at_most_what_it_is_without_any_one_namespace(attacker: list[float]) -> None:
    random = Random(4)
    honest, attacked = detector(), detector()
    for factor in attacker:
        for each in (honest, attacked):
            each.let_time_pass(START if each.last == -math.inf else each.last + 60)
        attacked.multiply((factor,), "attacker")
        for namespace in "abc":
            own = random.choice((0.5, 3.0))
            honest.multiply((own,), namespace)
            attacked.multiply((own,), namespace)
        assert attacked.value <= sum(honest.bets) * (1 + 1e-9)


def test_two_namespaces_are_each_proof_enough() -> None:
    each = detector()
    feed(each, 1e6, "a", after=0)
    feed(each, 1e5, "b", after=0)
    assert each.value == pytest.approx(1e5 * HOUR_S / WEEK_S)


def test_namespace_that_adds_least_makes_room_and_takes_its_share_with_it() -> None:
    each = detector()
    for number in range(NAMESPACES):
        feed(each, 2.0 + number, f"ns-{number}", after=0)
    before = sum(each.bets)
    feed(each, 5.0, "one-more", after=0)
    assert sum(each.bets) == pytest.approx(before / 2 * 5)
    assert len(each.without) == NAMESPACES
    assert "ns-0" not in each.without


def test_random_factors_keep_the_bounds() -> None:
    random = Random(11)
    each, plain, injected = Detector(RATE_WEIGHTS, -math.inf, distrust=True), 0.0, 0.0
    for _ in range(5000):
        at = START if each.last == -math.inf else each.last + random.choice((-5.0, 0.0, 10.0, 4000.0))
        injected = min(max(at - each.last, 0.0), HOUR_S) / WEEK_S
        each.let_time_pass(at)
        chosen = factors(random.uniform(0.01, 0.5), random.random() < 0.2)
        each.multiply(chosen, f"ns-{random.randrange(20)}")
        plain = (plain + injected) * max(chosen)
        assert 0 <= each.value <= plain * (1 + 1e-9)
        assert len(each.without) <= NAMESPACES
        assert len(each.bets) == len(RATES)


def test_namespace_without_a_name_counts_like_any_other() -> None:
    each = detector()
    each.let_time_pass(START)
    before = sum(each.bets)
    each.multiply((3.0,), "")
    assert sum(each.bets) == pytest.approx(3 * before)
    assert each.value == pytest.approx(before)
