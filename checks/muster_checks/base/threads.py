"""Reads that may hang, in threads that nobody waits for at the end of the process.

Not asyncio.to_thread: its threads are few and everybody's, name look-ups included. A driver that hangs whoever reads
its files would take one more with each turn of its check, then all of them, and hold up the end of the process as well.
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
    """What ``read`` returns or raises. One at a time for each node: while an earlier one hangs, later ones wait for it
    (each for as long as its caller likes), and take no thread."""
    others = _under_way.setdefault(asyncio.get_running_loop(), {})
    key = (node, read)
    while (before := others.get(key)) is not None:
        await asyncio.wait([before])
    reading = begin_in_thread(partial(read, *args, **kwargs), name=getattr(read, "__name__", "read"))
    others[key] = reading  # type: ignore[assignment] # what it comes to is of no interest to others
    reading.add_done_callback(lambda _: others.pop(key))
    return await asyncio.shield(reading)


def begin_in_thread(work: Callable[[], T], *, name: str) -> "asyncio.Future[T]":
    """What becomes of ``work``."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    # whoever waited for it may have been cancelled: then nobody is left to hear of an error, and asyncio would complain
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            settle: Callable[[], None] = partial(outcome.set_exception, error)
        else:
            settle = partial(outcome.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
