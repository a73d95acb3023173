"""A fleet as values, for tests of whatever is given one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy


def _idle() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class FakeFleet:
    """current: the policy; notices: (node, notice) of each Event that was asked for; paused: why nothing may begin."""

    current: Policy = field(default_factory=lambda: parse_policy("rules: []\n"))
    nodes: Mapping[str, Node] = field(default_factory=dict)
    healths: Mapping[str, NodeHealth] = field(default_factory=dict)
    observe_node: Callable[[Node], None] = lambda _: None
    observe_health: Callable[[NodeHealth], None] = lambda _: None
    withheld: Callable[[], str] = lambda: ""
    external_findings: ExternalFindings = field(default_factory=lambda: ExternalFindings(lambda _: None))
    taints_idle: asyncio.Event = field(default_factory=_idle)
    notices: list[tuple[str, Notice]] = field(default_factory=list)

    def policy(self) -> Policy:
        return self.current

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def health_of(self, name: str) -> NodeHealth | UnusableHealth | None:
        return self.healths.get(name)

    async def verify_health(self, name: str) -> bool:
        return False

    def notify(self, node: Node, notice: Notice) -> None:
        self.notices.append((node.metadata.name, notice))

    async def list_nodes(self) -> AsyncIterator[Node]:
        for node in list(self.nodes.values()):
            yield node

    async def wait_synced(self) -> None:
        pass
