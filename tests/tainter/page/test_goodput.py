"""GET /api/goodput: the books of the ConfigMap, summed; what is answered when there are none; how often they are read,
and how often and where they are summed."""

import base64
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from tests.browser.fleet_server import FleetServer
from tests.browser.sample_fleet import make_fleet
from tests.kube.conftest import Reply
from tests.plain_http import plain_http
from tests.tainter.goodput.test_state import NOW, state

from muster_tainter.goodput.report import HOUR_S, By, Report, make_report
from muster_tainter.goodput.state import KEY, NAME, State, write_state
from muster_tainter.page.goodput import FRESH_S, REPORTS_LIMIT
from muster_tainter.pause import config_maps

PATH = f"{config_maps('muster')}/{NAME}"


class Books:
    """The API server's answer, and how often it was asked."""

    def __init__(self) -> None:
        self.reply = Reply(200, {"metadata": {"name": NAME}, "binaryData": {KEY: encoded(write_state(state()))}})
        self.asked = 0

    def read(self, _: Any) -> Reply:
        self.asked += 1
        return self.reply


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
async def stand(books: Books) -> AsyncIterator[FleetServer]:
    async with FleetServer(make_fleet(4, NOW)).running() as running:
        running.api.on("GET", PATH, books.read)
        running.books.now = lambda: NOW
        yield running


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread that made each report."""
    threads: list[int] = []

    def make(state: State, begin: float, by: By) -> Report:
        threads.append(threading.get_ident())
        return make_report(state, begin, by)

    monkeypatch.setattr("muster_tainter.page.goodput.make_report", make)
    return threads


async def ask(stand: FleetServer, query: str = "") -> httpx2.Response:
    async with plain_http(60, stand.url) as http:
        return await http.get(f"/api/goodput{query}")


@pytest.mark.parametrize("by", list(By))
async def test_the_report_is_that_of_the_command(stand: FleetServer, by: By) -> None:
    answer = await ask(stand, f"?since=24h&by={by}")
    expected = make_report(state(), NOW - 86_400, by)
    found = answer.json()
    assert (answer.status_code, found["total"]["total"]) == (200, expected.total.total)
    assert [row["name"] for row in found["rows"]] == [row.name for row in expected.rows]
    assert [lemon["node"] for lemon in found["lemons"]] == ["n1"]
    assert found["failures"][0]["outages"] == 1


async def test_books_are_read_once_for_all_who_ask(stand: FleetServer, books: Books) -> None:
    clock = 0.0
    stand.books._clock = lambda: clock
    for _ in range(5):
        assert (await ask(stand)).status_code == 200
    assert books.asked == 1
    clock = FRESH_S + 1
    await ask(stand)
    assert books.asked == 2


async def test_a_report_is_made_once_and_not_by_the_thread_that_taints(stand: FleetServer, threads: list[int]) -> None:
    for query in ("?since=24h", "?since=24h&by=cause", "?since=1d"):
        assert (await ask(stand, query)).status_code == 200
    assert len(threads) == 1
    await ask(stand, "?since=24h&by=team")
    await ask(stand, "?since=25h")
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_reports_of_former_books_are_dropped(stand: FleetServer, books: Books) -> None:
    clock = 0.0
    stand.books._clock = lambda: clock
    assert (await ask(stand)).json()["pods"] == state().pods
    changed = msgspec.structs.replace(state(), pods=77)
    books.reply = Reply(200, {"metadata": {"name": NAME}, "binaryData": {KEY: encoded(write_state(changed))}})
    clock = FRESH_S + 1
    assert (await ask(stand)).json()["pods"] == 77


async def test_reports_are_kept_up_to_a_limit_and_the_last_that_were_asked_for_stay(
    stand: FleetServer, threads: list[int]
) -> None:
    async def ask_for(hours: int) -> None:
        await stand.books.report(hours * HOUR_S, By.CAUSE)

    for hours in range(1, REPORTS_LIMIT + 1):
        await ask_for(hours)
    await ask_for(1)
    await ask_for(REPORTS_LIMIT + 1)
    assert len(threads) == REPORTS_LIMIT + 1
    await ask_for(1)
    assert len(threads) == REPORTS_LIMIT + 1
    await ask_for(2)
    assert len(threads) == REPORTS_LIMIT + 2


async def test_a_time_within_an_hour_counts_the_hour_as_a_whole(stand: FleetServer) -> None:
    stand.books.now = lambda: NOW + 1800.0
    report = await stand.books.report(3 * HOUR_S, By.CAUSE)
    assert report == make_report(state(), NOW - 2.5 * HOUR_S, By.CAUSE)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(404, {"kind": "Status", "code": 404, "reason": "NotFound"}), 404),
        (Reply(200, {"metadata": {"name": NAME}, "binaryData": {KEY: encoded(b"no books")}}), 404),
        (Reply(200, {"metadata": {"name": NAME}, "binaryData": {KEY: "no base64!"}}), 404),
        (Reply(200, {"metadata": {"name": NAME}}), 404),
        (Reply(403, {"kind": "Status", "code": 403, "reason": "Forbidden"}), 503),
    ],
)
async def test_no_books_are_an_answer_with_a_reason(
    stand: FleetServer, books: Books, reply: Reply, status: int
) -> None:
    books.reply = reply
    answer = await ask(stand)
    assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert NAME in answer.json()["message"] or "goodput" in answer.json()["message"]


@pytest.mark.parametrize("query", ["?since=1m", "?since=soon", "?since=", "?since=9999d", "?by=node", "?from=now"])
async def test_bad_question_is_named(stand: FleetServer, query: str) -> None:
    answer = await ask(stand, query)
    assert answer.status_code == 400
    assert query[1:].partition("=")[0] in answer.text
