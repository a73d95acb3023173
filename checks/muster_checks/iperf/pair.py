"""One measured pair of nodes: who sent, who received, and what came of it."""

import msgspec

NicPlace = tuple[str, str]  # (node, NIC)


class NicSide(msgspec.Struct, frozen=True):
    """One end of a pair. ``nic`` is empty where it is not known, the link's rate None."""

    node: str
    nic: str = ""
    link_gbit_per_s: float | None = None

    @property
    def place(self) -> NicPlace:
        return self.node, self.nic


class NicPair(msgspec.Struct, frozen=True):
    """What went one way between two nodes. ``trouble``: why it was not measured; then the figures mean nothing.

    limited, cpu_bound: as in report.Report
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
        """The slower end's rate, of the ends that are known."""
        return min(filter(None, (self.sender.link_gbit_per_s, self.receiver.link_gbit_per_s)), default=None)
