"""Whether each source answers: metrics, one log message per outage and reason, and the wait before the next try."""

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from muster_kube.controller.backoff import Backoff
from muster_tainter.sources.http_client import SourceError, SourceRefused

log = logging.getLogger(__name__)

BACKOFF = Backoff(base_s=1.0, cap_s=30.0)


class SourceMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge("muster_tainter_source_up", "0 while a source does not answer", ["source"], registry=registry)
        self.read_to = Gauge(
            "muster_tainter_source_read_to_seconds",
            "Time up to which a source has been read, by its own clock",
            ["source"],
            registry=registry,
        )
        self.lines = Counter(
            "muster_tainter_source_lines",
            "Lines or series by result: read (including repeats), taken, malformed, lost, homeless",
            ["source", "what"],
            registry=registry,
        )


class SourceStatus:
    def __init__(self, metrics: SourceMetrics, backoff: Backoff = BACKOFF) -> None:
        self._metrics = metrics
        self._backoff = backoff
        self._troubles: dict[str, str] = {}
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing

    @contextmanager
    def followed(self, names: Sequence[str]) -> Iterator[None]:
        """Sources that count as down until they have answered."""
        for name in names:
            self._metrics.up.labels(name).set(0)
        try:
            yield
        finally:
            for name in names:
                self._metrics.up.remove(name)

    async def wait(self, name: str, error: Exception, failures: int) -> None:
        """``name`` does not answer. Returns when it may be asked again."""
        text = str(error)
        if self._troubles.get(name) != text:  # logged once for each new reason
            self._troubles[name] = text
            log.log(logging.ERROR if isinstance(error, SourceRefused) else logging.WARNING, "%s: %s", name, text)
        retry_after_s = error.retry_after_s if isinstance(error, SourceError) else 0.0
        await asyncio.sleep(max(retry_after_s, self._backoff.delay_s(failures, self._rng)))

    def answered(self, name: str) -> None:
        self._metrics.up.labels(name).set(1)
        if self._troubles.pop(name, None) is not None:
            log.info("%s: answers again", name)
