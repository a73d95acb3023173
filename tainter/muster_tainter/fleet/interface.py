"""What every part of the tainter sees of the cluster: one :class:`Fleet` instead of a callback for each question."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.node_record import ANNOTATION, NodeRecord, read_record
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.policy.rules import Policy

NODES_PATH = "/api/v1/nodes"
FIELD_MANAGER = "muster-tainter"


class Fleet(Protocol):
    """Nodes and NodeHealths as the watches brought them last, and the policy for them."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """As they are stored: without the labels that a new policy looks at and that are fetched later."""

    @property
    def healths(self) -> Mapping[str, NodeHealth]: ...

    @property
    def external_findings(self) -> ExternalFindings:
        """What sources other than the agents' NodeHealths say of nodes."""

    @property
    def taints_idle(self) -> asyncio.Event:
        """Set while no taint waits to be written."""

    def policy(self) -> Policy:
        """The one in force, as far as the labels that it looks at are known."""

    def node(self, name: str) -> Node | None:
        """As it is known, with the labels that the policy looks at."""

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None: ...

    def withheld(self) -> str:
        """Why nothing new may begin on any node; empty: it may."""

    def observe_node(self, node: Node) -> None:
        """Take in what a write returned."""

    def observe_health(self, health: NodeHealth) -> None:
        """Take in what a write returned."""

    def notify(self, node: Node, notice: Notice) -> None:
        """Have an Event written on the Node."""

    def list_nodes(self) -> AsyncIterator[Node]:
        """As they are on the server now. Raises ApiError."""

    async def wait_synced(self) -> None:
        """Until Nodes and NodeHealths are listed."""


_NO_RECORD = NodeRecord()


def record_of(fleet: Fleet, name: str) -> NodeRecord:
    """What the tainter has written down of the node; of one that is not there or has no fault: nothing."""
    node = fleet.nodes.get(name)
    return _NO_RECORD if node is None or ANNOTATION not in node.metadata.annotations else read_record(node)
