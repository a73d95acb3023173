"""Agents that fall silent, seen by a tainter in a process of its own through the pods of a real API server."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import FAULTY, HEALTHS, Cluster, finding, until

from muster_sandbox.simulation.agents import PODS, create_agent_pods, delete_agent_pods, pod_name
from muster_sandbox.simulation.nodes import NodeShape

UNKNOWN = {"key": "muster.dev/unknown", "value": "true", "effect": "NoSchedule"}
STARTUP = {"key": "muster.dev/startup", "effect": "NoSchedule"}
RULES = "rules: [{name: all, match: {verdict: FAIL}, action: taint}]\n"
# other tests may have left nodes without agents: they are no incident
ALONE = RULES + "incidents: {nodes: 1000}\n"

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures


class Agents:
    """Pods of agents, without kubelets: they are as ready as the test says."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: list[str] = []

    async def start(self, *nodes: str) -> None:
        await create_agent_pods(self._cluster.api, nodes)
        for node in nodes:
            await self.ready(node, True)

    async def run_on(self, *nodes: str) -> None:
        """Ready, and each node's first report is made."""
        self._nodes += nodes
        await self.start(*nodes)
        for node in nodes:
            health = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
            await self._cluster.api.create(HEALTHS, health)
            await self._cluster.report(node)

    async def ready(self, node: str, ready: bool) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": str(ready), "reason": "Tested", "lastTransitionTime": now}
        status = {"phase": "Running", "conditions": [condition]}
        await self._cluster.api.patch(f"{PODS}/{pod_name(node)}/status", {"status": status}, kind="strategic")

    async def stop(self, *nodes: str) -> None:
        await delete_agent_pods(self._cluster.api, nodes or self._nodes)


@pytest.fixture
async def agents(cluster: Cluster) -> Any:
    made = Agents(cluster)
    yield made
    await made.stop()


def policy(tmp_path: Path, text: str) -> tuple[str, str]:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return "--policy", str(file)


async def is_unknown(cluster: Cluster, name: str) -> bool:
    condition = await cluster.condition(name)
    label = (await cluster.node(name))["metadata"]["labels"].get("muster.dev/health")
    said = condition is not None and (condition["status"], condition["reason"]) == ("Unknown", "AgentSilent")
    return said and label == "unknown"


async def tainted(cluster: Cluster, name: str) -> bool:
    return UNKNOWN in await cluster.taints(name)


async def untainted(cluster: Cluster, name: str) -> bool:
    return not await cluster.taints(name)


async def told(cluster: Cluster, name: str) -> bool:
    return "AgentSilent" in await cluster.events(name)


async def test_an_agent_that_is_not_ready_makes_its_node_unknown_and_by_default_no_more(
    tainters: Any, fleet: Any, cluster: Any, agents: Any, tmp_path: Path
) -> None:
    names = await fleet.create(3, prefix="hush")
    await agents.run_on(*names)
    replica = await tainters.start(*policy(tmp_path, ALONE + "deadMan: {grace: 1s}\n"))
    for name in names:
        await cluster.settled(name, "pass")
    await agents.ready(names[0], False)
    await until(partial(is_unknown, cluster, names[0]), "it is unknown")
    await until(partial(told, cluster, names[0]), "it is told")
    event = (await cluster.events(names[0]))["AgentSilent"]
    assert f"pod muster/{pod_name(names[0])}: Running, Tested" in event["message"]
    assert await cluster.taints(names[0]) == []
    assert not await told(cluster, names[1])
    assert "muster_tainter_agents_ready 2.0" in (await replica.get("/metrics")).text
    await agents.ready(names[0], True)
    await cluster.settled(names[0], "pass")


