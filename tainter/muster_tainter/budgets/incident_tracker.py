"""Incidents for the controller: which nodes fail alike, and which of them need a new decision because of it.

:mod:`muster_tainter.budgets.incidents` finds the chains; this module feeds it with the Nodes' records and with
failures that opened no fault, because a rule may match an incident with ``action: ignore``.
"""

from collections.abc import Callable, Iterable

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.incidents import FaultOpening, Ground, Incident, IncidentIndex
from muster_tainter.faults.node_report import FaultKey, UnusableHealth, read_report
from muster_tainter.faults.record.node_record import LOST_CHECK, Fault, NodeRecord, read_record
from muster_tainter.policy.rules import Policy

_JOBS_LIMIT = 8  # of one node


class IncidentTracker:
    """look_again: called with nodes that need a new decision. now: seconds since the epoch."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        health: Callable[[str], NodeHealth | UnusableHealth | None],
        look_again: Callable[[str], None],
        *,
        now: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._health = health
        self._look_again = look_again
        self._now = now
        self._jobs: dict[str, tuple[str, ...]] = {}  # of nodes with faults, where the pods were listed
        self._index = IncidentIndex(policy().incidents, _marks(policy()))
        self._by = policy()

    def policy_changed(self, nodes: Callable[[], list[Node]]) -> None:
        policy = self._policy()
        if (policy.incidents, _marks(policy)) != (self._by.incidents, _marks(self._by)):
            self._index.policy(policy.incidents, _marks(policy))
        self._by, before = policy, self._by
        if policy.pools != before.pools:
            for node in nodes():
                self.note(node.metadata.name, node, self._health(node.metadata.name))

    def note(self, name: str, node: Node | None, health: NodeHealth | UnusableHealth | None) -> None:
        """Record the objects in the stores."""
        opened = [] if node is None else _opened(read_record(node), health)
        if not opened:
            self._jobs.pop(name, None)
        jobs = [("job", job) for job in self._jobs.get(name, ())]
        grounds = [*jobs, *_grounds(node, self._policy())] if opened and node else []
        for other in self._index.note(name, opened, grounds):
            self._look_again(other)

    def note_jobs(self, name: str, jobs: Iterable[str], node: Node | None) -> None:
        """Record the owners of pods with accelerators on a node with a fault. Nodes of an incident may share a job."""
        self._jobs[name] = tuple(sorted(set(jobs)))[:_JOBS_LIMIT]
        self.note(name, node, self._health(name))

    def find_related(
        self, node: Node, health: NodeHealth | UnusableHealth | None, outside: Iterable[FaultKey]
    ) -> tuple[dict[FaultKey, int], dict[FaultKey, str]]:
        """(others, incident) for every finding and open fault of the node that other nodes have too."""
        others: dict[FaultKey, int] = {}
        incidents: dict[FaultKey, str] = {}
        name, now = node.metadata.name, self._now()
        known = {fault.key: seconds(fault.since) for fault in read_record(node).open if _counts(fault)}
        quiet = isinstance(health, NodeHealth) and health.status.verdict == Verdict.PASS
        findings = {} if quiet else read_report(health).findings or {}
        for key, finding in findings.items():
            known.setdefault(key, seconds(finding.first_seen) or now)
        for key in {*known, *outside}:
            since = known.get(key, now)
            count = self._index.others(name, key[0], key[2], since)
            if count:
                others[key] = count
                incident = self._index.of(name, key[0], key[2], since)
                if incident is not None:
                    incidents[key] = incident.id
        return others, incidents

    def all(self) -> list[Incident]:
        return self._index.all()

    def nodes_of(self, incident: str) -> list[str]:
        return self._index.nodes_of(incident)


def _opened(memory: NodeRecord, health: NodeHealth | UnusableHealth | None) -> list[FaultOpening]:
    """Faults since they opened; other failures that nobody closed, since the agent first saw them."""
    faults = {fault.key: fault for fault in memory.open if _counts(fault)}
    opened = [FaultOpening(f.check, f.reason, f.component, seconds(f.since), f.incident) for f in faults.values()]
    if isinstance(health, NodeHealth) and health.status.verdict == Verdict.FAIL:
        for key, finding in (read_report(health).findings or {}).items():
            since = seconds(finding.first_seen)
            is_known = key in faults or memory.has_closed(key, finding.occurrence)
            if finding.verdict == Verdict.FAIL and since and not is_known:
                opened.append(FaultOpening(key[0], finding.reason, finding.component, since))
    return opened


def _counts(fault: Fault) -> bool:
    return not fault.rest and fault.check != LOST_CHECK


def _marks(policy: Policy) -> tuple[int, ...]:
    return tuple(rule.match.correlated + 1 for rule in policy.rules if rule.match.correlated is not None)


def _grounds(node: Node, policy: Policy) -> list[Ground]:
    """What the node shares with others: the failure domains of its pools."""
    labels = node.metadata.labels
    domains = (pool.domain for pool in policy.pools_of(labels))
    return [(domain, labels[domain]) for domain in domains if domain and domain in labels]
