"""All sources beside NodeHealth, as the leader runs them; they follow the policy in force."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.backoff import Backoff
from muster_tainter.policy.sources import LokiSource, Sources
from muster_tainter.sources.conditions import ConditionFeed
from muster_tainter.sources.loki_feed import LokiFeed, SourceMetrics, World

log = logging.getLogger(__name__)


class SourceFeeds:
    """sources: of the policy in force."""

    def __init__(self, sources: Callable[[], Sources], world: World, metrics: SourceMetrics) -> None:
        self._sources = sources
        self._world = world
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._conditions: ConditionFeed | None = None  # there while leading
        self._kept = sources().condition_types  # what a cached Node has of conditions

    def node_changed(self, name: str, node: Node | None) -> None:
        if self._conditions is not None:
            self._conditions.look(name, node)

    def policy_changed(self) -> None:
        self._changed.set()

    async def run(self, nodes: Callable[[], Mapping[str, Node]]) -> None:
        """Until cancelled; nothing is told before or after. nodes: all that are cached."""
        world = self._world
        conditions = ConditionFeed(
            self._sources, world.memory, world.found, world.over, lambda: rfc3339_whole(world.now())
        )
        self._conditions = conditions
        feed: LokiFeed | None = None  # made where there is a Loki: its catalogue of lines costs time and memory
        following: LokiSource | None = None
        loki: asyncio.Task[None] | None = None
        late: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                for name, node in list(nodes().items()):
                    conditions.look(name, node)
                if not self._sources().condition_types <= self._kept and (late is None or late.done()):
                    late = asyncio.create_task(self._look_late(conditions))
                wanted = self._sources().loki
                if wanted != following:
                    await _ended(loki)
                    loki, following = None, wanted
                    if wanted is not None:
                        feed = feed or LokiFeed(world, self._metrics, lambda: list(nodes()))
                        loki = asyncio.create_task(feed.follow(wanted))
                await self._until_changed(loki, late)
        finally:
            self._conditions = None
            await _ended(loki)
            await _ended(late)

    async def _look_late(self, conditions: ConditionFeed) -> None:
        """Nodes were cached without the conditions that a new policy looks at: they are asked for once."""
        failures = 0
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        while True:
            types = self._sources().condition_types
            try:
                async for node in self._world.nodes():
                    conditions.look(node.metadata.name, node)
            except (ApiError, ConfigError) as error:
                delay_s = Backoff().delay_s(failures, rng)
                failures += 1
                log.warning("conditions of nodes: again in %.1f s: %s", delay_s, error)
                await asyncio.sleep(delay_s)
                continue
            self._kept |= types
            if self._sources().condition_types <= self._kept:
                return

    async def _until_changed(self, *tasks: "asyncio.Task[None] | None") -> None:
        """Raises what a task has ended with."""
        running = {task for task in tasks if task is not None and not task.done()}
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed, *running}, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    await task
        finally:
            changed.cancel()


async def _ended(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
