"""The fleet page's feed: all of it once, then what changes; readers that are slow, away, or too many."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from tests.browser.fleet_server import FleetServer
from tests.browser.sample_fleet import LINK_DOWN, SampleFleet, make_fleet, xid79
from tests.plain_http import plain_http

from muster_tainter.app import listen
from muster_tainter.budgets.incidents import Incident
from muster_tainter.budgets.pool_usage import BudgetUsage
from muster_tainter.page import feed as feeding
from muster_tainter.policy.file import parse_policy

NOW = 1_800_000_000.0
PAUSED = "paused by ada: switch maintenance"  # as the pause has it
GUARD_S = 60.0  # what hangs fails, what is slow does not


@pytest.fixture
async def stand() -> AsyncIterator[FleetServer]:
    async with FleetServer(make_fleet(100, NOW)).running() as running:
        yield running


@pytest.fixture
async def http(stand: FleetServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with plain_http(GUARD_S, stand.url) as client:
        yield client


class Reader:
    """One connection to /api/stream, over a real socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    async def head(self) -> None:
        lines = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), GUARD_S)).decode().splitlines()
        self.status = int(lines[0].split()[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}

    async def event(self) -> tuple[str, str, Any]:
        """(name, id, data) of the next one; ("", "", None): the server has ended the stream."""
        while True:
            text = await self._chunk()
            if text is None:
                return "", "", None
            fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
            if "event" in fields:
                return fields["event"], fields.get("id", ""), json.loads(fields["data"])

    async def _chunk(self) -> str | None:
        size = int(await asyncio.wait_for(self._reader.readuntil(b"\r\n"), GUARD_S), 16)
        body = await asyncio.wait_for(self._reader.readexactly(size + 2), GUARD_S)
        return body[:-2].decode() if size else None

    async def rows(self) -> tuple[str, list[Any]]:
        """The next message with rows, and its mark."""
        while True:
            name, mark, data = await self.event()
            assert name, "the stream has ended"
            if name == "rows":
                return mark, data["rows"]

    async def until(self, wanted: str) -> Any:
        while True:
            name, _, data = await self.event()
            assert name, f"the stream has ended before {wanted}"
            if name == wanted:
                return data


@asynccontextmanager
async def reading(stand: FleetServer, after: str, header: str = "") -> AsyncIterator[Reader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
    last = f"Last-Event-ID: {header}\r\n" if header else ""
    writer.write(f"GET /api/stream?after={after} HTTP/1.1\r\nHost: x\r\n{last}\r\n".encode())
    made = Reader(reader, writer)
    await made.head()
    try:
        yield made
    finally:
        writer.close()


async def until(stand: FleetServer, listeners: int) -> None:
    async with asyncio.timeout(GUARD_S):
        while stand.feed.listeners != listeners:  # noqa: ASYNC110 - the server's own tasks have to run
            await asyncio.sleep(0.01)


async def fleet_of(http: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/api/fleet")
    assert answer.status_code == 200
    return dict(answer.json())


def listed(fleet: dict[str, Any]) -> dict[str, Any]:
    """Each node's row."""
    found = {}
    for domains in fleet["pools"].values():
        for nodes in domains.values():
            for entry in nodes:
                name, *rest = [entry] if isinstance(entry, str) else entry
                found[name] = rest
    return found


async def test_the_fleet_has_every_node_under_its_pool_and_domain(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    fleet = await fleet_of(http)
    assert fleet["order"] == ["h100", "a100", "ipu"]
    assert {pool: len(domains) for pool, domains in fleet["pools"].items()} == {"h100": 2, "a100": 1, "ipu": 1}
    assert listed(fleet) == {key: [] for key in stand.fleet.nodes}
    assert fleet["state"]["synced"]
    assert fleet["state"]["leading"]


async def test_nodes_without_a_pool_are_listed_too(http: httpx2.AsyncClient, stand: FleetServer) -> None:
    stand.fleet.add("lonely", "none-such", "r1")
    stand.change("lonely")
    assert (await fleet_of(http))["pools"][""] == {"": ["lonely"]}


async def test_it_is_gzipped_for_who_takes_that_and_not_for_others(stand: FleetServer) -> None:
    for accepted, packed in (("gzip, br", True), ("identity", False)):
        async with (
            plain_http(GUARD_S, stand.url) as http,
            http.stream("GET", "/api/fleet", headers={"accept-encoding": accepted}) as answer,
        ):
            raw = b"".join([part async for part in answer.aiter_raw()])
        assert (answer.headers.get("content-encoding") == "gzip") == packed
        assert len(listed(json.loads(gzip.decompress(raw) if packed else raw))) == 100


async def test_ten_thousand_nodes_are_few_bytes() -> None:
    async with FleetServer(make_fleet(10_000, NOW)).running() as stand:
        assert len(await stand.feed.fleet()) < 120_000


async def test_a_fault_comes_as_one_row_after_the_mark(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark) as reader:
        assert reader.headers["content-type"].startswith("text/event-stream")
        await reader.until("state")
        stand.fleet.break_node("h100-h001-03", "dmesg", xid79(), ago=0)
        stand.change("h100-h001-03")
        _, rows = await reader.rows()
    [row] = rows
    assert row[:4] == ["h100-h001-03", "h100", "h001", "T"]
    assert row[8] == "Xid79"


async def test_a_node_that_is_gone_comes_as_its_name_alone(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark) as reader:
        stand.tainter.fleet.node_watch._drop("h100-h001-03")
        assert (await reader.rows())[1] == [["h100-h001-03"]]


async def test_many_changes_come_in_few_messages_each_node_once(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    mark = (await fleet_of(http))["mark"]
    names = list(stand.fleet.nodes)
    async with reading(stand, mark) as reader:
        await reader.until("state")
        for reason in ("Xid79", "Xid48", "Xid95"):
            for name in names:
                stand.fleet.break_node(name, "dmesg", xid79()) if reason == "Xid79" else stand.fleet.put(name)
                stand.change(name)
        seen: list[str] = []
        while len(seen) < len(names):
            _, rows = await reader.rows()
            seen += [row[0] for row in rows]
    assert sorted(seen) == sorted(names)


async def test_readers_at_different_positions_cost_most_rows_once(
    stand: FleetServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "BATCH_ROWS", 10)
    feed, names = stand.feed, list(stand.fleet.nodes)
    await fleet_of(http)
    for name in names:
        stand.fleet.put(name)
        stand.change(name)
    made, real = 0, feed._row

    def counted(*about: Any) -> Any:
        nonlocal made
        made += 1
        return real(*about)

    monkeypatch.setattr(feed, "_row", counted)
    starts = range(0, len(names), 7)
    for position in starts:
        while position < feed._seq:
            position, _ = feed._rows_after(position)
    assert feed._seq == len(names) <= made
    assert made <= len(names) + feeding.BATCH_ROWS * len(starts)


async def test_who_was_away_goes_on_from_its_mark(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    mark = (await fleet_of(http))["mark"]
    for name in ("h100-h001-01", "h100-h001-02"):
        stand.fleet.break_node(name, "nic", LINK_DOWN)
        stand.change(name)
    async with reading(stand, mark) as reader:
        first, rows = await reader.rows()
    assert [row[0] for row in rows] == ["h100-h001-01", "h100-h001-02"]
    stand.fleet.break_node("h100-h001-03", "nic", LINK_DOWN)
    stand.change("h100-h001-03")
    async with reading(stand, mark, header=first) as reader:  # as a browser does that connects again
        assert [row[0] for row in (await reader.rows())[1]] == ["h100-h001-03"]


@pytest.mark.parametrize("mark", ["", "nonsense", "00000000-5", "-1", "x" * 5000, "{mark}9999"])
async def test_a_mark_that_is_not_known_makes_the_reader_begin_anew(
    stand: FleetServer, http: httpx2.AsyncClient, mark: str
) -> None:
    known = (await fleet_of(http))["mark"]
    async with reading(stand, mark.format(mark=known)) as reader:
        assert (await reader.event())[0] == "resync"
        assert await reader.event() == ("", "", None)


async def test_who_is_too_far_behind_begins_anew(
    stand: FleetServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "LOG_LIMIT", 10)
    mark = (await fleet_of(http))["mark"]
    for name in list(stand.fleet.nodes)[:12]:
        stand.fleet.put(name)
        stand.change(name)
    async with reading(stand, mark) as reader:
        assert (await reader.event())[0] == "resync"


async def test_another_policy_makes_every_reader_begin_anew(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    known = await fleet_of(http)
    async with reading(stand, known["mark"]) as reader:
        await reader.until("state")
        stand.fleet.policy = parse_policy("rules: []")
        stand.policy_changed()
        await reader.until("resync")
    again = await fleet_of(http)
    assert again["order"] == []
    assert again["mark"].partition("-")[0] != known["mark"].partition("-")[0]


async def test_nothing_is_noted_while_nobody_looks(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    feed, name = stand.feed, "h100-h001-01"
    stand.fleet.put(name)
    stand.change(name)
    assert feed._log is None
    mark = (await fleet_of(http))["mark"]
    stand.fleet.put(name)
    stand.change(name)
    assert feed._log == {name: 1}
    stand.clock += feeding.AWAKE_S + 1
    stand.fleet.put(name)
    stand.change(name)
    assert feed._log is None
    async with reading(stand, mark) as reader:
        assert (await reader.event())[0] == "resync"


async def test_while_somebody_looks_changes_are_noted_however_long(
    stand: FleetServer, http: httpx2.AsyncClient
) -> None:
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark) as reader:
        await reader.until("state")
        stand.clock += 10 * feeding.AWAKE_S
        stand.fleet.put("h100-h001-01")
        stand.change("h100-h001-01")
        assert (await reader.rows())[1][0][0] == "h100-h001-01"


async def test_lease_pause_budgets_and_incidents_are_told_when_they_change(
    stand: FleetServer, http: httpx2.AsyncClient
) -> None:
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark) as reader:
        assert (await reader.until("state"))["leading"] is True
        stand.leading = False
        stand.paused = PAUSED
        stand.usage = [
            BudgetUsage("h100", "", "tainted", 2, 2, 0, 5),
            BudgetUsage("h100", "h001", "perDomain", 0, 8, 8, 0),
        ]
        stand.incidents = [Incident("i1", "nic", "LinkDown", ("example.com/rack", "h001"), NOW - 9, 7)]
        stand.clock += feeding.TICK_S
        state = await reader.until("state")
    assert (state["leading"], state["paused"]) == (False, PAUSED)
    # a domain of which nothing is taken is left out
    assert state["budgets"] == [
        {"pool": "h100", "domain": "", "what": "tainted", "used": 2, "limit": 2, "left": 0, "waiting": 5}
    ]
    assert state["incidents"] == [
        {"id": "i1", "check": "nic", "reason": "LinkDown", "where": "rack h001", "since": int(NOW) - 9, "nodes": 7}
    ]


async def test_a_reader_hears_of_the_server_though_nothing_changes(
    stand: FleetServer, http: httpx2.AsyncClient
) -> None:
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark) as reader:
        await reader.until("state")
        stand.clock += feeding.BEAT_S
        assert (await reader.until("beat"))["now"] > 0


async def test_there_are_so_many_readers_and_no_more(
    stand: FleetServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_tainter.page.routes.LISTENERS", 2)
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark), reading(stand, mark):
        await until(stand, 2)
        async with reading(stand, mark) as third:
            assert (third.status, third.headers["retry-after"]) == (503, "10")
    await until(stand, 0)
    async with reading(stand, mark) as fourth:
        assert fourth.status == 200


async def test_a_reader_that_takes_nothing_is_dropped_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_tainter.app.TAKES_NOTHING_MS", 5000)  # also for the reader that stays
    fleet = make_fleet(400, NOW)
    async with FleetServer(fleet, listener=listen("127.0.0.1", 0)).running() as stand:
        async with plain_http(GUARD_S, stand.url) as http:
            mark = (await fleet_of(http))["mark"]
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", stand.port))
            stuck.sendall(f"GET /api/stream?after={mark} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await until(stand, 1)
            async with reading(stand, mark) as other:
                await other.until("state")
                async with asyncio.timeout(GUARD_S):
                    while stand.feed.listeners == 2:
                        _storm(stand, fleet)
                        assert (await other.rows())[1]
                assert stand.feed.listeners == 1


def _storm(stand: FleetServer, fleet: SampleFleet) -> None:
    for name in list(fleet.nodes)[:200]:
        fleet.break_node(name, "dmesg", xid79())
        stand.change(name)


async def test_streams_end_when_the_server_does(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    mark = (await fleet_of(http))["mark"]
    async with reading(stand, mark) as reader:
        await reader.until("state")
        stand.feed.close()
        assert await reader.event() == ("", "", None)


async def test_a_large_fleet_lets_others_have_their_turn() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with FleetServer(make_fleet(4000, NOW)).running() as stand:
        counting = asyncio.create_task(count())
        await stand.feed.fleet()
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
    assert turns >= 15


async def test_readers_of_one_moment_share_what_is_made(stand: FleetServer) -> None:
    first, second = await asyncio.gather(stand.feed.fleet(), stand.feed.fleet())
    assert first is second
    assert await stand.feed.fleet() is first
    stand.fleet.put("h100-h001-01")
    stand.change("h100-h001-01")
    assert await stand.feed.fleet() is not first


async def test_a_standby_shows_its_warm_copy(stand: FleetServer, http: httpx2.AsyncClient) -> None:
    stand.leading = False
    fleet = await fleet_of(http)
    assert (fleet["state"]["leading"], len(listed(fleet))) == (False, 100)


async def test_one_node_has_a_page_of_its_own_and_an_unknown_one_has_not(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/api/nodes/h100-h001-01")).json()["state"] == "."
    answer = await http.get("/api/nodes/none%2Fsuch")
    assert answer.status_code == 404
    answer = await http.get("/api/nodes/none-such")
    assert (answer.status_code, answer.json()["reason"]) == (404, "NotFound")
    assert "'none-such'" in answer.json()["message"]


async def test_the_page_runs_no_script_but_its_own_and_loads_nothing_from_elsewhere(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http://" not in answer.text
    assert "https://" not in answer.text
    assert "<style" not in answer.text
    assert " style=" not in answer.text
    for path in (part.split('"')[0] for part in answer.text.split('href="page/')[1:]):
        file = await http.get(f"/page/{path}")
        assert (file.status_code, file.headers["x-content-type-options"]) == (200, "nosniff")
        again = await http.get(f"/page/{path}", headers={"if-none-match": file.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_no_other_file_is_served(http: httpx2.AsyncClient) -> None:
    for path in ("/page/none.js", "/page/..%2Ffeed.py", "/page/%2e%2e%2ffeed.py", "/page/index.html"):
        assert (await http.get(path)).status_code == 404
