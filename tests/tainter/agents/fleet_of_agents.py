"""Nodes and their agents' pods as values, for tests of whose agent is silent."""

from typing import Any

import msgspec
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus, Taint
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import ClearedFault, NodeHealth, NodeHealthStatus, ReportedFinding
from muster_tainter.agents.liveness import AgentLiveness
from muster_tainter.agents.pods import AgentPod, slim_agent_pod
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import HEALTH_LABEL, Decision, decide
from muster_tainter.faults.messages import CONDITION
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import SILENT, Policy

START = 1.8e9
GRACE_S = 600.0
EVENT = "rules: []\n"
TAINT = "rules: []\ndeadMan: {action: taint}\n"
UNKNOWN = Taint(key="muster.dev/unknown", value="true", effect="NoSchedule")


class FleetOfAgents:
    """Nodes, NodeHealths and agents' pods as values; ``decide`` carries out what is decided, as the leader does."""

    def __init__(self, policy: str = EVENT) -> None:
        self.policy: Policy = parse_policy(policy)
        self.time = 0.0
        self.skew = 0.0  # of the wall clock
        self.sees = True
        self.nodes: dict[str, Node] = {}
        self.healths: dict[str, NodeHealth] = {}
        self.pods: dict[str, AgentPod] = {}
        self.reasons: list[tuple[str, str]] = []
        self.restart()

    @property
    def now(self) -> float:
        return START + self.time + self.skew

    def restart(self) -> None:
        """Another process, with nothing in memory; it lists what is there."""
        fleet = FakeFleet(self.policy, self.nodes, self.healths)
        fleet.policy = lambda: self.policy  # type: ignore[method-assign]  # tests change it
        self.outside = fleet.external_findings
        replica = Replica(may_write=lambda: True, now=lambda: self.now, clock=lambda: self.time)
        self.liveness = AgentLiveness(fleet, replica, wake=lambda: None)
        for key, pod in self.pods.items():
            self.liveness.pod_changed(key, None, pod)
        self.liveness.start()
        self.look()

    def add(self, *names: str, reported: bool = True, ready: bool | None = True, **fields: Any) -> None:
        """ready None: no pod of the agent is there."""
        for name in names:
            self.nodes[name] = Node(metadata=Metadata(name=name, resource_version="1"), **fields)
            made = Metadata(name=name, creation_timestamp=rfc3339_whole(self.now))
            status = NodeHealthStatus(verdict="PASS", boot_id="b1") if reported else NodeHealthStatus()
            self.healths[name] = NodeHealth(metadata=made, status=status)
            if ready is not None:
                self.pod(name, ready=ready)
            self.liveness.look(name)
        self.look()

    def pod(self, node: str, *, ready: bool, since: float | None = None) -> None:
        key = f"muster/agent-{node}"
        at = rfc3339_whole(self.now if since is None else since)
        raw = {
            "metadata": {"name": f"agent-{node}", "namespace": "muster", "creationTimestamp": at, "labels": {"a": "b"}},
            "spec": {"nodeName": node, "containers": [{"name": "c"}]},
            "status": {
                "phase": "Running",
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": None},
                    {"type": "Ready", "status": str(ready), "reason": "ContainersNotReady", "lastTransitionTime": at},
                ],
            },
        }
        old, new = self.pods.get(key), slim_agent_pod(msgspec.convert(raw, AgentPod))
        self.pods[key] = new
        self.liveness.pod_changed(key, old, new)
        self.look()

    def delete_pod(self, node: str) -> None:
        key = f"muster/agent-{node}"
        self.liveness.pod_changed(key, self.pods.pop(key), None)
        self.look()

    def look(self) -> float | None:
        return self.liveness.find_silent(sees=self.sees)

    def wait(self, seconds_: float) -> None:
        """Time passes; whatever time alone brings about happens when it is due."""
        end = self.time + seconds_
        for _ in range(1000):
            wait_s = self.look()
            if wait_s is None or self.time + wait_s > end:
                break
            self.time += max(wait_s, 0.001)
        else:
            raise AssertionError("it looks again and again")
        self.time = end
        self.look()

    def finding(self, node: str) -> ReportedFinding | None:
        return self.outside.of(node)[0].get(SILENT)

    def over(self, node: str) -> tuple[ClearedFault, ...]:
        return self.outside.of(node)[1].get(SILENT, ())

    def decide(self, name: str, withhold: str = "") -> Decision:
        """Decided, written, and told."""
        outside, over = self.outside.of(name)
        around = DecisionContext(withhold=withhold, external=outside, over=over)
        made = decide(self.nodes[name], self.healths[name], self.policy, self.now, None, around)
        node = made.applied(self.nodes[name])
        assert made.condition is not None
        at = rfc3339_whole(self.now)
        condition = msgspec.structs.replace(made.condition, last_transition_time=at)
        self.nodes[name] = msgspec.structs.replace(node, status=NodeStatus(conditions=(condition,)))
        self.reasons += [(name, notice.reason) for notice in made.notices]
        self.liveness.look(name)
        self.look()
        return made

    def decide_all(self) -> None:
        for name in self.nodes:
            self.decide(name)

    def taints(self, name: str) -> list[Taint]:
        return list(self.nodes[name].spec.taints)

    def label(self, name: str) -> str | None:
        return self.nodes[name].metadata.labels.get(HEALTH_LABEL)

    def condition(self, name: str) -> NodeCondition:
        return next(c for c in self.nodes[name].status.conditions if c.type == CONDITION)

    def told(self, reason: str = "AgentSilent") -> list[str]:
        return [node for node, told in self.reasons if told == reason]
