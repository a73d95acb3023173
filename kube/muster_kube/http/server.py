"""The HTTP or HTTPS server of every part: uvicorn with limits for connections, requests, sizes and times."""

import asyncio
import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING

from muster_kube.process.address import open_listener
from muster_kube.process.lifetime import QuietServer
from muster_kube.process.open_files import raise_open_files_limit
from muster_kube.process.settings import SettingsError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from muster_kube.http.connection_guard import ConnectionLimits
    from muster_kube.http.slow_clients import GuardedProtocol

TICK_S = 0.5  # limit for noticing a stop; the header Date needs a second
KEEP_ALIVE_S = 15
STOP_S = 3


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError."""
    try:
        return open_listener(host, port)
    except OSError as error:
        raise SettingsError(f"--host {host} --port {port}: cannot listen: {error.strerror or error}") from error


def make_server(
    app: "ASGIApp",
    *,
    limits: "ConnectionLimits | None" = None,
    protocol: "type[GuardedProtocol] | None" = None,
    tls: ssl.SSLContext | None = None,
    keep_alive_s: int = KEEP_ALIVE_S,
    stop_s: int = STOP_S,
) -> QuietServer:
    """A server for ``app``; await its ``serve(sockets=[…])``, and set ``should_exit`` to end it. Raises the limit of
    open files, because connections must not use up those that Muster needs.

    limits:   by default ConnectionLimits(), with ``tls`` TLS_LIMITS
    protocol: time limits of connections, by default client_timeouts.Impatient
    """
    from uvicorn.config import Config

    from muster_kube.http.client_timeouts import Impatient
    from muster_kube.http.connection_guard import TLS_LIMITS, ConnectionGuard, ConnectionLimits, LinesPerMinute
    from muster_kube.http.request_limit import RequestLimit
    from muster_kube.http.slow_clients import GuardedProtocol

    fitting = (limits or (TLS_LIMITS if tls else ConnectionLimits())).within(raise_open_files_limit())
    kind = protocol or Impatient

    class GuardedServer(QuietServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            def make_protocol() -> GuardedProtocol:
                return kind(self.config, self.server_state, {}, asyncio.get_running_loop())

            guards = [ConnectionGuard(each, make_protocol, fitting, tls) for each in sockets or []]
            self.servers = guards  # type: ignore[assignment] # they have the methods that uvicorn uses
            self.started = True

        async def main_loop(self) -> None:
            # uvicorn's own loop wakes ten times a second, a third of an idle agent's CPU time
            while not await self.on_tick(0):  # noqa: ASYNC110 - should_exit is a plain attribute
                await asyncio.sleep(TICK_S)

    uvicorn_log = logging.getLogger("uvicorn.error")
    if not any(isinstance(each, LinesPerMinute) for each in uvicorn_log.filters):
        uvicorn_log.addFilter(LinesPerMinute(time.monotonic))
    config = Config(
        RequestLimit(app, fitting),
        loop="asyncio",
        http=kind,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # any client could claim to be loopback
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=stop_s,
    )
    return GuardedServer(config)
