"""The warnings of external sources that ``muster explain`` shows, from the Events of a Node."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.kube.conftest import FakeApi, Reply

from muster_cli.cluster.node_warnings import EVENTS_LIMIT, read_node_warnings
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import ReportedFinding
from muster_tainter.faults.event_only import event_only_notices
from muster_tainter.faults.node_report import NodeReport
from muster_tainter.policy.file import load_policy

NOW = 1_800_000_000.0
PATH = "/api/v1/namespaces/default/events"


def event(message: str, ago_s: float = 60.0) -> dict[str, Any]:
    return {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Node", "name": "n1"},
        "reason": "HealthWarning",
        "message": message,
        "lastTimestamp": rfc3339_whole(NOW - ago_s),
    }


@dataclass
class Cluster:
    api: FakeApi
    client: KubeClient

    async def warnings(self, *events: dict[str, Any], known: str = "") -> list[tuple[str, str]]:
        self.api.on("GET", PATH, Reply(200, {"metadata": {}, "items": list(events)}))
        found, missing = await read_node_warnings(self.client, "n1", NOW, {known})
        assert missing == ""
        return [(chain.fault, chain.links[0].text) for chain in found]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    api = FakeApi()
    await api.start()
    config = ClusterConfig(server=f"http://127.0.0.1:{api.port}", namespace="x", origin="test")
    async with KubeClient(config, sleep=lambda _: asyncio.sleep(0), timeout_s=30.0) as client:
        yield Cluster(api, client)
    await api.stop()


async def test_the_text_of_an_event_that_the_tainter_writes_is_understood(cluster: Cluster) -> None:
    at = rfc3339_whole(NOW)
    finding = ReportedFinding("host", "PodStart", "WARN", "9 of 9: all failed", first_seen=at, last_seen=at)
    key = ("podoutcomes", "host", "PodStart")
    [(_, notice)] = event_only_notices(NodeReport(known=True, findings={key: finding}), load_policy(None)).values()
    assert await cluster.warnings(event(notice.message)) == [(" ".join(key), "9 of 9: all failed")]


async def test_the_latest_of_each_finding_counts_and_none_that_is_known(cluster: Cluster) -> None:
    events = [
        event("stragglers host SlowRank: old", 500),
        event("stragglers host SlowRank: new", 50),
        event("podoutcomes host ImagePull: known"),
        event("dmesg gpu/0000:3b:00.0 Xid13: of the agent, which reports it itself"),
        event("a text without a finding"),
        event("podoutcomes host: short") | {"lastTimestamp": None},
    ]
    found = await cluster.warnings(*events, known="podoutcomes host ImagePull")
    assert found == [("stragglers host SlowRank", "new")]


async def test_a_node_with_more_events_than_are_read_is_said_to_have_more(cluster: Cluster) -> None:
    page = {"metadata": {"continue": "next"}, "items": [event("stragglers host SlowRank: new")]}
    cluster.api.on("GET", PATH, Reply(200, page))
    found, missing = await read_node_warnings(cluster.client, "n1", NOW, ())
    assert [chain.fault for chain in found] == ["stragglers host SlowRank"]
    assert str(EVENTS_LIMIT) in missing


@pytest.mark.parametrize("status", [403, 500])
async def test_without_events_the_rest_is_explained(cluster: Cluster, status: int) -> None:
    cluster.api.on(
        "GET", PATH, Reply(status, {"kind": "Status", "code": status, "reason": "Forbidden", "message": "no"})
    )
    found, missing = await read_node_warnings(cluster.client, "n1", NOW, ())
    assert found == []
    assert "vents" in missing
