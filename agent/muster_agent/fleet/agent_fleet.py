"""The fleet from the view of one agent: its members, and the client that queries them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster_agent.fleet import FleetLimits
from muster_agent.fleet.members import FleetMembers
from muster_agent.identity.own_identity import OwnIdentity

if TYPE_CHECKING:
    from muster_agent.fleet.fanout import FanOut, LivenessProbe


class AgentFleet:
    """identity: of this agent, for requests to other agents; None: over plain HTTP, as a stranger."""

    def __init__(
        self,
        node: str,
        members: FleetMembers,
        identity: OwnIdentity | None,
        limits: FleetLimits,
        probe: "LivenessProbe | None" = None,
        on_wrong_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_wrong_key = on_wrong_key
        self.members = members
        self._node = node
        self._identity = identity
        self._limits = limits
        self._probe = probe
        self._fan: FanOut | None = None

    @property
    def fan(self) -> "FanOut":
        """Sends queries to the nodes. Created on first use."""
        if self._fan is None:
            from muster_agent.fleet.fanout import FanOut
            from muster_agent.fleet.peer_client import HttpPeerClient

            client = HttpPeerClient(self._node, self._identity, on_wrong_key=self._on_wrong_key)
            self._fan = FanOut(self._node, client, self._limits, probe=self._probe)
        return self._fan
