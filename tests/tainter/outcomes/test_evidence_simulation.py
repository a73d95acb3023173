"""Simulated fleets: healthy nodes are proven bad no more often than the bound; bad ones are found.

The fleets come from hypothesis_seed.
"""

import math
from dataclasses import replace
from random import Random

import pytest
from tests.tainter.outcomes.detection import BAD, NODES, delay, proofs
from tests.tainter.outcomes.robustness import alarms_at_the_limit
from tests.tainter.outcomes.simulated_fleets import (
    EXITED,
    IMAGE,
    REJECTED,
    Fleet,
    Owner,
    careless_fleet,
    healthy_fleet,
    settings,
)

from muster_tainter.outcomes.evidence import HOUR_S

FEW = 4  # fleets; `make soak` plays 1,000 of each
DAYS = 7.0


def first_and_count(pytestconfig: pytest.Config) -> tuple[int, int]:
    return int(pytestconfig.getoption("hypothesis_seed")), (pytestconfig.getoption("examples") or 0) // 2 or FEW


def most_allowed(expected: float) -> int:
    """More than that has a chance below 1 in 30,000 if the number is Poisson's, with this mean."""
    term = total = math.exp(-expected)
    number = 0
    while 1 - total > 1 / 30_000:
        number += 1
        term *= expected / number
        total += term
    return number


@pytest.mark.parametrize("bound", [1.0, 0.01])
def test_random_lives_of_fleets_without_a_bad_node(bound: float, pytestconfig: pytest.Config) -> None:
    """Bad images, bad users, flaky jobs, outages of what jobs depend on, gangs, retries, owners on few nodes, and half
    hours in which the whole fleet rejects pods."""
    first, count = first_and_count(pytestconfig)
    found, node_years = [], 0.0
    for seed in range(first, first + count):
        random = Random(seed)
        fleet = healthy_fleet(random)
        node_years += len(fleet.nodes) * DAYS / 365.25
        found += [(seed, proof) for _, proof in proofs(fleet, random, DAYS, settings(bound))]
    print(f"{len(found)} proofs in {node_years:.1f} node-years, bound {bound * node_years:.2f}")
    assert len(found) <= most_allowed(bound * node_years), found


def test_random_lives_of_fleets_with_bad_images_or_bad_users_only(pytestconfig: pytest.Config) -> None:
    """Nobody is blamed, whatever the jobs do to themselves. The same fleets in every run."""
    _, count = first_and_count(pytestconfig)
    found, failed = [], 0
    for seed in range(count):
        random = Random(seed)
        fleet = careless_fleet(random, IMAGE if seed % 2 else EXITED)
        failed += sum(attempt.failed for attempt in fleet.attempts(Random(seed), DAYS))
        found += [(seed, proof) for _, proof in proofs(fleet, Random(seed), DAYS, settings())]
    print(f"{count} fleets, {failed} failed pods, {len(found)} proofs")
    assert failed > 1000 * count
    assert found == []


def test_bound_is_kept_at_the_limit_of_health_and_is_not_out_of_reach() -> None:
    assert 0 < alarms_at_the_limit(node_years=10, pods_a_day=30) <= most_allowed(10)


def test_random_lives_of_an_attacker_with_one_namespace(pytestconfig: pytest.Config) -> None:
    """Its pods always fail on one node; others are flaky everywhere."""
    first, count = first_and_count(pytestconfig)
    attacker = Owner("x", "attacker", width=10, every_s=2 * HOUR_S, rate=0.0, rates={BAD: 1.0})
    flaky = tuple(Owner(f"o{number}", f"ns{number % 3}", every_s=2 * HOUR_S, rate=0.3) for number in range(6))
    fleet = Fleet(NODES, (*flaky, attacker))
    found = []
    for seed in range(first, first + count):
        found += [(seed, proof) for _, proof in proofs(fleet, Random(seed), DAYS, settings())]
    node_years = count * len(NODES) * DAYS / 365.25
    assert len(found) <= most_allowed(0.01 * node_years), found


@pytest.mark.parametrize(("kind", "rate", "within"), [(REJECTED, 1.0, 8), (REJECTED, 0.5, 40), (EXITED, 1.0, 60)])
def test_bad_node_is_found(kind: str, rate: float, within: int) -> None:
    """within: attempts on it. Medians are a third of that (docs/in-flight.md); the same fleets in every run."""
    for seed in range(4):
        found = delay(kind, rate, base=0.01, namespaces=6, seed=seed)
        assert found
        assert found.best
        assert found.best <= found.attempts <= within


def test_bad_node_is_named_among_bad_images_bad_users_and_flaky_jobs() -> None:
    fleet = healthy_fleet(Random(7))
    owners = tuple(Owner(f"good-{number}", f"ns{number % 4}", every_s=HOUR_S) for number in range(8))
    mixed = replace(fleet, owners=fleet.owners + owners)
    bad = fleet.nodes[5]
    chosen = replace(mixed, owners=tuple(replace(each, rates={bad: 1.0}) for each in mixed.owners))
    assert {proof.node for _, proof in proofs(chosen, Random(1), DAYS, settings())} == {bad}