async def test_by_policy_it_is_tainted_until_an_agent_is_ready_again_whoever_leads(
    tainters: Any, fleet: Any, cluster: Any, agents: Any, control_plane: Any, tmp_path: Path
) -> None:
    names = await fleet.create(4, prefix="mute")
    await agents.run_on(*names)
    flags = policy(tmp_path, ALONE + "deadMan: {grace: 1s, action: taint}\n")
    first = await tainters.start(*flags)
    unready, deleted = names[:2]
    await cluster.settled(deleted, "pass")
    await agents.ready(unready, False)
    await agents.stop(deleted)
    for name in (unready, deleted):
        await until(partial(tainted, cluster, name), f"{name} is tainted")
        await until(partial(is_unknown, cluster, name), f"{name} is unknown")
        await until(partial(told, cluster, name), f"{name} is told of")
    assert await first.stop() == 0
    since = control_plane.audit.mark()
    await tainters.start(*flags)
    await cluster.report(names[2], finding())  # the new leader has looked at all nodes by the time this one is tainted
    await until(partial(cluster.faulty, names[2]), "the new leader has decided")
    await agents.ready(unready, True)
    await agents.start(deleted)

    async def writes(name: str) -> list[Any]:
        asked = [r for r in control_plane.audit.requests(since) if r.writes and r.status < 300]
        return [r for r in asked if r.resource == "nodes" and r.name == name]

    for name in (unready, deleted):
        await until(partial(untainted, cluster, name), f"{name} is free")
        await cluster.settled(name, "pass")
        written = await until(partial(writes, name), "its write is answered")
        assert len(written) == 1
        assert (await cluster.events(name))["AgentSilent"].get("count", 1) == 1


async def test_agents_are_seen_again_after_an_outage_of_the_api_server(
    tainters: Any, fleet: Any, cluster: Any, agents: Any, control_plane: Any, tmp_path: Path
) -> None:
    names = await fleet.create(2, prefix="blind")
    await agents.run_on(*names)
    replica = await tainters.start(*policy(tmp_path, ALONE + "deadMan: {grace: 1s, action: taint}\n"))
    await cluster.settled(names[0], "pass")
    control_plane.kill_apiserver()

    async def not_ready() -> bool:
        return not await replica.ready()

    await until(not_ready, "its watches are down")
    control_plane.restart_apiserver()
    await cluster.report(names[1])  # returns once the server answers
    await agents.ready(names[0], False)
    await until(partial(tainted, cluster, names[0]), "it is tainted")
    assert await cluster.taints(names[1]) == []


async def test_most_agents_silent_at_once_are_told_once_and_taint_nothing(
    tainters: Any, fleet: Any, cluster: Any, agents: Any, tmp_path: Path
) -> None:
    names = await fleet.create(6, prefix="strike")
    await agents.run_on(*names)
    # longer than it takes to stop all of them
    await tainters.start(*policy(tmp_path, RULES + "deadMan: {grace: 20s, action: taint}\n"))
    for name in names:
        await cluster.settled(name, "pass")
    await agents.stop()
    for name in names:
        await until(partial(is_unknown, cluster, name), f"{name} is unknown")

    async def incident() -> list[dict[str, Any]]:
        events = (await cluster.api.get("/api/v1/namespaces/muster/events"))["items"]
        return [event for event in events if event["reason"] == "AgentsSilent"]

    [event] = await until(incident, "the incident is told")
    assert event["involvedObject"]["kind"] == "Namespace"
    for name in names:
        assert not await told(cluster, name)
        assert await cluster.taints(name) == []


async def test_the_startup_taint_comes_off_after_the_first_full_pass_and_not_while_the_agent_is_missing(
    tainters: Any, fleet: Any, cluster: Any, agents: Any, tmp_path: Path
) -> None:
    [name] = await fleet.create(1, prefix="fresh", shape=NodeShape(taints=[STARTUP]))
    await tainters.start(*policy(tmp_path, ALONE + "deadMan: {grace: 1s}\n"))
    await until(partial(told, cluster, name), "its missing agent is told")
    assert await cluster.taints(name) == [STARTUP]
    await cluster.report(name)
    await until(partial(untainted, cluster, name), "it may have jobs")
    assert FAULTY not in await cluster.taints(name)
