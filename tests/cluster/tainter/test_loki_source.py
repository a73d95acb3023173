"""The tainter as a process of its own, fed from a Loki: line in, taint out, whoever dies in between."""

import asyncio
import signal
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.tainter.test_end_to_end import Tainters, until
from tests.tainter.sources.loki_stub import LokiServer, serving

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.nodes import SimulatedNodes

KONDUKTOR = Path(__file__).parents[3] / "examples" / "konduktor.yaml"
FAULTY = {"key": "trainy.konduktor.ai/faulty", "value": "true", "effect": "NoSchedule"}
TAINT = "trainy.konduktor.ai/faulty=true:NoSchedule"  # as the log has it
XID = "[1235733.431527] NVRM: Xid (0000:03:00): 14, Channel 00000001"
CONDITIONS = """
sources:
  conditions:
    - {type: KernelDeadlock, class: reboot}
rules:
  - {name: deadlock, match: {check: condition}, action: taint, holdDown: 0s}
"""


@pytest.fixture
async def loki() -> AsyncIterator[LokiServer]:
    async with serving(LokiServer()) as server:
        yield server


@pytest.fixture
async def tainters(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()


@pytest.fixture
def policy(tmp_path: Path, loki: LokiServer) -> Path:
    """The shipped example, with the address of the Loki that is here."""
    text = KONDUKTOR.read_text().replace("http://loki.loki.svc.cluster.local:3100", loki.url).replace("5s", "1s")
    assert yaml.safe_load(text)["sources"]["loki"]["url"] == loki.url
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return path


class Cluster:
    def __init__(self, api: KubeClient) -> None:
        self.api = api

    async def taints(self, node: str) -> list[dict[str, Any]]:
        return (await self.api.get(f"/api/v1/nodes/{node}"))["spec"].get("taints", [])  # type: ignore[no-any-return]

    async def faulty(self, node: str) -> bool:
        return FAULTY in await self.taints(node)

    async def until_faulty(self, *nodes: str) -> None:
        for node in nodes:
            await until(lambda node=node: self.faulty(node), f"{node} is tainted")  # type: ignore[misc]

    async def clean(self, node: str) -> bool:
        return not await self.taints(node)

    async def condition(self, node: str, status: str, since: str) -> None:
        entry = {"type": "KernelDeadlock", "status": status, "reason": "DockerHung", "lastTransitionTime": since}
        body = {"status": {"conditions": [entry | {"lastHeartbeatTime": since, "message": "task dockerd:1 blocked"}]}}
        await self.api.patch(f"/api/v1/nodes/{node}/status", body, kind="strategic")


@pytest.fixture
def cluster(api: KubeClient) -> Cluster:
    return Cluster(api)


def times_tainted(tainters: Tainters, node: str) -> int:
    return sum(replica.logged("WARNING", node, TAINT) for replica in tainters.replicas)


async def test_the_founding_page_s_line_taints_its_node(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, loki: LokiServer, policy: Path
) -> None:
    bad, good = await fleet.create(2)
    tainter = await tainters.start("--policy", str(policy))
    loki.store.dmesg(bad, XID)
    loki.store.dmesg(good, "[1235733.500000] usb 1-1: new high-speed USB device number 2 using xhci_hcd")
    await cluster.until_faulty(bad)
    await tainter.until_logged(f"`{bad}`", XID)

    async def said() -> bool:  # a moment after the Node was written
        return tainter.logged("WARNING", bad, TAINT) > 0

    await until(said, "the log has it")
    assert await cluster.clean(good)


async def test_a_leader_that_is_killed_loses_no_line_and_taints_no_node_twice(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, loki: LokiServer, policy: Path
) -> None:
    before, between, late, twice = await fleet.create(4)
    first = await tainters.start("--policy", str(policy))
    loki.store.dmesg(before, XID)
    loki.store.dmesg(twice, XID)
    await cluster.until_faulty(before, twice)

    async def said() -> bool:  # a moment after the Node was written
        return all(first.logged("WARNING", node, TAINT) for node in (before, twice))

    await until(said, "the log has both")
    await first.stop(signal.SIGKILL)
    # written while nobody reads; one of them with a time at which somebody still did
    loki.store.dmesg(between, XID)
    late_at = min(entry.at_ns for entry in loki.store.entries)
    loki.store.dmesg(late, XID, late_at)
    loki.store.dmesg(twice, XID)
    await tainters.start("--policy", str(policy))
    await cluster.until_faulty(between, late)
    asked = len(loki.store.asked)

    async def read_again() -> bool:
        return len(loki.store.asked) > asked + 4

    await until(read_again, "everything has been read again")
    assert [times_tainted(tainters, node) for node in (before, between, late, twice)] == [1, 1, 1, 1]


async def test_what_a_person_took_off_stays_off_over_a_new_leader_until_the_next_line(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, loki: LokiServer, policy: Path, api: KubeClient
) -> None:
    [node] = await fleet.create(1)
    first = await tainters.start("--policy", str(policy))
    loki.store.dmesg(node, XID)
    await cluster.until_faulty(node)
    await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": None}})

    async def forgotten() -> bool:
        annotations = (await api.get(f"/api/v1/nodes/{node}"))["metadata"].get("annotations", {})
        return '"person"' in annotations.get("muster.dev/faults", "")

    await until(forgotten, "the person's word is remembered")
    await first.stop(signal.SIGKILL)
    other = await tainters.start("--policy", str(policy))

    async def has_read() -> bool:
        return other.logged(f"`{node}`", XID) > 0

    await until(has_read, "the line has been read again")
    asked = len(loki.store.asked)

    async def read_on() -> bool:
        return len(loki.store.asked) > asked + 4

    await until(read_on, "what came of it has been decided")
    assert await cluster.clean(node)
    loki.store.dmesg(node, XID.replace("1235733", "1235999"))
    await cluster.until_faulty(node)


async def test_a_loki_that_was_away_is_read_on_from_where_it_went(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, loki: LokiServer, policy: Path
) -> None:
    [node] = await fleet.create(1)
    tainter = await tainters.start("--policy", str(policy))

    async def up() -> bool:
        return 'muster_tainter_source_up{source="loki.kernel[0]"} 1.0' in (await tainter.get("/metrics")).text

    async def down() -> bool:
        return 'muster_tainter_source_up{source="loki.kernel[0]"} 0.0' in (await tainter.get("/metrics")).text

    await until(up, "Loki is read")
    refusal = b"too many unhealthy instances in the ring\n"
    loki.instead = lambda _parameters: (503, {}, refusal)
    await until(down, "Loki is away")
    loki.store.dmesg(node, XID)
    assert await tainter.ready()  # nodes' own agents go on
    loki.instead = lambda _parameters: None
    await cluster.until_faulty(node)
    await tainter.until_logged(refusal.decode().strip())


async def test_a_pod_s_line_without_a_node_counts_on_the_node_of_the_pod(
    tainters: Tainters,
    cluster: Cluster,
    fleet: SimulatedNodes,
    loki: LokiServer,
    policy: Path,
    api: KubeClient,
    namespace: str,
) -> None:
    node, other = await fleet.create(2)
    body = {
        "metadata": {"name": "train-0"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "x"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    await api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    policy.write_text(policy.read_text().replace('k8s_namespace_name="default"', f'k8s_namespace_name="{namespace}"'))
    await tainters.start("--policy", str(policy))
    line = "RuntimeError: CUDA error: invalid device ordinal"
    loki.store.push(line, k8s_namespace_name=namespace, k8s_pod_name="train-0")
    await cluster.until_faulty(node)
    assert await cluster.clean(other)


async def test_another_agent_s_condition_taints_and_gives_back_by_its_own_word(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, tmp_path: Path
) -> None:
    node, stale = await fleet.create(2)
    policy = tmp_path / "conditions.yaml"
    policy.write_text(textwrap.dedent(CONDITIONS))
    first = await tainters.start("--policy", str(policy))

    async def tainted(name: str) -> bool:
        return any(taint["key"] == "muster.dev/faulty" for taint in await cluster.taints(name))

    await cluster.condition(node, "True", "2026-01-01T00:00:00Z")
    await cluster.condition(stale, "True", "2026-01-01T00:00:00Z")
    await until(lambda: tainted(node), "tainted for the condition")
    await until(lambda: tainted(stale), "tainted for the condition")
    await cluster.condition(node, "False", "2026-01-01T01:00:00Z")
    await until(lambda: cluster.clean(node), "given back")
    await first.stop(signal.SIGKILL)
    # turns good while nobody watches
    await cluster.condition(stale, "False", "2026-01-01T01:00:00Z")
    await tainters.start("--policy", str(policy))
    await until(lambda: cluster.clean(stale), "given back by the next leader")


async def test_conditions_that_a_new_policy_looks_at_are_found_on_nodes_that_are_known_already(
    tainters: Tainters, cluster: Cluster, fleet: SimulatedNodes, tmp_path: Path
) -> None:
    [node] = await fleet.create(1)
    await cluster.condition(node, "True", "2026-01-01T00:00:00Z")
    policy = tmp_path / "conditions.yaml"
    policy.write_text("rules: []\n")
    await tainters.start("--policy", str(policy))
    await asyncio.to_thread(policy.write_text, textwrap.dedent(CONDITIONS))

    async def tainted() -> bool:
        return bool(await cluster.taints(node))

    await until(tainted, "tainted although the Node has not changed")
    await cluster.condition(node, "False", "2026-01-01T01:00:00Z")
    await until(lambda: cluster.clean(node), "given back")
