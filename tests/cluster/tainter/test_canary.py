"""Canaries from a real agent to a real tainter, and each hop broken in turn."""

import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_drain_repair import MAPS, replica_paused
from tests.cluster.tainter.test_end_to_end import HEALTHS, until

from muster_agent.publish.canary import SHORTEST_S
from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.canary import judge_canary, send_canary
from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.install import TAINTER

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


async def hops(
    api: KubeClient, node: str, *, tick_s: float = 0.05, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> list[tuple[str, Verdict]]:
    """What the doctor says of a canary. Its time passes by ``tick_s`` twice a look, so its patience is a number of
    looks: as many as take a minute, twice as long as a person's."""
    ticks = itertools.count()
    found = judge_canary(await send_canary(api, node, "test", sleep=sleep, clock=lambda: tick_s * next(ticks)))
    return [(finding.what.split(":")[0], finding.verdict) for finding in found]


async def test_a_canary_travels_the_whole_way_and_taints_nothing(
    tainters: Any, fleet: Any, api: KubeClient, start_agent: Start, control_plane: Any, tmp_path: Path
) -> None:
    [node, empty] = await fleet.create(2, prefix="canary")
    await tainters.start("--policy", policy(tmp_path))
    agent = await start_agent(node)
    await end_to_end.Cluster(api).settled(node, "pass")
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

    looks, both_sent = itertools.count(1), asyncio.Event()

    async def sleep(seconds: float) -> None:
        if next(looks) == 2:
            both_sent.set()
        await both_sent.wait()
        await asyncio.sleep(seconds)

    [first, second] = await asyncio.gather(hops(api, node, sleep=sleep), hops(api, node, sleep=sleep))
    assert [verdict for _, verdict in first + second].count(Verdict.UNKNOWN) == 1, "one has replaced the other"
    assert Verdict.FAIL not in [verdict for _, verdict in first + second]

    await api.create(MAPS, {"metadata": {"name": "muster-pause"}, "data": {"by": "ada"}})
    [replica] = tainters.replicas
    await until(lambda: replica_paused(replica), "the tainter has heard of it")
    assert await hops(api, node) == [("agent", Verdict.PASS), ("tainter", Verdict.WARN)]
    assert (await api.get(f"{HEALTHS}/{node}"))["spec"]["canary"]["result"] == "paused"
    await api.delete(f"{MAPS}/muster-pause")

    assert await hops(api, empty) == [("agent", Verdict.FAIL)]
    assert await hops(api, "canary-nowhere") == [("tainter", Verdict.FAIL)]
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    assert await hops(api, node, tick_s=0.4) == [("agent", Verdict.FAIL)]
    agent.process.send_signal(signal.SIGCONT)
    await replica.stop()
    assert await hops(api, node, tick_s=0.1) == [("agent", Verdict.PASS), ("tainter", Verdict.FAIL)]


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


async def test_a_canary_is_one_write_and_a_change_of_the_section_one_more(
    tainters: Any, fleet: Any, api: KubeClient, start_agent: Start, control_plane: Any, tmp_path: Path
) -> None:
    [node] = await fleet.create(1, prefix="canary-cost")
    began = control_plane.audit.mark()
    replica = await tainters.start("--policy", policy(tmp_path, "canary: {nodes: 100%, period: 30s}\n"))
    await start_agent(node)

    async def period_is(seconds: int | None) -> bool:
        health = await api.get(f"{HEALTHS}/{node}")
        return health["spec"].get("canary", {}).get("periodSeconds") == seconds

    def of_tainter() -> int:
        asked = control_plane.audit.requests(began)
        return sum(
            each.name == node and each.verb == "patch" and each.resource == "nodehealths" and TAINTER in each.user
            for each in asked
        )

    async def answered(number: int) -> bool:
        return of_tainter() >= number

    await until(lambda: period_is(30), "the period is requested")
    await until(lambda: answered(1), "the write is answered")
    assert of_tainter() == 1
    policy(tmp_path)
    await until(lambda: period_is(None), "no canary is requested any more")
    await until(lambda: answered(2), "the second write is answered")
    assert of_tainter() == 2
    await replica.stop()

    async def sent() -> str:
        health = await api.get(f"{HEALTHS}/{node}")
        return str(health["status"].get("canary", {}).get("at", ""))

    before = await sent()  # of the period of before, if all that took long
    since, begun = control_plane.audit.mark(), time.monotonic()
    await api.patch(f"{HEALTHS}/{node}", {"spec": {"canary": {"periodSeconds": round(SHORTEST_S)}}})
    seen: set[str] = set()

    async def third() -> bool:
        seen.add(await sent())
        return len(seen - {"", before}) == 3

    async def audited() -> list[Any]:
        asked = [each for each in control_plane.audit.requests(since) if each.user_agent.startswith("muster-agent/")]
        return asked if len(asked) >= 3 else []

    await until(third, "three canaries arrive")
    asked = await until(audited, "the writes are answered")
    assert {(each.verb, each.resource) for each in asked} == {("patch", "nodehealths/status")}
    assert 3 <= len(asked) <= (time.monotonic() - begun) / SHORTEST_S + 1
