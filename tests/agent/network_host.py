"""A node's agent as a process, for tests that put it into a network namespace. ``tests.agent.network_host NODE``

Its checks are none and everybody may ask: what is asked for here is its part in measuring the network.
"""

import asyncio
import socket
import sys
from typing import Any

import uvicorn

from muster_agent.checks.local_node import LocalNode
from muster_agent.http.access import AccessControl, Caller
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import NodeView
from muster_kube.http.client_timeouts import Impatient
from muster_kube.nodehealth import AgentIdentity


class Everybody(AccessControl):
    def __init__(self) -> None:
        super().__init__(None)

    async def caller(self, *_: Any, **__: Any) -> Caller:
        return Caller(trusted=True, agent=True)


def main(node: str) -> None:
    local = LocalNode(name=node, view=NodeView(name=node), boot_id="boot")
    agent = Agent(local, [], AgentIdentity(pod_uid="pod", version="1"))
    app = make_app(agent, AgentMetrics(node, "1"), access=Everybody())
    listener = socket.create_server(("0.0.0.0", 3333))  # noqa: S104 - inside a namespace of a test
    config = uvicorn.Config(app, loop="asyncio", http=Impatient, ws="none", lifespan="off", log_config=None)
    print("listening", flush=True)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main(sys.argv[1])
