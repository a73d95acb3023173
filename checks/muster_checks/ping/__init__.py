"""The check ``ping``: whether the other nodes answer, how fast, and if not, which side is at fault.

peers.py chooses the peers of each run, parse.py reads ping's output, judge.py decides, probe.py runs it,
neighbours.py supplies peers when none are configured.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


def _peers(value: object) -> object:
    from muster_checks.ping.peers import read_peers

    return read_peers(value)


class PingParameters(Parameters):
    sends = frozenset({"peers"})
    peers: Annotated[dict[str, str] | Literal["all"], BeforeValidator(_peers)] = Field(
        default={},
        max_length=100_000,
        description="the other nodes: name=address, comma-separated (IP addresses, so that broken DNS does not look "
        "like a broken node); all: every node that the agent knows (1024 per run); default: a sample of these",
    )
    sample: int = Field(default=8, ge=1, le=64, description="peers per run; each run takes the next ones")
    count: int = Field(default=10, ge=2, le=30, description="echo requests to each peer")  # 10: as Autopilot
    # below 0.2 s ping requires root
    interval_s: float = Field(default=0.2, ge=0.2, le=1.0, description="seconds between two requests")
    # one lost request of ten is acceptable (the first one waits for ARP), two are not
    max_loss_percent: float = Field(default=10.0, ge=0, le=100, description="loss above which it warns")
    # nodes of one cluster are a few ms apart at most, even across zones ("single-digit millisecond": AWS on its zones)
    max_rtt_ms: float = Field(default=10.0, gt=0, le=60_000, description="mean round trip above which it warns")
    max_mdev_ms: float = Field(
        default=10.0, gt=0, le=60_000, description="deviation of round trips above which it warns"
    )


async def _probe(node: NodeView, parameters: PingParameters) -> Sequence[Finding]:
    from muster_checks.ping.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: PingParameters) -> Sequence[Finding] | None:
    from muster_checks.ping.probe import judge_recorded

    return judge_recorded(text, parameters)


PING = Check(
    name="ping",
    description="whether other nodes answer (a rotating sample), with loss and latency, and which side is at fault",
    cost=Cost.LIGHT,
    parameters=PingParameters,
    timeout_s=90.0,
    period_s=60.0,
    devices=("peer", "host"),
    probe=_probe,
    recorded=_recorded,
    reads="ping (Debian: iputils-ping; those of busybox and inetutils work too)",
    ran_on=(
        "the real ping of iputils 20221126 between network namespaces of one Linux machine (IPv4 and IPv6, silence, "
        "loss, no route); output of busybox 1.35 and inetutils 2.4 recorded there; not on a cluster's network"
    ),
    examples=("check=ping", "check=ping&peers=all", "check=ping&peers=node-7=10.0.0.7,node-8=10.0.0.8"),
)
