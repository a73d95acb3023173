"""Generates a fault history from rates: the same fleet file and seed give the same faults.

Every node draws from its own stream of random numbers, so another node, rate or policy changes nothing of its history.
"""

import math
from collections import Counter
from random import Random

from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED, FaultRow, RecordedFaults
from muster_tainter.simulation.scenario.fleet_file import FaultRate, FleetError, Generator
from muster_tainter.simulation.scenario.nodes import FleetNode

YEAR_S = 365 * 86_400.0
ROWS_LIMIT = 2_000_000  # in memory: 250 bytes each


def generate_faults(
    generator: Generator, nodes: list[FleetNode], begin: float, end: float, seed: int
) -> RecordedFaults:
    """begin, end: seconds since the epoch. Nodes are new at the begin. Raises FleetError for too many faults."""
    _require_few(generator, nodes, end - begin)
    rows: list[FaultRow] = []
    for node in nodes:
        random = _random(seed, "node", node.name)
        lemons = generator.lemons
        times = lemons.times if lemons is not None and random.random() < lemons.share else 1.0
        for place, rate in enumerate(generator.rates):
            if not rate.models or node.model in rate.models:
                rows += _of_rate(generator, rate, node, times, begin, end, _random(seed, "rate", node.name, place))
    if generator.outages is not None:
        rows += _outages(generator, nodes, begin, end, seed)
    rows.sort(key=lambda row: (row.start, row.node, row.component))
    return RecordedFaults([row._replace(number=number) for number, row in enumerate(rows, 1)])


def _require_few(generator: Generator, nodes: list[FleetNode], length_s: float) -> None:
    """Of the expected number, in which infants and lemons count as if all nodes were both."""
    years = length_s / YEAR_S
    times = max(generator.infants.times if generator.infants is not None else 1.0, 1.0)
    lemons = generator.lemons
    times *= 1.0 + (lemons.share * lemons.times if lemons is not None else 0.0)
    members = Counter(node.model for node in nodes)
    for place, rate in enumerate(generator.rates):
        chosen = sum(number for model, number in members.items() if not rate.models or model in rate.models)
        expected = rate.per_node_year * times * chosen * years
        if expected > ROWS_LIMIT:
            raise FleetError(
                f"faults.rates[{place}].perNodeYear: {rate.per_node_year:g}: about {expected:,.0f} faults on "
                f"{chosen} nodes in {years:.3g} years; expected at most {ROWS_LIMIT:,}"
            )
    outages = generator.outages
    racked = sum(1 for node in nodes if node.domain)
    if outages is not None and outages.per_domain_year * racked * years > ROWS_LIMIT:
        raise FleetError(
            f"faults.outages.perDomainYear: {outages.per_domain_year:g}: more than {ROWS_LIMIT:,} faults on "
            f"{racked} nodes in {years:.3g} years"
        )


def _random(seed: int, *what: object) -> Random:
    return Random("/".join(map(str, (seed, *what))))  # noqa: S311 - a simulation


def _of_rate(
    generator: Generator, rate: FaultRate, node: FleetNode, times: float, begin: float, end: float, random: Random
) -> list[FaultRow]:
    """A Poisson process. The faults of young nodes are thinned from the highest rate."""
    infants = generator.infants
    highest = rate.per_node_year * times * (max(infants.times, 1.0) if infants is not None else 1.0)
    rows: list[FaultRow] = []
    at = begin
    while highest > 0:
        at += random.expovariate(highest / YEAR_S)
        if at >= end:
            break
        kept, lasts, fatal = random.random(), random.random(), random.random() < rate.fatal
        young = infants is not None and at - begin < infants.within
        now = rate.per_node_year * times * (infants.times if infants is not None and young else 1.0)
        if kept * highest < now:
            rows.append(_row(rate, node, at, lasts, fatal=fatal))
    return rows


def _row(rate: FaultRate, node: FleetNode, at: float, lasts: float, *, fatal: bool) -> FaultRow:
    start = float(int(at))
    end = UNTIL_REPAIRED
    if rate.lasts is not None:
        end = start + max(1.0, float(int(-rate.lasts * math.log(1.0 - lasts))))
    cause = rate.fault_class, rate.component, rate.check, rate.reason
    return FaultRow(0, node.name, start, end, *cause, fatal=fatal, hidden=rate.hidden)


def _outages(generator: Generator, nodes: list[FleetNode], begin: float, end: float, seed: int) -> list[FaultRow]:
    outages = generator.outages
    if outages is None or not outages.per_domain_year:
        return []
    domains: dict[str, list[FleetNode]] = {}
    for node in nodes:
        if node.domain:
            domains.setdefault(node.domain, []).append(node)
    rows = []
    for name, members in domains.items():
        random = _random(seed, "outage", name)
        at = begin
        while (at := at + random.expovariate(outages.per_domain_year / YEAR_S)) < end:
            start = float(int(at))
            last = start + max(60.0, float(int(random.expovariate(1 / outages.lasts))))
            rows += [
                FaultRow(0, node.name, start, last, outages.fault_class, "host", "dmesg", "Outage") for node in members
            ]
    return rows
