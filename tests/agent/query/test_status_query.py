"""What a query asks for, and what is said to one that is wrong."""

from pathlib import Path
from typing import Annotated

import pytest
from fastapi import Depends, Query
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, Field
from starlette.types import Message

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.query.status_query import HOSTS_LIMIT, IperfOptions, StatusParameters, StatusQuery, read_query
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.registry import load_registry
from muster_kube.http.bad_request import single_values
from muster_kube.http.service import Service


class Pcie(Parameters):
    limit: float = Field(4.0, ge=0, le=100)
    table: Path | None = None
    deep: bool = False


class Dcgm(Parameters):
    r: int = Field(1, ge=1, le=4)
    limit: Annotated[int, AfterValidator(int)] = Field(1, ge=1, le=10)


async def nothing(_node, _parameters):
    return ()


def checks() -> dict[str, NodeCheck]:
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    dmesg = load_registry(plug_ins=[])["dmesg"]
    made: list[NodeCheck] = [StreamCheck(dmesg, dmesg.parameters(), local, None)]
    for name, cost, model in (
        ("pciebw", Cost.HEAVY, Pcie),
        ("dcgm", Cost.HEAVY, Dcgm),
        ("nccl", Cost.HEAVY, Parameters),
        ("ping", Cost.LIGHT, Parameters),
        ("iperf", Cost.HEAVY, Parameters),
    ):
        check = Check(
            name=name, description="", cost=cost, parameters=model, timeout_s=9.0, devices=("gpu",), probe=nothing
        )
        made.append(SnapshotCheck(check, model(), local, None))
    return {each.name: each for each in made}


class Refused(Exception):
    """The query is answered 400, with this text."""


async def read(query: str, accept: str = "") -> StatusQuery:
    """As FastAPI reads it for the agent's route. Raises Refused."""
    asked: list[StatusQuery] = []
    service = Service("agent", "1")

    @service.get("/status", dependencies=[Depends(single_values)], response_class=PlainTextResponse)
    async def status(given: Annotated[StatusParameters, Query()]) -> str:
        asked.append(read_query(given, checks(), accept))
        return ""

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    # by hand: httpx makes no URL of more than 64 KB
    scope = {"type": "http", "method": "GET", "path": "/status", "query_string": query.encode(), "headers": []}
    await service(scope, receive, send)
    if sent[0]["status"] == 400:
        raise Refused(sent[1]["body"].decode())
    assert sent[0]["status"] == 200
    return asked[0]


async def test_nothing_given_is_all_that_is_light_and_autopilots_default_set_everywhere():
    asked = await read("")
    assert asked.check_names == ("dmesg", "pciebw", "dcgm", "ping")
    assert not asked.named
    assert (asked.hosts, asked.job, asked.nodelabel) == (None, "", "")
    assert (asked.batch, asked.fmt, asked.force, asked.iperf) == (None, "text", False, IperfOptions())
    assert asked.for_peer("n") == {"host": "n"}, "a peer is not told to run what nobody named"


async def test_all_is_every_check_and_named():
    asked = await read("check=all")
    assert asked.check_names == tuple(checks())
    assert asked.named


async def test_the_founding_pages_parameters():
    asked = await read(
        "check=dcgm,pciebw&host=nodename1,%20node-2,nodename1&batch=3&r=2&serverspernode=4&clientsperiface=2&plane=mgmt"
        "&job=team-a:batch.kubernetes.io/job-name=train&nodelabel=gpu=h100,zone=&force=true&format=jsonl"
    )
    assert asked.check_names == ("dcgm", "pciebw")
    assert asked.hosts == ("nodename1", "node-2")
    assert asked.batch == 3
    assert asked.iperf == IperfOptions(servers_per_node=4, clients_per_iface=2, plane="mgmt")
    assert asked.job == "team-a:batch.kubernetes.io/job-name=train"
    assert asked.nodelabel == "gpu=h100,zone="
    assert (asked.force, asked.fmt) == (True, "jsonl")
    assert asked.checks[0][1].model_dump()["r"] == 2
    assert asked.for_peer("node-2") == {"host": "node-2", "check": "dcgm,pciebw", "r": "2", "force": "true"}
    assert asked.for_peer("node-2", ["pciebw"]) == {"host": "node-2", "check": "pciebw", "force": "true"}


async def test_a_parameter_that_two_checks_have_is_for_both_and_can_be_given_to_one():
    both = await read("check=dcgm,pciebw&limit=7")
    assert [parameters.model_dump()["limit"] for _, parameters in both.checks] == [7, 7.0]
    one = await read("check=dcgm,pciebw&limit=7&pciebw.limit=90.5")
    assert [parameters.model_dump()["limit"] for _, parameters in one.checks] == [7, 90.5]
    assert one.for_peer("n")["pciebw.limit"] == "90.5"


async def test_a_parameter_of_a_check_that_is_not_asked_for_is_said_to_have_no_effect():
    asked = await read("check=pciebw&r=2")
    (note,) = asked.notes
    assert note.split()[0] == "r"
    assert "dcgm" in note
    assert asked.given == {}


async def test_files_are_guarded_however_they_are_named():
    assert (await read("check=pciebw&table=/etc/shadow")).guarded == ("table",)
    assert (await read("check=pciebw&pciebw.table=/etc/shadow")).guarded == ("pciebw.table",)
    assert (await read("check=pciebw&limit=5")).guarded == ()


