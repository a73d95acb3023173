"""Watches how pods end while this process leads, and reports the nodes that the evidence proves bad.

No state is stored: the API server still has the pods that ended last (12,500 of them by default), and a new leader
begins with these. Open faults are in the Nodes' annotations; evidence below the proof, and pods that are gone, are
forgotten. A failed allocation of devices counts as such only if the watch has delivered it: of a pod that a list
returns, nobody knows what its node offered when it failed.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.controller.reflector import Reflector
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.outcomes.attempts import attempt_of, kind_on
from muster_tainter.outcomes.evidence import EvidenceSettings
from muster_tainter.outcomes.evidence import Verdict as Evidence
from muster_tainter.outcomes.evidence_tracker import EvidenceTracker
from muster_tainter.outcomes.findings import OutcomeFindings
from muster_tainter.outcomes.kinds import KINDS
from muster_tainter.outcomes.metrics import OutcomeMetrics
from muster_tainter.outcomes.outcome import reduce_pod, reduce_restarted, without_outcome
from muster_tainter.outcomes.pods import ENDED, PATH, PENDING, RESTARTING, OutcomePod, PodOutcome
from muster_tainter.outcomes.store import CountedPods, NoStore
from muster_tainter.policy.sections.in_flight import InFlight
from muster_tainter.sources.source_status import SourceMetrics, SourceStatus
from muster_tainter.task_rounds import yield_to_taints

log = logging.getLogger(__name__)

SOURCE = "inFlight"  # as in muster_tainter_source_up
LEAST_S = 0.25  # events, and outcomes, within this time are handled together: there may be hundreds a second
PERIOD_S = 60.0  # between two looks at rounds of evidence that time ends
PENDING_EVERY_S = 300.0  # between two lists of pods that have not started
RESTARTS_EVERY_S = 900.0  # between two lists of pods whose containers restart in place
PAGE_REST_S = 0.5  # between two of its pages: the API server reads them from its store, not from its cache
QUIET_EVERY_S = 3600.0  # the same while no pod ends: an idle cluster is left alone
ARRIVED_LIMIT = 150_000  # pods waiting to be counted
RECORDS = 25_000  # of pods that are being compared
SLICE = 200  # pods, then other tasks run
LAST_FAILURES_LIMIT = 4096


class OutcomeFeed:
    """What runs on the leader: one :class:`OutcomeWatch` for the settings in force."""

    def __init__(
        self, client: KubeClient, fleet: Fleet, replica: Replica, metrics: OutcomeMetrics, sources: SourceMetrics
    ) -> None:
        self._client = client
        self._status = SourceStatus(sources)
        self._up = sources.up
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._settings: InFlight | None = None
        self.watch: OutcomeWatch | None = None

    def note(self, name: str) -> None:
        """This node, or its NodeHealth, has changed."""
        if self.watch is not None:
            self.watch.note(name)

    def look_at_all(self) -> None:
        """The policy may have changed; only then does it begin anew."""
        if self._fleet.policy().in_flight != self._settings:
            self._changed.set()
        elif self.watch is not None:
            self.watch.look_at_all()

    async def run(self) -> None:
        """Runs until cancelled; reports nothing before or after."""
        while True:
            self._changed.clear()
            self._settings = settings = self._fleet.policy().in_flight
            if settings is None:
                findings = OutcomeFindings(self._fleet, lambda _node, _kind: None)
                findings.drop_kinds([kind.name for kind in KINDS], self._replica.now())
                await self._changed.wait()
                continue
            with self._status.followed([SOURCE]):
                await self._watch_under(settings)

    async def _watch_under(self, settings: InFlight) -> None:
        """Returns when the policy has changed."""
        self.watch = OutcomeWatch(self._client, self._fleet, self._replica, self._metrics, settings)
        self.watch.on_connected = self._up.labels(SOURCE).set
        changed = asyncio.create_task(self._changed.wait())
        watching = asyncio.create_task(self.watch.run())
        try:
            await asyncio.wait({changed, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            self.watch = None
            changed.cancel()
            watching.cancel()
            await asyncio.gather(changed, watching, return_exceptions=True)


class OutcomeWatch:
    """The pods, and the evidence from them, under one policy."""

    def __init__(
        self, client: KubeClient, fleet: Fleet, replica: Replica, metrics: OutcomeMetrics, settings: InFlight
    ) -> None:
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._settings = settings
        self._verdicts = _verdicts(settings)
        self._host_kinds = frozenset(kind.name for kind in KINDS if kind.name in self._verdicts and not kind.tenant)
        self._evidence = EvidenceTracker(
            EvidenceSettings(
                host_kinds=self._host_kinds,
                tenant_kinds=frozenset(kind.name for kind in KINDS if kind.name in self._verdicts and kind.tenant),
                false_alarms_per_node_year=settings.false_alarms_per_node_year,
                records=RECORDS,
            )
        )
        self._findings = OutcomeFindings(fleet, self._restart)
        self._counted = CountedPods()
        self._client = client
        self._events = 0  # that the watch has delivered
        self._pending_wanted = asyncio.Event()
        self._arrived: list[PodOutcome] = []
        self._last: dict[tuple[str, str], PodOutcome] = {}  # by node and kind, the last failure
        self._booted: set[str] = set()
        self._look_again_at = 0.0
        self._wake = asyncio.Event()
        self.on_connected: Callable[[bool], None] = lambda _: None
        self.pods: Reflector[OutcomePod] = Reflector(
            client,
            PATH,
            OutcomePod,
            on_change=self._pod_changed,
            params=ENDED,
            transform=self._reduce,
            objects=NoStore(),
            rest_s=LEAST_S,
            clock=replica.timing,
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        self._findings.adopt(self._replica.now())
        self._findings.drop_kinds([kind.name for kind in KINDS if kind.name not in self._verdicts], self._replica.now())
        self._booted.update(self._fleet.nodes)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self._count())
            group.create_task(self._follow_pending())
            if self._settings.restarts:
                group.create_task(self._follow_restarts())

    def note(self, name: str) -> None:
        """This node, or its NodeHealth, has changed."""
        if name not in self._fleet.nodes:
            self._evidence.drop(name)
            self._findings.drop(name)
        self._booted.add(name)
        self._wake.set()

    def look_at_all(self) -> None:
        """List the pods that have not started now."""
        self._pending_wanted.set()

    def _reduce(self, pod: OutcomePod) -> OutcomePod:
        """Its Job changes a pod again after its end; one that was counted here is not read again."""
        return without_outcome(pod) if pod.metadata.uid in self._counted else reduce_pod(pod)

    def _pod_changed(self, _key: str, _old: OutcomePod | None, new: OutcomePod | None) -> None:
        self._events += 1
        outcome = None if new is None else new.outcome
        if outcome is None or outcome.pending or not outcome.uid:
            return
        if len(self._arrived) >= ARRIVED_LIMIT:
            self._metrics.dropped.labels("full").inc()
            return
        if not self.pods.connected:
            outcome = msgspec.structs.replace(outcome, listed=True)
        self._arrived.append(outcome)
        self._wake.set()

    async def _count(self) -> None:
        """Handle what has arrived, in the order of its time."""
        await self.pods.wait_synced()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()
            self._wake.clear()
            await yield_to_taints(self._fleet.taints_idle)
            arrived, self._arrived = self._arrived, []
            arrived.sort(key=_at)
            for start in range(0, len(arrived), SLICE):
                for outcome in arrived[start : start + SLICE]:
                    self.take(outcome)
                await asyncio.sleep(0)
            await self.look_at_boots()
            self.look()
            await asyncio.sleep(LEAST_S)

    async def look_at_boots(self) -> None:
        """What the reboots of nodes end. Our watch of NodeHealths may be behind what the leader before us saw: a boot
        that ends something is read from etcd first. What is noted meanwhile waits for the next turn."""
        booted, self._booted = self._booted, set()
        for name in booted:
            if self._findings.ended_by_boot(name)[1]:
                try:
                    await self._fleet.verify_health(name)
                except (ApiError, ConfigError) as error:
                    log.warning("cannot read the NodeHealth of node %s: %s; will retry", name, error)
                    asyncio.get_running_loop().call_later(PERIOD_S, self.note, name)
                    continue
            self._findings.look_at_boot(name, self._replica.now())

    def look(self) -> None:
        """What time alone changes."""
        now = self._replica.now()
        self.on_connected(self.pods.connected)
        self._findings.settle(now)
        if self._replica.clock() >= self._look_again_at:
            self._look_again_at = self._replica.clock() + PERIOD_S
            for proven in self._evidence.advance(now):
                self._report(proven)

    async def _follow_pending(self) -> None:
        """Look for pods that do not start."""
        await self.pods.wait_synced()
        trouble = ""
        while True:
            self._pending_wanted.clear()
            seen = self._events
            try:
                await self._look_at_pending()
                trouble = ""
            except (ApiError, ConfigError) as error:
                if str(error) != trouble:
                    log.warning("cannot list pods that have not started: %s; will retry", error)
                trouble = str(error)
            for _ in range(round(QUIET_EVERY_S / PENDING_EVERY_S)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(PENDING_EVERY_S):
                        await self._pending_wanted.wait()
                if self._pending_wanted.is_set() or self._events != seen:
                    break

    async def _follow_restarts(self) -> None:
        """Look for containers that have failed and were started again in place."""
        await self.pods.wait_synced()
        while True:
            try:
                await self._look_at_restarts()
            except (ApiError, ConfigError) as error:
                log.warning("cannot list pods whose containers restart in place: %s; will retry", error)
            await asyncio.sleep(RESTARTS_EVERY_S)

    async def _look_at_restarts(self) -> None:
        """Raises ApiError, ConfigError."""
        async for page in self._client.list_pages(PATH, OutcomePod, params=RESTARTING, transform=reduce_restarted):
            for outcome in sorted((pod.outcome for pod in page.items if pod.outcome is not None), key=_at):
                self.take(outcome)
            await asyncio.sleep(PAGE_REST_S)

    async def _look_at_pending(self) -> None:
        """Raises ApiError, ConfigError."""
        async for page in self._client.list_pages(PATH, OutcomePod, params=PENDING, transform=reduce_pod):
            for pod in page.items:
                if pod.outcome is not None:
                    self.look_at_pending(pod.outcome)
            await asyncio.sleep(0)

    def look_at_pending(self, outcome: PodOutcome) -> None:
        """A pod that has not started has failed if its time is over."""
        due = outcome.at + self._settings.start_within
        if outcome.pending and outcome.uid and self._replica.now() >= due:
            self.take(msgspec.structs.replace(outcome, at=due))

    def take(self, outcome: PodOutcome) -> None:
        """Count a pod, once."""
        if outcome.at > (now := self._replica.now()):  # the node's clock is ahead
            outcome = msgspec.structs.replace(outcome, at=now)
        if not self._counted.add(outcome.uid, outcome.at):
            return
        node = self._fleet.nodes.get(outcome.node)
        if node is None:
            self._metrics.dropped.labels("homeless").inc()
            return
        kind = kind_on(node, outcome)
        self._metrics.pods.labels("unrelated" if kind is None else "failed" if kind else "succeeded").inc()
        if kind:
            self._metrics.failures.labels(kind).inc()
            if any(self._findings.has_ended(outcome.node, each, outcome.at) for each in {kind, outcome.kind} if each):
                return  # a failure from before the end of a finding, which a new leader reads again, if of another kind
            self._last[outcome.node, kind] = outcome
            if len(self._last) > LAST_FAILURES_LIMIT:
                self._last.pop(next(iter(self._last)))
        attempt = attempt_of(outcome, kind, self._host_kinds)
        for proven in () if attempt is None else self._evidence.add(attempt):
            self._report(proven)

    def _report(self, proven: Evidence) -> None:
        verdict = self._verdicts.get(proven.kind)
        if verdict is None or proven.node not in self._fleet.nodes:
            return
        self._metrics.proven.labels(proven.kind).inc()
        last = self._last.get((proven.node, proven.kind))
        if not self._findings.take(proven, verdict, last, self._replica.now()):
            self._restart(proven.node, proven.kind)

    def _restart(self, node: str, kind: str) -> None:
        self._evidence.restart(node, kind)
        self._last.pop((node, kind), None)


def _verdicts(settings: InFlight) -> dict[str, Verdict]:
    chosen = {kind.name: settings.verdict_of(kind.name, tenant=kind.tenant) for kind in KINDS}
    return {kind: verdict for kind, verdict in chosen.items() if verdict is not None}


def _at(outcome: PodOutcome) -> float:
    return outcome.at
