"""The check ``nic``: Ethernet interfaces on the PCI bus: link, speed, duplex, MTU, errors, flaps, bonds.

Only ports of the node itself are judged: bridges, veth and tunnels have no PCI device; virtual functions and
representors duplicate their card's port. Interfaces that are administratively down or never had a link are ignored too.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class NicParameters(Parameters):
    interfaces: str = Field(
        default="*", max_length=1024, description="comma-separated globs of the interfaces to check, e.g. ens*np*"
    )
    required: str = Field(
        default="", max_length=1024, description="comma-separated interfaces whose link must be up, even if unused"
    )
    min_speed_mbit_per_s: int | None = Field(
        default=None, gt=0, description="speed below which a link fails, Mbit/s (default: not judged)"
    )
    min_speed_of: str = Field(
        default="*", max_length=1024, description="comma-separated globs of the interfaces that must have that speed"
    )
    # node-exporter's mixin warns (NodeNetworkReceiveErrs, NodeNetworkTransmitErrs) above 0.01 of all packets
    max_error_share: float = Field(
        default=0.01, ge=0.0, le=1.0, description="share of packets with errors, or dropped, above which it warns"
    )
    # IEEE 802.3 allows a bit error rate of 1e-12: one frame of 1500 bytes in 80 million; this is a hundred times that
    max_crc_share: float = Field(
        default=1e-6, ge=0.0, le=1.0, description="share of received packets with bad checksums above which it warns"
    )
    errors_window_s: float = Field(
        default=600.0, ge=1.0, le=86_400.0, description="seconds over which errors are counted"
    )
    # cyclecloud-healthagent warns above 3 in three hours on Ethernet
    max_link_downs: int = Field(default=3, ge=0, description="lost links within the window above which it warns")
    flaps_window_s: float = Field(
        default=10_800.0, ge=60.0, le=604_800.0, description="seconds over which lost links are counted"
    )
    first_interval_s: float = Field(
        default=1.0, ge=0.0, le=10.0, description="seconds between the two readings of the first run"
    )


async def _probe(node: NodeView, parameters: NicParameters) -> Sequence[Finding]:
    from muster_checks.nic.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: NicParameters) -> Sequence[Finding] | None:
    from muster_checks.nic.probe import judge_recorded

    return judge_recorded(text, parameters)


NIC = Check(
    name="nic",
    description="Ethernet NICs: link, speed, duplex and MTU compared with their siblings, error rates, flaps, bonds",
    cost=Cost.LIGHT,
    parameters=NicParameters,
    timeout_s=20.0,
    devices=("nic",),
    period_s=60.0,
    probe=_probe,
    recorded=_recorded,
    reads="/sys/class/net: carrier, speed, duplex, mtu, statistics and bonding of interfaces with a PCI device",
    ran_on="a virtio interface of a virtual machine; faults on trees made from the kernel's documentation",
    examples=("check=nic", "check=nic&min_speed_mbit_per_s=100000&min_speed_of=ens*np*"),
)
