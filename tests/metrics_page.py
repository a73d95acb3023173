"""docs/metrics.md beside what the code registers: every family with its type and its labels, and none beside them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

PAGE = Path(__file__).parents[1] / "docs/metrics.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \|([\w, ]*)\| \S", re.MULTILINE)

Family = tuple[str, tuple[str, ...]]  # type, labels


def section(title: str) -> str:
    """What the page says under the heading of this part."""
    text = PAGE.read_text().partition(f"\n# {title}\n")[2]
    return text.partition("\n# ")[0]


def written(title: str) -> dict[str, Family]:
    """Raises AssertionError where a family has two rows, or a row cannot be read."""
    text = section(title)
    found = ROW.findall(text)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len({name for name, _, _ in found}) == len(found) == len(rows), (
        "a family has two rows, or a row is no family's"
    )
    return {
        name: (kind, tuple(label.strip() for label in labels.split(",") if label.strip()))
        for name, kind, labels in found
    }


def registered(registries: Iterable[CollectorRegistry]) -> dict[str, Family]:
    exist = {}
    for registry in registries:
        labels: dict[str, tuple[str, ...]] = {}
        families = list(registry.collect())
        for collector in registry._collector_to_names:  # a registry does not list them otherwise
            labels |= _labels_of(collector)
            families += _described(collector)
        for family in families:
            name = family.name + ("_total" if family.type == "counter" else "")
            exist[name] = family.type, labels[family.name]
    return exist


def _described(collector: Any) -> list[Any]:
    """Families of a collector that has series only at times."""
    custom = not isinstance(collector, MetricWrapperBase) and hasattr(collector, "describe")
    return list(collector.describe()) if custom else []


def _labels_of(collector: Any) -> dict[str, tuple[str, ...]]:
    """By family; the library tells them nowhere else as long as a family has no series."""
    if isinstance(collector, MetricWrapperBase):
        return {collector._name: tuple(collector._labelnames)}
    return {family.name: tuple(family._labelnames) for family in (*collector.collect(), *_described(collector))}
