"""Nodes of a cluster as the groups of a fleet file: nodes with the same model, number of accelerators, and labels that
policies use are one group."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from muster_kube.api.objects import Api, Metadata, NodeCondition
from muster_kube.api.times import seconds
from muster_tainter.settings import ACCELERATORS
from muster_tainter.simulation.scenario.node_groups import DEVICES_LIMIT

GROUPS_LIMIT = 64
# labels of device plug-ins' feature discovery, then of cloud providers; the first that a node has
MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
)
_COUNT = re.compile(r"\d{1,6}")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


class PastNodeSpec(Api, frozen=True):
    unschedulable: bool = False


class PastNodeStatus(Api, frozen=True):
    capacity: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    conditions: tuple[NodeCondition, ...] = ()


class PastNode(Api, frozen=True):
    """A Node, as far as a fleet file and its faults need it."""

    metadata: Metadata
    spec: PastNodeSpec = PastNodeSpec()
    status: PastNodeStatus = PastNodeStatus()


class _Kind(NamedTuple):
    """What all nodes of a group have in common."""

    model: str
    devices: int
    labels: tuple[tuple[str, str], ...]
    has_domain: bool


@dataclass(frozen=True)
class FleetGroups:
    """groups: of the fleet file, the largest first; names: of all nodes in them.

    without_accelerators: nodes that are left out; counted_as_one: nodes that Muster watches although they list no
    accelerators; gone: nodes with faults that the cluster no longer has; joined: nodes that were not there at the begin
    """

    groups: list[dict[str, Any]]
    names: frozenset[str]
    without_accelerators: int
    counted_as_one: int
    gone: tuple[str, ...]
    joined: int
    beyond: int


def make_groups(
    nodes: Iterable[PastNode],
    watched: Collection[str],
    *,
    label_keys: Collection[str],
    domain: str,
    begin: float,
    faulty: Mapping[str, int],
) -> FleetGroups:
    """watched: names of nodes with a NodeHealth. label_keys: labels that policies use. domain: label of failure
    domains. begin: seconds since the epoch. faulty: nodes with faults, some of which may be gone: they become nodes of
    the largest group, because a fleet without the nodes that were given up would look better than it was."""
    members: defaultdict[_Kind, list[tuple[str, str]]] = defaultdict(list)
    left_out = counted_as_one = joined = 0
    present: set[str] = set()
    for node in nodes:
        name, labels = node.metadata.name, node.metadata.labels
        present.add(name)
        devices = accelerators(node.status.capacity)
        if not devices and name not in watched:
            left_out += 1
            continue
        counted_as_one += not devices
        joined += seconds(node.metadata.creation_timestamp) > begin
        kept = tuple(sorted((key, labels[key]) for key in label_keys if key in labels and key != domain))
        value = labels.get(domain, "")
        kind = _Kind(model_of(labels), min(max(devices, 1), DEVICES_LIMIT), kept, bool(value))
        members[kind].append((name, value))
    kinds = sorted(members, key=lambda kind: (-len(members[kind]), kind))
    beyond = sum(len(members[kind]) for kind in kinds[GROUPS_LIMIT:])
    kinds = kinds[:GROUPS_LIMIT]
    gone = tuple(sorted(set(faulty) - present)) if kinds else ()
    # whoever can write metrics could invent nodes: no more of them than the cluster has
    gone = gone[: sum(len(members[kind]) for kind in kinds)]
    if gone:
        members[kinds[0]] += [(name, "gone" if kinds[0].has_domain else "") for name in gone]
    groups = [_group(kind, members[kind], name, domain) for kind, name in zip(kinds, _names(kinds), strict=True)]
    names = frozenset(name for kind in kinds for name, _ in members[kind])
    return FleetGroups(groups, names, left_out, counted_as_one, gone, joined, beyond)


def accelerators(capacity: Mapping[str, str]) -> int:
    """Of a node: the largest number among the resources of accelerators, which may count the same devices twice."""
    found = [
        int(number)
        for resource, number in capacity.items()
        if resource.startswith(ACCELERATORS) and _COUNT.fullmatch(number)
    ]
    return max(found, default=0)


def model_of(labels: Mapping[str, str]) -> str:
    return next((labels[key] for key in MODEL_LABELS if labels.get(key)), "")


def _names(kinds: list[_Kind]) -> list[str]:
    """Of groups: unique, from the model."""
    stems = [_NOT_IN_NAMES.sub("-", kind.model.lower()).strip("-")[:32].strip("-") or "nodes" for kind in kinds]
    times = Counter(stems)
    numbers: Counter[str] = Counter()
    names = []
    for stem in stems:
        numbers[stem] += 1
        names.append(f"{stem}-{numbers[stem]}" if times[stem] > 1 else stem)
    return names if len(set(names)) == len(names) else [f"group-{number}" for number in range(1, len(kinds) + 1)]


def _group(kind: _Kind, members: list[tuple[str, str]], name: str, domain: str) -> dict[str, Any]:
    group: dict[str, Any] = {"name": name, "devices": kind.devices}
    if kind.model:
        group["model"] = kind.model
    if kind.labels:
        group["labels"] = dict(kind.labels)
    if not kind.has_domain:
        return {**group, "names": sorted(name for name, _ in members)}
    values: defaultdict[str, list[str]] = defaultdict(list)
    for each, value in sorted(members):
        values[value].append(each)
    return {**group, "domain": {"label": domain, "names": dict(sorted(values.items()))}}
