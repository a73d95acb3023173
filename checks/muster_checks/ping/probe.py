"""Pings the current sample; if this node itself may be cut off, pings as many other peers again."""

import asyncio
import math
from collections.abc import Mapping, Sequence

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import Finding
from muster_checks.ping import PingParameters
from muster_checks.ping.judge import PingPeer, judge, suspects_itself
from muster_checks.ping.neighbours import Neighbours, NodeAmongOthers
from muster_checks.ping.parse import PingReplies, parse_summaries
from muster_checks.ping.peers import ALL, choose_peers

# ping's errors (C locale) if the kernel has no route at all: nothing is sent, so ping prints no summary
NO_WAY = (b"Network is unreachable", b"No route to host", b"Network is down")
# peers=all: 16 rounds of 64 processes; with the default count a round of silent peers takes 4 s of the 90 s timeout
ALL_AT_MOST = 1024
AT_ONCE = 64
NO_RIGHT = "ping: not permitted: add its group to the sysctl net.ipv4.ping_group_range, or grant CAP_NET_RAW"


async def probe(node: NodeView, parameters: PingParameters) -> list[Finding]:
    given = {} if parameters.peers == ALL else parameters.peers
    size = ALL_AT_MOST if parameters.peers == ALL else parameters.sample
    neighbours = node.neighbours if isinstance(node, NodeAmongOthers) and not given else None
    addresses = given if neighbours is None else await neighbours.known()
    # this check's "devices" are the peers: without any, it does not apply
    names = [name for name in addresses if name != node.name]
    if not names:
        raise NotHere("no other node is known; set the parameter peers (name=address,…)", "NoPeers")
    if node.commands.which("ping") is None:
        raise ToolMissing("ping", "iputils-ping")
    seen = node.history.of("ping")
    answered = (seen["answered"].latest if "answered" in seen else None) or 0.0
    # the first turn is random, so that an agent that restarts often still covers all peers
    turn = int(seen["turn"].latest or 0) + 1 if "turn" in seen else int(node.history.clock() // 60)
    sample = choose_peers(names, node.name, size, turn)
    peers = await _find_addresses(node, sample, addresses, neighbours, parameters)
    if suspects_itself(peers):
        turn += 1
        more = [name for name in choose_peers(names, node.name, size, turn) if name not in sample]
        peers += await _find_addresses(node, more, addresses, neighbours, parameters)
    if not peers:
        raise CannotTell("none of the sampled peers exists any more; the next run asks others", "PeersGone")
    answering = sum(peer.answers is not None and peer.answers.received > 0 for peer in peers)
    node.history.note("ping", {"turn": turn, "answered": answered + answering})
    return judge(peers, parameters, answered_before=answered > 0)


def judge_recorded(text: bytes, parameters: PingParameters) -> list[Finding] | None:
    """Judges one or more outputs of ping in one file; each address is a peer."""
    if b"ping statistics ---" not in text and b"packets transmitted, " not in text:
        return None
    peers = [PingPeer(address, address, answers) for address, answers in parse_summaries(text)]
    return judge(peers, parameters, answered_before=False)


async def _find_addresses(
    node: NodeView,
    names: Sequence[str],
    addresses: Mapping[str, str],
    neighbours: Neighbours | None,
    parameters: PingParameters,
) -> list[PingPeer]:
    """Silence at an outdated address proves nothing: silent peers are looked up again, pinged at their new address if
    they have moved, and dropped if they no longer exist."""
    peers = await _ping_all(node, names, addresses, parameters)
    silent = [peer.name for peer in peers if peer.answers is not None and peer.answers.received == 0]
    if neighbours is None or not silent:
        return peers
    now = await neighbours.confirmed(silent)
    moved = [name for name in silent if name in now and now[name] != addresses[name]]
    stay = [peer for peer in peers if peer.name not in silent or now.get(peer.name) == peer.address]
    return stay + await _ping_all(node, moved, now, parameters)


async def _ping_all(
    node: NodeView, names: Sequence[str], addresses: Mapping[str, str], parameters: PingParameters
) -> list[PingPeer]:
    free = asyncio.Semaphore(AT_ONCE)

    async def ping(name: str) -> PingPeer:
        async with free:
            return await _ping(node, name, addresses[name], parameters)

    return list(await asyncio.gather(*map(ping, names)))


async def _ping(node: NodeView, name: str, address: str, parameters: PingParameters) -> PingPeer:
    deadline_s = math.ceil(parameters.count * parameters.interval_s) + 2
    output = await node.commands.run(
        f"ping -n -q -c {parameters.count} -i {parameters.interval_s:g} -W 1 -w {deadline_s} {address}".split(),
        timeout_s=deadline_s + 5.0,
    )
    return _read(name, address, output, parameters.count)


def _read(name: str, address: str, output: Output, count: int) -> PingPeer:
    # 1: some answers are missing; 2: an error, possibly with a summary
    if output.exit_code in (0, 1, 2):
        try:
            return PingPeer(name, address, parse_summaries(output.stdout)[-1][1])
        except Unreadable as error:
            trouble = str(error)
        if any(way in output.stderr for way in NO_WAY):
            return PingPeer(name, address, PingReplies(count, 0))
        if b"Operation not permitted" in output.stderr and b"socket" in output.stderr:
            return PingPeer(name, address, trouble=NO_RIGHT)
        return PingPeer(name, address, trouble=output.trouble or trouble)
    return PingPeer(name, address, trouble=output.trouble or f"ping: exit code {output.exit_code}")
