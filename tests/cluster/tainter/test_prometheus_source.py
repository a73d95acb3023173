"""The tainter as a process of its own beside a real Prometheus: a metric taints its node, and gives it back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from tests.cluster.tainter.test_end_to_end import Tainters, until

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.prometheus import Prometheus, find_programs, scrape_config
from muster_sandbox.simulation.nodes import SimulatedNodes

READ_TO = 'muster_tainter_source_read_to_seconds{source="prometheus.queries[0]"}'
POLICY = """
sources:
  prometheus:
    url: {url}
    every: 1s
    queries:
      - {{name: Hot, query: 'gpu_celsius{{job="gpus"}} > 90', endQuery: 'gpu_celsius{{job="gpus"}} < 80',
         verdict: FAIL, class: reset, for: 1s}}
      - {{name: NoNode, query: 'up', verdict: FAIL, endAfter: 1m}}
      - {{name: NotANumber, query: 'gpu_celsius / 0 * 0', verdict: FAIL, endAfter: 1m}}
      - {{name: NoPromql, query: 'rate(up[', verdict: FAIL, endAfter: 1m}}
      - {{name: Warm, query: 'gpu_celsius{{job="gpus"}} > 40', endAfter: 1h}}
rules:
  - {{name: warnings, match: {{verdict: WARN}}, action: event}}
  - {{name: metrics, match: {{check: prometheus}}, action: taint, holdDown: 0s}}
"""


@pytest.fixture
async def tainters(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()


@pytest.fixture
def celsius() -> Iterator[Gauge]:
    """An exporter's metric, by node; its documentation is the exporter's address."""
    registry = CollectorRegistry()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    yield Gauge("gpu_celsius", f"127.0.0.1:{server.server_port}", ["node"], registry=registry)
    server.shutdown()
    server.server_close()
    thread.join()


async def test_a_metric_taints_its_node_and_only_its_end_gives_it_back(
    tainters: Tainters, api: KubeClient, fleet: SimulatedNodes, celsius: Gauge, tmp_path: Path
) -> None:
    hot, cold = await fleet.create(2)
    celsius.labels(hot).set(95)
    celsius.labels(cold).set(50)
    scraped = [scrape_config("gpus", celsius._documentation)]
    with Prometheus(find_programs(print), tmp_path / "prometheus", scraped) as prometheus:
        policy = tmp_path / "policy.yaml"
        policy.write_text(POLICY.format(url=prometheus.url))
        tainter = await tainters.start("--policy", str(policy))

        async def taints(node: str) -> list[dict[str, Any]]:
            return (await api.get(f"/api/v1/nodes/{node}"))["spec"].get("taints", [])  # type: ignore[no-any-return]

        async def is_tainted() -> bool:
            return [taint["key"] for taint in await taints(hot)] == ["muster.dev/faulty"]

        async def is_clean() -> bool:
            return not await taints(hot)

        async def answered() -> list[bool]:
            page = (await tainter.get("/metrics")).text
            return [f'muster_tainter_source_up{{source="prometheus.queries[{i}]"}} 1.0' in page for i in range(5)]

        async def evaluated_at() -> float:
            page = (await tainter.get("/metrics")).text
            [line] = [each for each in page.splitlines() if each.startswith(READ_TO)]
            return float(line.split()[-1])

        async def only_good_queries_answer() -> bool:
            return await answered() == [True, False, True, False, True]

        await until(is_tainted, "tainted for the metric")
        await until(only_good_queries_answer, "bad queries are reported")

        async def warned() -> bool:
            events = (await api.get("/api/v1/namespaces/default/events"))["items"]
            named = {each["involvedObject"]["name"] for each in events if each["reason"] == "HealthWarning"}
            return {hot, cold} <= named

        await until(warned, "a warning is an Event, and no more")
        assert await taints(cold) == []
        celsius.remove(hot)  # an exporter that reports nothing proves nothing

        async def missing() -> bool:
            return not await asyncio.to_thread(prometheus.query, f'gpu_celsius{{node="{hot}"}}')

        await until(missing, "the metric is missing")
        read_to = await evaluated_at()

        async def evaluated() -> bool:
            return await evaluated_at() > read_to + 1

        await until(evaluated, "the tainter has seen that it is missing")
        celsius.labels(hot).set(85)  # neither bad nor good

        async def back() -> bool:
            return not await missing()

        await until(back, "the metric is back")
        assert await is_tainted()
        celsius.labels(hot).set(60)
        await until(is_clean, "given back")
        assert await taints(cold) == []
