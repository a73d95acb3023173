"""Other agents: where they are and how to query them. Most of it is loaded by the first query for other nodes."""

import msgspec


class PeerAgent(msgspec.Struct, frozen=True):
    """The agent of one node. address: an IP address; empty if no agent runs there. port: where people ask it. tls_port,
    fingerprint: as its NodeHealth publishes them; 0 and empty: it does not."""

    node: str
    address: str
    port: int = 3333
    tls_port: int = 0
    fingerprint: str = ""


class FleetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the same names.

    fleet_at_once: nodes that one query queries at the same time
    heavy_at_once: nodes on which all queries together run heavy checks
    """

    fleet_at_once: int = 64
    heavy_at_once: int = 16
