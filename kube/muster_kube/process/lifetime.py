"""The lifetime of a component: it runs until a signal stops it, or until one of its tasks ends unexpectedly."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

from uvicorn.server import Server

from muster_kube.process.command_line import EXIT_FAILED

log = logging.getLogger(__name__)


class QuietServer(Server):
    """Does not handle signals: the application does, because it has more to stop than a server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def stop_on_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def wait_until_one_ends(part: str, tasks: Iterable["asyncio.Task[Any]"], stop: asyncio.Event) -> int:
    """The exit code: 0 once ``stop`` is set; EXIT_FAILED, with an error in the log, if one of ``tasks`` ends. Does not
    stop the tasks, because the component determines their order."""
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_tasks(stopping)
    if stop.is_set():
        return 0
    for task in done:
        error = None if task.cancelled() else task.exception()
        log.error("a task of the %s has ended unexpectedly: %s", part, error or task, exc_info=error)
    return EXIT_FAILED


async def cancel_tasks(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and wait for them; drop their exceptions."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def print_address(what: str, listener: socket.socket) -> None:
    """Print ``WHAT on HOST:PORT`` to stdout, because the system may have chosen the port."""
    host, port = listener.getsockname()[:2]
    print(f"{what} on {host}:{port}", flush=True)


def package_version() -> str:
    """The version of the installed package; "unknown" in a checkout that is not installed."""
    try:
        return metadata.version("passmuster")
    except metadata.PackageNotFoundError:
        return "unknown"
