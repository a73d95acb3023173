"""Incidents for the controller: which nodes fail alike, and which of them are to be looked at again for that.

The finding of chains is :mod:`muster_tainter.incidents`; here it is fed with what Nodes remember.
"""

from collections.abc import Callable, Iterable

from muster_kube.objects import Node
from muster_kube.times import seconds
from muster_tainter.health import FaultKey, Report
from muster_tainter.incidents import Ground, Incident, IncidentIndex, Opened
from muster_tainter.memory import LOST_CHECK, Fault, read_memory
from muster_tainter.policy import Policy


class Alike:
    """look_again: called with nodes for which something is new. now: seconds since the epoch."""

    def __init__(
        self, policy: Callable[[], Policy], look_again: Callable[[str], None], *, now: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._look_again = look_again
        self._now = now
        self._index = IncidentIndex(policy().incidents, _marks(policy()))
        self._by = policy()

    def policy_changed(self, nodes: Callable[[], list[Node]]) -> None:
        policy = self._policy()
        if (policy.incidents, _marks(policy)) != (self._by.incidents, _marks(self._by)):
            self._index.policy(policy.incidents, _marks(policy))
        if policy.pools != self._by.pools:
            for node in nodes():
                self._note(node.metadata.name, node, policy)
        self._by = policy

    def note(self, name: str, node: Node | None) -> None:
        """The store has the node so now."""
        for other in self._note(name, node, self._policy()):
            self._look_again(other)

    def _note(self, name: str, node: Node | None, policy: Policy) -> set[str]:
        faults = () if node is None else tuple(f for f in read_memory(node).open if _counts(f))
        if not faults or node is None:
            return self._index.note(name, ())
        opened = [Opened(f.check, f.reason, f.component, seconds(f.since), f.incident) for f in faults]
        return self._index.note(name, opened, _grounds(node, policy))

    def around(
        self, node: Node, report: Report, outside: Iterable[FaultKey]
    ) -> tuple[dict[FaultKey, int], dict[FaultKey, str]]:
        """(others, incident) of every finding and open fault of the node that others have too."""
        others: dict[FaultKey, int] = {}
        incidents: dict[FaultKey, str] = {}
        name, now = node.metadata.name, self._now()
        known = {fault.key: fault for fault in read_memory(node).open if _counts(fault)}
        for key in {*known, *(report.findings or {}), *outside}:
            since = seconds(known[key].since) if key in known else now
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


def _counts(fault: Fault) -> bool:
    return not fault.rest and fault.check != LOST_CHECK


def _marks(policy: Policy) -> tuple[int, ...]:
    return tuple(rule.match.correlated + 1 for rule in policy.rules if rule.match.correlated is not None)


def _grounds(node: Node, policy: Policy) -> list[Ground]:
    """What the node shares with others: the failure domains that its pools name."""
    labels = node.metadata.labels
    domains = (pool.domain for pool in policy.pools_of(labels))
    return [(domain, labels[domain]) for domain in domains if domain and domain in labels]
