"""An event loop that runs only when it is told to, and whose time only timers move.

Between two steps of an explored process nothing happens: all that could run has run (:meth:`SteppedLoop.settle`). A
timer fires when the explorer chooses it, so a pause of the program can take any time relative to what others do.
"""

import asyncio
import heapq
from asyncio import events
from typing import Any

TURNS_LIMIT = 100_000  # callbacks of one step: more is a busy loop


class SteppedLoop(asyncio.BaseEventLoop):
    """errors: what ended a task that nobody awaited, or a callback. tasks: in the order in which they began."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.errors: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        return self._now

    def settle(self) -> None:
        """Run until nothing can run without an answer, an event or a timer. Raises RuntimeError for a busy loop."""
        ready: Any = self._ready  # type: ignore[attr-defined]  # of BaseEventLoop
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(TURNS_LIMIT):
                if not ready:
                    return
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
            raise RuntimeError("the process never waits")
        finally:
            events._set_running_loop(outer)

    def timers(self) -> list[asyncio.TimerHandle]:
        """The pending ones, the next first."""
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]  # of BaseEventLoop
        return sorted((timer for timer in scheduled if not timer.cancelled()), key=lambda timer: timer.when())

    def fire_next(self) -> None:
        """Let time pass until the next timer is due, and run what follows."""
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        while scheduled:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer.cancelled():
                self._now = max(self._now, timer.when())
                self._ready.append(timer)  # type: ignore[attr-defined]
                break
        self.settle()

    def end(self) -> None:
        """Cancel everything, as the end of a process would not: its memory is wanted back."""
        for _ in range(10):
            waiting = [task for task in self.tasks if not task.done()]
            if not waiting:
                break
            for task in waiting:
                task.cancel()
            self.settle()
        self.close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
        self.tasks = [*(each for each in self.tasks if not each.done()), task]
        return task

    def _note_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}" if error else str(context))

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError

    def _write_to_self(self) -> None:
        raise NotImplementedError("an explored process has one thread")
