"""Keeps the books while this process leads: the watches in, the ConfigMap and the metrics out.

Nodes and NodeHealths come from the watches that the tainter has anyway. Pods need a watch of their own, of all bound
pods, because no selector of the API server finds those with accelerators. What is stored of them is a few hundred bytes
for each pod with accelerators, and nothing for the others.
"""

import asyncio
import logging
from functools import partial

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.reflector import Reflector
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.goodput.ledger import Ledger
from muster_tainter.goodput.metrics import GoodputMetrics
from muster_tainter.goodput.observed_node import observe_node
from muster_tainter.goodput.pods.pod_facts import BOUND, PATH, LedgerPod, PodFacts, reduce_pod
from muster_tainter.goodput.pods.rejection import facts_on
from muster_tainter.goodput.state import Gap, State, snapshot
from muster_tainter.goodput.state import resume as resume_ledger
from muster_tainter.goodput.store import GoodputStore
from muster_tainter.goodput.teams import Teams
from muster_tainter.policy.sections.goodput import Goodput
from muster_tainter.task_rounds import yield_to_taints

log = logging.getLogger(__name__)

PERIOD_S = 60.0  # between two writes: what a crash can lose
LEAST_S = 0.25  # changes of nodes within this time are handled together
REST_S = 0.1  # the watch of pods may have a hundred events a second
NO_POOL, NO_MODEL = "none", "unknown"
_RETRY = Backoff(1.0, 60.0)


class AcceleratorPods(dict[str, LedgerPod]):
    """The reflector's store: only pods with accelerators."""

    def __setitem__(self, key: str, pod: LedgerPod) -> None:
        if pod.facts is not None:
            super().__setitem__(key, pod)
        else:
            self.pop(key, None)


