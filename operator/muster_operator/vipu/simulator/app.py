"""Wires the simulator to disk, HTTP and signals."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator

import msgspec
import uvicorn

from muster_kube.listening import bind
from muster_operator.vipu.simulator import fleet as core
from muster_operator.vipu.simulator.disk import StateError, StateFolder
from muster_operator.vipu.simulator.fleet import Fleet
from muster_operator.vipu.simulator.http import make_app
from muster_operator.vipu.simulator.keeping import Keeper
from muster_operator.vipu.simulator.settings import Settings

log = logging.getLogger(__name__)

IPUS = 64  # an IPU-POD64
STOP_S = 3


class _Server(uvicorn.Server):
    """Leaves signals to :func:`run`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run(settings: Settings) -> int:
    """Until SIGTERM or SIGINT: 0. Raises StateError, OSError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with contextlib.closing(StateFolder(settings.state)) as folder:
        fleet = begun(settings, folder.load(), _now())
        folder.keep(fleet)
        with contextlib.closing(_listen(settings.host, settings.port)) as listener:
            await _serve(Keeper(fleet, _now, folder.keep), listener, stop)
    return 0


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


async def _serve(keeper: Keeper, listener: socket.socket, stop: asyncio.Event) -> None:
    server = _Server(
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
    stopping = asyncio.create_task(stop.wait())
    host, port = listener.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    await asyncio.wait([http, stopping], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await http


def _now() -> float:
    # goes on while no simulator runs, and nobody sets it
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _listen(host: str, port: int) -> socket.socket:
    listener = bind(host, port)
    listener.listen(256)
    return listener
