"""A fleet whose pods end as a test says, and what the leader concludes from them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.outcomes.pod_objects import GPU_LOST, NOW, ended, node_object, pod_object, reduced

from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import ClearedFault as Over
from muster_kube.nodehealth import NodeHealth, ReportedFinding
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.record.node_record import ANNOTATION, ClosedFault, Fault, NodeRecord, encode_record
from muster_tainter.fleet.replica import Replica
from muster_tainter.outcomes.feed import OutcomeWatch
from muster_tainter.outcomes.metrics import OutcomeMetrics
from muster_tainter.outcomes.pods import PodOutcome
from muster_tainter.policy.sections.in_flight import InFlight

REJECTED: dict[str, Any] = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": GPU_LOST,
    "gpus": 1,
    "owner": ("EphemeralRunnerSet", "ci"),
}


class Findings(ExternalFindings):
    """Remembers what was reported."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.found: list[tuple[str, ReportedFinding]] = []
        self.over: list[tuple[str, Over]] = []

    def add(self, node: str, check: str, finding: ReportedFinding) -> None:
        assert check == "podoutcomes"
        self.found.append((node, finding))
        super().add(node, check, finding)

    def close(self, node: str, check: str, cleared: Over) -> None:
        self.over.append((node, cleared))
        super().close(node, check, cleared)


@dataclass
class Cluster:
    """A fleet of ``size`` nodes and what a leader concludes from its pods."""

    size: int = 20
    gpus: int = 8
    policy: dict[str, Any] = field(default_factory=dict)
    now: float = NOW
    pods: int = 0

    def __post_init__(self) -> None:
        self.findings = Findings()
        self.nodes = nodes = {f"n{i}": node_object(f"n{i}", self.gpus) for i in range(self.size)}
        self.healths: dict[str, NodeHealth] = {}
        self.fleet = FakeFleet(nodes=nodes, healths=self.healths, external_findings=self.findings)
        self.registry = CollectorRegistry()
        self.metrics = OutcomeMetrics(self.registry)
        self.ended: list[PodOutcome] = []
        self.lead()

    def lead(self) -> None:
        """A new leader, which knows what the Nodes say now, and reads the pods that have ended again."""
        replica = Replica(may_write=lambda: True, now=lambda: self.now, clock=lambda: self.now)
        client: Any = None  # never asked: pods are handed over
        settings = InFlight.model_validate(self.policy)
        self.watch = OutcomeWatch(client, self.fleet, replica, self.metrics, settings)
        for outcome in self.ended:
            self.watch.take(msgspec.structs.replace(outcome, listed=True))

    def offer(self, gpus: int) -> None:
        """What each node offers from now on."""
        self.gpus = gpus
        self.nodes.update({name: node_object(name, gpus) for name in self.nodes})

    def end(self, node: str, **fields: Any) -> None:
        """A pod ends there now."""
        self.pods += 1
        fields = {"created": self.now - 1, "bound": self.now} | fields
        pod = reduced(pod_object(f"pod-{self.pods}", node=node, **fields)).outcome
        assert pod is not None
        self.ended.append(pod)
        self.watch.take(pod)

    def job(self, name: str, namespace: str, fails: Callable[[str], bool], **fields: Any) -> None:
        """One pod on each node; it fails where ``fails`` says."""
        created = self.now
        self.now += 60
        for node in self.nodes:
            status = [ended("Error" if fails(node) else "Completed", exit_code=int(fails(node)), at=self.now)]
            phase = "Failed" if fails(node) else "Succeeded"
            shape: dict[str, Any] = {"phase": phase, "containers": status} | fields
            self.end(node, namespace=namespace, owner=("Job", name), created=created, bound=created, **shape)
        self.now += 60

    def record(self, node: str, record: NodeRecord) -> None:
        self.nodes[node] = node_object(node, self.gpus, {ANNOTATION: encode_record(record)})

    def clear(self, node: str, finding: ReportedFinding, at: float) -> None:
        """A person has cleared it."""
        closed = ClosedFault(
            "podoutcomes",
            "host",
            finding.reason,
            occurrence=finding.occurrence,
            closed_at=rfc3339(at),
            how="person",
        )
        self.record(node, NodeRecord(closed=(closed,)))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"muster_tainter_outcomes_{name}", labels) or 0.0


def opened(finding: ReportedFinding, boot: str = "boot-1") -> NodeRecord:
    fault = Fault(
        "podoutcomes",
        finding.component,
        finding.reason,
        occurrence=finding.occurrence,
        verdict=finding.verdict,
        fault_class=finding.fault_class,
        since=finding.first_seen,
        boot=boot,
    )
    return NodeRecord(open=(fault,))


def reject_until_found(cluster: Cluster, node: str = "n0", every_s: float = 11.5, most: int = 60) -> int:
    """Pods of one controller are rejected there; how many until it is found."""
    before = len(cluster.findings.found)
    for count in range(1, most + 1):
        cluster.now += every_s
        cluster.end(node, **REJECTED)
        if len(cluster.findings.found) > before:
            return count
    raise AssertionError(f"not found after {most} pods")
