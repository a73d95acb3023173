"""Runs all external sources on the leader, according to the active policy."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.backoff import Backoff
from muster_tainter.fleet.interface import Fleet, record_of
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.rules import Policy
from muster_tainter.policy.sections.sources import LokiSource, PrometheusSource, Sources
from muster_tainter.sources.conditions import ConditionFeed
from muster_tainter.sources.follower import Follower, ended, until_set
from muster_tainter.sources.loki.feed import LokiFeed
from muster_tainter.sources.prometheus.feed import PrometheusFeed
from muster_tainter.sources.source_status import BACKOFF, SourceMetrics

log = logging.getLogger(__name__)


class SourceFeeds:
    """node_of_pod: looks up a pod's node on the API server"""

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
        self._make_loki = partial(LokiFeed, fleet, replica, metrics, node_of_pod=node_of_pod, backoff=backoff)
        self._make_prometheus = partial(PrometheusFeed, fleet, replica, metrics, backoff=backoff)
        self._loki: LokiFeed | None = None  # of this leadership
        self._now = lambda: rfc3339_whole(replica.now())
        self._changed = asyncio.Event()
        self._read_by: Policy | None = None
        self._conditions: ConditionFeed | None = None  # set while leading
        self._kept = self._sources().condition_types  # condition types in cached Nodes

    def _sources(self) -> Sources:
        return self._fleet.policy().sources

    def note(self, name: str) -> None:
        """This node has changed."""
        if self._conditions is not None:
            self._conditions.look(name, self._fleet.nodes.get(name))

    def look_at_all(self) -> None:
        """The policy may have changed; only then is anything read again."""
        if self._fleet.policy() is not self._read_by:
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled; reports nothing before or after."""
        external = self._fleet.external_findings
        conditions = ConditionFeed(
            self._sources, partial(record_of, self._fleet), external.add, external.close, self._now
        )
        self._conditions = conditions
        loki = Follower[LokiSource](self._follow_loki)
        metrics = self._make_prometheus()
        prometheus = Follower[PrometheusSource](metrics.follow)
        late: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                self._read_by = self._fleet.policy()
                for name, node in list(self._fleet.nodes.items()):
                    conditions.look(name, node)
                if not self._sources().condition_types <= self._kept and (late is None or late.done()):
                    late = asyncio.create_task(self._look_late(conditions))
                await loki.switch(self._sources().loki)
                await prometheus.switch(self._sources().prometheus)
                metrics.drop_removed(self._sources().prometheus)
                await until_set(self._changed, loki.task, prometheus.task, late)
        finally:
            self._conditions = None
            self._loki = None
            await ended(loki.task)
            await ended(prometheus.task)
            await ended(late)

    async def _follow_loki(self, where: LokiSource) -> None:
        self._loki = self._loki or self._make_loki()  # only if needed: its catalogue costs time and memory
        await self._loki.follow(where)

    async def _look_late(self, conditions: ConditionFeed) -> None:
        """List the nodes once with the conditions of a new policy, which cached Nodes lack."""
        failures = 0
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        while True:
            types = self._sources().condition_types
            try:
                async for node in self._fleet.list_nodes():
                    conditions.look(node.metadata.name, node)
            except (ApiError, ConfigError) as error:
                delay_s = Backoff().delay_s(failures, rng)
                failures += 1
                log.warning("could not list the nodes' conditions: %s; retry in %.1f s", error, delay_s)
                await asyncio.sleep(delay_s)
                continue
            self._kept |= types
            if self._sources().condition_types <= self._kept:
                return
