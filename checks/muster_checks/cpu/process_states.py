"""Counts stuck processes: zombies, which their parent does not reap, and processes in uninterruptible sleep.

An agent in its own PID namespace counts only the processes in it.

psutil is not used: it takes three times as long per process, and knows a single /proc for the whole process, while
``--root`` may name another node's.
"""

import os

import msgspec

from muster_checks.base.bounded_read import number, read_text
from muster_checks.base.declaration import NodeView

PROCESS_LIMIT = 1_000_000


class Processes(msgspec.Struct, frozen=True):
    """load: mean number of running and blocked tasks in the last minute; pressure_percent: share of the last minute in
    which some task waited for a CPU (PSI, some avg60)."""

    total: int
    zombies: int
    blocked: int
    load: float | None
    pressure_percent: float | None


def read_processes(node: NodeView) -> Processes:
    states: dict[bytes, int] = {}
    root = node.path("/proc")
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry, _ in zip(entries, range(PROCESS_LIMIT), strict=False)]
    except OSError:
        names = []
    for name in names:
        if name.isdigit() and (state := _state(f"{root}/{name}/stat")):
            states[state] = states.get(state, 0) + 1
    pressure = (read_text(node.path("/proc/pressure/cpu"), 4096) or "").partition("avg60=")[2]
    return Processes(
        total=sum(states.values()),
        zombies=states.get(b"Z", 0),
        blocked=states.get(b"D", 0),
        load=number((read_text(node.path("/proc/loadavg"), 256) or "").split(" ")[0]),
        pressure_percent=number(pressure.split(" ")[0]),
    )


def _state(path: str) -> bytes:
    # no file object and no decoding: there may be thousands. Non-blocking, so that a FIFO cannot hold the thread
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            text = os.read(descriptor, 512)
        finally:
            os.close(descriptor)
    except OSError:
        return b""  # the process has exited
    # the name may contain anything, including brackets: it ends at the last one
    return text[text.rfind(b")") + 1 :].strip()[:1]
