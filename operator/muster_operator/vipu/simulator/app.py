"""Connects the simulator to disk, HTTP and signals."""

import asyncio
import contextlib
import logging
import socket
import time

import msgspec

from muster_kube.http.server import make_server
from muster_kube.process.address import open_listener
from muster_kube.process.lifetime import print_address, stop_on_signals, wait_until_one_ends
from muster_operator.vipu.simulator.clocked_fleet import ClockedFleet
from muster_operator.vipu.simulator.disk import StateError, StateFolder
from muster_operator.vipu.simulator.fleet import SimulatedFleet, restart
from muster_operator.vipu.simulator.routes import make_app
from muster_operator.vipu.simulator.settings import SimulatorSettings

log = logging.getLogger(__name__)

IPUS = 64  # an IPU-POD64


async def run(settings: SimulatorSettings) -> int:
    """Run until SIGTERM or SIGINT. Exit code 0, or EXIT_FAILED if the server ends. Raises StateError, OSError."""
    stop = stop_on_signals()
    with contextlib.closing(StateFolder(settings.state)) as folder:
        fleet = resume_fleet(settings, folder.load(), _now())
        folder.keep(fleet)
        with contextlib.closing(open_listener(settings.host, settings.port)) as listener:
            return await _serve(ClockedFleet(fleet, _now, folder.keep), listener, stop)


def resume_fleet(settings: SimulatorSettings, kept: SimulatedFleet | None, now: float) -> SimulatedFleet:
    """Continue with the saved fleet, and the number of IPUs and the times of these settings. Raises StateError."""
    try:
        if kept is None:
            return SimulatedFleet(
                ipus=settings.ipus if settings.ipus is not None else IPUS,
                delay_s=settings.delay,
                first_rack=settings.first_rack,
            )
        ipus = settings.ipus if settings.ipus is not None else kept.ipus
        changed = msgspec.structs.replace(kept, ipus=ipus, delay_s=settings.delay, first_rack=settings.first_rack)
    except ValueError as error:
        raise StateError(f"{settings.state}: {error}") from error
    return restart(changed, now)


async def _serve(clocked_fleet: ClockedFleet, listener: socket.socket, stop: asyncio.Event) -> int:
    server = make_server(make_app(clocked_fleet))
    http = asyncio.create_task(server.serve(sockets=[listener]))
    print_address("listening", listener)
    try:
        return await wait_until_one_ends("simulator", [http], stop)
    finally:
        server.should_exit = True
        await http


def _now() -> float:
    # continues while no simulator runs, and cannot be set
    return time.clock_gettime(time.CLOCK_BOOTTIME)
