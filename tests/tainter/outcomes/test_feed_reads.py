"""What the leader's list and watch of pods deliver, and what it makes of either."""

import asyncio
import json
from typing import Any

from tests.kube.conftest import Asked, FakeApi, Reply, Stream, Wire
from tests.tainter.outcomes.leading_tainter import REJECTED, Cluster
from tests.tainter.outcomes.pod_objects import NOW, pod_object, reduced

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_tainter.fleet.replica import Replica
from muster_tainter.outcomes.feed import OutcomeWatch
from muster_tainter.outcomes.pods import PATH
from muster_tainter.policy.sections.in_flight import InFlight

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


def rejected(number: int) -> dict[str, Any]:
    at = NOW + 12 * number
    return pod_object(f"p-{number}", node="n0", **REJECTED, created=at, bound=at)


def stream(*events: dict[str, Any]) -> Stream:
    return Stream(lines=tuple(json.dumps(event).encode() + b"\n" for event in events))


class Pods:
    """The API server. lists: of ended pods, one after the other; no pod is pending."""

    def __init__(self, *lists: list[dict[str, Any]]) -> None:
        self._lists = list(lists)

    def __call__(self, asked: Asked) -> Reply:
        pending = "status.phase=Pending" in asked.query["fieldSelector"]
        items = [] if pending else self._lists.pop(0)
        return Reply(body={"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items})


async def read_all(cluster: Cluster, pods: Pods, *watches: Stream, expected: int) -> None:
    """Until so many pods are counted."""
    api = FakeApi()
    await api.start()
    api.on("GET", PATH, pods)
    api.on("WATCH", PATH, *watches)
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        replica = Replica(may_write=lambda: True, now=lambda: cluster.now)
        watch = OutcomeWatch(client, cluster.fleet, replica, cluster.metrics, InFlight())
        running = asyncio.create_task(watch.run())
        await Wire.until(lambda: cluster.value("pods_total", result="failed") == expected)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await api.stop()


async def test_a_list_of_pods_tells_nothing_of_devices_and_the_watch_does() -> None:
    """Neither the first list nor one after the server has forgotten where the watch was. A change of a pod that is
    known, such as a label that a tenant sets, does not count it again."""
    cluster, failed = Cluster(now=NOW + 600), [rejected(number) for number in range(17)]
    again = {"type": "MODIFIED", "object": failed[3]}
    new = {"type": "ADDED", "object": failed[16]}
    await read_all(cluster, Pods(failed[:8], failed[:16]), stream(GONE), stream(again, new), expected=17)
    assert cluster.value("failures_total", kind="Admission") == 16
    assert cluster.value("failures_total", kind="DeviceAllocation") == 1
    assert cluster.findings.found == []


async def test_pods_that_are_rejected_under_watch_prove_the_node_bad() -> None:
    cluster, failed = Cluster(now=NOW + 600), [rejected(number) for number in range(7)]
    new = [{"type": "ADDED", "object": pod} for pod in failed[2:]]
    await read_all(cluster, Pods(failed[:2]), stream(*new), expected=7)
    assert {(node, finding.reason) for node, finding in cluster.findings.found} == {("n0", "DeviceAllocation")}


async def test_a_pod_of_a_node_that_joins_later_is_not_taken_for_a_new_one() -> None:
    """It failed on an earlier node of this name; a change of the pod must not make its failure count."""
    cluster, failed = Cluster(now=NOW + 600), reduced(rejected(0)).outcome
    assert failed is not None
    node = cluster.nodes.pop("n0")
    cluster.watch.take(failed)
    cluster.nodes["n0"] = node
    cluster.watch.take(failed)
    assert cluster.value("dropped_total", why="homeless") == 1
    assert cluster.value("pods_total", result="failed") == 0
