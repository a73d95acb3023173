"""The check ``iperf``: the bandwidth between two nodes and, over many pairs, which node is slow.

parse.py reads ``iperf3 -J``, judge.py and blame.py judge any number of pairs, link.py reads the NIC's rate, server.py
runs an iperf3 server, probe.py measures one pair from this node.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


def _address(value: object) -> object:
    from ipaddress import ip_address

    # only an address: broken DNS is not a slow network, and nothing may be taken for an option of iperf3
    return None if value in (None, "") else str(ip_address(str(value)))


class IperfParameters(Parameters):
    sends = frozenset({"port", "server"})
    server: Annotated[str | None, BeforeValidator(_address)] = Field(
        default=None, description="IP address of a node that runs an iperf3 server (iperf3 -s)"
    )
    port: int = Field(default=5201, ge=1, le=65535, description="the server's port; 5201 is iperf3's default")
    # Autopilot's defaults: 5 seconds, 8 clients, -Z
    seconds: int = Field(default=5, ge=1, le=60, description="duration of the transfer, s")
    clients: int = Field(default=8, ge=1, le=64, description="parallel streams")
    omit_seconds: int = Field(default=1, ge=0, le=10, description="seconds ignored at the start (TCP slow start)")
    link_gbit_per_s: float | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="expected rate of the link, Gbit/s; default: the speed of the NIC in use",
    )
    # a healthy link gives TCP 94 % (MTU 1500) to 99 % (MTU 9000) of its rate, all headers counted; below 70 % there is
    # a problem on the path (alert rules for iperf3 of azurelocal-loadtools; 7 of 10 Gbit/s there)
    min_share_of_link: float = Field(default=0.7, gt=0, le=1, description="a pair below this share of the link is slow")
    # half of what its siblings reach is defective, as for all devices (muster_checks.hardware.siblings)
    min_share_of_peers: float = Field(
        default=0.5, gt=0, le=1, description="a pair below this share of the other pairs' median is slow"
    )
    # 0.14 % of the segments at MTU 1500. Above that, loss limits the rate: at a round trip of 0.2 ms one stream cannot
    # exceed 2 Gbit/s (MSS / RTT * 1.22 / sqrt(loss): Mathis et al., 1997)
    max_retransmits_per_gb: float = Field(
        default=1000.0, ge=0, description="TCP retransmits per GB above which it warns"
    )


async def _probe(node: NodeView, parameters: IperfParameters) -> Sequence[Finding]:
    from muster_checks.iperf.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: IperfParameters) -> Sequence[Finding] | None:
    from muster_checks.iperf.probe import judge_recorded

    return judge_recorded(text, parameters)


IPERF = Check(
    name="iperf",
    description="TCP bandwidth and retransmits between nodes (or to one server): finds the slow node or NIC",
    cost=Cost.HEAVY,
    parameters=IperfParameters,
    timeout_s=120.0,
    devices=("nic", "peer"),
    probe=_probe,
    recorded=_recorded,
    reads=(
        "iperf3 -J (Debian: iperf3), setpriv (util-linux), ip -j route get (Debian: iproute2), /sys/class/net/*/speed"
    ),
    ran_on=(
        "the real iperf3 3.12 over loopback and between network namespaces of one Linux machine (TCP, UDP, reverse, "
        "bidirectional, slow, black hole, aborted); not on a cluster's network or with other releases of iperf3"
    ),
    examples=("check=iperf", "check=iperf&plane=mgmt", "check=iperf&server=10.0.0.7&link_gbit_per_s=100"),
)
