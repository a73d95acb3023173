"""Exponential backoff with jitter and a maximum, and short pauses while there is no server that it could protect."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from muster_kube.api.errors import Unreachable

AWAY_S = 1.0  # between attempts while no server answers: a taint has to follow within 3 s of its return (DESIGN 6)
RETURNING_S = 30.0  # after that, a server may reject calls for a while: it loads its roles and custom resources


@dataclass(frozen=True)
class Backoff:
    """Seconds to wait after the n-th failure in a row: base * 2^n, at most ``cap_s``, times a jitter of 0.5 to 1.5.

    The jitter spreads the retries of a fleet that lost its server at the same moment.
    """

    base_s: float = 0.5
    cap_s: float = 30.0

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """``failures``: the number of consecutive failures before this one, from 0."""
        exponent = min(max(failures, 0), 62)  # more would overflow a float; the maximum is reached long before
        return float(min(self.cap_s, self.base_s * 2**exponent) * rng.uniform(0.5, 1.5))


class Outage:
    """Limits the pauses of one caller while the API server is away, and shortly after. ``clock``: monotonic seconds.

    An attempt costs a server that is away nothing, and the first one that succeeds ends the outage for this caller.
    Errors that a server answers are met with the full backoff, unless it has only just returned.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._away_at = float("-inf")

    def pause_s(self, delay_s: float, error: Exception | None, rng: random.Random) -> float:
        """``delay_s``, shortened if ``error`` or an earlier one means that the server did not answer."""
        now = self._clock()
        if isinstance(error, Unreachable):
            self._away_at = now
        if now - self._away_at > RETURNING_S:
            return delay_s
        return min(delay_s, AWAY_S * rng.uniform(0.5, 1.5))
