"""Ends an asynchronous command by Ctrl-C, in a turn of its event loop.

asyncio.run cancels from the signal handler itself, so between any two bytecodes: between "is this future done?" and its
result, too, which ends in a traceback (InvalidStateError) instead of an end.
"""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run. Raises KeyboardInterrupt after a SIGINT, once ``work`` has been cancelled."""
    interrupted = False

    async def run() -> T:
        task = asyncio.ensure_future(work)

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            return await task
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
