"""Runs the task of a source with the settings in force, which may change."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from muster_tainter.policy.sections.sources import LokiSource, PrometheusSource, StepTimesSource

Where = TypeVar("Where", LokiSource, PrometheusSource, StepTimesSource)


class Follower(Generic[Where]):
    """Runs ``follow`` with the settings in force; they may change."""

    def __init__(self, follow: Callable[[Where], Coroutine[Any, Any, None]]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._follow: Callable[[Where], Coroutine[Any, Any, None]] = follow
        self._where: Where | None = None

    async def switch(self, where: Where | None) -> None:
        if where == self._where:
            return
        await ended(self.task)
        self.task, self._where = None, where
        if where is not None:
            self.task = asyncio.create_task(self._follow(where))


async def until_set(event: asyncio.Event, *tasks: "asyncio.Task[None] | None") -> None:
    """Wait for ``event`` or the end of a task. Raises the exception of a task that has ended."""
    running = {task for task in tasks if task is not None and not task.done()}
    changed = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({changed, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                await task
    finally:
        changed.cancel()


async def ended(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
