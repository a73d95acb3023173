"""A node's part in measuring the network, over real HTTP on loopback, with the real iperf3."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn
from tests.loop_time import LoopTime
from tests.machine import needs
from tests.plain_http import plain_http
from tests.processes import processes_with

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.run_admission import CpuShare, RunQueue
from muster_agent.fleet import iperf_routes
from muster_agent.fleet.interfaces import addresses_in, default_device, servers_per_interface
from muster_agent.fleet.iperf_routes import NOT_YET
from muster_agent.fleet.iperf_wire import PORTS, IperfServers
from muster_agent.http.routes import BODY_LIMIT, make_app
from muster_agent.idle.occupancy import WHOLE_NODE, RunScope
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.commands import LocalCommands, Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.iperf.server import is_listening, run_server
from muster_kube.nodehealth import AgentIdentity

FAR_S = 120.0  # no machine is that slow
HERE = {"interface": "lo", "address": "127.0.0.1"}
SHORT = {"clients": 1, "seconds": 1, "omitSeconds": 0}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(FAR_S):
        while not true():  # noqa: ASYNC110 - told by no event: a process ends, a server begins
            await asyncio.sleep(0.02)


def a_free_port() -> int:
    return next(port for port in reversed(PORTS) if not is_listening(NodeView(), port))


class Busy:
    """An occupancy that a test sets."""

    idle_since: float | None = 0.0
    busy = ""

    async def find_work(self, _scope: RunScope = WHOLE_NODE, /) -> str:
        return self.busy

    async def find_foreign_work(self, _scope: RunScope = WHOLE_NODE, /) -> str:
        return self.busy

    async def run(self) -> None:
        await asyncio.Event().wait()


class Seen(LocalCommands):
    """Remembers which iperf3 it has started."""

    def __init__(self) -> None:
        self.started: list[list[str]] = []

    async def run(self, argv, **options):  # type: ignore[no-untyped-def] # as its base
        self.started.append(list(argv))
        return await super().run(argv, **options)

    @property
    def ports(self) -> set[str]:
        return {argv[argv.index("-p") + 1] for argv in self.started if "-s" in argv}


class Node:
    def __init__(self) -> None:
        self.occupancy = Busy()
        self.commands = Seen()
        local = LocalNode(name="node-1", view=NodeView(name="node-1", commands=self.commands), boot_id="boot")
        queue = RunQueue(self.occupancy, light_at_once=4, cpu=CpuShare(1.0), look_s=0.05)
        self.agent = Agent(local, [], AgentIdentity(pod_uid="pod", version="1"), queue=queue)
        self.base = ""

    def left(self) -> list[str]:
        """The servers of ours that still run. Those of other runs of the tests have ports of these numbers, too."""
        servers = processes_with(lambda words: bool(words) and words[0].endswith("iperf3") and "-s" in words)
        commands = [server.info["cmdline"] for server in servers if server.info["ppid"] == os.getpid()]
        ports = [words[words.index("-p") + 1] for words in commands]
        return [port for port in ports if port in self.commands.ports]

    async def until_none_is_left(self) -> None:
        await until(lambda: not self.left())

    async def post(self, path: str, body: object) -> httpx2.Response:
        async with plain_http(FAR_S, self.base) as client:
            return await client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    @asynccontextmanager
    async def servers(self, *places: object, seconds: float = 300.0, **more: object) -> AsyncIterator["Lines"]:
        body = json.dumps({"servers": places or (HERE,), "seconds": seconds, **more}).encode()
        async with (
            plain_http(FAR_S, self.base) as client,
            client.stream("POST", "/iperf/servers", content=body) as response,
        ):
            assert response.status_code == 200
            yield Lines(response)


class Lines:
    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> IperfServers:
        async for line in self._lines:
            if line.strip():
                return msgspec.json.decode(line, type=IperfServers)
        raise EOFError


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(iperf_routes, "run_server", partial(run_server, start_s=FAR_S))
    made = Node()
    listener = socket.create_server(("127.0.0.1", 0))
    made.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = make_app(made.agent, AgentMetrics("node-1", "1"))
    config = uvicorn.Config(app, loop="asyncio", lifespan="off", log_config=None)
    http = uvicorn.Server(config)
    serving = asyncio.create_task(http._serve([listener]))
    await until(lambda: http.started)
    yield made
    http.should_exit = True
    await serving
    await made.until_none_is_left()


async def send_to(port: int) -> Any:
    client = await asyncio.create_subprocess_exec(
        *("iperf3", "-c", "127.0.0.1", "-p", str(port), "-n", "100M", "-J"), stdout=asyncio.subprocess.PIPE
    )
    return json.loads((await client.communicate())[0])


@needs("iperf3")
async def test_a_server_listens_while_its_connection_is_open_and_serves_more_than_one_test(node: Node):
    async with node.servers() as lines:
        (listening,) = (await lines.next()).servers
        assert node.agent.queue.running_heavy == "iperf"
        assert len(node.left()) == 1
        # the client of this test is another node: this one's turn is taken
        other = Node()
        other.base = node.base
        refused = await node.post("/iperf/client", {"tests": [{**HERE, "server": "127.0.0.1", "port": 5201}], **SHORT})
        assert refused.status_code == 409
        for _ in range(2):
            async with asyncio.timeout(FAR_S):
                said = await send_to(listening.port)
                while any(text in said.get("error", "") for text in NOT_YET):
                    said = await send_to(listening.port)
            assert said["end"]["sum_received"]["bytes"] > 0, said
    await node.until_none_is_left()
    await until(lambda: not node.agent.queue.running_heavy)


@needs("iperf3")
async def test_each_server_has_a_port_of_its_own(node: Node):
    async with node.servers(HERE, HERE, HERE) as lines:
        listening = (await lines.next()).servers
    assert len({each.port for each in listening}) == 3


@needs("iperf3")
async def test_servers_end_with_their_time(node: Node, loop_time: LoopTime):
    async with node.servers(seconds=60.0) as lines:
        assert (await lines.next()).servers
        await loop_time.passes(60)
        assert "60 s" in (await lines.next()).error
    await node.until_none_is_left()


@needs("iperf3")
async def test_servers_give_way_to_work_that_comes(node: Node):
    async with node.servers() as lines:
        assert (await lines.next()).servers
        node.occupancy.busy = "pod team-a/train-0"
        assert "pod team-a/train-0" in (await lines.next()).error
        assert not node.left()


@needs("iperf3")
async def test_a_busy_node_neither_serves_nor_sends_unless_forced(node: Node):
    node.occupancy.busy = "pod team-a/train-0"
    refused = await node.post("/iperf/servers", {"servers": [HERE], "seconds": 10})
    assert (refused.status_code, "pod team-a/train-0" in refused.text) == (409, True)
    async with node.servers(force=True) as lines:
        assert (await lines.next()).servers


async def test_nobody_waits_for_another_heavy_check(node: Node):
    begun, over = asyncio.Event(), asyncio.Event()

    async def work() -> Result:
        begun.set()
        await over.wait()
        return Result(check="gpumem", verdict=Verdict.PASS)

    heavy = asyncio.create_task(node.agent.queue.run_heavy("gpumem", work))
    await begun.wait()
    refused = await node.post("/iperf/servers", {"servers": [HERE], "seconds": 10})
    assert (refused.status_code, "gpumem" in refused.text) == (409, True)
    over.set()
    await heavy


@needs("iperf3")
async def test_an_address_that_is_not_here_is_refused_with_iperf3s_word(node: Node):
    refused = await node.post("/iperf/servers", {"servers": [{**HERE, "address": "192.0.2.1"}], "seconds": 10})
    assert refused.status_code == 503
    assert "192.0.2.1" in refused.text
    assert not node.left()


@needs("iperf3")
async def test_a_client_reports_both_ways(node: Node):
    port = a_free_port()
    async with run_server(NodeView(), "127.0.0.1", port, once=False, start_s=FAR_S):
        answer = await node.post("/iperf/client", {"tests": [{**HERE, "server": "127.0.0.1", "port": port}], **SHORT})
    outcomes = answer.json()["outcomes"]
    assert [outcome["reverse"] for outcome in outcomes] == [False, True]
    assert all(outcome["report"]["flows"][0]["gbit_per_s"] > 0 for outcome in outcomes)
    assert [outcome["report"]["flows"][0]["to_server"] for outcome in outcomes] == [True, False]


@needs("iperf3")
@pytest.mark.parametrize(
    "error",
    [
        "unable to receive control message: Connection reset by peer",
        "the server is busy running a test. try again later",
    ],
)
async def test_a_server_that_ends_one_test_before_the_next_is_asked_again(
    node: Node, error: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(iperf_routes, "AGAIN_S", 0.01)
    monkeypatch.setattr(iperf_routes, "REOPEN_S", FAR_S)
    run, sent_away = node.commands.run, []

    async def run_or_be_sent_away(argv, **options):  # type: ignore[no-untyped-def] # as LocalCommands has it
        if "-R" not in argv or len(sent_away) == 5:
            return await run(argv, **options)
        sent_away.append(argv)
        said = {"start": {}, "end": {}, "error": error}
        return Output(argv=tuple(argv), exit_code=1, stdout=json.dumps(said).encode())

    node.commands.run = run_or_be_sent_away  # type: ignore[method-assign]
    port = a_free_port()
    async with run_server(NodeView(), "127.0.0.1", port, once=False, start_s=FAR_S):
        answer = await node.post("/iperf/client", {"tests": [{**HERE, "server": "127.0.0.1", "port": port}], **SHORT})
    assert len(sent_away) == 5
    assert [bool(outcome.get("report")) for outcome in answer.json()["outcomes"]] == [True, True]


@needs("iperf3")
async def test_a_client_without_a_server_says_why(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iperf_routes, "REOPEN_S", 0.0)
    test = {**HERE, "server": "127.0.0.1", "port": a_free_port()}
    answer = await node.post("/iperf/client", {"tests": [test], **SHORT})
    assert "refused" in answer.json()["outcomes"][0]["trouble"]


@pytest.mark.parametrize(
    ("path", "body", "where", "tokens"),
    [
        ("servers", {"servers": [], "seconds": 10}, "body.servers", []),
        ("servers", {"servers": [HERE] * 65, "seconds": 10}, "body.servers", ["64"]),
        ("servers", {"servers": [HERE], "seconds": 601}, "body.seconds: 601", ["600"]),
        ("servers", {"servers": [HERE], "seconds": 10, "shell": "x"}, "body.shell: 'x'", ["servers, seconds, force"]),
        ("servers", {"servers": [HERE], "seconds": "10"}, "body.seconds: '10'", []),
        ("servers", {"servers": [HERE], "seconds": 10, "force": "yes"}, "body.force: 'yes'", []),
        ("servers", {"servers": [{**HERE, "interface": "a b"}], "seconds": 10}, "body.servers.0.interface", []),
        ("servers", {"servers": [{**HERE, "interface": "lo\n"}], "seconds": 10}, "body.servers.0.interface", []),
        ("servers", {"servers": [{**HERE, "address": "--help"}], "seconds": 10}, "body.servers.0.address", ["--help"]),
        ("servers", {"servers": [{**HERE, "address": "224.0.0.1"}], "seconds": 10}, "body.servers.0.address", []),
        ("servers", {"servers": [{**HERE, "address": "fe80::1%lo"}], "seconds": 10}, "body.servers.0.address", []),
        ("client", {"tests": [{**HERE, "server": "example.org", "port": 5201}], **SHORT}, "body.tests.0.server", []),
        (
            "client",
            {"tests": [{**HERE, "server": "127.0.0.1", "port": 22}], **SHORT},
            "body.tests.0.port: 22",
            ["5201"],
        ),
        (
            "client",
            {"tests": [{**HERE, "server": "127.0.0.1", "port": 5201}], **SHORT, "seconds": 3600},
            "body.seconds: 3600",
            ["60"],
        ),
        (
            "client",
            {"tests": [{**HERE, "server": "127.0.0.1", "port": "5201"}], **SHORT},
            "body.tests.0.port: '5201'",
            [],
        ),
        ("client", {"tests": [{**HERE, "server": "127.0.0.1", "port": 5201}], **SHORT, "clients": True}, "clients", []),
        ("interfaces", {"plane": "all"}, "body.plane: 'all'", ["data", "mgmt"]),
        ("interfaces", b"", "body", []),
        ("interfaces", b"{", "body", []),
        ("interfaces", b'"\xff"', "body", []),
        ("interfaces", b"[" * 5000, "body", []),
    ],
)
async def test_what_is_asked_wrongly_is_refused_by_name(
    node: Node, path: str, body: object, where: str, tokens: list[str]
):
    refused = await node.post(f"/iperf/{path}", body)
    assert refused.status_code == 400
    assert where in refused.text
    assert all(each in refused.text for each in tokens), refused.text
    assert not node.commands.started


async def test_a_body_that_is_too_long_is_refused(node: Node):
    assert (await node.post("/iperf/interfaces", b" " * (BODY_LIMIT + 1))).status_code == 413


def test_servers_of_a_node_by_its_interfaces():
    assert [servers_per_interface(wanted, 4) for wanted in (None, 1, 3, 4, 7, 8, 9)] == [1, 1, 1, 1, 1, 2, 2]


def link(name: str, *addresses: str, kind: str = "", flags: str = "UP LOWER_UP", scope: str = "global") -> object:
    """As ``ip -d -j addr`` has it."""
    infos = [
        {"local": address.split("/")[0], "prefixlen": int(address.split("/")[1]), "scope": scope}
        for address in addresses
    ]
    return {"ifname": name, "flags": flags.split(), "addr_info": infos, "linkinfo": {"info_kind": kind}}


def test_interfaces_are_those_that_are_up_and_have_an_address_others_can_send_to():
    found = addresses_in(
        [
            link("lo", "127.0.0.1/8", flags="UP LOWER_UP LOOPBACK", scope="host"),
            link("eth0", "10.0.0.1/24", "fd00::1/64"),
            link("down0", "10.1.0.1/24", flags="UP"),
            link("docker0", "172.17.0.1/16", kind="bridge"),
            link("ll0", "fe80::1/64", scope="link"),
            link("net1", "10.2.0.1/24", kind="macvlan"),
            {"ifname": 3},
            "garbage",
        ]
    )
    assert found == {"eth0": ("10.0.0.1/24", "fd00::1/64"), "net1": ("10.2.0.1/24",)}
    assert addresses_in({"not": "a list"}) == {}


def test_the_default_route_of_the_least_metric_counts():
    assert default_device([{"dev": "eno1", "metric": 200}, {"dev": "eno2", "metric": 100}]) == "eno2"
    assert default_device([]) == ""
