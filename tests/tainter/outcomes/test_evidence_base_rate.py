"""The rate at which healthy nodes may fail, from the past and present of the others."""

from random import Random

import pytest

from muster_tainter.outcomes.evidence import HOUR_S, WEEK_S
from muster_tainter.outcomes.evidence_base_rate import FLOOR, BaseRate

NODES = [f"n{number}" for number in range(10)]


def rate_after(failed: dict[str, list[bool]], gap_s: float = 60.0) -> tuple[BaseRate, float]:
    """The results of each node, one after another in turns; and the time after them."""
    rate, now = BaseRate(100), 0.0
    for turn in range(max(map(len, failed.values()))):
        for node, results in failed.items():
            if turn < len(results):
                now += gap_s
                rate.add(node, results[turn], now)
    return rate, now


def test_without_a_past_it_is_the_floor() -> None:
    assert BaseRate(100).of_healthy("n0", 0.0) == FLOOR


def test_the_nodes_own_failures_do_not_excuse_it() -> None:
    rate, now = rate_after({"n0": [True] * 50} | {node: [False] * 50 for node in NODES[1:]})
    assert rate.of_healthy("n0", now) == FLOOR
    assert rate.of_healthy("n1", now) > FLOOR


def test_it_is_at_least_the_rate_of_the_other_nodes() -> None:
    random = Random(2)
    rate, now = rate_after({node: [random.random() < 0.05 for _ in range(200)] for node in NODES})
    assert 0.05 <= rate.of_healthy("n0", now) <= 0.3


def test_a_fleet_that_breaks_is_seen_by_the_first_failure_of_each_node() -> None:
    rate, now = rate_after({node: [False] * 1000 for node in NODES}, gap_s=1.0)
    for node in NODES[1:]:
        rate.add(node, True, now)
    assert rate.of_healthy("n0", now) > 0.9
    assert rate.of_healthy("n0", now + HOUR_S) < 0.1  # unless it stays so


def test_one_node_that_rejects_hundreds_of_pods_counts_once_at_present() -> None:
    rate, now = rate_after({node: [False] * 1000 for node in NODES}, gap_s=1.0)
    for _ in range(500):
        rate.add("n1", True, now)
    assert 0.05 < rate.of_healthy("n0", now) < 0.2


def test_node_that_is_left_out_does_not_count() -> None:
    rate, now = rate_after({node: [False] * 100 for node in NODES} | {"n1": [True] * 100})
    rate.leave_out("n1")
    assert rate.of_healthy("n0", now) == FLOOR


def test_the_past_fades() -> None:
    rate, now = rate_after({node: [True] * 10 for node in NODES})
    assert rate.of_healthy("n0", now) > 0.9
    assert rate.of_healthy("n0", now + 20 * WEEK_S) == pytest.approx(FLOOR)


def test_random_attempts_keep_the_bounds() -> None:
    random = Random(9)
    rate, now = BaseRate(nodes=20), 0.0
    for _ in range(5000):
        now += random.choice((-30.0, 0.0, 5.0, 600.0))
        node = f"n{random.randrange(60)}"
        if random.random() < 0.1:
            rate.leave_out(node)
        rate.add(node, random.random() < 0.3, now)
        assert FLOOR <= rate.of_healthy(f"n{random.randrange(60)}", now) <= 1
        assert len(rate._nodes) <= 20
        assert len(rate._recent) <= 20
        assert rate._failing == sum(failed for _, failed in rate._recent.values())
