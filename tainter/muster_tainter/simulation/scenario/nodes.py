"""The nodes of the simulated fleet, and which node of the history each one repeats."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from muster_tainter.simulation.scenario.fleet_file import FleetError, FleetFile
from muster_tainter.simulation.scenario.node_groups import Group

_UNITS_LEAST = 8  # domains: fewer are no sample, and nodes are drawn instead


class FleetNode(NamedTuple):
    """domain: value of the domain label; empty without domains."""

    name: str
    group: str
    devices: int
    model: str
    labels: dict[str, str]
    domain: str


def make_nodes(fleet: FleetFile, recorded: Mapping[str, int] | None = None) -> list[FleetNode]:
    """recorded: names in the fault file, for a group with ``namesFrom: faults``. Raises FleetError."""
    nodes: list[FleetNode] = []
    for group in fleet.groups:
        for name, domain in _names(group, recorded):
            labels = dict(group.labels)
            if group.domain is not None:
                labels[group.domain.label] = domain
            nodes.append(FleetNode(name, group.name, group.devices, group.model, labels, domain))
    times = Counter(node.name for node in nodes)
    (name, often), *_ = times.most_common(1)
    if often > 1:
        raise FleetError(f"groups: {often} nodes have the name {name[:80]}; expected unique names")
    return nodes


def _names(group: Group, recorded: Mapping[str, int] | None) -> Iterable[tuple[str, str]]:
    """(name, value of the domain label) of each node of the group."""
    if group.nodes is None:
        return group.named()
    names = [f"{group.name}-{number}" for number in range(1, group.nodes + 1)]
    if group.names_from is not None:
        found = list(recorded or {})
        if len(found) > group.nodes:
            raise FleetError(
                f"groups: {group.name}: nodes: {group.nodes}: expected at least {len(found)}, the nodes in the "
                "fault file"
            )
        names = [*found, *names[len(found) :]]
    if group.domain is None or group.domain.nodes is None:
        return [(name, "") for name in names]
    label, size = group.domain.label.rpartition("/")[2], group.domain.nodes
    return [(name, f"{group.name}-{label}-{place // size + 1}") for place, name in enumerate(names)]


def draw_histories(nodes: Sequence[FleetNode], random: Random | None) -> dict[str, list[str]]:
    """Node of the history -> the nodes that repeat its faults. random None: each repeats its own.

    A resampled fleet draws failure domains with replacement, so that nodes that failed together still do; or nodes,
    where there are too few domains. Only equal ones replace each other: of one group and size.
    """
    if random is None:
        return {node.name: [node.name] for node in nodes}
    found: dict[str, list[str]] = {}
    for units in _units(nodes).values():
        for unit in units:
            drawn = units[random.randrange(len(units))]
            for target, source in zip(unit, drawn, strict=True):
                found.setdefault(source, []).append(target)
    return found


def _units(nodes: Sequence[FleetNode]) -> dict[tuple[str, int], list[list[str]]]:
    """(group, size) -> lists of nodes that are drawn together."""
    groups: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        groups.setdefault(node.group, {}).setdefault(node.domain, []).append(node.name)
    units: dict[tuple[str, int], list[list[str]]] = {}
    for group, domains in groups.items():
        by_size: dict[int, list[list[str]]] = {}
        for members in domains.values():
            by_size.setdefault(len(members), []).append(members)
        for size, equal in by_size.items():
            if len(equal) >= _UNITS_LEAST and size > 1:
                units[group, size] = equal
            else:
                units.setdefault((group, 1), []).extend([name] for unit in equal for name in unit)
    return units


def drawn_by(nodes: Sequence[FleetNode]) -> str:
    """``failure domains`` or ``nodes``, for people."""
    sizes = {size for _, size in _units(nodes)}
    return "failure domains" if any(size > 1 for size in sizes) else "nodes"
