"""What a controller reads the time from, waits by and jitters with: one object, so that a test can put its own in."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    """monotonic: seconds, for intervals; wall: seconds since the epoch; rng: spreads load, guards nothing"""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)


SYSTEM_CLOCK = Clock()