@pytest.mark.parametrize(
    ("accept", "fmt"),
    [
        ("application/json", "json"),
        ("text/html, application/json;q=0.9", "json"),
        ("application/x-ndjson", "jsonl"),
        ("*/*", "text"),
    ],
)
async def test_the_accept_header_chooses_a_format_and_the_parameter_counts_for_more(accept, fmt):
    assert (await read("", accept)).fmt == fmt
    assert (await read("format=text", accept)).fmt == "text"


@pytest.mark.parametrize(
    ("query", "where", "found", "allowed"),
    [
        ("check=dcmg", '"dcmg"', None, ['"dcgm"', "muster checks"]),
        ("check=", "check", "", ["dcgm, dmesg, iperf, nccl, pciebw, ping"]),
        ("check=ping&check=dmesg", "check", None, []),
        ("host=", "host", "", []),
        ("host=Node_1", "host.0", "Node_1", ["'-'", "'.'"]),
        ("host=a,../etc", "host.1", "../etc", []),
        ("host=" + "a," * HOSTS_LIMIT, "host", None, [str(HOSTS_LIMIT + 1), str(HOSTS_LIMIT)]),
        ("batch=0", "batch", "0", ["1"]),
        ("batch=1000001", "batch", "1000001", ["1000000"]),
        ("batch=-1", "batch", "-1", ["1"]),
        ("batch=1.5", "batch", "1.5", []),
        ("batch=1_0", "batch", "1_0", []),
        ("clientsperiface=%201", "clientsperiface", " 1", []),
        ("batch=%D9%A3", "batch", "٣", []),
        ("batch=" + "9" * 5000, "batch", None, []),
        ("check=dcgm&r=99", "r", "99", ["4"]),
        ("r=99", "r", "99", ["4"]),
        ("check=pciebw&r=99", "r", "99", ["4"]),
        ("check=pciebw&limit=8GB", "limit", "8GB", []),
        ("check=pciebw&limit=nan", "limit", "nan", []),
        ("check=pciebw&deep=yes", "deep", "yes", ["false", "true"]),
        ("check=pciebw&limitt=1", '"limitt"', None, ['"limit"', "muster checks"]),
        ("nodelable=a=b", '"nodelable"', None, ['"nodelabel"']),
        ("check=pciebw&dcgm.limit=99", "limit", "99", ["10"]),
        ("check=pciebw&ping.r=1", '"ping.r"', None, []),
        ("check=dmesg&path=/etc/shadow", "path", None, ["checks.dmesg.parameters"]),
        ("serverspernode=65", "serverspernode", "65", ["64"]),
        ("clientsperiface=0", "clientsperiface", "0", ["1"]),
        ("pclients=65", "pclients", "65", ["64"]),
        ("pclients=2&clientsperiface=2", "pclients", None, ["clientsperiface"]),
        ("startport=0", "startport", "0", ["1"]),
        ("workload=tree", "workload", "tree", ["ring"]),
        ("plane=control", "plane", "control", ["data", "mgmt"]),
        ("force=1", "force", "1", ["false", "true"]),
        ("format=xml", "format", "xml", ["text", "json", "jsonl"]),
        ("job=app=train", "job", "app=train", ["NAMESPACE:key=value"]),
        ("job=team-a:app", "job", "team-a:app", ["NAMESPACE:key=value"]),
        ("job=", "job", "", ["NAMESPACE:key=value"]),
        ("nodelabel=gpu", "nodelabel", "gpu", ["key=value"]),
        ("nodelabel=a=b,", "nodelabel", "a=b,", ["key=value"]),
        ("nodelabel=a=b%00", "nodelabel", "a=b\0", ["key=value"]),
        ("&".join(f"a{n}=" for n in range(600)), "512", None, []),
        ("batch=0&plane=x&force=1", "batch", "0", ["plane", "force"]),
    ],
)
async def test_what_is_wrong_is_told_with_what_is_allowed(query, where, found, allowed):
    with pytest.raises(Refused) as raised:
        await read(query)
    text = str(raised.value)
    assert where in text
    assert found is None or f"{where}: {found!r}" in text
    assert all(each in text for each in allowed), text
    assert len(text) < 2500


async def test_ten_thousand_nodes_in_one_call():
    asked = await read("host=" + ",".join(f"node-{n}" for n in range(10_000)))
    assert asked.hosts is not None
    assert len(asked.hosts) == 10_000


async def test_a_url_for_people_names_the_checks_and_what_was_given():
    assert (await read("check=pciebw")).url_query("hostname") == "host=hostname&check=pciebw"
    assert (await read("check=dcgm,pciebw&r=2&format=json&batch=4")).url_query("n") == "host=n&check=dcgm,pciebw&r=2"


async def test_all_hosts_are_the_same_as_no_host():
    assert (await read("host=all")).hosts is None
    assert (await read("host=node-1,all")).hosts is None


async def test_autopilots_parameters_of_iperf_are_taken_with_a_note_where_they_have_no_effect():
    query = await read("workload=ring&pclients=8&startport=6000")
    assert query.iperf == IperfOptions(clients_per_iface=8)
    assert [note.split()[0] for note in query.notes] == ["workload", "startport"]


async def test_a_url_of_iperf_keeps_its_options():
    query = await read("check=iperf&plane=data&serverspernode=4&clientsperiface=2")
    assert query.url_query("n") == "host=n&check=iperf&serverspernode=4&clientsperiface=2&plane=data"
    assert (await read("check=ping&plane=data")).url_query("n") == "host=n&check=ping"
