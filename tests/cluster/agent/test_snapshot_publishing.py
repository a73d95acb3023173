"""A snapshot check's finding from the node's files to its taint, and back: agent and tainter on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.checks.memory.test_memory import DIMM0, sound
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Tainters, tainters, until  # noqa: F401 - a fixture

from muster_checks.testing.recorded import lay_out
from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE
from muster_sandbox.simulation.nodes import SimulatedNodes

BOOT = {"/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}
# nothing runs by itself: the test says when
SETTINGS = {"repeat": 0, "checks": {"memory": {"parameters": {"first_interval_s": 0, "min_dimms": 4}}}}
ACTIONS = """
rules:
  - {name: dimms, match: {check: memory, component: "dimm/*"}, action: taint, closeOn: [quiet]}
  - {name: rest, action: event}
"""


@dataclass
class Bench:
    cluster: Cluster
    tainters: Tainters
    agent: AgentProcess
    node: str
    root: Path

    async def asked(self) -> dict[str, Any]:
        code, text = await asyncio.to_thread(self.agent.get, f"/status?check=memory&host={self.node}&format=json")
        assert code == 200, text
        found: dict[str, Any] = json.loads(text)["nodes"][0]["results"][0]
        return found

    async def told(self) -> dict[str, Any]:
        """What the NodeHealth says of the check; empty as long as it says nothing."""
        status = (await self.cluster.api.get(f"{HEALTHS}/{self.node}")).get("status", {})
        return next((check for check in status.get("checks", []) if check["name"] == "memory"), {})

    async def until_told(self, verdict: str) -> dict[str, Any]:
        async def said() -> dict[str, Any]:
            check = await self.told()
            return check if check.get("verdict") == verdict else {}

        found: dict[str, Any] = await until(said, f"the NodeHealth says {verdict}")
        return found


@pytest.fixture
async def bench(
    control_plane: ControlPlane,
    api: KubeClient,
    fleet: SimulatedNodes,
    tainters: Tainters,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> AsyncIterator[Bench]:
    """An agent of a node with four DIMMs' worth of files to come, and no tainter yet."""
    [node] = await fleet.create(1, prefix="dimms")
    root, place = tmp_path / "root", tmp_path / "agent"
    place.mkdir()
    config = place / "agent.yaml"
    config.write_text(json.dumps(SETTINGS))
    lay_out(root, sound() | BOOT)
    flags = ("--config", str(config), "--root", str(root))
    agent = AgentProcess(place, node, control_plane.kubeconfig_for(AGENT, NAMESPACE), *flags)
    try:
        yield Bench(Cluster(api), tainters, agent.start(), node, root)
    finally:
        agent.close()


async def test_a_broken_dimm_is_told_with_its_measurements_taints_and_is_over_by_a_run(bench: Bench):
    await bench.tainters.start(wait=False)
    lay_out(bench.root, sound(dimm0_ue=3))
    result = await bench.asked()
    assert result["verdict"] == "FAIL"
    check = await bench.until_told("FAIL")
    told = {finding["component"]: finding for finding in check["findings"]}
    assert set(told) == {DIMM0, "host"}, "sound components are not published"
    dimm, host = told[DIMM0], told["host"]
    assert (dimm["reason"], dimm["class"], dimm["verdict"]) == ("UncorrectedErrors", "replace", "FAIL")
    assert "3 " in dimm["message"]
    assert dimm["measurements"] == [
        {"name": "uncorrected", "value": 3, "unit": "errors", "threshold": 0},
        {"name": "corrected_per_day", "value": 0, "unit": "errors", "threshold": 10},
        {"name": "corrected", "value": 0, "unit": "errors"},
    ]
    assert (host["reason"], host["class"]) == ("DimmMissing", "contact")
    assert host["measurements"] == [{"name": "dimms", "value": 2, "threshold": 4}], "without a unit"
    await bench.cluster.until_faulty(bench.node)
    node = await bench.cluster.node(bench.node)
    opened = json.loads(node["metadata"]["annotations"]["muster.dev/faults"])["open"]
    assert {(f["check"], f["component"], f["class"]) for f in opened} == {
        ("memory", DIMM0, "replace"),
        ("memory", "host", "contact"),
    }

    more = {f"/sys/devices/system/edac/mc/mc0/dimm{n}/dimm_{kind}_count": 0 for n in (1, 9) for kind in ("ce", "ue")}
    lay_out(bench.root, sound() | more)
    assert (await bench.asked())["verdict"] == "PASS"
    check = await bench.until_told("PASS")
    assert check.get("findings", []) == []
    assert {(over["component"], over["reason"], over["how"]) for over in check["cleared"]} == {
        (DIMM0, "UncorrectedErrors", "run"),
        ("host", "DimmMissing", "run"),
    }
    await bench.cluster.settled(bench.node, "pass")
    assert await bench.cluster.faulty(bench.node), "a counter that starts anew replaces no DIMM: a person says so"
    clear = [{"check": "memory", "component": "*", "occurrence": check["lastOccurrence"], "by": "ann"}]
    await bench.cluster.api.patch(f"{HEALTHS}/{bench.node}", {"spec": {"clear": clear}})
    await bench.cluster.until_free(bench.node)


async def test_what_taints_is_the_policys_choice(bench: Bench, tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(ACTIONS)
    await bench.tainters.start("--policy", str(policy), wait=False)
    await bench.asked()  # both DIMMs are sound, but two are missing: for that this policy has an Event
    await bench.until_told("FAIL")
    await bench.cluster.settled(bench.node, "fail")

    async def told() -> bool:
        return "HealthFailure" in await bench.cluster.events(bench.node)

    await until(told, "an Event tells of it")
    assert not await bench.cluster.faulty(bench.node)
    lay_out(bench.root, sound(dimm0_ue=1))
    await bench.asked()
    await bench.cluster.until_faulty(bench.node)


async def test_files_that_cannot_be_read_are_unknown_and_only_what_is_proven_taints(bench: Bench):
    await bench.tainters.start(wait=False)
    lay_out(bench.root, sound(dimm0_ue="x") | {"/proc/meminfo": "nonsense"})
    assert (await bench.asked())["verdict"] == "FAIL", "DIMMs are missing all the same"
    check = await bench.until_told("FAIL")
    unread = {f["component"]: f["reason"] for f in check["findings"] if f["verdict"] == "UNKNOWN"}
    assert unread == {DIMM0: "NotReadable", "host": "NotReadable"}
    await bench.cluster.until_faulty(bench.node)
    node = await bench.cluster.node(bench.node)
    opened = json.loads(node["metadata"]["annotations"]["muster.dev/faults"])["open"]
    assert [fault["reason"] for fault in opened] == ["DimmMissing"]
