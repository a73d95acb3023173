"""The tainter's HTTP service over a made fleet, with nobody behind it: for what is decided before anything is done."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.browser.sample_fleet import LINK_DOWN, NO_TOOL, SampleFleet, make_fleet, xid79

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.http.service import Service
from muster_kube.nodehealth import ClearEntry
from muster_kube.volume_trial import VolumeTrial
from muster_tainter.controller import Tainter
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.goodput.report import By, Report, make_report
from muster_tainter.goodput.state import VERSION, State
from muster_tainter.http.routes import make_app
from muster_tainter.metrics import TainterMetrics
from muster_tainter.page.clear import ClearAnswer
from muster_tainter.page.feed import FleetFeed, FleetStatus
from muster_tainter.page.goodput import add_goodput_page
from muster_tainter.page.routes import add_page
from muster_tainter.policy.file import load_policy

NOW = 1_800_000_000.0
WRITTEN = VolumeTrial(stage="written", storage_class="fast", bound_after_s=1.5, written_after_s=2.25)
ASKED = {
    "node": "node-7",
    "storageClass": "fast",
    "sizeMib": 8,
    "image": "busybox",
    "bindTimeoutSeconds": 30,
    "writeTimeoutSeconds": 40.5,
}


class Anybody:
    """Lets everybody in, and does at once what is asked for."""

    async def admit(self, token: str, node: str) -> str:
        return "ann"

    async def run(self, asked: Any, user: str) -> VolumeTrial:
        return WRITTEN

    async def names(self, queries: tuple[object, ...]) -> frozenset[str] | None:
        return frozenset({"h100-h001-01"}) if queries else None

    def now(self) -> float:
        return NOW

    async def report(self, since_s: float, by: By) -> Report:
        return make_report(State(version=VERSION, since=NOW - 3600, at=NOW), NOW - since_s, by)

    async def clear(self, token: str, asked: Any) -> ClearAnswer:
        return ClearAnswer("ann", (ClearEntry(check="nic", component="*", occurrence=3, by="ann"),), 0)


def make_sample() -> SampleFleet:
    fleet = make_fleet(4, NOW)
    one, other, third, *_ = fleet.nodes
    fleet.break_node(one, "dmesg", xid79())
    fleet.break_node(other, "nic", LINK_DOWN, ago=30)
    fleet.break_node(third, "dcgm", NO_TOOL)
    return fleet


def watched(fleet: SampleFleet) -> Any:
    """The fleet as the watches would have it."""
    return SimpleNamespace(
        nodes=fleet.nodes,
        node=fleet.nodes.get,
        health_of=fleet.healths.get,
        policy=lambda: fleet.policy,
        node_watch=SimpleNamespace(synced=True),
        synced=True,
        not_ready=list,
    )


@cache
def bare_service() -> Service:
    """One for all tests: nothing in it changes."""
    anybody: Any = Anybody()
    metrics = TainterMetrics()
    client = KubeClient(ClusterConfig(origin="nowhere", server="http://127.0.0.1:1"))
    policy = load_policy(None)
    tainter = Tainter(Connections.shared(client), lambda: policy, Replica(may_write=lambda: False), metrics)
    tainter.fleet = watched(make_sample())
    feed = FleetFeed(tainter, FleetStatus(lambda: True))
    feed.close()  # its streams end at once
    service = make_app(tainter, metrics, anybody, anybody, anybody)
    add_page(service, tainter.fleet, feed, anybody, now=lambda: NOW)
    add_goodput_page(service, anybody)
    return service
