"""Answers a query for the agent's own node."""

import asyncio

from muster_agent.checks.check_outcome import CheckOutcome
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import NodeAnswer, node_answer
from muster_agent.query.status_query import StatusQuery
from muster_checks.base.declaration import Cost


async def answer_locally(agent: Agent, query: StatusQuery, endpoint: str) -> NodeAnswer:
    """Run the light checks concurrently, then the heavy ones one by one in the requested order, because concurrent
    measurements would disturb each other. Heavy checks that the query does not name report their last result.

    endpoint: ``address:port`` of this agent
    """
    answers: dict[str, CheckOutcome] = {}
    light = [(running, given) for running, given in query.checks if running.check.cost is Cost.LIGHT]
    async with asyncio.TaskGroup() as group:
        tasks = {running.name: group.create_task(agent.run_check(running, given)) for running, given in light}
    answers |= {name: task.result() for name, task in tasks.items()}
    for running, given in query.checks:
        if running.check.cost is Cost.HEAVY:
            if query.named:
                outcome = await agent.run_check(running, given, force=query.force)
            else:
                outcome = agent.last_outcome(running)
            answers[running.name] = outcome
    return node_answer(agent.node, endpoint, [answers[name] for name in query.check_names])
