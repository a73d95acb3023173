"""Ends an asynchronous command on Ctrl-C, from within its event loop.

asyncio.run cancels from the signal handler, between any two bytecodes. If that is between "is this future done?" and
reading its result, the command ends with a traceback (InvalidStateError).
"""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run. Raises KeyboardInterrupt after a SIGINT, once ``work`` has been cancelled."""
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
