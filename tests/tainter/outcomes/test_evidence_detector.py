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
    return Detector(ONE, begin)


def feed(each: Detector, factor: float, namespace: str = "ns", after: float = 60.0, witnesses: bool = True) -> float:
    at = START if each.last == -math.inf else each.last + after
    each.let_time_pass(at, ONE)
    return each.multiply((factor,), namespace, witnesses)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("limit", [0.01, 0.1, 1.0])
def test_capital_paid_by_alarms_is_at_most_what_time_brings(rate: float, limit: float) -> None:
    """Exact, over all sequences of ten outcomes at random times, with a restart after each alarm."""
    times = [START + each for each in sorted(Random(3).uniform(0, 3 * HOUR_S) for _ in range(10))]
    paid = 0.0
    for outcome in product((True, False), repeat=len(times)):
        chance = math.prod(rate if fails else 1 - rate for fails in outcome)
        each = Detector(RATE_WEIGHTS, -math.inf)
        for at, fails in zip(times, outcome, strict=True):
            each.let_time_pass(at, RATE_WEIGHTS)
            each.multiply(factors(rate, fails), "ns", needs_witnesses=False)
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
    each.let_time_pass(START, ONE)
    first = each.value
    assert first == pytest.approx(HOUR_S / WEEK_S)
    each.let_time_pass(START - HOUR_S, ONE)
    assert each.value == first
    assert each.last == START
    each.let_time_pass(START + 1000 * WEEK_S, ONE)
    assert each.value == pytest.approx(HOUR_S / WEEK_S)


def test_quiet_node_never_has_more_than_a_weeks_capital() -> None:
    each = detector()
    for hour in range(2000):
        each.let_time_pass(START + hour * HOUR_S, ONE)
    assert 0.95 < each.value < 1.01


def test_restart_brings_no_capital_in_twice() -> None:
    each = detector()
    feed(each, 50.0)
    each.restart()
    each.let_time_pass(each.last, ONE)
    assert each.value == 0
    assert not each.growth
    assert not each.proven


def test_old_evidence_is_forgotten() -> None:
    each = detector()
    feed(each, 1e6)
    before = each.value
    each.let_time_pass(START + WEEK_S, ONE)
    assert each.value == pytest.approx(before / math.e, rel=1e-3)
    assert each.growth == {"ns": pytest.approx(math.log(1e6) - 1)}


def test_one_namespace_is_no_witness_against_a_node_however_often_it_fails() -> None:
    each = detector()
    for _ in range(500):
        feed(each, 10.0)
    assert each.value > 1e90
    assert math.isfinite(each.value)
    assert not each.has_witnesses(1e4)


@pytest.mark.parametrize(("second", "witnesses"), [(99.0, False), (101.0, True)])
def test_other_namespaces_bring_half_of_the_evidence(second: float, witnesses: bool) -> None:
    each = detector()
    feed(each, 1e6, "a", after=0)
    feed(each, second, "b", after=0)
    assert each.has_witnesses(1e4) is witnesses


def test_namespaces_that_lost_before_do_not_win_more_later() -> None:
    """What a namespace adds is counted from its lowest point: pieces of capital that came in since then grow by all."""
    each = detector()
    feed(each, 1e-9, "a", after=0)
    feed(each, 1e6, "a", after=HOUR_S)
    assert each.growth["a"] == pytest.approx(math.log(1e6))


def test_more_namespaces_than_are_known_add_nothing() -> None:
    each = detector()
    for number in range(NAMESPACES):
        feed(each, 2.0, f"ns-{number}", after=0)
    value = each.value
    assert feed(each, 5.0, "one-more", after=0) == 1
    assert each.value == pytest.approx(value)
    feed(each, 0.5, "one-more", after=0)
    assert each.value == pytest.approx(value / 2)
    assert feed(each, 5.0, "one-more", after=0, witnesses=False) == pytest.approx(5)
    assert len(each.growth) == NAMESPACES


def test_random_factors_keep_the_bounds() -> None:
    random = Random(11)
    each, plain, injected = Detector(RATE_WEIGHTS, -math.inf), 0.0, 0.0
    for _ in range(5000):
        at = START if each.last == -math.inf else each.last + random.choice((-5.0, 0.0, 10.0, 4000.0))
        injected = min(max(at - each.last, 0.0), HOUR_S) / WEEK_S
        each.let_time_pass(at, RATE_WEIGHTS)
        chosen = factors(random.uniform(0.01, 0.5), random.random() < 0.2)
        each.multiply(chosen, f"ns-{random.randrange(20)}", needs_witnesses=True)
        plain = (plain + injected) * max(chosen)
        assert 0 <= each.value <= plain * (1 + 1e-9)
        assert len(each.growth) <= NAMESPACES
        assert min(each.growth.values(), default=1.0) > 0
        assert len(each.bets) == len(RATES)
