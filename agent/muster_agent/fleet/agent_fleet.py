"""The fleet from the view of one agent: its members, and the client that queries them."""

from pathlib import Path
from typing import TYPE_CHECKING

from muster_agent.fleet import FleetLimits
from muster_agent.fleet.members import FleetMembers

if TYPE_CHECKING:
    from muster_agent.fleet.fanout import FanOut, LivenessProbe


class AgentFleet:
    """token: file with the token for requests to other agents; None: requests carry no token."""

    def __init__(
        self,
        node: str,
        members: FleetMembers,
        token: Path | None,
        limits: FleetLimits,
        probe: "LivenessProbe | None" = None,
    ) -> None:
        self.members = members
        self._node = node
        self._token = token
        self._limits = limits
        self._probe = probe
        self._fan: FanOut | None = None

    @property
    def fan(self) -> "FanOut":
        """Sends queries to the nodes. Created on first use."""
        if self._fan is None:
            from muster_agent.fleet.fanout import FanOut
            from muster_agent.fleet.peer_client import HttpPeerClient

            self._fan = FanOut(self._node, HttpPeerClient(self._token), self._limits, probe=self._probe)
        return self._fan
