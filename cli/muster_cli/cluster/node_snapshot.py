"""The Node and the NodeHealth of one node, read once."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster_checks.base.unknown_names import explain_unknown
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.api.objects import Node
from muster_kube.nodehealth import PATH, NodeHealth
from muster_tainter.faults.record.node_record import NodeRecord, read_record

_NODES = "/api/v1/nodes"
_LIST_S = 10.0
LIST_NODES = 'run "muster status --all" to list all nodes'


class NotInCluster(Exception):
    """The cluster lacks what the command is about. The text says what, and how to go on."""


class UnknownNode(NotInCluster):
    """The cluster has no Node of this name. known: those that it has; empty without the right to list them."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(explain_unknown("node", name, known, LIST_NODES))
        self.name = name
        self.known = known


@dataclass(frozen=True)
class NodeState:
    """health: None without a NodeHealth. memory: the tainter's record, from an annotation of the Node."""

    node: Node
    health: NodeHealth | None
    memory: NodeRecord


async def read_node_state(client: KubeClient, name: str) -> NodeState:
    """Raises UnknownNode, ApiError."""
    try:
        node = await client.get(f"{_NODES}/{name}", type=Node)
    except NotFound:
        raise UnknownNode(name, await _list_names(client)) from None
    try:
        health = await client.get(f"{PATH}/{name}", type=NodeHealth)
    except NotFound:
        health = None
    return NodeState(node, health, read_record(node))


async def _list_names(client: KubeClient) -> list[str]:
    """Empty without the right to list nodes."""
    known: list[str] = []
    try:
        async for page in client.list_pages(_NODES, Node, timeout_s=_LIST_S):
            known += [node.metadata.name for node in page.items]
    except ApiError:
        return []
    return known
