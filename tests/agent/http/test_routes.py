"""The agent over HTTP: the founding page's layout, JSON, and queries that are wrong."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from inspect import iscoroutinefunction

import httpx2
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import Field
from tests.agent.recording_reporter import RecordingReporter

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent, AgentReadings
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Measurement, Verdict
from muster_checks.registry import load_registry
from muster_kube.nodehealth import AgentIdentity

LIMIT_S = 600.0  # passed by the test that means it, never by a machine that is slow


class LinkParameters(Parameters):
    threshold: float = Field(4.0, description="GB/s below which a link fails", gt=0)
    r: int = Field(1, description="run level", ge=1, le=3)


SLOW = Finding(
    component="gpu/0000:3b:00.0",
    verdict=Verdict.FAIL,
    reason="SlowLink",
    message="link is slow",
    measurements=(Measurement("bandwidth", 3.1, "GB/s", 4.0),),
)


class Probe:
    """Finds what it is told to; counts its runs."""

    def __init__(self) -> None:
        self.found: Sequence[Finding] | Exception = ()
        self.asked: list[LinkParameters] = []
        self.hangs = False

    async def __call__(self, _node: NodeView, parameters: LinkParameters) -> Sequence[Finding]:
        self.asked.append(parameters)
        await asyncio.sleep(3600 if self.hangs else 0)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Bench:
    def __init__(self) -> None:
        self.probe = Probe()
        self.reporter = RecordingReporter()
        self.metrics = AgentMetrics("node-1", "1.2.3")
        local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
        link = Check(
            name="link",
            description="how fast links are",
            cost=Cost.LIGHT,
            parameters=LinkParameters,
            timeout_s=LIMIT_S,
            devices=("gpu",),
            period_s=60.0,
            probe=self.probe,
        )
        dmesg = load_registry(plug_ins=[])["dmesg"]
        self.agent = Agent(
            local,
            [
                SnapshotCheck(link, LinkParameters(), local, None),
                StreamCheck(dmesg, dmesg.parameters(), local, None),
            ],
            AgentIdentity(pod_uid="pod-1", version="1.2.3"),
            reporter=self.reporter,
        )
        self.metrics.bind(AgentReadings(self.agent, {"cpumodel": "Some CPU", "gpumodel": "H100"}))
        transport = httpx2.ASGITransport(app=make_app(self.agent, self.metrics))
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://10.1.2.3:3333")

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers)


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    await made.client.aclose()


async def test_a_failing_check_answers_in_the_layout_of_the_founding_page(bench: Bench):
    bench.probe.found = [SLOW]
    lines = (await bench.get("/status?check=link")).text.splitlines()
    assert lines[1:4] == [
        "Autopilot Endpoint: 10.1.2.3",
        "Node: node-1",
        "url(s): http://10.1.2.3:3333/status?host=node-1&check=link",
    ]
    assert lines[8:11] == [
        "[[ LINK ]] FAIL",
        "Host  node-1",
        f"FAIL gpu/0000:3b:00.0 SlowLink: {SLOW.message} [bandwidth=3.1 GB/s (threshold 4)]",
    ]
    assert lines[12:14] == ["Node Status: LINK Failed", "-------------------------------------"]
    assert lines[17] == "{'node-1': ['LINK Failed']}"
    assert re.fullmatch(r"runtime: [\d.e-]+ sec", lines[19])


async def test_a_passing_check_is_a_success_and_its_node_ok(bench: Bench):
    text = (await bench.get("/status?check=link&host=node-1")).text
    assert re.search(r"^\[\[ LINK \]\] SUCCESS\nHost  node-1\n\nNode Status: Ok$", text, re.M)
    assert text.splitlines()[0].endswith(" node-1")
    assert "{'node-1': ['Ok']}" in text


@pytest.mark.parametrize("ask", [{"path": "/status?check=link&format=json"}, {"accept": "application/json"}])
async def test_json_is_given_to_who_asks_for_it(bench: Bench, ask):
    bench.probe.found = [SLOW]
    answer = await bench.get(ask.pop("path", "/status?check=link"), **ask)
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["summary"] == {"node-1": ["LINK Failed"]}
    assert body["nodes"][0]["results"][0]["findings"][0]["reason"] == "SlowLink"


@pytest.mark.parametrize(
    ("query", "tokens"),
    [
        ("check=linkk", ["check", '"linkk"', '"link"', "dmesg, link"]),
        ("host=node-2", ["host", "node-2", "node-1"]),
        ("host=node-1,node-2", ["host", "node-2"]),
        ("job=team-a:app=train", ["job", "'team-a:app=train'"]),
        ("batch=0", ["batch: '0'"]),
        ("check=link&r=99", ["r: '99'", "3"]),
        ("check=dmesg&path=/etc/shadow", ["path", "dmesg"]),
        ("speed=1", ['"speed"', "check, host, batch", ", format", "/checks"]),
        ("check=link&check=dmesg", ["check"]),
        ("check=link&r=1&r=2", ["r"]),
        ("&".join(f"a{n}=" for n in range(600)), ["512"]),
    ],
)
async def test_a_query_that_is_wrong_is_told_what_is_allowed_and_runs_nothing(bench: Bench, query, tokens):
    answer = await bench.get(f"/status?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert all(token in answer.text for token in tokens), answer.text
    assert bench.probe.asked == []


@pytest.mark.parametrize(("query", "kind", "name"), [("check=linkk", "check", "link"), ("rr=1", "parameter", "r")])
async def test_a_query_for_json_gets_the_valid_names_as_json(bench: Bench, query: str, kind: str, name: str):
    for answer in (
        await bench.get(f"/status?{query}&format=jsonl"),
        await bench.get(f"/status?{query}", accept="application/json"),
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        body = answer.json()
        assert body["kind"] == kind
        assert name in body["valid"]
        assert len(body["message"]) < 200


async def test_the_root_lists_the_routes_for_people(bench: Bench):
    answer = await bench.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    paths = [line.split()[0] for line in answer.text.splitlines()[2:]]
    assert {"/status", "/report", "/checks", "/metrics", "/healthz", "/readyz", "/docs"} <= set(paths)
    for path in paths:
        assert (await bench.get(path)).status_code in (200, 503), path


async def test_parameters_reach_the_check(bench: Bench):
    await bench.get("/status?check=link&r=3&batch=7")
    assert bench.probe.asked == [LinkParameters(r=3)]


async def test_callers_at_the_same_time_share_a_run_but_not_one_with_other_parameters(bench: Bench):
    await asyncio.gather(*(bench.get("/status?check=link") for _ in range(10)), bench.get("/status?check=link&r=2"))
    assert sorted(asked.r for asked in bench.probe.asked) == [1, 2]


async def test_no_route_waits_for_a_thread(bench: Bench):
    def functions(dependant: Dependant) -> Iterator[object]:
        yield dependant.call
        for each in dependant.dependencies:
            yield from functions(each)

    routes = [route for route in make_app(bench.agent, bench.metrics).routes if isinstance(route, APIRoute)]
    assert len(routes) > 5
    assert not [call for route in routes for call in functions(route.dependant) if not iscoroutinefunction(call)]


async def test_a_probe_that_hangs_or_breaks_is_unknown_and_closes_nothing(bench: Bench, loop_time):
    bench.probe.found = [SLOW]
    await bench.get("/status?check=link")
    bench.probe.hangs = True
    asking = asyncio.create_task(bench.get("/status?check=link&format=json"))
    while len(bench.probe.asked) < 2:  # noqa: ASYNC110 - the probe has no event of its own
        await asyncio.sleep(0)
    await loop_time.passes(LIMIT_S + 1)
    hung = (await asking).json()["nodes"][0]["results"][0]
    assert (hung["verdict"], hung["reason"]) == ("UNKNOWN", "Timeout")
    broken_by = ValueError("no such tool")
    bench.probe.hangs, bench.probe.found = False, broken_by
    broken = (await bench.get("/status?check=link&format=json")).json()["nodes"][0]["results"][0]
    assert (broken["verdict"], broken["message"]) == ("UNKNOWN", f"ValueError: {broken_by}")
    assert [f.reason for f in bench.agent.checks["link"].ledger.open_findings()] == ["SlowLink"]


async def test_the_openapi_document_lists_every_parameter_of_every_check(bench: Bench):
    document = (await bench.get("/openapi.json")).json()
    listed = {each["name"]: each for each in document["paths"]["/status"]["get"]["parameters"]}
    for name in LinkParameters.model_fields:
        assert "link" in listed[name]["description"]
    for name in bench.agent.checks["dmesg"].check.parameters.model_fields:
        assert name in listed["check"]["description"]
    assert listed["r"]["schema"]["maximum"] == 3
    assert {"check", "host", "batch", "format", "serverspernode", "clientsperiface", "plane", "force"} <= set(listed)
    references = set(re.findall(r'"#/([^"]*)"', json.dumps(document)))
    for reference in references:
        place = document
        for step in reference.split("/"):
            place = place[step]
    assert references


async def test_the_document_of_an_agent_in_no_cluster_names_its_node_alone(bench: Bench):
    document = (await bench.get("/openapi.json")).json()
    listed = {each["name"]: each for each in document["paths"]["/status"]["get"]["parameters"]}
    assert listed["host"]["schema"]["items"] == {"type": "string", "enum": ["node-1", "all"]}
    assert (listed["host"]["explode"], listed["check"]["explode"]) == (False, False)
    assert listed["check"]["schema"]["items"]["enum"] == ["link", "dmesg", "all"]
    assert not {"job", "nodelabel"} & listed.keys()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/docs/nothing.js", 404),
        ("POST", "/status", 405),
        ("DELETE", "/iperf/client", 405),
        ("GET", "/iperf/client", 405),
        ("POST", "/iperf/client", 400),
        ("HEAD", "/healthz", 200),
        ("HEAD", "/status?batch=0", 400),
    ],
)
async def test_what_is_no_request_of_ours_is_refused_in_text(bench: Bench, method: str, path: str, status: int):
    answer = await bench.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/plain")


async def test_readiness_says_why_not(bench: Bench):
    bench.agent.checks.pop("dmesg")
    assert (await bench.get("/readyz")).status_code == 200
    bench.reporter.complaint = complaint = "a change is unpublished for 61 s"
    answer = await bench.get("/readyz")
    assert (answer.status_code, answer.text) == (503, f"{complaint}\n")
    assert (await bench.get("/healthz")).status_code == 200


async def test_a_stream_that_has_not_caught_up_is_not_ready(bench: Bench):
    assert "dmesg: Starting" in (await bench.get("/readyz")).text


async def test_metrics_tell_verdicts_findings_and_autopilots_gauge(bench: Bench):
    bench.probe.found = [SLOW]
    await bench.get("/status?check=link")
    text = (await bench.get("/metrics")).text
    assert 'muster_agent_check_verdict{check="link",verdict="FAIL"} 1.0' in text
    assert 'muster_agent_findings{check="link",reason="SlowLink",verdict="FAIL"} 1.0' in text
    assert (
        'autopilot_health_checks{cpumodel="Some CPU",deviceid="",gpumodel="H100",health="link",node="node-1"} 1.0'
        in text
    )
    assert "muster_agent_unpublished_seconds 0.0" in text


@pytest.mark.parametrize("accepted", ["text/plain;version=x", "application/openmetrics-text;version=new"])
async def test_metrics_are_told_whatever_version_of_their_format_is_wished_for(bench: Bench, accepted: str):
    answer = await bench.get("/metrics", accept=accepted)
    assert answer.status_code == 200
    assert "muster_agent_info" in answer.text


async def test_the_report_runs_nothing(bench: Bench):
    bench.probe.found = [SLOW]
    await bench.get("/status?check=link")
    report = (await bench.get("/report")).json()
    assert len(bench.probe.asked) == 1
    assert [check["check"] for check in report["checks"]] == ["link", "dmesg"]
    assert report["checks"][0]["findings"][0]["component"] == "gpu/0000:3b:00.0"


async def test_checks_are_listed_with_their_parameters(bench: Bench):
    listed = {check["name"]: check for check in (await bench.get("/checks")).json()["checks"]}
    assert listed["dmesg"]["kind"] == "stream"
    assert listed["link"]["parameters"]["properties"]["r"]["maximum"] == 3
