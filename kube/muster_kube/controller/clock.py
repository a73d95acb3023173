"""A controller's sources of time, sleep and randomness in one object, which tests replace."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    """monotonic: seconds, for intervals; wall: seconds since the epoch; rng: for jitter only"""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)


SYSTEM_CLOCK = Clock()
