"""The other agents: who they are and how they are asked. Loaded when somebody asks for more than this node."""

import msgspec


class PeerAgent(msgspec.Struct, frozen=True):
    """One node's agent. address: an IP address, empty where none is known (no agent runs there)."""

    node: str
    address: str
    port: int = 3333
