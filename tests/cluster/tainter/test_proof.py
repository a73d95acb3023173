"""Recovery by proof, from end to end: a real API server, the tainter as processes of its own, and a real agent whose
tool prints what was recorded, of a node with one bad GPU and of a good one."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.agent.recorded_gpu_agent import FIRST, SECOND, FleetAgent
from tests.cluster.tainter.test_end_to_end import FAULTY, HEALTHS, Tainters, until

from muster_kube.api.client import KubeClient

NODES = "/api/v1/nodes"
PROOFS = "muster.dev/proofs"
PROVING = "muster.dev/proving"
CHECKS = {"pciebw": {"parameters": {"min_bandwidth_gb_per_s": 8}}, "dmesg": {}}
POLICY = """
rules:
  - {name: measured, match: {check: pciebw}, action: taint, proof: {passes: 2, interval: 0s, retry: 1s}, holdDown: 3s}
testing: {atOnce: 100}
"""
XID = "[100.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
THEIRS = {"id": "ann-1", "checks": ["dmesg"], "params": {"runs": "1"}, "by": "ann"}


class ProvedNode:
    """A node with its agent."""

    def __init__(self, api: KubeClient, name: str, agent: FleetAgent) -> None:
        self._api, self.name, self.agent = api, name, agent

    def measures(self, bandwidths: list[str]) -> None:
        """From the next run on."""
        file = self.agent.tools / "nvbandwidth.json"
        report = json.loads(file.read_text())
        for test in report["nvbandwidth"]["testcases"]:
            test["bandwidth_matrix"] = [bandwidths]
        new = file.with_suffix(".new")
        new.write_text(json.dumps(report))
        new.replace(file)

    async def health(self) -> dict[str, Any]:
        return await self._api.get(f"{HEALTHS}/{self.name}")

    async def node(self) -> dict[str, Any]:
        return await self._api.get(f"{NODES}/{self.name}")

    async def faults(self) -> dict[str, Any]:
        return dict(json.loads((await self.node())["metadata"]["annotations"].get("muster.dev/faults", "{}")))

    async def tainted(self) -> bool:
        return FAULTY in (await self.node())["spec"].get("taints", [])

    async def free(self) -> bool:
        return not await self.tainted()

    async def tried(self) -> list[dict[str, Any]]:
        text = (await self.health())["metadata"].get("annotations", {}).get(PROOFS, "{}")
        return list(json.loads(text).values())

    async def at_rest(self) -> bool:
        """Nothing is left of the proof, and what a person asked is as it was."""
        health = await self.health()
        meta = health["metadata"]
        left = [each for each in health["spec"].get("requests", []) if not each["id"].startswith("plan-")]
        return left == [THEIRS] and PROOFS not in meta.get("annotations", {}) and PROVING not in meta.get("labels", {})

    async def ask(self, *requests: dict[str, Any]) -> None:
        """As a person does."""
        body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": self.name}}
        await self._api.apply(
            f"{HEALTHS}/{self.name}", body | {"spec": {"requests": list(requests)}}, field_manager="ann"
        )

    async def events(self, reason: str) -> list[str]:
        found = await self._api.get("/api/v1/events", params={"fieldSelector": f"involvedObject.name={self.name}"})
        return [event["message"] for event in found["items"] if event["reason"] == reason]


@pytest.fixture
async def tainters(control_plane: Any, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()


@pytest.fixture
def agents() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def proved(
    control_plane: Any, fleet: Any, api: KubeClient, agents: ExitStack, tmp_path: Path
) -> Callable[..., Any]:
    async def make(bandwidths: list[str], *without: str, **more: dict[str, Any]) -> ProvedNode:
        """without: tools that are not installed. more: enabled checks beside CHECKS."""
        [name] = await fleet.create(1, prefix="proved")
        place = tmp_path / name
        place.mkdir()
        agent = FleetAgent(
            place,
            name,
            control_plane.kubeconfig_for("muster-agent", "muster"),
            "127.0.0.1",
            bandwidths,
            checks=CHECKS | more,
        )
        agents.callback(agent.close)
        for tool in without:
            (agent.tools / tool).unlink()
        node = ProvedNode(api, name, agent)
        await until(node.health, "its NodeHealth is made")
        await node.ask(THEIRS)
        agent.start()
        return node

    return make


async def test_a_node_that_failed_is_asked_until_it_passes_and_is_held_when_it_flaps(
    tainters: Tainters, proved: Any, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    first = await tainters.start("--policy", str(file))
    second = await tainters.start("--policy", str(file), wait=False)
    node = await proved(FIRST)
    await until(node.tainted, "the plan's pciebw finds a bad GPU, the node is tainted")

    async def tried_twice() -> bool:
        return any(each["tries"] >= 2 and each["said"].startswith("FAIL") for each in await node.tried())

    await until(tried_twice, "it is asked to prove itself, and again")
    assert await node.tainted()
    node.measures(SECOND)
    await until(node.free, "it has passed twice")
    await until(node.at_rest, "nothing is left of it")
    [closed] = (await node.faults())["closed"]
    assert (closed["check"], closed["how"]) == ("pciebw", "proof")
    assert not await node.events("FaultHeld")
    health = await node.health()
    assert health["status"]["verdict"] == "PASS"
    assert not health["spec"].get("clear")  # its agent knows by its own run

    # it flaps; and the leader dies before it has asked
    node.measures(FIRST)
    await node.ask(THEIRS, {"id": "ann-2", "checks": ["pciebw"], "by": "ann"})
    await until(node.tainted, "it is tainted again")
    await first.stop(signal.SIGKILL)
    node.measures(SECOND)
    await until(second.leads, "the other replica leads")
    await until(node.free, "it has passed again")

    async def held() -> Any:
        return await node.events("FaultHeld")

    [message] = await until(held, "it was held before")
    assert "pciebw" in message
    await node.ask(THEIRS)
    await until(node.at_rest, "nothing is left of it")


async def test_a_kernel_fault_that_asks_for_a_new_board_is_proved_only_in_a_new_boot_or_cleared_by_a_person(
    tainters: Tainters, proved: Any, api: KubeClient, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("""
rules:
  - name: boards
    match: {check: dmesg}
    action: taint
    closeOn: [proof]
    proof: {checks: [pciebw], ifInstalled: [dcgm], passes: 1}
    holdDown: 0s
testing: {atOnce: 100}
""")
    replica = await tainters.start("--policy", str(file))
    node = await proved(SECOND, "dcgmi", dcgm={})
    node.agent.write(XID)
    await until(node.tainted, "it is tainted")
    for _ in range(10):  # what must not happen gets a chance to
        assert not [each for each in (await node.health())["spec"]["requests"] if each["id"].startswith("proof-")]
        await asyncio.sleep(0.2)
    node.agent.reboot()
    await until(node.free, "pciebw passes in the new boot")
    await until(node.at_rest, "nothing is left of it")
    await replica.until_logged(node.name, "pciebw", "proof-")
    [closed] = (await node.faults())["closed"]
    assert (closed["check"], closed["how"]) == ("dmesg", "proof")
    assert closed["by"].startswith("pciebw (without dcgm")
