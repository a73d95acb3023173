"""/status for many nodes: who may ask, what is streamed, and what becomes of it when somebody leaves or breaks."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator

import httpx2
import jsonschema_rs
import pytest

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.fleet.members import BadNodeSelection, FleetUnknown
from muster_agent.http.access import AccessDenied, Caller
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import CheckAnswer, NodeAnswer, no_answer
from muster_agent.query.status_query import BadQuery, StatusQuery
from muster_agent.query.text_layout import heading, node_status, summary_block
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Verdict
from muster_kube.nodehealth import AgentIdentity


class Gate:
    """An Access. trusted: what the caller is, asked: what for."""

    open_heavy_checks = False

    def __init__(self) -> None:
        self.trusted = True
        self.asked: list[str] = []

    async def caller(self, _headers, _client_host, *, needs="", fingerprint=""):
        self.asked.append(needs)
        if needs and not self.trusted:
            raise AccessDenied(401, f"{needs}: expected a token")
        return Caller(trusted=self.trusted)


class Bench:
    """One agent whose fleet answers with ``answers``. An exception among them is raised, ``wait`` is waited for first;
    ``heavy`` runs until told to end."""

    def __init__(self) -> None:
        self.answers: list[NodeAnswer | Exception] = [sound("node-1"), sound("node-2")]
        self.asked: list[StatusQuery] = []
        self.wait: asyncio.Event | None = None
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.gate = Gate()
        self.ran: list[str] = []
        self.hangs: asyncio.Event | None = None
        self.called_off = asyncio.Event()
        local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
        checks = [
            SnapshotCheck(self.check(name, cost), Parameters(), local, None)
            for name, cost in (("pciebw", Cost.HEAVY), ("os", Cost.LIGHT))
        ]
        self.agent = Agent(local, checks, AgentIdentity(pod_uid="pod-1", version="1"))
        fleet: object = object()
        self.app = make_app(self.agent, AgentMetrics("node-1", "1"), fleet, self.gate, fleet_query=self.query_fleet)  # type: ignore[arg-type]
        transport = httpx2.ASGITransport(app=self.app)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://10.0.0.1:3333")

    def check(self, name: str, cost: Cost) -> Check:
        async def probe(_node, _parameters):
            self.ran.append(name)
            self.begun.set()
            try:
                if self.hangs is not None:
                    await self.hangs.wait()
            except asyncio.CancelledError:
                self.called_off.set()
                raise
            return ()

        return Check(
            name=name, description="", cost=cost, parameters=Parameters, timeout_s=900.0, devices=("gpu",), probe=probe
        )

    async def query_fleet(self, _agent, _fleet, asked: StatusQuery) -> AsyncGenerator[NodeAnswer, None]:
        self.asked.append(asked)
        try:
            for answer in self.answers:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                self.begun.set()
                if self.wait is not None:
                    await self.wait.wait()
        finally:
            self.closed.set()

    async def get(self, query: str, **headers: str) -> httpx2.Response:
        return await self.client.get(f"/status?{query}", headers=headers)


def sound(node: str) -> NodeAnswer:
    results = (CheckAnswer(check="pciebw", verdict=Verdict.PASS),)
    return NodeAnswer(node=node, endpoint="10.0.0.2:3333", verdict=Verdict.PASS, results=results)


def failing(node: str) -> NodeAnswer:
    finding = Finding(component="gpu/0", verdict=Verdict.FAIL, reason="LowBandwidth", message="slow")
    results = (CheckAnswer(check="pciebw", verdict=Verdict.FAIL, findings=(finding,)),)
    return NodeAnswer(node=node, endpoint="10.0.0.3:3333", verdict=Verdict.FAIL, results=results)


def silent(node: str) -> NodeAnswer:
    return no_answer(node, "10.0.0.4:3333", ["pciebw"], "NoAnswer", "nothing within 5 s")


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    await made.client.aclose()
    await made.agent.stop()


async def test_all_nodes_in_one_text(bench: Bench):
    bench.answers = [sound("b"), failing("a"), silent("c")]
    text = (await bench.get("check=pciebw")).text
    assert text.splitlines()[1:3] == ["Autopilot Endpoint: 10.0.0.2", "Node: b"]
    assert text.count("-------------------------------------\n\n\nAutopilot Endpoint: ") == 2
    summary = {each.node: node_status(each) for each in bench.answers if isinstance(each, NodeAnswer)}
    assert f"\n{summary_block(summary)}\nruntime: " in text


async def test_the_json_is_as_its_published_schema_says(bench: Bench):
    bench.answers = [sound("b"), failing("a"), silent("c")]
    schema = (await bench.client.get("/schema/status.json")).json()
    answer = await bench.get("check=pciebw&format=json&host=node-1,b")
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    jsonschema_rs.validate(schema, body)
    assert [node["node"] for node in body["nodes"]] == ["b", "a", "c"]
    assert (body["verdict"], body["summary"]["a"]) == ("FAIL", ["PCIE Failed"])
    assert answer.text.splitlines()[1].startswith('{"node":"b"'), "a node on each line"
    del body["verdict"]
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, body)


async def test_json_lines_are_a_node_each_and_the_summary_last(bench: Bench):
    bench.answers = [sound("b"), failing("a")]
    schema = (await bench.client.get("/schema/status.json")).json()
    answer = await bench.get("check=pciebw&format=jsonl")
    assert answer.headers["content-type"] == "application/jsonl"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    for line in lines[:-1]:
        jsonschema_rs.validate({**schema, "$ref": "#/$defs/NodeAnswer"}, line)
    jsonschema_rs.validate({**schema, "$ref": "#/$defs/Ending"}, lines[-1])
    assert lines[-1]["summary"] == {"b": ["Ok"], "a": ["PCIE Failed"]}


@pytest.mark.parametrize("fmt", ["text", "json", "jsonl"])
async def test_no_node_at_all_is_an_answer_and_nothing_is_known(bench: Bench, fmt):
    bench.answers = []
    answer = await bench.get(f"nodelabel=gpu=none&format={fmt}")
    assert answer.status_code == 200
    if fmt == "text":
        assert answer.text.startswith(f"{heading(None, nodelabel='gpu=none')}\n{summary_block({})}")
    else:
        assert json.loads(answer.text)["verdict"] == "UNKNOWN"


async def test_nodes_that_do_not_exist_are_told_before_anything_is_sent(bench: Bench):
    for raised, status in (
        (BadQuery("host: 'nodee'"), 400),
        (BadNodeSelection("nodee"), 400),
        (FleetUnknown("why"), 503),
    ):
        bench.answers = [raised]
        answer = await bench.get("host=nodee")
        assert (answer.status_code, answer.text) == (status, f"{raised}\n")


@pytest.mark.parametrize(
    ("fmt", "said"),
    [
        ("text", r"\nerror: .*ValueError: no more\nruntime: "),
        ("json", r'"error":"[^"]*ValueError: no more"}\n$'),
        ("jsonl", r'"error":"[^"]*ValueError: no more"}\n$'),
    ],
)
async def test_what_breaks_in_the_middle_ends_with_a_line_that_says_so(bench: Bench, fmt, said):
    bench.answers = [failing("node-1"), ValueError("no more")]
    answer = await bench.get(f"format={fmt}")
    assert answer.status_code == 200
    assert re.search(said, answer.text)
    if fmt == "json":
        assert answer.json()["verdict"] == "FAIL"


async def test_the_own_node_alone_asks_no_fleet(bench: Bench):
    body = (await bench.get("host=node-1&check=os&format=json")).json()
    assert [node["node"] for node in body["nodes"]] == ["node-1"]
    assert bench.asked == []
    assert bench.ran == ["os"]


async def test_the_own_node_with_a_label_is_the_fleets_to_resolve(bench: Bench):
    await bench.get("host=node-1&nodelabel=gpu=h100")
    assert [asked.nodelabel for asked in bench.asked] == ["gpu=h100"]


async def test_an_agent_that_asks_for_another_node_is_refused_and_asks_nobody(bench: Bench):
    for query in ("host=node-2&check=os", "check=os"):
        answer = await bench.get(query, **{"user-agent": "muster-agent"})
        assert answer.status_code == 421
        assert "node-1" in answer.text
    assert (await bench.get("host=node-1&check=os", **{"user-agent": "muster-agent"})).status_code == 200
    assert bench.asked == []


async def test_heavy_checks_run_when_they_are_named_and_else_tell_their_last_result(bench: Bench):
    body = (await bench.get("host=node-1&format=json")).json()
    found = {result["check"]: result["reason"] for result in body["nodes"][0]["results"] if "reason" in result}
    assert found == {"pciebw": "NotRun"}
    assert not any("ageSeconds" in result for result in body["nodes"][0]["results"])
    await bench.get("host=node-1&check=pciebw")
    assert bench.ran == ["os", "pciebw"]


async def test_heavy_checks_and_force_take_a_right_and_light_checks_do_not(bench: Bench):
    bench.gate.trusted = False
    assert (await bench.get("check=os&host=node-1")).status_code == 200
    assert (await bench.get("host=node-1")).status_code == 200
    assert (await bench.get("check=os,pciebw")).status_code == 401
    answer = await bench.get("check=pciebw&host=node-1&force=true")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert (await bench.get("check=pciebw&force=true")).status_code == 401
    assert bench.asked == [], "nobody is asked on"
    assert bench.gate.asked == ["", "", "check=pciebw", "check=pciebw, force", "check=pciebw, force"]


async def test_measuring_the_network_is_for_agents(bench: Bench):
    bench.gate.trusted = False
    assert (await bench.client.post("/iperf/servers")).status_code == 401


async def test_who_may_measures_the_network(bench: Bench):
    answer = await bench.client.post("/iperf/servers", json={"nonsense": True})
    assert answer.status_code == 400, "the routes are there, and say what is wrong"


async def hang_up(bench: Bench, query: str) -> list[dict]:
    """Asks, waits until it has begun, and is gone; what was sent until then."""
    sent: list[dict] = []
    gone = asyncio.Event()
    begun = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        for message in begun:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    path, _, query_string = query.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": query_string.encode(),
        "headers": [(b"host", b"10.0.0.1")],
        "client": ("127.0.0.1", 5000),
        "server": ("10.0.0.1", 3333),
    }
    serving = asyncio.create_task(bench.app(scope, receive, send))
    await bench.begun.wait()
    gone.set()
    await serving
    return sent


async def test_who_hangs_up_in_the_middle_takes_the_question_to_the_fleet_along(bench: Bench):
    bench.wait = asyncio.Event()
    sent = await hang_up(bench, "/status?check=pciebw")
    await bench.closed.wait()
    assert not any(message.get("more_body") is False for message in sent)


async def test_who_hangs_up_takes_a_run_along_that_nobody_else_waits_for(bench: Bench):
    bench.hangs = asyncio.Event()
    await hang_up(bench, "/status?check=pciebw&host=node-1")
    await bench.called_off.wait()


async def test_a_run_that_others_wait_for_goes_on(bench: Bench):
    bench.hangs = asyncio.Event()
    other = asyncio.create_task(bench.get("check=pciebw&host=node-1"))
    await bench.begun.wait()
    await hang_up(bench, "/status?check=pciebw&host=node-1")
    bench.hangs.set()
    assert "[[ PCIEBW ]] SUCCESS" in (await other).text
    assert bench.ran == ["pciebw"]


async def test_each_node_is_sent_as_soon_as_it_answers(bench: Bench):
    bench.wait = asyncio.Event()
    sent = await hang_up(bench, "/status?check=pciebw")
    assert b"Node: node-1" in b"".join(message.get("body", b"") for message in sent)
