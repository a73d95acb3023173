"""What follows from a verdict: a finding on the node, Events for owners, and an eviction if they ask for it.

The finding is a WARN, because everything but the node's name is the job's word. It ends by itself after a quiet time.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from functools import partial

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Verdict, shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.objects import ObjectReference
from muster_tainter.events.affected_pods import controller_of
from muster_tainter.events.object_events import ObjectEvents
from muster_tainter.events.pod_owners import PodOwners
from muster_tainter.fleet.interface import Fleet, record_of
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.recovery import STRAGGLERS
from muster_tainter.policy.sections.heavy_checks import DAY_S
from muster_tainter.policy.sections.sources import StepTimesSource
from muster_tainter.repair.pod_eviction import PodEviction
from muster_tainter.sources.loki.finding_tracker import FindingTracker
from muster_tainter.step_times.job_queries import JobKey
from muster_tainter.step_times.job_suspension import suspend_job
from muster_tainter.step_times.job_verdict import STALLED, JobVerdict
from muster_tainter.step_times.messages import (
    DATA_REASON,
    REASON,
    STAGE_REASON,
    STALL_REASON,
    describe_data,
    describe_event,
    describe_finding,
    describe_stage,
    describe_stall,
    event_name,
)
from muster_tainter.step_times.metrics import StepTimesMetrics
from muster_tainter.step_times.owner_policy import OnStraggler, owner_policy
from muster_tainter.step_times.slow_pods import SlowPod, read_slow_pods
from muster_tainter.stragglers.verdict import DATA, STAGE

log = logging.getLogger(__name__)

COMPONENT = "host"
QUIET_S = 3600.0
QUIET_WINDOWS = 3  # a finding outlasts two windows without a verdict
RANKS_KNOWN = 4096
EVENTS_KNOWN = 4096


# verdicts that suspect no node: the reason of the Event, and its text
_ONLY_EVENTS = {
    STALLED: (STALL_REASON, describe_stall),
    STAGE: (STAGE_REASON, describe_stage),
    DATA: (DATA_REASON, describe_data),
}


class _Act(Enum):
    """What Muster does, as an Event says it."""

    EVICT = "The pod", "evicted"
    SUSPEND = "The job", "suspended"


class StragglerReporter:
    """The state for one leadership."""

    def __init__(
        self, client: KubeClient, fleet: Fleet, replica: Replica, metrics: TainterMetrics, own: StepTimesMetrics
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._events = ObjectEvents(client, replica, metrics)
        self._eviction = PodEviction(client, own.evictions)
        external = fleet.external_findings
        self._tracker = FindingTracker(STRAGGLERS, partial(record_of, fleet), external.add, external.close)
        self._blamed: OrderedDict[tuple[JobKey, int], tuple[str, float]] = OrderedDict()  # node, when slow there
        self._notified: OrderedDict[tuple[JobKey, str, str], float] = OrderedDict()  # by pod UID: when last slow
        for node in list(fleet.nodes):
            self._tracker.adopt(node, replica.now())

    def end_all(self, why: str) -> None:
        """Nobody watches step times any more."""
        now = self._replica.now()
        for node in list(self._fleet.nodes):
            known = any(fault.check == STRAGGLERS for fault in record_of(self._fleet, node).open)
            if known or node in self._tracker.nodes:
                self._tracker.clear(node, AllClear(component=COMPONENT, at=now, how="source", line=why))

    def tick(self, read_to: float) -> None:
        """End the findings that have been quiet. read_to: seconds since the epoch."""
        self._tracker.settle(lambda _node, _key: None)
        for node in [node for node in self._tracker.nodes if node not in self._fleet.nodes]:
            self._tracker.drop(node)
        self._tracker.tick(read_to)

    async def report(self, where: StepTimesSource, key: JobKey, verdict: JobVerdict) -> int:
        """Returns how many of the slow ranks have no pod on a known node. Raises ApiError: report again later; what has
        been reported is not reported twice."""
        found = await read_slow_pods(self._client, key.namespace, verdict.slow)
        found = [slow for slow in found if slow.node in self._fleet.nodes]
        if verdict.verdict in _ONLY_EVENTS:
            reason, describe = _ONLY_EVENTS[verdict.verdict]
            for slow in () if self._replica.dry_run else found:
                if owner_policy(slow.pod.metadata.annotations)[0] is not OnStraggler.CONTINUE:
                    await self._notify(where, key, slow, reason, describe(key, verdict, slow))
            return len(verdict.slow) - sum(len(slow.ranks) for slow in found)
        acted = False
        for slow in sorted(found, key=lambda each: -max(rank.excess for rank in each.ranks)):
            elsewhere = self._was_slow_elsewhere(key, slow)
            if not elsewhere:
                self._suspect(where, key, verdict, slow)
            if self._replica.dry_run:
                continue
            policy, problem = owner_policy(slow.pod.metadata.annotations)
            if policy is OnStraggler.CONTINUE:
                continue
            act = _act_for(policy, slow)
            stays = self._stays_because(where, act, slow, elsewhere, acted=acted)
            if act is not None and not stays:
                acted = True
                stays = await self._act(where, act, slow)
            outlook = _outlook(where, act, problem, elsewhere, stays)
            await self._notify(where, key, slow, REASON, describe_event(key, verdict, slow, outlook))
        return len(verdict.slow) - sum(len(slow.ranks) for slow in found)

    def _suspect(self, where: StepTimesSource, key: JobKey, verdict: JobVerdict, slow: SlowPod) -> None:
        sign = Sign(
            component=COMPONENT,
            reason=REASON,
            verdict=Verdict.WARN,
            message=shorten(describe_finding(key, verdict, slow)),
            at=min(slow.until_at, self._replica.now()),
        )
        self._tracker.take(slow.node, sign, quiet_s=max(QUIET_S, QUIET_WINDOWS * where.window))

    def _was_slow_elsewhere(self, key: JobKey, slow: SlowPod) -> str:
        """Another node on which one of these ranks was slow in the last day; empty if there is none. A rank that is
        slow wherever it runs has more work than others, for example because it writes the checkpoints."""
        elsewhere = ""
        for rank in slow.ranks:
            node, at = self._blamed.pop((key, rank.rank), (slow.node, slow.until_at))
            if slow.until_at - at > DAY_S:
                node = slow.node
            self._blamed[key, rank.rank] = node, slow.until_at
            elsewhere = elsewhere or (node if node != slow.node else "")
        while len(self._blamed) > RANKS_KNOWN:
            self._blamed.popitem(last=False)
        return elsewhere

    async def _act(self, where: StepTimesSource, act: _Act, slow: SlowPod) -> str:
        """Why it failed; empty if it did not. Raises ApiError."""
        if act is _Act.EVICT:
            refusal = await self._eviction.evict(slow.pod.metadata, slow.node)
        else:
            refusal = await suspend_job(self._client, slow.pod.metadata, where.suspend)
        if refusal:
            what, done = act.value
            log.warning(
                "%s/%s: %s is not %s: %s", slow.pod.metadata.namespace, slow.pod.metadata.name, what, done, refusal
            )
        return refusal

    def _stays_because(
        self, where: StepTimesSource, act: _Act | None, slow: SlowPod, elsewhere: str, *, acted: bool
    ) -> str:
        """Why Muster does not do what the owner asks for; empty if it does, or if the owner asks for nothing."""
        if act is None:
            return ""
        if elsewhere:
            return "another node would not help"
        setting, allowed = ("evict", where.evict) if act is _Act.EVICT else ("suspend", bool(where.suspend))
        if not allowed:
            return f"the policy does not allow it (sources.stepTimes.{setting})"
        if all(rank.until is not None for rank in slow.ranks):
            return "it is no longer slow"
        if acted:
            return "another pod of the job was just handled"
        return self._fleet.withheld() or ("" if self._replica.may_write() else "another replica leads")

    async def _notify(self, where: StepTimesSource, key: JobKey, slow: SlowPod, reason: str, message: str) -> None:
        """Once for each time that the pod becomes slow."""
        pod = slow.pod.metadata
        told = (key, pod.uid, reason)
        last = self._notified.get(told, float("-inf"))
        if slow.until_at - last > QUIET_WINDOWS * where.window:
            about = ObjectReference(kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid, api_version="v1")
            owners: Sequence[ObjectReference] = await PodOwners(self._client).of(pod)
            for each in (about, *owners):
                await self._events.create(each, event_name(each, key, slow, reason), reason, message)
        self._notified[told] = max(last, slow.until_at)
        self._notified.move_to_end(told)
        while len(self._notified) > EVENTS_KNOWN:
            self._notified.popitem(last=False)


def _act_for(policy: OnStraggler, slow: SlowPod) -> _Act | None:
    """What the owner asks for. A pod without a controller is not created again, so its eviction stops it."""
    if policy is OnStraggler.STOP and controller_of(slow.pod.metadata) is not None:
        return _Act.SUSPEND
    return _Act.EVICT if policy in (OnStraggler.MOVE, OnStraggler.STOP) else None


def _outlook(where: StepTimesSource, act: _Act | None, problem: str, elsewhere: str, stays: str) -> str:
    """What happens next."""
    text = "The job goes on."
    if act is not None:
        what, done = act.value
        text = f"{what} is not {done}: {shorten(stays, 300)}." if stays else f"{what} is {done}, as its owner asks."
    if elsewhere:
        why = f"The same rank was slow on node {elsewhere}, so it has more work than others, and no node is suspected."
    elif where.heavy_checks:
        why = f"When the node is idle, {', '.join(where.heavy_checks)} are requested there."
    else:
        why = ""
    return " ".join(filter(None, (text, why, problem)))
