"""Autopilot's routes for one check each, as in its USAGE page: /pciebw, /dcgm?r=2, /iperf?workload=ring…"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest
from pydantic import Field
from tests.security.test_heavy_checks_of_strangers import STRANGER, caller

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.fleet.agent_fleet import AgentFleet
from muster_agent.http.access import AccessControl
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import NodeAnswer
from muster_agent.query.status_query import StatusQuery
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_kube.nodehealth import AgentIdentity


class Level(Parameters):
    r: int = Field(1, description="run level", ge=1, le=4)


class CheckRoutes:
    """An agent of node-1 with some of Autopilot's checks; its fleet only notes what it is asked."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.fleet_queries: list[StatusQuery] = []
        local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
        checks = [
            SnapshotCheck(self._check(name, cost), Level(), local, None)
            for name, cost in (("dcgm", Cost.HEAVY), ("iperf", Cost.HEAVY), ("remapped", Cost.LIGHT))
        ]
        agent = Agent(local, checks, AgentIdentity(pod_uid="pod-1"))
        fleet = object.__new__(AgentFleet)  # only handed on
        metrics = AgentMetrics("node-1", "1")
        self.app = make_app(agent, metrics, fleet, AccessControl(None), fleet_query=self._query)

    def _check(self, name: str, cost: Cost) -> Check:
        async def probe(_: NodeView, parameters: Level) -> Sequence[Finding]:
            self.ran.append((name, parameters.r))
            return []

        period_s = 60.0 if cost is Cost.LIGHT else None
        return Check(name, name, cost, Level, 60.0, ("gpu",), period_s, probe)

    async def _query(self, _: Agent, __: AgentFleet, query: StatusQuery) -> AsyncGenerator[NodeAnswer, None]:
        self.fleet_queries.append(query)
        for answer in ():
            yield answer


@pytest.fixture
def routes() -> CheckRoutes:
    return CheckRoutes()


@asynccontextmanager
async def person(routes: CheckRoutes) -> AsyncIterator[httpx2.AsyncClient]:
    async with caller(routes.app, "127.0.0.1") as client:
        yield client


async def test_a_route_runs_its_check_on_the_node_of_the_agent_that_is_called(routes: CheckRoutes) -> None:
    async with person(routes) as client:
        answer = await client.get("/dcgm?r=2")
        same = await client.get("/status?check=dcgm&r=2&host=node-1")
    assert (answer.status_code, routes.ran, routes.fleet_queries) == (200, [("dcgm", 2)] * 2, [])
    without_time = [line for line in answer.text.splitlines() if not line.startswith("runtime:")]
    assert without_time == [line for line in same.text.splitlines() if not line.startswith("runtime:")]


@pytest.mark.parametrize(
    ("path", "hosts", "nodelabel"),
    [
        ("/iperf?workload=ring&pclients=8&startport=5200", None, ""),
        ("/dcgm?host=node-2", ("node-2",), ""),
        ("/dcgm?nodelabel=pool=a", None, "pool=a"),
    ],
)
async def test_the_network_is_measured_between_all_nodes_and_other_nodes_can_be_named(
    routes: CheckRoutes, path: str, hosts: tuple[str, ...] | None, nodelabel: str
) -> None:
    async with person(routes) as client:
        assert (await client.get(path)).status_code == 200
    (query,) = routes.fleet_queries
    assert (query.hosts, query.nodelabel) == (hosts, nodelabel)
    assert query.check_names == (path[1:].partition("?")[0],)


@pytest.mark.parametrize(("path", "status"), [("/dcgm", 401), ("/iperf", 401), ("/remapped", 200)])
async def test_a_stranger_gets_light_checks_only(routes: CheckRoutes, path: str, status: int) -> None:
    async with caller(routes.app, STRANGER) as stranger:
        assert (await stranger.get(path)).status_code == status
    assert len(routes.ran) == (status == 200)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/dcgm?check=iperf", 400), ("/dcgm?r=9", 400), ("/dcgm?r=1&r=2", 400), ("/pciebw", 404), ("/dcgm/x", 404)],
)
async def test_a_wrong_request_runs_nothing(routes: CheckRoutes, path: str, status: int) -> None:
    """pciebw: not a check of this agent."""
    async with person(routes) as client:
        assert (await client.get(path)).status_code == status
    assert routes.ran == []


async def test_the_root_lists_the_routes_of_this_agents_checks(routes: CheckRoutes) -> None:
    async with person(routes) as client:
        listed = {line.split()[0] for line in (await client.get("/")).text.splitlines()[2:] if line}
        assert not {"/dcgm", "/iperf"} & (await client.get("/openapi.json")).json()["paths"].keys()
    assert {"/dcgm", "/iperf", "/remapped"} <= listed
    assert "/pciebw" not in listed
