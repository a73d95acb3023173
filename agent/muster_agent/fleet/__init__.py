"""The other agents: who they are and how they are asked. Loaded when somebody asks for more than this node."""

import msgspec


class PeerAgent(msgspec.Struct, frozen=True):
    """One node's agent. address: an IP address, empty where none is known (no agent runs there)."""

    node: str
    address: str
    port: int = 3333


class FleetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """As in the settings. fleet_at_once: nodes that one question asks at the same time; heavy_at_once: nodes on which
    all questions together have heavy checks run."""

    fleet_at_once: int = 64
    heavy_at_once: int = 16
