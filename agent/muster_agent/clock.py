"""Time as the agent's parts take it: a parameter, so that a test can let it pass."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec


class AgentClock(msgspec.Struct, frozen=True, kw_only=True):
    """monotonic: seconds, rising; wall: seconds since the epoch."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


SYSTEM_CLOCK = AgentClock()
