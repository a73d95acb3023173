"""200 agents on this machine, asked through one of them: five where nobody listens, five that never answer."""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from tests.agent.many_agents import ASKED, ManyAgents, many_agents
from tests.kube.conftest import Reply, Wire

from muster_kube.nodehealth import PATH as HEALTHS


async def answered(fleet: ManyAgents, loop_time: Any, path: str) -> httpx2.Response:
    """The answer. Time passes in leaps as soon as nobody but the silent ones is waited for."""
    silent = [fleet.answerers[node] for node in fleet.silent]
    others = [each for each in fleet.answerers.values() if not each.silent]
    asking = asyncio.create_task(fleet.client.get(path))
    await Wire.until(
        lambda: asking.done() or (all(each.done for each in others) and all(each.asked for each in silent))
    )
    for _ in range(100):
        if asking.done():
            break
        before = sum(each.asked + each.done for each in silent)
        await loop_time.passes(5.0)
        await Wire.until(lambda before=before: asking.done() or sum(e.asked + e.done for e in silent) > before)
    return await asking


async def test_all_answer_and_those_that_cannot_are_unknown_with_the_reason(tmp_path: Path, loop_time: Any):
    async with many_agents(tmp_path, count=200, dead=5, silent=5) as fleet:
        response = await answered(fleet, loop_time, "/status?check=dmesg&format=json")
    assert response.status_code == 200
    answer = json.loads(response.text)
    nodes = {node["node"]: node for node in answer["nodes"]}
    assert len(answer["nodes"]) == len(nodes) == 200
    assert set(nodes) == {ASKED, *fleet.answerers, *fleet.dead}
    told = {name: (node["verdict"], node["results"][0].get("reason", "")) for name, node in nodes.items()}
    assert Counter(told.values()) == {("PASS", ""): 190, ("UNKNOWN", "Unreachable"): 5, ("UNKNOWN", "NoAnswer"): 5}
    assert {told[name] for name in fleet.dead} == {("UNKNOWN", "Unreachable")}
    assert {told[name] for name in fleet.silent} == {("UNKNOWN", "NoAnswer")}
    for name in (*fleet.dead, *fleet.silent):
        assert nodes[name]["endpoint"] in nodes[name]["error"], "who did not answer, and where"
    assert answer["summary"].keys() == nodes.keys()


async def test_the_same_as_text_has_a_block_for_each_node_and_one_summary(tmp_path: Path, loop_time: Any):
    async with many_agents(tmp_path, count=12, dead=1, silent=1) as fleet:
        text = (await answered(fleet, loop_time, "/status?check=dmesg&batch=5")).text
    blocks = text.split("Autopilot Endpoint: ")[1:]
    assert len(blocks) == 12
    for block in blocks:
        address, node = block.splitlines()[0], block.splitlines()[1].removeprefix("Node: ")
        assert f"url(s): http://{address}:{fleet.port}/status?host={node}&check=dmesg" in block
    assert f"'{ASKED}': ['Ok']," in text
    assert f"'{fleet.silent[0]}': ['No answer (NoAnswer)']," in text
    assert f"'{fleet.dead[0]}': ['No answer (Unreachable)']}}" in text


async def test_only_the_nodes_that_are_named_are_asked(tmp_path: Path):
    async with many_agents(tmp_path, count=12) as fleet:
        answer = (await fleet.client.get("/status?check=dmesg&host=node-007,node-003&format=json")).json()
        assert {node["node"] for node in answer["nodes"]} == {"node-003", "node-007"}
        assert {name for name, each in fleet.answerers.items() if each.asked} == {"node-003", "node-007"}


async def test_a_name_that_no_node_has_is_refused_with_those_that_exist(tmp_path: Path):
    async with many_agents(tmp_path, count=3) as fleet:
        response = await fleet.client.get("/status?check=dmesg&host=node-001,nodename1")
        assert response.status_code == 400
        assert "nodename1" in response.text
        assert response.text.endswith("node-000, node-001, node-002\n")
        assert not any(each.asked for each in fleet.answerers.values())


async def test_when_the_client_hangs_up_nobody_is_kept_waiting(tmp_path: Path):
    async with many_agents(tmp_path, count=40, silent=30) as fleet:
        asking = asyncio.create_task(fleet.client.get("/status?check=dmesg"))
        silent = [fleet.answerers[node] for node in fleet.silent]
        await Wire.until(lambda: all(each.asked for each in silent))
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await Wire.until(lambda: all(each.done == each.asked for each in silent))


async def test_while_the_api_server_is_away_this_node_answers_and_the_others_are_unknown(tmp_path: Path):
    async with many_agents(tmp_path, count=3) as fleet:
        fleet.api.on("GET", HEALTHS, Reply(500, Wire.failure(500, "InternalError", "etcd is away")))
        answer = (await fleet.client.get("/status?check=dmesg&format=json")).json()
        nodes = {node["node"]: node for node in answer["nodes"]}
        assert {name: node["verdict"] for name, node in nodes.items()} == {ASKED: "PASS", "(other nodes)": "UNKNOWN"}
        assert nodes["(other nodes)"]["results"][0]["reason"] == "FleetUnknown"
        assert "etcd is away" in nodes["(other nodes)"]["error"]
        answer = (await fleet.client.get(f"/status?check=dmesg&host=node-001,{ASKED}&format=json")).json()
        assert {node["node"]: node["verdict"] for node in answer["nodes"]} == {ASKED: "PASS", "node-001": "UNKNOWN"}
        response = await fleet.client.get("/status?check=dmesg&nodelabel=a=b")
        assert (response.status_code, "etcd is away" in response.text) == (503, True)


async def test_nodes_of_a_job_take_a_tainter_to_ask(tmp_path: Path):
    async with many_agents(tmp_path, count=3) as fleet:
        response = await fleet.client.get("/status?check=dmesg&job=team-a:app=train")
        assert response.status_code == 503
        assert "tainter_url" in response.text
