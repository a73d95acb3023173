"""How long to wait before asking again a real process, server or thread, which tells nobody when it is done."""

import asyncio
import time
from collections.abc import Callable

LEAST_S, MOST_S = 0.03, 0.2


def pause_s(begun: float) -> float:
    """A tenth of what has been waited for since ``begun`` (monotonic), so that a wait ends a tenth too late at most. A
    minute is asked after 320 times and not 2000, and each time costs this process and the server some 5 ms. What passes
    by is seen where it lasts for 0.2 s."""
    return min(MOST_S, max(LEAST_S, (time.monotonic() - begun) / 10))


async def thread_did(done: Callable[[], object], limit_s: float = 120.0) -> None:
    """Returns once a thread of this process has come so far that ``done`` is true. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while not done():  # noqa: ASYNC110 - a thread sets no event of the loop
            await asyncio.sleep(0.01)
