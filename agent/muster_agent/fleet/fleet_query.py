"""Answers a /status query for many nodes: selects the nodes and collects their answers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.members import FleetUnknown
from muster_agent.query.local_answer import answer_locally
from muster_agent.query.node_answer import NodeAnswer, no_answer
from muster_agent.query.status_query import StatusQuery
from muster_checks.base.vocabulary import shorten

if TYPE_CHECKING:
    from muster_agent.fleet.agent_fleet import AgentFleet
    from muster_agent.node_agent import Agent

OTHERS = "(other nodes)"  # never a node's name, which has no parentheses


async def query_fleet(agent: "Agent", fleet: "AgentFleet", query: StatusQuery) -> AsyncGenerator[NodeAnswer, None]:
    """The answer of each selected node, in the order in which they answer. Closing it (aclosing) cancels all requests.

    Raises BadNodeSelection or FleetUnknown (members.py) before the first answer. If the API server cannot list the
    nodes, this node answers for itself and the others are UNKNOWN: one answer for each named node, else one for all.
    """
    try:
        peers = await fleet.members.select(query.hosts or (), job=query.job, nodelabel=query.nodelabel)
    except FleetUnknown as error:
        if query.job or query.nodelabel:
            raise
        here = agent.node in query.hosts if query.hosts is not None else True
        peers = [PeerAgent(agent.node, "")] if here else []
        others = [OTHERS] if query.hosts is None else [name for name in query.hosts if name != agent.node]
        for name in others:
            yield no_answer(name, "", query.check_names, "FleetUnknown", shorten(str(error)))
    async with aclosing(fleet.fan.ask(peers, query, partial(answer_locally, agent, endpoint=""))) as answers:
        async for answer in answers:
            yield answer
