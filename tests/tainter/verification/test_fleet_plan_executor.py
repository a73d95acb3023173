"""The plan's edge: what is written, when answers of the server are lost, and when it says no."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Asked, Drop, FakeApi, Reply, Wire
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import PATH, NodeHealth, ReportedFinding, RequestAnswer
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.verification.fleet_plan_executor import FleetPlanExecutor

POLICY = "{rules: [], testing: {atOnce: 1}}"
EMPTY = Reply(200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})


class Bench:
    """A planner over a few nodes, and the API server that it writes to; the store is what writes return."""

    def __init__(self, api: FakeApi, client: KubeClient, names: list[str]) -> None:
        self.api = api
        self.now = 1.8e9
        self.healths = {name: self.health(name) for name in names}
        self.metrics = TainterMetrics()
        self.leads = True
        self.idle = asyncio.Event()
        self.idle.set()
        policy = parse_policy(POLICY)
        api.on("GET", PATH, EMPTY)
        for name in names:
            api.on("PATCH", f"{PATH}/{name}", self.take)
        nodes = {name: Node(metadata=Metadata(name=name)) for name in names}
        fleet = FakeFleet(policy, nodes, self.healths, observe_health=self.observe, taints_idle=self.idle)
        self.fleet, self.notices = fleet, fleet.notices
        replica = Replica(may_write=lambda: self.leads, now=lambda: self.now)
        self.planner = FleetPlanExecutor(client, fleet, replica, self.metrics, interval_s=0.001)

    def health(self, name: str, version: int = 1, **spec: Any) -> NodeHealth:
        raw = {
            "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}, "spec": spec,
            "status": {"verdict": "PASS", "bootID": "b", "agent": {"podUID": "p"}, "due": ["pciebw"],
                       "idleSince": "2026-01-01T00:00:00Z"},
        }  # fmt: skip
        return msgspec.convert(raw, NodeHealth)

    def observe(self, health: NodeHealth) -> None:
        self.healths[health.metadata.name] = health
        self.planner.note(health.metadata.name)

    def taken(self, asked: Asked) -> NodeHealth:
        """The object as the server has it after a write."""
        name = asked.path.rpartition("/")[2]
        body = json.loads(asked.body)
        known = self.healths[name]
        spec = {"requests": (body.get("spec") or {}).get("requests") or []}
        applied = self.health(name, int(known.metadata.resource_version) + 1, **spec)
        return msgspec.structs.replace(applied, status=known.status)  # which only the agent writes

    def take(self, asked: Asked) -> Reply:
        return Reply(200, msgspec.to_builtins(self.taken(asked)))

    def says(self, name: str, **status: Any) -> None:
        known = self.healths[name]
        self.observe(msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, **status)))

    def writes(self) -> list[tuple[str, dict[str, Any]]]:
        return [(asked.path.rpartition("/")[2], json.loads(asked.body)) for asked in self.api.asked_for("PATCH")]

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until(self, condition: Any) -> None:
        await Wire.until(condition)


@pytest.fixture
async def bench() -> AsyncIterator[Any]:
    api = FakeApi()
    await api.start()
    running: list[asyncio.Task[None]] = []
    async with KubeClient(
        ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}"), timeout_s=30.0
    ) as client:

        def start(*names: str, run: bool = True) -> Bench:
            made = Bench(api, client, list(names))
            if run:
                running.append(asyncio.create_task(made.planner.run()))
            return made

        yield start
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    await api.stop()


async def test_a_request_is_applied_by_a_manager_of_its_own_on_the_version_it_was_decided_on(bench: Any) -> None:
    b = bench("n1")
    await b.until(b.writes)
    [(_, body)] = b.writes()
    [request] = body["spec"]["requests"]
    assert body["metadata"] == {
        "name": "n1", "uid": "u-n1", "resourceVersion": "1", "labels": {"muster.dev/testing": "pciebw"}
    }  # fmt: skip
    assert (request["checks"], request["by"], set(request)) == (
        ["pciebw"], "muster-tainter-plan", {"id", "checks", "by", "expires"}
    )  # fmt: skip
    [asked] = b.api.asked_for("PATCH")
    assert asked.query == {"fieldManager": "muster-tainter-plan", "force": "true"}
    assert asked.headers["content-type"] == "application/apply-patch+yaml"


async def test_a_finding_of_a_source_has_its_checks_requested(bench: Any) -> None:
    b = bench("n1", run=False)
    step_times = "stepTimes: {url: 'http://p', heavyChecks: [gpumem]}"
    b.fleet.current = parse_policy(f"{{rules: [], testing: {{atOnce: 1}}, sources: {{{step_times}}}}}")
    b.says("n1", due=())
    finding = ReportedFinding(component="host", reason="SlowRank", verdict="WARN", first_seen=rfc3339_whole(b.now))
    b.fleet.external_findings.add("n1", "stragglers", finding)
    running = asyncio.create_task(b.planner.run())
    await b.until(b.writes)
    [(_, body)] = b.writes()
    assert [request["checks"] for request in body["spec"]["requests"]] == [["gpumem"]]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_answer_is_noted_where_the_request_is_deleted(bench: Any) -> None:
    b = bench("n1")
    await b.until(lambda: b.healths["n1"].spec.requests)
    answer = RequestAnswer(id=b.healths["n1"].spec.requests[0].id, verdict="PASS", finished="2026-01-01T00:00:05Z")
    b.says("n1", answers=(answer,), due=())
    await b.until(lambda: len(b.writes()) == 2)
    body = b.writes()[1][1]
    assert body["spec"] == {"requests": None}
    assert body["metadata"]["labels"] == {"muster.dev/testing": None}
    assert json.loads(body["metadata"]["annotations"]["muster.dev/tests"])["checks"]["pciebw"]["at"]
    answered = {"check": "pciebw", "verdict": "PASS"}
    await b.until(lambda: b.value("muster_tainter_tests_answered_total", **answered) == 1)


async def test_a_write_whose_answer_is_lost_keeps_its_place(bench: Any) -> None:
    b = bench("n1", "n2", run=False)
    b.api.on("PATCH", f"{PATH}/n1", Drop())
    running = asyncio.create_task(b.planner.run())
    await b.until(b.writes)
    for number in range(3):  # plans later the second node still has to wait: the first one may have been asked
        b.observe(b.health("n2", 10 + number))
        await b.until(lambda: not b.planner.rounds.changed)
    assert {name for name, _ in b.writes()} == {"n1"}
    assert b.value("muster_tainter_tests_running", check="pciebw") == 1
    b.now += 120.0  # the watch would have told by now
    b.api.on("PATCH", f"{PATH}/n1", b.take)
    b.planner.note("n2")
    await b.until(lambda: b.healths["n1"].spec.requests)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("status", [403, 422, 429, 500])
async def test_a_server_that_says_no_is_asked_again_later(bench: Any, status: int) -> None:
    b = bench("n1", run=False)
    no = Reply(status, {"kind": "Status", "reason": "Forbidden" if status == 403 else "Nope", "message": "no"})
    b.api.on("PATCH", f"{PATH}/n1", no, b.take)
    running = asyncio.create_task(b.planner.run())
    await b.until(b.writes)
    if status == 422:
        await b.until(lambda: b.value("muster_tainter_write_errors_total", what="request", reason="Nope"))
    if status in (422, 500):
        # from when it is heard of, 422: the node is left out for a while; 500: it may have been written
        await b.until(lambda: b.value("muster_tainter_write_errors_total", what="request", reason="Nope"))
        b.now += 120.0
    await b.until(lambda: b.planner.note("n1") or b.healths["n1"].spec.requests)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_node_that_takes_no_request_holds_up_no_other(bench: Any) -> None:
    b = bench("n1", "n2", run=False)  # both have waited equally long, and there is one place: n1 comes first
    full = {"kind": "Status", "reason": "Invalid", "message": "spec.requests: Too many: 17: must have at most 16 items"}
    b.api.on("PATCH", f"{PATH}/n1", Reply(422, full))
    running = asyncio.create_task(b.planner.run())
    await b.until(b.writes)
    await b.until(lambda: b.planner.note("n1") or b.healths["n2"].spec.requests)
    assert [name for name, _ in b.writes()] == ["n1", "n2"]
    assert b.value("muster_tainter_write_errors_total", what="request", reason="Invalid") == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_was_decided_on_an_older_version_is_decided_again(bench: Any) -> None:
    b = bench("n1", run=False)
    conflict = Reply(409, {"kind": "Status", "reason": "Conflict", "message": "modified"})
    b.api.on("PATCH", f"{PATH}/n1", conflict, b.take)
    running = asyncio.create_task(b.planner.run())
    await b.until(lambda: b.value("muster_tainter_plan_conflicts_total") == 1)
    b.observe(b.health("n1", 5))
    await b.until(lambda: b.healths["n1"].spec.requests)
    assert b.writes()[-1][1]["metadata"]["resourceVersion"] == "5"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_leader_sees_what_was_asked_before_it_asks(bench: Any) -> None:
    b = bench("n1", "n2", run=False)
    request = {
        "id": "plan-pciebw-1",
        "checks": ["pciebw"],
        "by": "muster-tainter-plan",
        "expires": rfc3339_whole(b.now + 20),
    }
    known = msgspec.to_builtins(b.health("n2", 7, requests=[request]))
    b.api.on("GET", PATH, Reply(500, {}), Reply(200, {"metadata": {"resourceVersion": "9"}, "items": [known]}))
    running = asyncio.create_task(b.planner.run())
    await b.until(lambda: b.value("muster_tainter_tests_running", check="pciebw") == 1)
    assert b.api.asked_for("GET", PATH)[0].query == {"labelSelector": "muster.dev/testing"}
    assert b.writes() == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_who_no_longer_leads_writes_nothing(bench: Any) -> None:
    b = bench("n1", run=False)
    b.leads = False
    running = asyncio.create_task(b.planner.run())
    await b.until(lambda: b.value("muster_tainter_tests_running", check="pciebw") == 1)
    assert b.writes() == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_node_that_never_answers_is_told(bench: Any) -> None:
    b = bench("n1")
    await b.until(lambda: b.healths["n1"].spec.requests)
    b.now += 1531.0
    b.planner.note("n1")
    await b.until(lambda: b.notices)
    [(name, notice)] = b.notices
    assert (name, notice.reason) == ("n1", "TestUnanswered")
    assert b.value("muster_tainter_tests_answered_total", check="pciebw", verdict="none") == 1


async def test_a_write_under_way_is_waited_for_at_the_end(bench: Any) -> None:
    b = bench("n1", run=False)
    b.api.on("PATCH", f"{PATH}/n1", lambda asked: Reply(200, msgspec.to_builtins(b.taken(asked)), trickle_s=0.0005))
    running = asyncio.create_task(b.planner.run())
    await b.until(b.writes)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert b.healths["n1"].spec.requests
