"""One measured pair of nodes: sender, receiver and result."""

import msgspec

NicPlace = tuple[str, str]  # (node, NIC)


class NicSide(msgspec.Struct, frozen=True):
    """One end of a pair. ``nic`` is empty if unknown, the link's rate None."""

    node: str
    nic: str = ""
    link_gbit_per_s: float | None = None

    @property
    def place(self) -> NicPlace:
        return self.node, self.nic


class NicPair(msgspec.Struct, frozen=True):
    """The transfer in one direction between two nodes. ``trouble``: why it was not measured; the figures are then void.

    limited, cpu_bound: as in parse.IperfReport
    """

    sender: NicSide
    receiver: NicSide
    gbit_per_s: float = 0.0
    retransmits_per_gb: float | None = None
    limited: bool = False
    cpu_bound: bool = False
    trouble: str = ""

    @property
    def link_gbit_per_s(self) -> float | None:
        """The rate of the slower end, as far as known."""
        return min(filter(None, (self.sender.link_gbit_per_s, self.receiver.link_gbit_per_s)), default=None)
