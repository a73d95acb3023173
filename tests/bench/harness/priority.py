"""Keeps other programs of a busy machine away from a measurement that takes little of the cores."""

import contextlib
import os
from collections.abc import Iterator

import psutil

PRIORITY = 5  # of sched(7): above every ordinary thread, below the kernel's own


@contextlib.contextmanager
def real_time(*, wanted: bool) -> Iterator[None]:
    """This process and its children, so the control plane too, have real-time priority (SCHED_RR): as on a machine of
    their own, but for its caches. What takes all cores must not run so. wanted: False changes nothing."""
    if not wanted:
        yield
        return
    _schedule(os.SCHED_RR, PRIORITY)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            for thread in process.threads():
                os.sched_setscheduler(thread.id, policy, os.sched_param(priority))
