"""How often the agent may write, whatever happens on its node: a bucket of writes that fills slowly."""


class Pace:
    """``burst`` writes at once, then one every ``every_s`` seconds. Time is handed in (monotonic seconds)."""

    def __init__(self, *, burst: int = 10, every_s: float = 1.0) -> None:
        self._burst = float(burst)
        self._every_s = every_s
        self._left = float(burst)
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Seconds until a write is allowed; 0: now."""
        self._fill(now)
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) * self._every_s

    def spend(self, now: float) -> None:
        self._fill(now)
        self._left -= 1.0

    def _fill(self, now: float) -> None:
        if self._at is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._at) / self._every_s)
        self._at = now
