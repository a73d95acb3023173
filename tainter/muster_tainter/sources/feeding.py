"""All sources beside NodeHealth, as the leader runs them; they follow the policy in force."""

import asyncio
from collections.abc import Callable

from muster_kube.objects import Node
from muster_kube.times import rfc3339_whole
from muster_tainter.sources.conditions import ConditionFeed
from muster_tainter.sources.loki_feed import LokiFeed, SourceMetrics, World
from muster_tainter.sources.rules import Loki, Sources


class Feeds:
    """sources: of the policy in force."""

    def __init__(self, sources: Callable[[], Sources], world: World, metrics: SourceMetrics) -> None:
        self._sources = sources
        self._world = world
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._leads = False
        self._conditions = self._new_conditions()

    def _new_conditions(self) -> ConditionFeed:
        world = self._world
        return ConditionFeed(self._sources, world.memory, world.found, world.over, lambda: rfc3339_whole(world.now()))

    def node_changed(self, name: str, node: Node | None) -> None:
        """Nothing is told while another one leads."""
        if self._leads:
            self._conditions.look(name, node)

    def policy_changed(self) -> None:
        self._changed.set()

    async def run(self, nodes: Callable[[], dict[str, Node]]) -> None:
        """Until cancelled. nodes: all that there are."""
        self._conditions = self._new_conditions()
        feed = LokiFeed(self._world, self._metrics)
        self._leads = True
        following: Loki | None = None
        task: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                for name, node in list(nodes().items()):
                    self._conditions.look(name, node)
                wanted = self._sources().loki
                if wanted != following:
                    await _ended(task)
                    task = None if wanted is None else asyncio.create_task(feed.follow(wanted))
                    following = wanted
                await self._until_changed(task)
        finally:
            self._leads = False
            await _ended(task)

    async def _until_changed(self, task: "asyncio.Task[None] | None") -> None:
        """Raises what ``task`` has ended with."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed, task} if task else {changed}, return_when=asyncio.FIRST_COMPLETED)
            if task is not None and task.done():
                await task
        finally:
            changed.cancel()


async def _ended(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
