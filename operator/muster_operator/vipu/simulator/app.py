"""Wires the simulator to disk, HTTP and signals."""

import asyncio
import contextlib
import logging
import socket
import time

import msgspec
import uvicorn

from muster_kube.process.address import bind_socket
from muster_kube.process.lifetime import QuietServer, print_address, stop_on_signals, wait_until_one_ends
from muster_operator.vipu.simulator import fleet as core
from muster_operator.vipu.simulator.clocked_fleet import Keeper
from muster_operator.vipu.simulator.disk import StateError, StateFolder
from muster_operator.vipu.simulator.fleet import Fleet
from muster_operator.vipu.simulator.routes import make_app
from muster_operator.vipu.simulator.settings import Settings

log = logging.getLogger(__name__)

IPUS = 64  # an IPU-POD64
STOP_S = 3


async def run(settings: Settings) -> int:
    """Until SIGTERM or SIGINT: 0; EXIT_FAILED when it ends by itself. Raises StateError, OSError."""
    stop = stop_on_signals()
    with contextlib.closing(StateFolder(settings.state)) as folder:
        fleet = begun(settings, folder.load(), _now())
        folder.keep(fleet)
        with contextlib.closing(_listen(settings.host, settings.port)) as listener:
            return await _serve(Keeper(fleet, _now, folder.keep), listener, stop)


def begun(settings: Settings, kept: Fleet | None, now: float) -> Fleet:
    """What was kept goes on, with the number of IPUs and the times of these settings. Raises StateError."""
    try:
        if kept is None:
            return Fleet(
                ipus=settings.ipus if settings.ipus is not None else IPUS,
                delay_s=settings.delay,
                first_rack=settings.first_rack,
            )
        ipus = settings.ipus if settings.ipus is not None else kept.ipus
        changed = msgspec.structs.replace(kept, ipus=ipus, delay_s=settings.delay, first_rack=settings.first_rack)
    except ValueError as error:
        raise StateError(f"{settings.state}: {error}") from error
    return core.restarted(changed, now)


async def _serve(keeper: Keeper, listener: socket.socket, stop: asyncio.Event) -> int:
    server = QuietServer(
        uvicorn.Config(
            make_app(keeper),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
        )
    )
    http = asyncio.create_task(server.serve(sockets=[listener]))
    print_address("listening", listener)
    try:
        return await wait_until_one_ends("simulator", [http], stop)
    finally:
        server.should_exit = True
        await http


def _now() -> float:
    # goes on while no simulator runs, and nobody sets it
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _listen(host: str, port: int) -> socket.socket:
    listener = bind_socket(host, port)
    listener.listen(256)
    return listener
