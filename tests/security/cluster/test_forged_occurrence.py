"""A taken node writes an occurrence far above its last one into its own NodeHealth, and a person clears the fault.

What follows is as if it had never been there: for the node's true agent, and after the node was set up anew.
"""

import asyncio
import time
from pathlib import Path

import pytest
from tests.cluster.agent import test_agent_publishing as publishing
from tests.cluster.agent.test_agent_publishing import XID, Bench
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Tainters, finding, until
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

from muster_cli.__main__ import main
from muster_kube.api.errors import ApiError
from muster_sandbox.simulation.nodes import SimulatedNodes

cluster, tainters, bench = end_to_end.cluster, end_to_end.tainters, publishing.bench  # fixtures

FORGED = 2**53


async def clear(kubeconfig: Path, name: str) -> None:
    assert await asyncio.to_thread(main, ["clear", name, "--kubeconfig", str(kubeconfig)]) == 0


async def is_there(cluster: Cluster, name: str, uid: str = "") -> str:
    """The UID of the NodeHealth, once it is another than ``uid``."""
    try:
        found = str((await cluster.api.get(f"{HEALTHS}/{name}"))["metadata"]["uid"])
    except ApiError:
        return ""
    return found if found != uid else ""


@pytest.mark.parametrize("how", ["by the command", "as earlier versions of it wrote"])
async def test_a_forged_number_and_a_clear_do_not_blind_the_node(
    bench: Bench, tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, kubeconfig: Path, how: str
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="forged")
    await cluster.report(name, finding(occurrence=FORGED))
    await cluster.until_faulty(name)

    async def told() -> bool:
        return "OccurrenceRefused" in await cluster.events(name)

    await until(told, "somebody hears of it")
    if how == "by the command":
        await clear(kubeconfig, name)
    else:
        entry = {"check": "dmesg", "component": "gpu/0000:3b:00.0", "occurrence": FORGED, "by": "ann"}
        await cluster.api.patch(f"{HEALTHS}/{name}", {"spec": {"clear": [entry]}})
    await cluster.until_free(name)

    agent = bench.agent(name).start()  # the true one, without any state
    agent.write(XID % 1)
    await cluster.until_faulty(name)
    await clear(kubeconfig, name)
    await cluster.until_free(name)

    agent.kill()
    agent.state.unlink()
    before = await is_there(cluster, name)
    runner = CommandRunner(commands_of_test(__file__), {"NODE": name}, {"KUBECONFIG": str(kubeconfig)})
    await asyncio.to_thread(runner.type, "kubectl delete nodehealth NODE")
    await until(lambda: is_there(cluster, name, before), "the tainter makes it anew")
    agent.start()
    agent.write(XID % time.clock_gettime(time.CLOCK_MONOTONIC))  # after the clear, by the kernel's time
    await cluster.until_faulty(name)
    assert all(occurrence < 100 for _, _, occurrence in bench.findings(name))


async def test_a_part_that_makes_no_sense_hides_no_failure_beside_it(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="partly")
    await cluster.report(name)
    await cluster.settled(name, "pass")  # the Event is for a change: a first report that is unreadable makes none
    nonsense = {"name": "a", "verdict": "FAIL", "findings": [finding(component="*")]}
    real = {"name": "dmesg", "verdict": "FAIL", "findings": [finding()]}
    status = {"verdict": "FAIL", "bootID": "boot-1", "checks": [nonsense, real]}
    await cluster.api.patch(f"{HEALTHS}/{name}/status", {"status": status})
    await cluster.until_faulty(name)

    async def told() -> bool:
        return "HealthUnreadable" in await cluster.events(name)

    await until(told, "somebody hears of it")
