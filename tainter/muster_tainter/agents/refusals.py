"""Counts what a webhook answers, and logs refusals at a bounded rate: a rejected client may retry at any rate."""

import logging
from collections.abc import Callable

from muster_kube.webhook.review import ReviewAnswer

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0


class RefusalLog:
    """tell: called with ``allowed``, ``refused`` or ``undecided`` for each reviewed write. clock: seconds, monotonic"""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._logged_at = float("-inf")
        self._unlogged = 0

    def note(self, what: str, answer: ReviewAnswer) -> None:
        """what: the object of the write, for the log line."""
        self._tell("allowed" if answer.allowed else "undecided" if answer.code == 503 else "refused")
        if answer.allowed:
            return
        now = self._clock()
        if now - self._logged_at < LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more since the last such message)" if self._unlogged else ""
        log.warning("rejected a write of %s%s: %s", what, more, answer.message)
        self._logged_at, self._unlogged = now, 0
