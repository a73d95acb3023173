"""Time that a test makes pass: a limit of seconds is reached at once, and never by a machine that is merely slow."""

import asyncio

import pytest


class LoopTime:
    """The running loop's clock: goes on as ever, and leaps when told to, until the loop ends with the test."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        true_time = loop.time
        self._leapt_s = 0.0
        loop.time = lambda: true_time() + self._leapt_s  # type: ignore[method-assign] # never back: timers would sleep

    async def passes(self, seconds: float) -> None:
        """Everything that was due by then has been begun when this returns."""
        self._leapt_s += seconds
        for _ in range(3):  # the loop looks at its timers, runs them, and runs what they woke
            await asyncio.sleep(0)


@pytest.fixture
async def loop_time() -> LoopTime:
    return LoopTime()
