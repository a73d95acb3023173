"""The tainter's view of the cluster: one :class:`Fleet` instead of a callback for each question."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.record.node_record import ANNOTATION, NodeRecord, read_record
from muster_tainter.policy.rules import Policy

NODES_PATH = "/api/v1/nodes"
FIELD_MANAGER = "muster-tainter"


class Fleet(Protocol):
    """The last known Nodes and NodeHealths, and the policy for them."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """As stored: without labels that a new policy uses and that are fetched later."""

    @property
    def healths(self) -> Mapping[str, NodeHealth]: ...

    @property
    def external_findings(self) -> ExternalFindings:
        """Findings from sources other than the agents' NodeHealths."""

    @property
    def taints_idle(self) -> asyncio.Event:
        """Set while no taint is pending."""

    def policy(self) -> Policy:
        """The active policy, as far as the labels that it uses are known."""

    def node(self, name: str) -> Node | None:
        """The Node with all labels that the policy uses."""

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None: ...

    def withheld(self) -> str:
        """Why nothing new may begin on any node; empty if it may."""

    def observe_node(self, node: Node) -> None:
        """Store the result of a write."""

    def observe_health(self, health: NodeHealth) -> None:
        """Store the result of a write."""

    async def verify_health(self, name: str) -> bool:
        """Read the NodeHealth of a node from etcd, unless that was done in this term. True if it has changed. Raises
        ApiError."""

    def notify(self, node: Node, notice: Notice) -> None:
        """Create an Event on the Node."""

    def list_nodes(self) -> AsyncIterator[Node]:
        """The Nodes on the server now. Raises ApiError."""

    async def wait_synced(self) -> None:
        """Wait until Nodes and NodeHealths are listed."""


_NO_RECORD = NodeRecord()


def record_of(fleet: Fleet, name: str) -> NodeRecord:
    """The tainter's record of the node; an empty one if the node does not exist or has no fault."""
    node = fleet.nodes.get(name)
    return _NO_RECORD if node is None or ANNOTATION not in node.metadata.annotations else read_record(node)
