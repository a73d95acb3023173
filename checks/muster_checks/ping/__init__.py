"""The check ``ping``: do the other nodes answer, how fast, and if not, on which side is it.

peers.py says whom to ask this time, parse.py reads what ping prints, judge.py decides, probe.py is the
edge, neighbours.py is where peers come from that nobody has named.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


def _peers(value: object) -> object:
    from muster_checks.ping.peers import read_peers

    return read_peers(value)


class PingParameters(Parameters):
    sends = frozenset({"peers"})
    peers: Annotated[dict[str, str], BeforeValidator(_peers)] = Field(
        default={},
        max_length=100_000,
        description="the other nodes: name=address, comma separated (IP addresses: a broken DNS is no broken node); "
        "in a cluster the agent knows some itself",
    )
    sample: int = Field(default=8, ge=1, le=64, description="peers asked in one run; each run takes the next ones")
    count: int = Field(default=10, ge=2, le=30, description="echo requests to each peer")  # 10: as Autopilot's
    # below 0.2 s ping wants to be root
    interval_s: float = Field(default=0.2, ge=0.2, le=1.0, description="between two requests")
    # one of ten may go astray (the first one waits for ARP), two of ten may not
    max_loss_percent: float = Field(default=10.0, ge=0, le=100, description="more lost than this: WARN")
    # nodes of one cluster are a few ms apart at most, even across zones ("single-digit millisecond": AWS on its zones)
    max_rtt_ms: float = Field(default=10.0, gt=0, le=60_000, description="mean round trip above this: WARN")
    max_mdev_ms: float = Field(default=10.0, gt=0, le=60_000, description="deviation of round trips above this: WARN")


async def _probe(node: NodeView, parameters: PingParameters) -> Sequence[Finding]:
    from muster_checks.ping.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: PingParameters) -> Sequence[Finding] | None:
    from muster_checks.ping.probe import judge_recorded

    return judge_recorded(text, parameters)


PING = Check(
    name="ping",
    description="whether other nodes answer (a rotating sample), with which loss and latency, and whose fault it is",
    cost=Cost.LIGHT,
    parameters=PingParameters,
    timeout_s=90.0,
    period_s=60.0,
    devices=("peer", "host"),
    probe=_probe,
    recorded=_recorded,
    reads="ping (Debian: iputils-ping; busybox's and inetutils' are understood, too)",
    ran_on=(
        "the real ping of iputils 20221126 between network namespaces of one Linux machine (IPv4 and IPv6, silence, "
        "loss, no route); recorded output of busybox 1.35 and inetutils 2.4 from there; not on a cluster's network"
    ),
    examples=("check=ping", "check=ping&peers=node-7=10.0.0.7,node-8=10.0.0.8"),
)