class GoodputFeed:
    """prefixes: of accelerator resources."""

    def __init__(
        self, client: KubeClient, fleet: Fleet, replica: Replica, metrics: GoodputMetrics, prefixes: tuple[str, ...]
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._prefixes = prefixes
        self._changed = asyncio.Event()
        self._settings: Goodput | None = None
        self.keeper: BookKeeper | None = None

    def note(self, name: str) -> None:
        """This node, or its NodeHealth, has changed."""
        if self.keeper is not None:
            self.keeper.note(name)

    def look_at_all(self) -> None:
        """The policy may have changed."""
        if self._fleet.policy().goodput != self._settings:
            self._changed.set()
        elif self.keeper is not None:
            self.keeper.look_at_all()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._changed.clear()
            self._settings = settings = self._fleet.policy().goodput
            if settings is None:
                await self._changed.wait()
                continue
            self.keeper = BookKeeper(self._client, self._fleet, self._replica, self._metrics, settings, self._prefixes)
            changed = asyncio.create_task(self._changed.wait())
            keeping = asyncio.create_task(self.keeper.run())
            try:
                await asyncio.wait({changed, keeping}, return_when=asyncio.FIRST_COMPLETED)
                if keeping.done():
                    keeping.result()
            finally:
                self.keeper = None
                changed.cancel()
                keeping.cancel()
                await asyncio.gather(changed, keeping, return_exceptions=True)
                self._metrics.ledger = None


class BookKeeper:
    """The books under one policy, from the ConfigMap on. keeping: all pods are known, and time is booked."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: GoodputMetrics,
        settings: Goodput,
        prefixes: tuple[str, ...],
    ) -> None:
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._settings = settings
        self._prefixes = prefixes
        self._store = GoodputStore(client, replica.namespace)
        self._teams = Teams(client, settings.team_label)
        self._gaps: list[Gap] = []
        self._nodes: set[str] = set()
        self._wake = asyncio.Event()
        self.ledger: Ledger | None = None
        self.keeping = False
        self.pods: Reflector[LedgerPod] = Reflector(
            client,
            PATH,
            LedgerPod,
            on_change=self._pod_changed,
            params=BOUND,
            transform=partial(reduce_pod, prefixes=prefixes),
            objects=AcceleratorPods(),
            rest_s=REST_S,
            clock=replica.timing,
        )

    def note(self, name: str) -> None:
        self._nodes.add(name)
        self._wake.set()

    def look_at_all(self) -> None:
        self._nodes.update(self._fleet.nodes)
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        former = await self._load()
        now = self._replica.now()
        if former is None:
            self.ledger, risk = Ledger(self._settings.checkpoint, now), None
        else:
            self.ledger, risk = resume_ledger(former, self._settings.checkpoint)
            self._gaps = list(former.gaps)
        self.look_at_all()
        self.take_nodes(self.ledger)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._teams.run())
                group.create_task(self._watch_pods())
                await self._teams.wait_known()
                await self.pods.wait_synced()
                if risk is not None and former is not None:
                    now = self._replica.now()
                    vanished = self.ledger.book_vanished(risk, former.at)
                    self._gaps.append(Gap(former.at, max(now, former.at), round(vanished, 1)))
                    self._metrics.unobserved_s = max(0.0, now - former.at)
                self._metrics.ledger = self.ledger
                self.keeping = True
                group.create_task(self._follow_nodes(self.ledger))
                group.create_task(self._keep(self.ledger))
        finally:
            self._metrics.ledger = None

    async def _load(self) -> State | None:
        """Retries until the API server answers: new books must not replace those that are there."""
        failures, rng = 0, self._replica.timing.rng
        while True:
            try:
                return await self._store.load(self._replica.now())
            except (ApiError, ConfigError) as error:
                if not failures:
                    log.warning("goodput: cannot read the books, so none are kept yet: %s; will retry", error)
                await asyncio.sleep(_RETRY.delay_s(failures, rng))
                failures += 1

    async def _watch_pods(self) -> None:
        await self._teams.wait_known()  # a pod is booked to its team at once
        await self.pods.run()

    def _pod_changed(self, _key: str, old: LedgerPod | None, new: LedgerPod | None) -> None:
        ledger, now = self.ledger, self._replica.now()
        if ledger is None:
            return
        before, after = None if old is None else old.facts, None if new is None else self._facts(new)
        if before is not None and (after is None or after.uid != before.uid):
            ledger.pod_gone(before.uid, before.leaving, now)
        if after is not None:
            place = self._place(after.node)
            ledger.pod_changed(after, place, ledger.books.team(self._teams.of(after.namespace)), now)

    def _facts(self, pod: LedgerPod) -> PodFacts | None:
        node = None if pod.outcome is None else self._fleet.nodes.get(pod.outcome.node)
        return facts_on(pod, node, listed=not self.pods.connected)

    def _place(self, node: str) -> int:
        """The row of a node's pool and model."""
        assert self.ledger is not None  # noqa: S101 - called while books are kept
        found = self._fleet.node(node)
        labels = {} if found is None else found.metadata.labels
        pool = self._fleet.policy().pool_of(labels) if found is not None else None
        model = labels.get(self._settings.model_label, "") or NO_MODEL
        return self.ledger.books.place(NO_POOL if pool is None else pool.name, model, node)

    def take_nodes(self, ledger: Ledger) -> None:
        """Give the ledger all nodes that have changed."""
        now = self._replica.now()
        while self._nodes:
            name = self._nodes.pop()
            node = self._fleet.node(name)
            if node is None:
                ledger.node_gone(name, now)
            else:
                health = self._fleet.health_of(name)
                ledger.node_changed(name, observe_node(node, health, self._place(name), self._prefixes), now)

    async def _follow_nodes(self, ledger: Ledger) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.take_nodes(ledger)
            await asyncio.sleep(LEAST_S)

    async def _keep(self, ledger: Ledger) -> None:
        trouble = ""
        while True:
            await yield_to_taints(self._fleet.taints_idle)
            await self.book(ledger)
            try:
                await self.save(ledger)
                trouble = ""
            except (ApiError, ConfigError) as error:
                self._metrics.failed_saves += 1
                if str(error) != trouble:
                    log.warning("goodput: cannot save the books: %s; will retry in %.0f s", error, PERIOD_S)
                trouble = str(error)
            await asyncio.sleep(PERIOD_S)

    async def book(self, ledger: Ledger) -> None:
        """Book everything that is due, with pauses for other work."""
        for _ in ledger.advance(self._replica.now()):
            await asyncio.sleep(0)

    async def save(self, ledger: Ledger) -> None:
        """Raises ApiError. An idle cluster without accelerators is not written to."""
        state = snapshot(ledger, self._gaps)
        if self._replica.dry_run or not self._replica.may_write() or not (state.buckets or state.pods):
            return
        await self._store.save(state)
        self._metrics.saved_at = self._replica.now()
