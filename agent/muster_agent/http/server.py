"""The HTTP server of the agent: uvicorn with the agent's limits."""

import asyncio
import socket
from typing import TYPE_CHECKING

from muster_kube.process.address import bind_socket
from muster_kube.process.lifetime import QuietServer
from muster_kube.process.settings import SettingsError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

TICK_S = 0.5  # how long HTTP goes on after it was told to stop, at most; Date is right to the second


def listen(host: str, port: int) -> socket.socket:
    """Raises SettingsError naming the address."""
    try:
        listener = bind_socket(host, port)
        listener.listen(256)
    except OSError as error:
        raise SettingsError(f"--host {host} --port {port}: cannot listen there: {error.strerror or error}") from error
    return listener


def make_server(app: "ASGIApp") -> "uvicorn.Server":
    """Serves ``app`` once its ``serve()`` is awaited; ends soon after its ``should_exit`` is set."""
    from uvicorn.config import Config

    from muster_agent.http.client_timeouts import Impatient
    from muster_agent.http.concurrency_limit import ConcurrencyLimit

    class SlowTicking(QuietServer):
        async def main_loop(self) -> None:
            # its own wakes ten times a second, which is a third of what an idle agent uses of a processor
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
        proxy_headers=False,  # anybody could write that he comes over loopback
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    return SlowTicking(config)
