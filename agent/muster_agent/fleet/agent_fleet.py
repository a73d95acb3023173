"""The fleet as one agent sees it: which agents there are, and how they are asked."""

from pathlib import Path
from typing import TYPE_CHECKING

from muster_agent.fleet import FleetLimits
from muster_agent.fleet.members import FleetMembers

if TYPE_CHECKING:
    from muster_agent.fleet.fanout import FanOut, LivenessProbe


class AgentFleet:
    """token: a file with the token that other agents are asked with; None: they are asked without one."""

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
        """How its nodes are asked; made when somebody does."""
        if self._fan is None:
            from muster_agent.fleet.fanout import FanOut
            from muster_agent.fleet.peer_client import HttpPeerClient

            self._fan = FanOut(self._node, HttpPeerClient(self._token), self._limits, probe=self._probe)
        return self._fan
