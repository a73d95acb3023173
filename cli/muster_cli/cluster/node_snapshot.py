"""What the cluster knows of one node, read once."""

from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Node
from muster_kube.nodehealth import PATH, NodeHealth
from muster_tainter.faults.node_record import NodeRecord, read_record

EXIT_CODES = {"PASS": 0, "SKIP": 0, "WARN": 1, "FAIL": 2}  # as monitoring plug-ins; anything else is UNKNOWN: 3


def exit_code(verdict: str) -> int:
    return EXIT_CODES.get(verdict, 3)


@dataclass(frozen=True)
class NodeState:
    node: Node
    health: NodeHealth | None
    memory: NodeRecord


async def read_node_state(client: KubeClient, name: str) -> NodeState:
    """Raises NotFound where there is no such Node."""
    node = await client.get(f"/api/v1/nodes/{name}", type=Node)
    try:
        health = await client.get(f"{PATH}/{name}", type=NodeHealth)
    except NotFound:
        health = None
    return NodeState(node, health, read_record(node))
