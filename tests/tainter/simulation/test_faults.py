"""Generated faults have the rates of the fleet file, and resampled fleets the histories of the real one."""

from random import Random
from typing import Any

import pytest
from tests.tainter.simulation.worlds import BEGIN, fleet_file

from muster_tainter.simulation.scenario.fault_generator import YEAR_S, generate_faults
from muster_tainter.simulation.scenario.fleet_file import FleetError, FleetFile
from muster_tainter.simulation.scenario.nodes import draw_histories, drawn_by, make_nodes

YEAR = 365 * 24.0


def rates(nodes: int = 500, **more: Any) -> FleetFile:
    faults = {"rates": [{"class": "reboot", "perNodeYear": 4.0, "lasts": "2h"}], **more}
    domain = {"label": "example.com/rack", "nodes": 10}
    groups = [{"name": "gpu", "nodes": nodes, "domain": domain}]
    return fleet_file(nodes, YEAR, groups=groups, faults=faults)


def made(fleet: FleetFile, seed: int = 1) -> list[Any]:
    assert fleet.faults is not None
    return list(generate_faults(fleet.faults, make_nodes(fleet), BEGIN, BEGIN + YEAR_S, seed).rows())


def test_rate_and_duration() -> None:
    rows = made(rates())
    assert len(rows) == pytest.approx(2000, rel=0.1)  # 2.2 standard deviations are 5 %
    assert sum(row.end - row.start for row in rows) / len(rows) == pytest.approx(7200, rel=0.1)


def test_same_seed_gives_the_same_faults_of_a_node_in_any_fleet() -> None:
    small, large = (made(rates(nodes)) for nodes in (10, 20))
    own = [row[1:] for row in large if row.node in {f"gpu-{number}" for number in range(1, 11)}]
    assert [row[1:] for row in small] == own
    assert made(rates(10), seed=2) != small


def test_young_nodes_fail_more_often() -> None:
    rows = made(rates(infants={"times": 5.0, "within": "73d"}))
    young = sum(row.start < BEGIN + YEAR_S / 5 for row in rows)
    # a fifth of the year at five times the rate, and four fifths at the rate
    assert young / len(rows) == pytest.approx(5 / 9, abs=0.03)


def test_lemons_have_most_faults() -> None:
    rows = made(rates(lemons={"share": 0.05, "times": 20.0}))
    numbers = sorted((sum(row.node == f"gpu-{number}" for row in rows) for number in range(1, 501)), reverse=True)
    assert sum(numbers[:25]) / len(rows) == pytest.approx(0.5, abs=0.12)


def test_outage_hits_all_nodes_of_its_domain_at_once() -> None:
    rows = [row for row in made(rates(outages={"perDomainYear": 2.0, "lasts": "1h"})) if row.reason == "Outage"]
    together: dict[float, int] = {}
    for row in rows:
        together[row.start] = together.get(row.start, 0) + 1
    assert len(rows) == pytest.approx(1000, rel=0.3)
    assert all(number % 10 == 0 for number in together.values())


def test_resampled_fleet_draws_whole_domains() -> None:
    nodes = make_nodes(rates(100))
    assert drawn_by(nodes) == "failure domains"
    drawn = draw_histories(nodes, Random(1))
    repeats = [target for targets in drawn.values() for target in targets]
    assert sorted(repeats) == sorted(node.name for node in nodes)
    domain_of = {node.name: node.domain for node in nodes}
    sources: dict[str, set[str]] = {}
    for source, targets in drawn.items():
        for target in targets:
            sources.setdefault(domain_of[target], set()).add(domain_of[source])
    assert all(len(found) == 1 for found in sources.values())
    assert len(drawn) < len(nodes)


def test_fleet_without_enough_domains_draws_nodes() -> None:
    nodes = make_nodes(rates(30))
    assert drawn_by(nodes) == "nodes"
    assert draw_histories(nodes, None) == {node.name: [node.name] for node in nodes}


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"rates": [{"class": "reboot", "perNodeYear": 10_000}]}, "faults.rates[0].perNodeYear"),
        ({"rates": [{"class": "reboot", "perNodeYear": 20}], "infants": {"times": 1000, "within": "1d"}}, "rates[0]"),
        ({"rates": [{"class": "reboot", "perNodeYear": 20}], "lemons": {"share": 1, "times": 1000}}, "rates[0]"),
        ({"outages": {"perDomainYear": 10_000, "lasts": "1m"}}, "faults.outages.perDomainYear"),
    ],
)
def test_rates_that_fill_the_memory_are_named(more: dict[str, Any], place: str) -> None:
    with pytest.raises(FleetError) as caught:
        made(rates(**more))
    assert place in str(caught.value)


def test_outages_of_named_racks_hit_their_nodes() -> None:
    names = {"r1": ["a", "b"], "r2": ["c"]}
    groups = [{"name": "gpu", "domain": {"label": "example.com/rack", "names": names}}]
    faults = {"rates": [{"class": "reset", "perNodeYear": 0}], "outages": {"perDomainYear": 40, "lasts": "1h"}}
    rows = made(fleet_file(1, YEAR, groups=groups, faults=faults))
    starts: dict[str, list[float]] = {name: [row.start for row in rows if row.node == name] for name in "abc"}
    assert starts["a"] == starts["b"] != starts["c"]
    assert starts["a"]
