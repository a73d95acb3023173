"""Spares on a real API server: twenty nodes, two of them kept free."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.fleet_findings import HEALTHS, KIND, Recorder, State, finding, recording, status
from tests.cluster.tainter.test_end_to_end import until

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import SimulatedNodes, for_each

tainters = end_to_end.tainters  # a fixture

POLICY = """
rules: [{name: hardware, match: {verdict: FAIL}, action: taint, holdDown: 0s}]
pools: [{name: h100, selector: {matchLabels: {spares-test: h100}}, spares: {nodes: 2, checks: [pciebw]}}]
testing: {atOnce: 0}
"""


def released(seen: Recorder) -> list[State]:
    """The writes that made a replacement of a spare."""
    return [state for state in seen.states if state.role == "replacement"]


def stamp(ago_s: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.alone
async def test_a_fault_releases_a_tested_spare_three_exhaust_them_and_recovered_nodes_refill_them(
    tainters: Any,
    fleet: SimulatedNodes,
    api: KubeClient,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    names = await fleet.create(20, prefix="spare")
    agent = {"agent": {"podUID": "a"}, "idleSince": stamp(600)}
    tests = '{"checks":{"pciebw":{"at":"' + stamp(60) + '"}}}'

    async def report(name: str, *findings: Any, boot: str = "boot-1") -> None:
        body = status(*findings, boot=boot)["status"] | agent
        await api.patch(f"{HEALTHS}/{name}/status", {"status": body})

    async def prepare(name: str) -> None:
        await api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"spares-test": "h100"}}})
        await api.create(HEALTHS, KIND | {"metadata": {"name": name, "annotations": {"muster.dev/tests": tests}}})
        await report(name)

    await for_each(names, prepare)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    replica = await tainters.start("--policy", str(policy))

    async def roles(role: str) -> set[str]:
        listed = await api.get("/api/v1/nodes", params={"labelSelector": f"muster.dev/role={role}"})
        return {node["metadata"]["name"] for node in listed["items"]} & set(names)

    async def spares(number: int) -> bool:
        listed = await api.get("/api/v1/nodes")
        tainted = {
            node["metadata"]["name"]
            for node in listed["items"]
            if any(taint["key"] == "muster.dev/spare" for taint in node["spec"].get("taints", []))
        } & set(names)
        return len(tainted) == number and tainted == await roles("spare")

    await until(lambda: spares(2), "two spares")
    bad = sorted(set(names) - await roles("spare"))[:3]
    async with recording(api, names) as seen:
        await report(bad[0], finding("Xid79", "reboot"))
        await seen.until(lambda: bool(released(seen)) and bad[0] in seen.tainted, "a spare is released", 60.0)
        # negative if the watch delivers the release first: these are writes of two objects
        took_s = released(seen)[0].at - seen.first_tainted[bad[0]]
        record_property("release_after_taint_s", round(took_s, 3))
        assert took_s < 10.0  # ten times the promised second
    assert await spares(1)
    assert len(await roles("replacement")) == 1
    for name in bad[1:]:
        await report(name, finding("Xid79", "reboot"))
    await until(lambda: spares(0), "the spares are exhausted")

    async def measured(line: str) -> bool:
        return line in (await replica.get("/metrics")).text

    await until(lambda: measured('muster_tainter_spares{domain="",pool="h100",state="ready"} 0.0'), "no ready spare")
    assert await measured('muster_tainter_spares_wanted{domain="",pool="h100"} 2.0')
    await replica.stop(9)  # SIGKILL: the next leader goes on from the Nodes
    await tainters.start("--policy", str(policy))
    await asyncio.gather(*(report(name, boot="boot-2") for name in bad))
    await until(lambda: spares(2), "the recovered nodes refill the spares")
    assert await roles("spare") <= set(bad)

    async def unmarked() -> bool:
        return not await roles("replacement")

    await until(unmarked, "no node replaces another one")
