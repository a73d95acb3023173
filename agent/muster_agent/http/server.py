"""The agent's HTTP server: uvicorn with limits."""

import asyncio
import socket
from typing import TYPE_CHECKING

from muster_kube.process.address import bind_socket
from muster_kube.process.lifetime import QuietServer
from muster_kube.process.settings import SettingsError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

TICK_S = 0.5  # limit for noticing a stop; the header Date needs a second


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError."""
    try:
        listener = bind_socket(host, port)
        listener.listen(256)
    except OSError as error:
        raise SettingsError(f"--host {host} --port {port}: cannot listen: {error.strerror or error}") from error
    return listener


def make_server(app: "ASGIApp") -> "uvicorn.Server":
    """A server for ``app``; await its ``serve()``, and set ``should_exit`` to end it."""
    from uvicorn.config import Config

    from muster_agent.http.client_timeouts import Impatient
    from muster_agent.http.concurrency_limit import ConcurrencyLimit

    class SlowTicking(QuietServer):
        async def main_loop(self) -> None:
            # uvicorn's own loop wakes ten times a second, a third of an idle agent's CPU time
            while not await self.on_tick(0):  # noqa: ASYNC110 - should_exit is a plain attribute
                await asyncio.sleep(TICK_S)

    config = Config(
        ConcurrencyLimit(app),
        loop="asyncio",
        http=Impatient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # any client could claim to be loopback
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    return SlowTicking(config)
