"""Measures a network as an agent does, as a process of its own: ``network_measurer.py NODE=ADDRESS… [NAME=VALUE…]``.

NAME: ``plane``, ``servers``, ``clients``, or a parameter of the check. Prints the results by node, as JSON.
"""

import asyncio
import random
import sys

import msgspec

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.network_measurement import measure_network
from muster_agent.fleet.peer_client import HttpPeerClient
from muster_agent.query.status_query import IperfOptions
from muster_checks.iperf import IperfParameters


async def main(peers: list[PeerAgent], named: dict[str, str]) -> None:
    servers, clients = named.pop("servers", ""), named.pop("clients", "")
    options = IperfOptions(
        int(servers) if servers else None, int(clients) if clients else None, named.pop("plane", "data")
    )
    calls = HttpPeerClient("node-1", None)
    found = await measure_network(peers, calls, options, IperfParameters.model_validate(named), rng=random.Random(1))
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    nodes = [PeerAgent(node, words.pop(node)) for node in list(words) if node.startswith("node-")]
    asyncio.run(main(nodes, words))
