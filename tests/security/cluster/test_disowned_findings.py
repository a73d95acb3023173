"""Somebody writes findings into a NodeHealth that its agent never made: their taints go once the agent publishes.

What the agent has found itself stays, also if it was restarted since, with or without its state.
"""

import asyncio
import json
import signal

import pytest
from tests.cluster.agent import test_agent_publishing as publishing
from tests.cluster.agent.test_agent_publishing import XID, AgentProcess, Bench
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Tainters, finding, until

from muster_sandbox.simulation.nodes import SimulatedNodes

cluster, tainters, bench = end_to_end.cluster, end_to_end.tainters, publishing.bench  # fixtures

FORGED = finding("Xid48", occurrence=7, component="gpu/0000:5e:00.0") | {"class": "replace"}
TRUE = ("gpu/0000:3b:00.0", "Xid79")


async def published(bench: Bench, name: str, before: str = "") -> None:
    """before: when the agent published last before it was restarted."""

    async def done() -> bool:
        status = await asyncio.to_thread(bench.status, name)
        agents = status.get("agent", {}).get("podUID") == "pod-1" and bool(status.get("bootID"))
        return agents and status["observedAt"] != before

    await until(done, "the agent publishes")


async def faults(cluster: Cluster, name: str, state: str) -> set[tuple[str, str, str]]:
    """The faults in the Node's record: ``open`` or ``closed``."""
    text = (await cluster.node(name))["metadata"].get("annotations", {}).get("muster.dev/faults", "{}")
    return {(f["check"], f["component"], f["reason"]) for f in json.loads(text).get(state, [])}


async def forge(bench: Bench, cluster: Cluster, agent: AgentProcess, check: str, *forged: dict[str, object]) -> None:
    """Write it into the status beside what is there, while the agent is held up."""
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    try:
        name = agent.node
        checks = bench.status(name)["checks"]
        target = next((each for each in checks if each["name"] == check), {"name": check})
        others = [each for each in checks if each["name"] != check]
        target = target | {"verdict": "FAIL", "findings": [*target.get("findings", []), *forged]}
        await cluster.api.patch(
            f"{HEALTHS}/{name}/status", {"status": {"verdict": "FAIL", "checks": [*others, target]}}
        )
        key = (check, str(forged[0]["component"]), str(forged[0]["reason"]))  # of many, the record names the first

        async def taken() -> bool:
            return key in await faults(cluster, name, "open")

        await until(taken, "the tainter believes it")
        await cluster.until_faulty(name)
    finally:
        agent.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(("check", "count"), [("dmesg", 60), ("not-run-here", 1)])
async def test_a_forged_taint_goes_when_the_true_agent_publishes(
    bench: Bench, tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, check: str, count: int
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="disown")
    await until(lambda: cluster.api.get(f"{HEALTHS}/{name}"), "its NodeHealth")
    agent = bench.agent(name).start()
    await published(bench, name)
    forged = [FORGED | {"reason": f"Xid{48 + n}", "occurrence": 7 + n} for n in range(count)]
    await forge(bench, cluster, agent, check, *forged)
    await cluster.until_free(name)

    async def told() -> bool:
        return "FindingDisowned" in await cluster.events(name)

    await until(told, "somebody hears of it")
    agent.write("[9.0] NVRM: Xid (PCI:0000:5e:00): 48, pid=7, DBE\n")  # now it is true
    await cluster.until_faulty(name)


@pytest.mark.parametrize("state", ["kept", "lost"])
async def test_what_the_agent_found_itself_stays_tainted(
    bench: Bench, tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, state: str
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="own")
    await until(lambda: cluster.api.get(f"{HEALTHS}/{name}"), "its NodeHealth")
    agent = bench.agent(name).start()
    agent.write(XID % 1)
    await cluster.until_faulty(name)
    agent.stop()
    if state == "lost":
        agent.state.unlink()
    agent.kmsg.write_text("")  # only its memory has the finding
    before = bench.status(name)["observedAt"]
    agent.start()
    await published(bench, name, before)
    again = finding(occurrence=9)  # a forged firing of what is true
    await forge(bench, cluster, agent, "dmesg", FORGED, again)

    async def gone() -> bool:
        return ("dmesg", FORGED["component"], FORGED["reason"]) in await faults(cluster, name, "closed")

    await until(gone, "the forged one is closed")
    assert await faults(cluster, name, "open") == {("dmesg", *TRUE)}
    assert await cluster.faulty(name)
    assert [(component, reason) for component, reason, _ in bench.findings(name)] == [TRUE]
