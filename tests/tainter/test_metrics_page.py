"""docs/metrics.md names every family that the tainter has, its type and its labels, and none beside them."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase

from muster_kube.client import KubeClient
from muster_kube.config import ClusterConfig
from muster_tainter.controller import Tainter
from muster_tainter.metrics import Metrics
from muster_tainter.pausing import Pause
from muster_tainter.policyfile import load_policy
from muster_tainter.webhook import count_reviews

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \|([\w, ]*)\| \S", re.MULTILINE)

Family = tuple[str, tuple[str, ...]]  # type, labels


def page() -> str:
    """What it says of the tainter; the agent's metrics stand before."""
    return PAGE.read_text().partition("\n# The tainter's\n")[2]


def labels_of(collector: Any) -> dict[str, tuple[str, ...]]:
    """By family; the library tells them nowhere else as long as a family has no series."""
    if isinstance(collector, MetricWrapperBase):
        return {collector._name: tuple(collector._labelnames)}
    return {family.name: tuple(family._labelnames) for family in collector.collect()}


@pytest.fixture(scope="module")
def families() -> dict[str, Family]:
    """All that a replica with every part of it registers."""
    metrics, policy = Metrics(), load_policy(None)
    client = KubeClient(ClusterConfig(origin="nowhere", server="http://127.0.0.1:1"))
    Tainter(client, lambda: policy, metrics, may_write=lambda: False, agents=("muster", "app=agent"))
    Pause(client, "muster", on_change=lambda: None, registry=metrics.registry)
    count_reviews(metrics.registry)
    labels: dict[str, tuple[str, ...]] = {}
    for collector in metrics.registry._collector_to_names:  # a registry does not list them otherwise
        labels |= labels_of(collector)
    exist = {}
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        exist[name] = family.type, labels[family.name]
    return exist


def test_the_page_names_exactly_the_families_that_exist_with_their_types_and_labels(
    families: dict[str, Family],
) -> None:
    written = {
        name: (kind, tuple(label.strip() for label in labels.split(",") if label.strip()))
        for name, kind, labels in ROW.findall(page())
    }
    assert written == families


def test_each_family_has_one_row_and_each_row_one_family() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    names = [name for name, _, _ in ROW.findall(page())]
    assert len(names) == len(set(names)) == len(rows)


def test_every_family_of_the_tainter_is_named_as_such(families: dict[str, Family]) -> None:
    assert families
    assert all(name.startswith("muster_tainter_") for name in families)
