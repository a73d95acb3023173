"""Processes that tests look for: whether one has ended, and which run a given command line."""

import time
from collections.abc import Callable

import psutil

LOOK_S = 0.01


def has_ended(pid: int) -> bool:
    """There is no such process, or it is dead and its parent has not collected it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ends_within(pid: int, limit_s: float) -> bool:
    """Looks again and again: psutil's own wait() would collect a child under its owner's hands."""
    deadline = time.monotonic() + limit_s
    while not (ended := has_ended(pid)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return ended


def processes_with(wanted: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """Those whose command line is ``wanted``, with ``cmdline`` and ``ppid`` in their ``info``."""
    return [process for process in psutil.process_iter(["cmdline", "ppid"]) if wanted(process.info["cmdline"] or [])]
