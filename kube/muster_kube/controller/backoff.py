"""Exponential backoff with jitter and a maximum."""

import random
from dataclasses import dataclass


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
