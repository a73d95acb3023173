"""The fleet page over 10,000 nodes in headless Chromium, beside an empty page in the same browser.

first paint:   from the navigation until every node is drawn (the floor: until one word is), nothing cached
fault to page: from the watch's change in the tainter's store until the node is drawn in its new colour (the floor: from
               a bare server-sent event until an empty page has taken note of it in a frame of its own)
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.progress import say
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.browser.chromium import Browser, started
from tests.browser.fleet_server import served
from tests.browser.sample_fleet import bad_night, make_fleet, xid79

NODES = 10_000
_EMPTY = """<!doctype html><title>floor</title><body>floor<script>
const events = new EventSource("floor/events");
events.onmessage = ({ data }) => requestAnimationFrame(() => { document.body.dataset.drawn = data; });
addEventListener("pagehide", () => events.close());  // kept for the back button, it would keep a connection
</script>"""
_DRAWN = """
const [selector, done] = arguments;
const observer = new MutationObserver(() => {
  observer.disconnect();
  done(performance.timeOrigin + performance.now());
});
observer.observe(document.querySelector(selector), { attributes: true, attributeFilter: ["data-drawn"] });
fetch("/floor/fire", { method: "POST" });
"""
_PAINT = "return performance.getEntriesByName(arguments[0])[0]?.startTime ?? 0"


@dataclass(frozen=True)
class Outcome:
    """Milliseconds of each round."""

    floor_paint: list[float]
    paint: list[float]
    floor_fault: list[float]
    fault: list[float]


class Floor:
    """What any page of this kind pays: one word, and one event. work: done when the browser says that it looks."""

    def __init__(self) -> None:
        self.work: Callable[[], None] = self.fire
        self.worked_at = 0.0  # milliseconds since the epoch
        self._number = 0
        self._news = asyncio.Event()
        self.routes = [
            Route("/floor", self._page),
            Route("/floor/events", self._stream),
            Route("/floor/fire", self._fire, methods=["POST"]),
        ]

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(_EMPTY)

    async def _stream(self, _: Request) -> Response:
        return StreamingResponse(self._all(), media_type="text/event-stream")

    async def _fire(self, _: Request) -> Response:
        self.worked_at = time.time() * 1000
        self.work()
        return Response(status_code=204)

    async def _all(self) -> Any:
        yield b": begun\n\n"
        while True:
            await self._news.wait()
            yield f"data: {self._number}\n\n".encode()

    def fire(self) -> None:
        """Tell every page: one that was left may still be connected."""
        self._number += 1
        news, self._news = self._news, asyncio.Event()
        news.set()


def measure(rounds: int) -> Outcome:
    say(f"page: {rounds} times an empty page, and one of {NODES:,} nodes; as many events and faults on each")
    fleet = bad_night(make_fleet(NODES, time.time()))
    names = [name for name in fleet.nodes if name.startswith("h100-h00")][:rounds]
    floor = Floor()
    with served(fleet) as server, started() as browser:
        server.stand.app.router.routes.extend(floor.routes)
        browser.window(1920, 1080)
        browser.cdp("Network.enable", {})
        browser.cdp("Network.setCacheDisabled", {"cacheDisabled": True})
        url, drawn = server.stand.url, _of("muster-first-paint", browser)
        for each in ("/floor", "/"):  # a browser's first pages load fonts and caches
            _paint(browser, url + each, _of("first-contentful-paint", browser))
        floor_paint = [_paint(browser, f"{url}/floor", _of("first-contentful-paint", browser)) for _ in range(rounds)]
        floor_fault = [_until_drawn(browser, floor, "body") for _ in range(rounds)]
        paint = [_paint(browser, url, drawn) for _ in range(rounds)]
        browser.until_text("#live", "live")
        fault = []
        for name in names:
            fleet.break_node(name, "dmesg", xid79())
            floor.work = partial(server.stand.change, name)
            fault.append(_until_drawn(browser, floor, "#map"))
    return Outcome(floor_paint, paint, floor_fault, fault)


def _of(mark: str, browser: Browser) -> Callable[[], float]:
    return lambda: float(browser.run(_PAINT, mark))


def _paint(browser: Browser, url: str, mark: Callable[[], float]) -> float:
    browser.open("about:blank")
    browser.open(url)
    return float(browser.until(mark, f"{url} is painted"))


def _until_drawn(browser: Browser, floor: Floor, selector: str) -> float:
    return float(browser.driver.execute_async_script(_DRAWN, selector)) - floor.worked_at


def table(outcome: Outcome) -> str:
    lines = [f"{'page, ' + format(NODES, ',') + ' nodes':<28}rounds   floor ms  most ms   muster ms  most ms"]
    for name, floor, ours in (
        ("first paint", outcome.floor_paint, outcome.paint),
        ("fault to page", outcome.floor_fault, outcome.fault),
    ):
        lines.append(
            f"{name:<28}{len(ours):>6} {statistics.median(floor):>10.0f} {max(floor):>8.0f}"
            f" {statistics.median(ours):>11.0f} {max(ours):>8.0f}"
        )
    return "\n".join(lines)
