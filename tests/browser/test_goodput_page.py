"""The goodput page in Chromium: the books as a bar and tables, for the chosen time and rows, and without books."""

from collections.abc import Iterator

import pytest
from tests.browser.chromium import Browser
from tests.browser.fleet_server import ThreadedFleetServer, served
from tests.browser.sample_fleet import make_fleet
from tests.kube.conftest import Reply
from tests.tainter.goodput.test_state import NOW
from tests.tainter.page.test_goodput import PATH, Books


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedFleetServer]:
    with served(make_fleet(4, NOW)) as running:
        yield running


@pytest.fixture
def books(server: ThreadedFleetServer) -> Books:
    books = Books()
    server.call(lambda: server.stand.api.on("GET", PATH, books.read))
    server.stand.books.now = lambda: NOW
    server.stand.books._read = None
    return books


def choose(browser: Browser, what: str, value: str) -> None:
    script = """
      const chosen = document.getElementById(arguments[0]);
      chosen.value = arguments[1];
      chosen.dispatchEvent(new Event("change"));
    """
    browser.run(script, what, value)


@pytest.mark.usefixtures("books")
def test_page_shows_the_books(server: ThreadedFleetServer, browser: Browser) -> None:
    browser.window(1200, 1400)
    browser.open(f"{server.stand.url}/goodput")
    browser.until_text("#headline", "goodput")
    browser.until_text("#rows", "faults")
    browser.until_text("#failures", "MTBF")
    browser.until_text("#lemons", "n1")
    parts = browser.run("return [...document.querySelectorAll('#bar span')].map((part) => part.offsetWidth)")
    assert len(parts) > 2
    assert sum(parts) == pytest.approx(browser.run("return document.getElementById('bar').offsetWidth"), abs=len(parts))
    browser.click("#lemons summary")
    browser.until_text("#lemons ol", "interrupted: fault")
    choose(browser, "by", "team")
    browser.until_text("#rows h2", "by team")
    choose(browser, "since", "24h")
    browser.until_text("#headline", "accelerator-hours")
    browser.until_text("#lemons ol", "interrupted: fault")  # what a person has opened stays open
    assert browser.complaints() == []


def test_page_says_why_there_are_no_books(server: ThreadedFleetServer, books: Books, browser: Browser) -> None:
    books.reply = Reply(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
    browser.open(f"{server.stand.url}/goodput")
    browser.until_text("#span", "goodput: {}")
    assert browser.run("return document.getElementById('bar').offsetHeight") == 0


def test_page_that_can_no_longer_read_the_books_shows_no_old_ones(
    server: ThreadedFleetServer, books: Books, browser: Browser
) -> None:
    browser.open(f"{server.stand.url}/goodput")
    browser.until_text("#rows", "faults")
    books.reply = Reply(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
    server.stand.books._read = None
    choose(browser, "since", "24h")
    browser.until_text("#span", "goodput: {}")
    assert browser.run("return document.getElementById('rows').textContent") == ""
