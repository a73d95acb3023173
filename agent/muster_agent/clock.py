"""The clock of the agent's parts. It is a parameter, so that tests can control time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec


class AgentClock(msgspec.Struct, frozen=True, kw_only=True):
    """monotonic: seconds that never decrease; wall: seconds since the epoch."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


SYSTEM_CLOCK = AgentClock()
