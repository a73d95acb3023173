"""How long to wait before trying again: exponential, jittered, capped."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Seconds to wait after the n-th failure in a row: base * 2^n, at most ``cap_s``, times a jitter of 0.5 to 1.5.

    The jitter keeps a fleet that lost its server together from coming back together.
    """

    base_s: float = 0.5
    cap_s: float = 30.0

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """``failures``: how many came before this one in a row, from 0."""
        exponent = min(max(failures, 0), 62)  # beyond it a float would overflow; the cap rules long before
        return float(min(self.cap_s, self.base_s * 2**exponent) * rng.uniform(0.5, 1.5))
