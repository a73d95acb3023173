"""Runs reads that may hang in daemon threads that do not delay the exit of the process.

asyncio.to_thread is not used: its few threads are shared with everything else, including name look-ups. If a driver
blocked every read of its files, each run of the check would occupy one more thread until none is left, and the exit of
the process would wait for them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from muster_checks.base.declaration import NodeView

P = ParamSpec("P")
T = TypeVar("T")

_under_way: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, asyncio.Future[object]]]" = WeakKeyDictionary()


async def in_thread(node: NodeView, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``read``, or its exception. Only one call per node runs at a time: while an earlier one hangs,
    later ones wait for it (each as long as its caller allows) without using a thread."""
    others = _under_way.setdefault(asyncio.get_running_loop(), {})
    key = (node, read)
    while (before := others.get(key)) is not None:
        await asyncio.wait([before])
    reading = begin_in_thread(partial(read, *args, **kwargs), name=getattr(read, "__name__", "read"))
    others[key] = reading  # type: ignore[assignment] # nobody reads its result from here
    reading.add_done_callback(lambda _: others.pop(key))
    return await asyncio.shield(reading)


def begin_in_thread(work: Callable[[], T], *, name: str) -> "asyncio.Future[T]":
    """Run ``work`` in a new daemon thread; the future receives its result or exception."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    # if the waiting task was cancelled, nobody retrieves the exception, and asyncio would log a complaint
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            settle: Callable[[], None] = partial(outcome.set_exception, error)
        else:
            settle = partial(outcome.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
