"""How long to wait before asking again a real process or server, which tells nobody when it is done."""

import time

LEAST_S, MOST_S = 0.03, 0.2


def pause_s(begun: float) -> float:
    """A tenth of what has been waited for since ``begun`` (monotonic), so that a wait ends a tenth too late at most. A
    minute is asked after 320 times and not 2000, and each time costs this process and the server some 5 ms. What passes
    by is seen where it lasts for 0.2 s."""
    return min(MOST_S, max(LEAST_S, (time.monotonic() - begun) / 10))
