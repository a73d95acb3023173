"""Reads Loki while this process leads: one task per query, each continuing when Loki is back.

No position is stored. A new leader begins where the last leader was alive, according to the Lease, less the overlap.
Lines that are read twice get the same numbers (:mod:`muster_tainter.sources.occurrences`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.controller.backoff import Backoff
from muster_tainter.fleet.interface import Fleet, record_of
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.sections.sources import KernelLines, LokiSource, PodLines
from muster_tainter.sources.http_client import NS, SourceError, SourceRefused
from muster_tainter.sources.loki import pod_nodes
from muster_tainter.sources.loki.client import LokiClient
from muster_tainter.sources.loki.finding_tracker import FindingTracker
from muster_tainter.sources.loki.kernel_lines import NodeJudges
from muster_tainter.sources.loki.query_reader import LineCounts, QueryReader, ReadWindow
from muster_tainter.sources.loki.streams import KernelStream, LineStream, PodStream, apply_events, forget_in
from muster_tainter.sources.source_status import BACKOFF, SourceMetrics, SourceStatus

log = logging.getLogger(__name__)

CHECK = "loki"


class LokiFeed:
    """The state of Loki for one leadership. ``follow`` may be called again, with other settings, after it has ended."""

    def __init__(
        self,
        fleet: Fleet,
        replica: Replica,
        metrics: SourceMetrics,
        *,
        node_of_pod: Callable[[str], Awaitable[str]],
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._node_of_pod = node_of_pod
        self._status = SourceStatus(metrics, backoff)
        self._adopted = False
        self._loki: LokiClient | None = None
        self._judges = NodeJudges(self._loki_now)
        self._kernel = self._tracker(CHECK)
        self._pods = self._tracker(pod_nodes.CHECK)
        self._readings: dict[str, QueryReader] = {}

    def _tracker(self, check: str) -> FindingTracker:
        external = self._fleet.external_findings
        return FindingTracker(check, partial(record_of, self._fleet), external.add, external.close)

    def _is_known(self, node: str) -> bool:
        return node in self._fleet.nodes

    def _loki_now(self) -> float:
        return self._replica.now() if self._loki is None else self._loki.now_ns() / NS

    async def follow(self, where: LokiSource) -> None:
        """Runs until cancelled."""
        names = [f"loki.kernel[{i}]" for i in range(len(where.kernel))]
        names += [f"loki.pods[{i}]" for i in range(len(where.pods))]
        failures = 0
        with self._status.followed(names):
            while True:
                try:
                    async with LokiClient(where, now=self._replica.now) as loki:
                        await self._learn_time(loki, where)
                        self._loki = loki
                        self._adopt()
                        await self._follow(loki, where)
                except SourceError as error:
                    await self._status.wait(where.url, error, failures)
                    failures += 1

    async def _learn_time(self, loki: LokiClient, where: LokiSource) -> None:
        """Learn from the first response how far Loki's clock is from ours; positions are in Loki's time.

        Any query works: a query that Loki rejects must not block the others.
        """
        queries = [rule.query for rule in (*where.kernel, *where.pods)]
        for query in queries:
            now = loki.now_ns()
            try:
                await loki.ask(query, now - NS, now, 1)
            except SourceRefused:
                if query is queries[-1]:
                    raise
            else:
                return

    def _adopt(self) -> None:
        if not self._adopted:
            self._adopted = True
            for name in list(self._fleet.nodes):
                self._kernel.adopt(name, self._loki_now())
                self._pods.adopt(name, self._loki_now())

    async def _follow(self, loki: LokiClient, where: LokiSource) -> None:
        kernel: list[QueryReader] = []
        async with asyncio.TaskGroup() as group:
            rules: tuple[KernelLines | PodLines, ...] = (*where.kernel, *where.pods)
            for i, rule in enumerate(rules):
                stream = self._stream(i, rule, where)
                reading = self._reading(stream.name, rule, loki, where)
                if isinstance(rule, KernelLines):
                    kernel.append(reading)
                group.create_task(self._read_on(loki, stream, reading, kernel, where.every))

    def _stream(self, i: int, rule: KernelLines | PodLines, where: LokiSource) -> LineStream:
        if isinstance(rule, KernelLines):
            return KernelStream(f"loki.kernel[{i}]", rule, self._judges, self._kernel, self._is_known)
        name = f"loki.pods[{i - len(where.kernel)}]"
        return PodStream(name, rule, self._pods, self._is_known, self._node_of_pod)

    def _reading(self, name: str, rule: KernelLines | PodLines, loki: LokiClient, where: LokiSource) -> QueryReader:
        key = f"{name} {rule.node_label} {rule.query}"
        overlap = int(where.overlap * NS)
        reading = self._readings.get(key)
        if reading is None:
            led_until = self._replica.led_until()
            now = loki.now_ns()
            lived = None if led_until is None else now - int((self._replica.now() - led_until) * NS)
            window = ReadWindow.begin(now, overlap, int(where.lookback * NS), lived)
            reading = self._readings[key] = QueryReader(rule.query, window, overlap, apart=rule.node_label)
            log.info("%s: reading the last %.0f s", name, (now - window.start(overlap)) / NS)
        reading.overlap_ns = overlap
        return reading

    async def _read_on(
        self, loki: LokiClient, stream: LineStream, reading: QueryReader, kernel: list[QueryReader], every_s: float
    ) -> None:
        failures = 0
        while True:
            self._kernel.settle(forget_in(self._judges))
            self._pods.settle(lambda _node, _key: None)
            try:
                await reading.turn(loki, stream.matters, stream.take)
            except (SourceError, ApiError, ConfigError) as error:
                self._metrics.up.labels(stream.name).set(0)
                await self._status.wait(stream.name, error, failures)
                failures += 1
                continue
            except Exception as error:
                # other sources taint nodes, too, and must continue; the position does not move
                log.exception("%s: reading failed", stream.name)
                self._metrics.up.labels(stream.name).set(0)
                await self._status.wait(stream.name, error, failures)
                failures += 1
                continue
            finally:
                self._count(stream, reading)
            failures = 0
            self._status.answered(stream.name)
            self._metrics.read_to.labels(stream.name).set(reading.window.read_to / NS)
            self._tick(reading, kernel)
            await asyncio.sleep(every_s)

    def _tick(self, reading: QueryReader, kernel: list[QueryReader]) -> None:
        """Quiet times count only as far as everything has been read."""
        if reading in kernel:
            read_to = min(one.window.read_to for one in kernel) / NS
            for node, events in self._judges.tick(read_to):
                apply_events(node, events, self._judges, self._kernel)
            self._kernel.tick(read_to)
            for node in self._judges.nodes:
                if not self._is_known(node):
                    self._judges.drop(node)
        else:
            self._pods.tick(reading.window.read_to / NS)
        for firings in (self._kernel, self._pods):
            for node in list(firings.nodes):
                if not self._is_known(node):
                    firings.drop(node)

    def _count(self, stream: LineStream, reading: QueryReader) -> None:
        for what, number in {**vars(reading.counts), "homeless": stream.homeless}.items():
            self._metrics.lines.labels(stream.name, what).inc(number)
        reading.counts, stream.homeless = LineCounts(), 0
