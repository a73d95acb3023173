"""Creates Events on the pods of a faulty node and on their owners. All work on taints has priority over it.

A node's pods are listed once for all its pending faults. A fault that is resolved by then creates no Event.
"""

import logging
from collections.abc import Callable

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Forbidden
from muster_kube.api.objects import ObjectReference
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_tainter.events.affected_pods import (
    FRESH_S,
    REASON,
    Concern,
    WorkPod,
    event_name,
    find_affected_pods,
    find_concerns,
    format_message,
    pod_reference,
    pods_run,
)
from muster_tainter.events.object_events import ObjectEvents
from muster_tainter.events.pod_owners import PodOwners
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.faults.record.node_record import as_our_taint, read_record
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.rules import Policy
from muster_tainter.task_rounds import yield_to_taints

log = logging.getLogger(__name__)

WORKERS = 2
PODS_LIMIT = 64  # of a node; a kubelet runs 110 by default, and accelerators are few
OWNERS_LIMIT = 64


class PodNotifier:
    """accelerators: prefixes of resource names; on_jobs: called with a node and the owners of its pods"""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        *,
        accelerators: tuple[str, ...],
        on_jobs: Callable[[str, list[str]], None] = lambda _node, _jobs: None,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._events = ObjectEvents(client, replica, metrics)
        self._accelerators = accelerators
        self._on_jobs = on_jobs
        self._notified: dict[str, frozenset[tuple[str, ...]]] = {}  # by node: done or pending
        self._waiting: dict[str, dict[tuple[str, ...], Concern]] = {}
        self._queue: WorkQueue[str] = WorkQueue()

    def __len__(self) -> int:
        """Number of nodes with pending or running notifications."""
        return len(self._queue) + self._queue.in_hand + self._queue.delayed

    def note(self, node: str, decision: Decision) -> None:
        """``decision`` has been applied to the Node."""
        policy, now = self._fleet.policy(), self._replica.now()
        concerns = find_concerns(decision, policy, now) if decision.memory.open else []
        notified = self._notified.pop(node, frozenset())
        if not concerns:
            return
        self._notified[node] = frozenset(concern.id for concern in concerns)
        set_now = {as_our_taint(each.taint) for each in decision.taint_changes if each.added and each.why != "put back"}
        news = {
            concern.id: concern
            for concern in concerns
            if concern.id not in notified and (concern.taint in set_now or self._is_fresh(concern, policy, now))
        }
        if news:
            self._waiting.setdefault(node, {}).update(news)
            self._queue.add(node)

    @staticmethod
    def _is_fresh(concern: Concern, policy: Policy, now: float) -> bool:
        return now - confirmed_at(concern.fault, match_policy(concern.fault, policy), now) < FRESH_S

    async def run(self) -> None:
        """Runs forever."""
        await run_workers(self._queue, self._handle, workers=WORKERS)

    async def _handle(self, node: str) -> None:
        await yield_to_taints(self._fleet.taints_idle)
        waiting = self._waiting.pop(node, {})
        concerns = self._still_open(node, waiting)
        if not concerns or not self._replica.may_write():
            return
        try:
            await self._notify(node, concerns)
        except Forbidden as error:  # a retry would not help
            log.warning("could not create Events on the pods of node %s: %s", node, error)
        except ApiError:
            self._waiting[node] = {**waiting, **self._waiting.get(node, {})}
            raise

    def _still_open(self, name: str, waiting: dict[tuple[str, ...], Concern]) -> list[Concern]:
        node = self._fleet.nodes.get(name)
        if node is None:
            return []
        left = {(fault.key, fault.since) for fault in read_record(node).open if not fault.over}
        concerns = [each for each in waiting.values() if (each.fault.key, each.fault.since) in left]
        tainted = {(each.fault.key, each.fault.since) for each in concerns if not each.withheld}
        # "withheld" is outdated if the taint has been set meanwhile
        concerns = [each for each in concerns if not each.withheld or (each.fault.key, each.fault.since) not in tainted]
        return sorted(concerns, key=lambda concern: (bool(concern.withheld), concern.fault.since, concern.id))

    async def _notify(self, node: str, concerns: list[Concern]) -> None:
        # served from the API server's cache, which indexes pods by node; without a version it would read all from etcd
        params = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
        page = await self._client.list_page("/api/v1/pods", WorkPod, params=params)
        pods = find_affected_pods(page.items, self._accelerators)
        if len(pods) > PODS_LIMIT:
            log.warning("node %s: %d pods hold accelerators; only %d get an Event", node, len(pods), PODS_LIMIT)
        owners: dict[str, tuple[ObjectReference, list[str]]] = {}
        owners_of = PodOwners(self._client)
        for pod in pods[:PODS_LIMIT]:
            await self._write(pod_reference(pod), node, concerns, "this pod runs")
            for about in await owners_of.of(pod.metadata) if len(owners) <= OWNERS_LIMIT else ():
                owners.setdefault(about.uid, (about, []))[1].append(pod.metadata.name)
        self._on_jobs(node, [f"{about.kind} {about.namespace}/{about.name}" for about, _ in owners.values()])
        for about, names in owners.values():
            await self._write(about, node, concerns, pods_run(names))

    async def _write(self, about: ObjectReference, node: str, concerns: list[Concern], who: str) -> None:
        message = format_message(node, concerns, who)
        await self._events.create(about, event_name(about, node, concerns[0]), REASON, message)
