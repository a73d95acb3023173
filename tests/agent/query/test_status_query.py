"""What a query asks for, and what is said to one that is wrong."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import AfterValidator, Field

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.query.status_query import HOSTS_LIMIT, BadQuery, IperfOptions, read_fields, read_query
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.registry import load_registry


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
    ):
        check = Check(
            name=name, description="", cost=cost, parameters=model, timeout_s=9.0, devices=("gpu",), probe=nothing
        )
        made.append(SnapshotCheck(check, model(), local, None))
    return {each.name: each for each in made}


def read(query: str, accept: str = ""):
    return read_query(read_fields(query.encode()), checks(), accept)


def test_nothing_given_is_all_that_is_light_and_autopilots_default_set_everywhere():
    asked = read("")
    assert asked.check_names == ("dmesg", "pciebw", "dcgm", "ping")
    assert not asked.named
    assert (asked.hosts, asked.job, asked.nodelabel) == (None, "", "")
    assert (asked.batch, asked.fmt, asked.force, asked.iperf) == (None, "text", False, IperfOptions())
    assert asked.for_peer("n") == {"host": "n"}, "a peer is not told to run what nobody named"


def test_all_is_every_check_and_named():
    asked = read("check=all")
    assert asked.check_names == tuple(checks())
    assert asked.named


def test_the_founding_pages_parameters():
    asked = read(
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


def test_a_parameter_that_two_checks_have_is_for_both_and_can_be_given_to_one():
    both = read("check=dcgm,pciebw&limit=7")
    assert [parameters.model_dump()["limit"] for _, parameters in both.checks] == [7, 7.0]
    one = read("check=dcgm,pciebw&limit=7&pciebw.limit=90.5")
    assert [parameters.model_dump()["limit"] for _, parameters in one.checks] == [7, 90.5]
    assert one.for_peer("n")["pciebw.limit"] == "90.5"


def test_a_parameter_of_a_check_that_is_not_asked_for_is_said_to_have_no_effect():
    asked = read("check=pciebw&r=2")
    assert asked.notes == ("r has no effect: it is a parameter of dcgm, not asked for here (check=)",)
    assert asked.given == {}


def test_files_are_guarded_however_they_are_named():
    assert read("check=pciebw&table=/etc/shadow").guarded == ("table",)
    assert read("check=pciebw&pciebw.table=/etc/shadow").guarded == ("pciebw.table",)
    assert read("check=pciebw&limit=5").guarded == ()


@pytest.mark.parametrize(
    ("accept", "fmt"),
    [
        ("application/json", "json"),
        ("text/html, application/json;q=0.9", "json"),
        ("application/x-ndjson", "jsonl"),
        ("*/*", "text"),
    ],
)
def test_the_accept_header_chooses_a_format_and_the_parameter_counts_for_more(accept, fmt):
    assert read("", accept).fmt == fmt
    assert read("format=text", accept).fmt == "text"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("check=linkk", "check: 'linkk': expected all or one of dcgm, dmesg, nccl, pciebw, ping"),
        ("check=", "check: '': expected all or some of dcgm"),
        ("check=ping&check=dmesg", "check: given twice"),
        ("host=", "host: '': expected names of nodes"),
        ("host=Node_1", "host: 'Node_1': expected the name of a node"),
        ("host=a,../etc", "host: '../etc': expected"),
        ("host=" + "a," * HOSTS_LIMIT, f"host: {HOSTS_LIMIT + 1} names; expected at most {HOSTS_LIMIT}"),
        ("batch=0", "batch: '0': expected a number from 1 to 1000000"),
        ("batch=-1", "batch: '-1'"),
        ("batch=1.5", "batch: '1.5'"),
        ("batch=%D9%A3", "batch: '٣'"),
        ("batch=" + "9" * 5000, "batch: '999"),
        ("check=dcgm&r=99", "r: '99': Input should be less than or equal to 4"),
        ("r=99", "r: '99': Input should be less than or equal to 4"),
        ("check=pciebw&r=99", "r: '99'"),
        ("check=pciebw&limit=8GB", "limit: '8GB': Input should be a valid number"),
        ("check=pciebw&limit=nan", "limit: 'nan': Input should be a finite number"),
        ("check=pciebw&deep=yes", "deep: 'yes': expected false or true"),
        ("check=pciebw&speed=1", "speed: unknown parameter; expected one of check, host, batch"),
        ("check=pciebw&dcgm.limit=99", "limit: '99'"),
        ("check=pciebw&ping.r=1", "ping.r: unknown parameter"),
        ("check=dmesg&path=/etc/shadow", "path: dmesg never rests"),
        ("serverspernode=65", "serverspernode: '65': expected a number from 1 to 64"),
        ("clientsperiface=0", "clientsperiface: '0': expected a number from 1 to 64"),
        ("plane=control", "plane: 'control': expected data or mgmt"),
        ("force=1", "force: '1': expected false or true"),
        ("format=xml", "format: 'xml': expected text, json or jsonl"),
        ("job=app=train", "job: 'app=train': expected NAMESPACE:key=value"),
        ("job=team-a:app", "job: 'team-a:app': expected"),
        ("job=", "job: '': expected"),
        ("nodelabel=gpu", "nodelabel: 'gpu': expected key=value"),
        ("nodelabel=a=b,", "nodelabel: 'a=b,': expected"),
        ("nodelabel=a=b%00", "nodelabel: 'a=b"),
        ("&".join(f"a{n}=" for n in range(600)), "more than 512 parameters"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_allowed(query, said):
    with pytest.raises(BadQuery) as raised:
        read(query)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 2500


def test_ten_thousand_nodes_in_one_call():
    asked = read("host=" + ",".join(f"node-{n}" for n in range(10_000)))
    assert asked.hosts is not None
    assert len(asked.hosts) == 10_000


def test_a_url_for_people_names_the_checks_and_what_was_given():
    assert read("check=pciebw").url_query("hostname") == "host=hostname&check=pciebw"
    assert read("check=dcgm,pciebw&r=2&format=json&batch=4").url_query("n") == "host=n&check=dcgm,pciebw&r=2"
