"""A /status query to many nodes: which nodes it is about, and the answer of each."""

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

OTHERS = "(other nodes)"  # no node's name: the API allows no brackets there


async def query_fleet(agent: "Agent", fleet: "AgentFleet", query: StatusQuery) -> AsyncGenerator[NodeAnswer, None]:
    """What each node that ``query`` is about says, as they answer. Close it (aclosing), and all calls are off.

    Raises BadNodeSelection or FleetUnknown (members.py) before the first answer. While the API server does not say
    which nodes there are, this node answers for itself, and the others are UNKNOWN: those that were named each, else
    all in one.
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
