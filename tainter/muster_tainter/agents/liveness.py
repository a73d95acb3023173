"""Decides which agents are silent and since when, from their pods, the Nodes and the NodeHealths. Makes no API calls.

Every process derives it from the cluster: a pod that is not ready records since when, a node that never had an agent is
as old as its NodeHealth, and a reported silence is on the Node. No agent counts as silent while the pods are not
watched, nor right after the watch returns: in that case the API server was unreachable.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import ClearedFault, NodeHealth, ReportedFinding
from muster_tainter.agents.pods import AgentPod
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.faults.lifecycle import PERSON
from muster_tainter.faults.messages import CONDITION
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.record.node_record import ANNOTATION, Fault, read_record
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.rules import SILENT, STARTUP_KEY, Policy

log = logging.getLogger(__name__)

CHECK, COMPONENT, REASON = SILENT
SETTLE_S = 120.0
"""Agents are not ready while they cannot reach the API server; after an outage their watches return within 45 s, the
next readiness probe follows within 10 s, and the kubelet has its own back-off."""
BLIND_S = 1.0  # between two looks at whether the pods are watched again

_SILENT = "no ready agent since"  # a later leader parses the time after it
_SINCE = re.compile(rf"{_SILENT} (\S+):")


@dataclass(slots=True)
class _Silence:
    """begin: monotonic; since: seconds since the epoch. number: its occurrence.

    known: the Node records it already: an earlier leader waited for the grace. fault: as an open fault
    reported: a finding exists; shared: as part of an outage
    """

    begin: float
    since: float
    number: int
    known: bool = False
    fault: bool = False
    reported: bool = False
    shared: bool = False


@dataclass(slots=True)
class AgentOutage:
    """began: seconds since the epoch. recorded: its Event exists. calm_at: since when fewer are silent, monotonic."""

    began: float
    recorded: bool = False
    calm_at: float | None = None


class AgentLiveness:
    """wake: called when :meth:`find_silent` has something to do"""

    def __init__(self, fleet: Fleet, replica: Replica, wake: Callable[[], None]) -> None:
        self._fleet = fleet
        self._replica = replica
        self._wake = wake
        self._pods_on: dict[str, tuple[AgentPod, ...]] = {}
        self._ready: set[str] = set()  # nodes of ours with a ready agent
        self._silent: dict[str, _Silence] = {}
        self.outage: AgentOutage | None = None
        """Set while most agents are silent at once."""
        self._warm = False
        self._seen_at = float("-inf")  # since when the pods are watched, monotonic

    @property
    def ready(self) -> int:
        """Nodes with a ready agent."""
        return len(self._ready)

    @property
    def silent(self) -> int:
        """Nodes whose agent is silent beyond the grace."""
        return sum(silence.reported for silence in self._silent.values())

    def has_ready(self, name: str) -> bool:
        return name in self._ready

    def mark_unseen(self) -> None:
        """The pods were not watched until now."""
        self._seen_at = self._replica.clock()

    # observed state

    def start(self) -> None:
        """The initial list is complete."""
        self._warm = True
        self._seen_at = self._replica.clock()
        self.look_at_all()

    def look_at_all(self) -> None:
        """The policy changed, or this replica became the leader."""
        for name in list(self._fleet.nodes):
            self.look(name)
        self._wake()

    def pod_changed(self, key: str, old: AgentPod | None, new: AgentPod | None) -> None:
        touched = {pod.node for pod in (old, new) if pod is not None and pod.node}
        for node in touched:
            pods = [pod for pod in self._pods_on.get(node, ()) if _key(pod) != key]
            if new is not None and new.node == node:
                pods.append(new)
            if pods:
                self._pods_on[node] = tuple(pods)
            else:
                self._pods_on.pop(node, None)
        for node in touched:
            self.look(node)

    def look(self, name: str) -> None:
        """The node, its NodeHealth or its agent may have changed."""
        if not self._warm:
            return
        node = self._fleet.node(name)
        if node is None:
            self._ready.discard(name)
            self._silent.pop(name, None)
            return
        if not is_managed(node) or node.metadata.deletion_timestamp:
            self._ready.discard(name)
            self._is_over(name, None, "the node is not managed")
            return
        pods = self._pods_on.get(name, ())
        fault = _open_fault(node)
        ready = next((pod for pod in pods if pod.ready), None)
        if ready is not None:
            self._ready.add(name)
            self._is_over(name, fault, f"pod {_key(ready)} is ready")
        elif self._fleet.policy().dead_man.action == "ignore":
            self._ready.discard(name)
            self._is_over(name, fault, "policy deadMan.action is ignore")
        elif fault is None and not self._is_expected(node, pods):
            self._ready.discard(name)
            self._is_over(name, fault, "no agent is expected there")
        else:
            was_ready = name in self._ready
            self._ready.discard(name)
            if name not in self._silent:
                self._silent[name] = self._begun(node, pods, fault, was_ready=was_ready)
                self._wake()

    def _is_expected(self, node: Node, pods: tuple[AgentPod, ...]) -> bool:
        """An agent is or was there, the node waits for one, or a pool selects it by label. Other nodes may be outside
        the agents' DaemonSet."""
        health = self._fleet.health_of(node.metadata.name)
        return (
            bool(pods)
            or isinstance(health, UnusableHealth)
            or (health is not None and bool(health.status.verdict))
            or any(taint.key == STARTUP_KEY for taint in node.spec.taints)
            or any(pool.selector.match_labels for pool in self._fleet.policy().pools_of(node.metadata.labels))
            or _silent_since(node) is not None
        )

    def _begun(self, node: Node, pods: tuple[AgentPod, ...], fault: Fault | None, *, was_ready: bool) -> _Silence:
        now, clock = self._replica.now(), self._replica.clock()
        if fault is not None and not fault.over:
            return _Silence(clock, float(fault.occurrence), fault.occurrence, known=True, fault=True)
        recorded = _silent_since(node)
        if recorded is not None and not was_ready:
            return _Silence(clock, recorded, int(recorded), known=True)
        since = now if was_ready else self._evidence(node, pods)
        since = since if 0.0 < since < now else now
        return _Silence(clock - (now - since), since, _number(node, since, fault, new=was_ready))

    def _evidence(self, node: Node, pods: tuple[AgentPod, ...]) -> float:
        """Since when the cluster shows no ready agent, in seconds since the epoch; 0 if unknown."""
        if pods:
            return max(pod.silent_since for pod in pods)
        health = self._fleet.health_of(node.metadata.name)
        if isinstance(health, NodeHealth) and not health.status.verdict:
            return seconds(health.metadata.creation_timestamp)  # created with its Node
        return 0.0

    def _is_over(self, name: str, fault: Fault | None, why: str) -> None:
        silence = self._silent.pop(name, None)
        if silence is not None and self.outage is not None:
            self._wake()
        number = silence.number if silence is not None and silence.reported else 0
        if fault is not None and not fault.over:
            number = max(number, fault.occurrence)
        if number:
            at = rfc3339_whole(self._replica.now())
            self._fleet.external_findings.close(name, CHECK, ClearedFault(COMPONENT, REASON, number, "source", at, why))

    # findings

    def find_silent(self, *, sees: bool) -> float | None:
        """Report the agents that are silent by now. sees: the watch of the pods is up. Returns the seconds until time
        alone may change the result; None if it cannot."""
        if not self._warm:
            return None
        clock, policy = self._replica.clock(), self._fleet.policy()
        grace_s = policy.dead_man.grace
        if not sees:
            self._seen_at = clock
        settled_at = self._seen_at + min(grace_s, SETTLE_S)
        waiting = {name: silence for name, silence in self._silent.items() if not silence.reported}
        due = {
            name: silence
            for name, silence in waiting.items()
            if silence.known or clock >= max(settled_at, silence.begin + grace_s)
        }
        ends_at = self._judge_outage(policy, due, clock)
        for name, silence in due.items():
            self._find(name, silence)
        if not sees:
            return BLIND_S if len(waiting) > len(due) or ends_at is not None else None
        times = [max(settled_at, silence.begin + grace_s) for name, silence in waiting.items() if name not in due]
        times += [] if ends_at is None else [ends_at]
        return max(min(times) - clock, 0.0) if times else None

    def _judge_outage(self, policy: Policy, due: dict[str, _Silence], clock: float) -> float | None:
        """Update whether most agents are silent at once. Returns when time alone may end that, monotonic."""
        silent = len(self._silent)
        most = silent >= policy.incidents.nodes and silent > len(self._ready)
        outage = self.outage
        if outage is None:
            if not most or not due:
                return None
            outage = self.outage = AgentOutage(min(silence.since for silence in self._silent.values()))
            log.error("%s", self.outage_text(outage))
        if most:
            outage.calm_at = None
            return None
        if outage.calm_at is None:
            outage.calm_at = clock  # agents return one by one: stragglers are part of the same outage
        ends_at = outage.calm_at + policy.dead_man.grace
        if silent and clock < ends_at:
            return ends_at
        self.outage = None
        log.warning("agent outage over: %d of %d agents are still silent", silent, silent + len(self._ready))
        for name, silence in self._silent.items():
            if silence.shared:
                self._find(name, silence)
        return None

    def _find(self, name: str, silence: _Silence) -> None:
        silence.reported = True
        silence.shared = self.outage is not None and not silence.fault
        pods = self._pods_on.get(name, ())
        why = "; ".join(f"pod {_key(pod)}: {pod.state or 'not ready'}" for pod in pods) or "the node has no agent pod"
        since = rfc3339_whole(silence.since)
        self._fleet.external_findings.add(
            name,
            CHECK,
            ReportedFinding(
                component=COMPONENT,
                reason=REASON,
                # during an outage there is no Event and no action per node
                verdict="UNKNOWN" if silence.shared else "FAIL",
                message=shorten(f"{_SILENT} {since}: {why}"),
                first_seen=since,
                occurrence=silence.number,
            ),
        )

    def outage_text(self, outage: AgentOutage) -> str:
        silent = len(self._silent)
        hint = "" if self._pods_on else "; no agent pod exists (check the settings agent_namespace and agent_selector)"
        return (
            f"{silent} of {silent + len(self._ready)} agents are silent, the first since"
            f" {rfc3339_whole(outage.began)}: treated as one incident; the health of their nodes is unknown, and Muster"
            f" neither taints them nor reports them one by one{hint}"
        )


def _key(pod: AgentPod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _open_fault(node: Node) -> Fault | None:
    if ANNOTATION not in node.metadata.annotations:
        return None
    return next((fault for fault in read_record(node).open if fault.key == SILENT), None)


def _number(node: Node, since: float, held: Fault | None, *, new: bool) -> int:
    """The silence's occurrence: above those that ended without a person, whatever the clocks say. A silence that a
    person closed stays closed unless this is a ``new`` one."""
    ended = 0 if held is None else held.occurrence
    if ANNOTATION in node.metadata.annotations:
        closed = (each for each in read_record(node).closed if each.key == SILENT and (new or each.how != PERSON))
        ended = max(ended, *(each.occurrence for each in closed), 0)
    return max(int(since), ended + 1)


def _silent_since(node: Node) -> float | None:
    """Since when the node's agent is silent according to its condition, which an earlier leader may have set."""
    for condition in node.status.conditions:
        if condition.type == CONDITION and condition.reason == REASON:
            match = _SINCE.search(condition.message)
            return (seconds(match[1]) if match else 0.0) or seconds(condition.last_transition_time or "") or None
    return None
