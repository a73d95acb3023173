"""A network stranger opens more streams of the fleet page than the tainter serves, all at once."""

import asyncio

from tests.browser.fleet_server import FleetServer
from tests.browser.sample_fleet import make_fleet
from tests.plain_http import plain_http

from muster_tainter.page.routes import LISTENERS

NOW = 1_800_000_000.0
MORE = 16


async def test_readers_that_come_at_once_are_counted_before_the_first_is_answered() -> None:
    async with FleetServer(make_fleet(100, NOW)).running() as server:
        async with plain_http(60.0, server.url) as http:
            mark = (await http.get("/api/fleet")).json()["mark"]
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(LISTENERS + MORE)]
        for _, writer in opened:
            writer.write(f"GET /api/stream?after={mark} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        statuses = [(await reader.readline()).split()[1] for reader, _ in opened]
        assert statuses.count(b"200") == LISTENERS
        assert statuses.count(b"503") == MORE
        for _, writer in opened:
            writer.close()
