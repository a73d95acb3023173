"""What is kept of Nodes and NodeHealths: all that a decision or the plan looks at."""

from typing import Any

import msgspec

from muster_kube.api.objects import Metadata, Node, NodeStatus
from muster_kube.nodehealth import (
    AgentIdentity,
    CheckRequest,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    RequestAnswer,
)
from muster_tainter.faults.desired_state import decide
from muster_tainter.fleet.projection import slim_health, slim_node
from muster_tainter.policy.file import load_policy
from muster_tainter.verification.fleet_plan import node_test_state

NOW = 1_800_000_000.0
POLICY = load_policy(None)


def test_projections_change_no_decision(make: Any) -> None:
    node = make.node(make.faulty, labels={"muster.dev/health": "pass", "zone": "a"}, other="x" * 5000)
    health = make.health(make.finding(), cleared=(make.cleared(reason="Xid95"),))
    assert decide(slim_node(node), slim_health(health), POLICY, NOW) == decide(node, health, POLICY, NOW)
    assert slim_node(node).metadata.labels == {"muster.dev/health": "pass"}
    assert slim_node(node, {"zone", "none"}).metadata.labels == {"muster.dev/health": "pass", "zone": "a"}
    assert slim_node(node).metadata.annotations == {}


def test_the_devices_of_a_node_are_kept_once_for_all_nodes_of_a_shape() -> None:
    gpus = {"cpu": "64", "nvidia.com/gpu": "8"}
    nodes = [
        slim_node(Node(metadata=Metadata(name=f"n{i}"), status=NodeStatus(capacity=gpus, allocatable=allocatable)))
        for i, allocatable in enumerate((gpus, dict(gpus), gpus | {"nvidia.com/gpu": "0"}))
    ]
    assert [node.status.allocatable for node in nodes] == [
        {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0"},
    ]  # fmt: skip
    assert nodes[0].status.allocatable is nodes[1].status.allocatable is nodes[2].status.capacity


def test_what_the_plan_needs_of_a_health_is_kept() -> None:
    request = CheckRequest(
        id="plan-pciebw-1", checks=("pciebw",), by="muster-tainter-plan", expires="2026-01-01T00:00:30Z"
    )
    answers = tuple(
        RequestAnswer(id=name, verdict="PASS", finished="x", message="long") for name in (request.id, "older")
    )
    health = NodeHealth(
        metadata=Metadata(
            name="n1", creation_timestamp="2026-01-01T00:00:00Z", annotations={"muster.dev/tests": "{}", "other": "x"}
        ),
        spec=NodeHealthSpec(requests=(request,)),
        status=NodeHealthStatus(
            verdict="PASS",
            agent=AgentIdentity(pod_uid="p", version="1"),
            idle_since="x",
            due=("pciebw",),
            answers=answers,
        ),
    )
    slim = slim_health(health)
    assert node_test_state(Node(metadata=Metadata(name="n1")), slim, POLICY) == node_test_state(
        Node(metadata=Metadata(name="n1")),
        msgspec.structs.replace(
            health,
            status=msgspec.structs.replace(
                health.status, answers=(msgspec.structs.replace(answers[0], message=""), answers[1])
            ),
        ),
        POLICY,
    )
    assert [answer.id for answer in slim.status.answers] == [request.id]
    assert slim.metadata.annotations == {"muster.dev/tests": "{}"}
    again = slim_health(
        msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, due=("pcie" + "bw",)))
    )
    assert again.status.due is slim.status.due  # one list for the fleet
