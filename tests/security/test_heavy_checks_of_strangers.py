"""A stranger in the cluster's network makes nodes burn time: heavy checks, costly parameters, documents made anew."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from tests.agent.http.test_routes import Bench

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.http.access import AccessControl
from muster_agent.http.routes import AgentService, make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.registry import load_registry
from muster_kube.nodehealth import AgentIdentity

STRANGER = "10.1.2.3"
COSTLY = re.compile(r"seconds|entries|sample|count|clients|r|memory_share|.*_mib|.*_timeout_s|timeout_s|.*interval_s")
LIMITS_OF_FINDINGS = re.compile(r"(min|max|expected|warn|omit)_.*")


class BurningNode:
    """An agent with a check that takes its device, and the number of its runs."""

    def __init__(
        self, *, node: str = "node-1", open_heavy_checks: bool = False, access: AccessControl | None = None
    ) -> None:
        self.runs = 0
        local = LocalNode(name=node, view=NodeView(), boot_id="boot")
        check = Check(
            name="burn",
            description="takes a device",
            cost=Cost.HEAVY,
            parameters=Parameters,
            timeout_s=60.0,
            devices=("host",),
            probe=self._probe,
        )
        agent = Agent(local, [SnapshotCheck(check, Parameters(), local, None)], AgentIdentity(pod_uid="pod-1"))
        access = access or AccessControl(None, open_heavy_checks=open_heavy_checks)
        self.app = make_app(agent, AgentMetrics(node, "1"), access=access)

    async def _probe(self, _node: NodeView, _parameters: Parameters) -> list[object]:
        self.runs += 1
        return []


@asynccontextmanager
async def caller(app: AgentService, address: str) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app, client=(address, 40000))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:3333") as client:
        yield client


@pytest.mark.parametrize("query", ["check=burn", "check=all", "check=burn&host=node-1&format=json"])
async def test_a_stranger_runs_no_heavy_check(query: str):
    node = BurningNode()
    async with caller(node.app, STRANGER) as stranger:
        answer = await stranger.get(f"/status?{query}")
    assert (answer.status_code, node.runs) == (401, 0)
    assert all(fact in answer.text for fact in ("check=burn", "port-forward", "muster run", "open_heavy_checks"))


async def test_a_stranger_still_reads_last_results():
    node = BurningNode()
    async with caller(node.app, STRANGER) as stranger:
        answer = await stranger.get("/status")
    assert (answer.status_code, node.runs) == (200, 0)


async def test_a_port_forward_runs_heavy_checks_without_a_token():
    node = BurningNode()
    async with caller(node.app, "127.0.0.1") as person:
        assert (await person.get("/status?check=burn")).status_code == 200
    assert node.runs == 1


async def test_one_setting_opens_heavy_checks_to_everybody_but_not_force():
    node = BurningNode(open_heavy_checks=True)
    async with caller(node.app, STRANGER) as stranger:
        assert (await stranger.get("/status?check=burn")).status_code == 200
        assert (await stranger.get("/status?check=burn&force=true")).status_code == 401
    assert node.runs == 1


CHECKS = load_registry(plug_ins=[])
BOUNDED = [
    (check.name, name)
    for check in CHECKS.values()
    for name in check.parameters.model_fields
    if COSTLY.fullmatch(name) and not LIMITS_OF_FINDINGS.fullmatch(name)
]


@pytest.mark.parametrize(("check", "name"), BOUNDED)
def test_a_parameter_that_sets_the_cost_has_a_bound(check: str, name: str):
    field = CHECKS[check].parameters.model_json_schema()["properties"][name]
    assert {"maximum", "exclusiveMaximum"} & field.keys()


async def test_a_parameter_beyond_its_bound_is_an_error_that_names_it():
    bench = Bench()
    try:
        answer = await bench.get("/status?check=link&r=400")
        assert answer.status_code == 400
        assert "r" in answer.text
        assert "3" in answer.text
    finally:
        await bench.client.aclose()


async def test_documents_are_made_once_whoever_requests_them(monkeypatch: pytest.MonkeyPatch):
    node = BurningNode()
    made: list[str] = []
    make = AgentService.openapi
    monkeypatch.setattr(AgentService, "openapi", lambda self: made.append("") or make(self))
    async with caller(node.app, STRANGER) as stranger:
        first = await stranger.get("/openapi.json")
        assert (await stranger.get("/openapi.json")).content == first.content
    assert len(made) == 1
