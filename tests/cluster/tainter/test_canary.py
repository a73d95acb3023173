"""Canaries from a real agent to a real tainter, and each hop broken in turn."""

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, until

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.canary import judge_canary, send_canary
from muster_kube.api.client import KubeClient

tainters = end_to_end.tainters  # a fixture

RULES = "rules: [{name: all, match: {verdict: FAIL}, action: taint}]\n"

Start = Callable[[str], Awaitable[AgentProcess]]
_places = itertools.count()


@pytest.fixture
async def start_agent(control_plane: Any, api: KubeClient, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[AgentProcess] = []

    async def start(node: str) -> AgentProcess:
        place = tmp_path / f"agent-{next(_places)}"
        place.mkdir()
        config = kernel_log_only(place)
        kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")
        made.append(AgentProcess(place, node, kubeconfig, "--config", str(config), "--pod-uid", f"pod-of-{node}"))
        await until(lambda: api.get(f"{HEALTHS}/{node}"), "its NodeHealth is made")
        made[-1].start()

        async def reports() -> bool:
            return bool((await api.get(f"{HEALTHS}/{node}")).get("status", {}).get("verdict"))

        await until(reports, "the agent reports")
        return made[-1]

    yield start
    for each in made:
        each.kill()


def policy(folder: Path, more: str = "") -> str:
    file = folder / "policy.yaml"
    file.write_text(RULES + more)
    return str(file)


async def hops(api: KubeClient, node: str) -> list[tuple[str, Verdict]]:
    """What the doctor says of a canary. Its time passes fifty times as fast, which only shortens its patience."""
    ticks = itertools.count()
    found = judge_canary(await send_canary(api, node, "test", clock=lambda: 0.4 * next(ticks)))
    return [(finding.what.split(":")[0], finding.verdict) for finding in found]


async def test_a_canary_travels_the_whole_way_and_taints_nothing(
    tainters: Any, fleet: Any, api: KubeClient, start_agent: Start, control_plane: Any, tmp_path: Path
) -> None:
    [node, empty] = await fleet.create(2, prefix="canary")
    await tainters.start("--policy", policy(tmp_path))
    agent = await start_agent(node)
    before = await api.get(f"/api/v1/nodes/{node}")
    words = [sys.executable, "-m", "muster_cli", "doctor", "--kubeconfig", str(control_plane.kubeconfig)]
    ended = await asyncio.create_subprocess_exec(*words, "--canary", node, stdout=subprocess.PIPE)
    printed, _ = await asyncio.wait_for(ended.communicate(), 120)
    assert ended.returncode == 0, printed.decode()
    assert "muster.dev/faulty=true:NoSchedule" in printed.decode()
    after = await api.get(f"/api/v1/nodes/{node}")
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])
    health = await api.get(f"{HEALTHS}/{node}")
    assert (health["status"]["verdict"], health["spec"]["canary"]["result"]) == ("PASS", "arrived")

    assert await hops(api, empty) == [("agent", Verdict.FAIL)]
    assert await hops(api, "canary-nowhere") == [("tainter", Verdict.FAIL)]
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    assert await hops(api, node) == [("agent", Verdict.FAIL)]
    agent.process.send_signal(signal.SIGCONT)
    [replica] = tainters.replicas
    await replica.stop()
    assert await hops(api, node) == [("agent", Verdict.PASS), ("tainter", Verdict.FAIL)]


async def test_an_empty_budget_is_named_and_the_policy_s_nodes_send_canaries_at_one_write_each(
    tainters: Any, fleet: Any, api: KubeClient, start_agent: Start, tmp_path: Path
) -> None:
    [node] = await fleet.create(1, prefix="canary-budget")
    budget = "pools: [{name: all, selector: {}, budget: {tainted: 0}}]\ncanary: {nodes: 100%, period: 30s}\n"
    replica = await tainters.start("--policy", policy(tmp_path, budget))
    await start_agent(node)
    assert await hops(api, node) == [("agent", Verdict.PASS), ("tainter", Verdict.WARN)]
    health = await api.get(f"{HEALTHS}/{node}")
    assert health["spec"]["canary"]["result"] == "budget"

    async def requested() -> bool:
        return (await api.get(f"{HEALTHS}/{node}"))["spec"]["canary"].get("periodSeconds") == 30

    await until(requested, "the policy's period is requested")
    first = (await api.get(f"{HEALTHS}/{node}"))["status"]["canary"]["at"]

    async def sent() -> dict[str, Any] | None:
        health = await api.get(f"{HEALTHS}/{node}")
        canary = health["status"]["canary"]
        return health if canary["at"] != first and "id" not in canary else None

    health = await until(sent, "a canary of the period arrives", 90.0)
    page = (await replica.get("/metrics")).text
    assert 'muster_tainter_canaries{state="budget"}' in page
    assert not [
        taint
        for taint in (await api.get(f"/api/v1/nodes/{node}"))["spec"].get("taints", ())
        if "muster" in taint["key"]
    ]
