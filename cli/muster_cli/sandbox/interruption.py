"""SIGINT, SIGTERM and SIGHUP end a sandbox: the first signal starts the shutdown, later ones do not disturb it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Self


class Interruption:
    """A context manager that turns the first signal into a KeyboardInterrupt, or cancels what :meth:`run` runs.

    SIGHUP stays ignored under nohup. SIGINT is handled even if it was ignored, as it is for a script's background
    jobs. After the shutdown has begun the signals stay ignored until the process ends: one that arrives while Python
    itself ends would otherwise print a traceback and change the exit code.
    """

    def __init__(self) -> None:
        self._begun = False
        self._in_asyncio = False
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._begun else handler)

    def begin_shutdown(self) -> None:
        """Ignore the signals from now on."""
        self._begun = True

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run ``main`` in a new event loop. The first signal cancels it; raises KeyboardInterrupt once it has ended."""
        self._in_asyncio = True
        try:
            asyncio.run(self._run(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._in_asyncio = False

    async def _run(self, main: Callable[[], Awaitable[None]]) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is None:
            raise RuntimeError("no task runs")
        # Wakes the loop too: a handler that only cancels the task has no effect until the next event.
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._begun:
            raise asyncio.CancelledError
        try:
            await main()
        finally:
            self._cancel = None

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._begun:
            return
        self._begun = True
        if not self._in_asyncio:
            raise KeyboardInterrupt
        if self._cancel is not None:
            self._cancel()
