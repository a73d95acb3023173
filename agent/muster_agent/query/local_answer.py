"""What this node itself answers to a query."""

import asyncio

from muster_agent.checks.check_outcome import CheckOutcome
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import NodeAnswer, node_answer
from muster_agent.query.status_query import StatusQuery
from muster_checks.base.declaration import Cost


async def answer_locally(agent: Agent, query: StatusQuery, endpoint: str) -> NodeAnswer:
    """Light checks side by side, then the heavy ones in the order asked: two that measure at once would measure each
    other. Heavy checks that were not named answer with their last result. endpoint: ``address:port`` of this agent."""
    answers: dict[str, CheckOutcome] = {}
    light = [(running, given) for running, given in query.checks if running.check.cost is Cost.LIGHT]
    async with asyncio.TaskGroup() as group:
        tasks = {running.name: group.create_task(agent.run_check(running, given)) for running, given in light}
    answers |= {name: task.result() for name, task in tasks.items()}
    for running, given in query.checks:
        if running.check.cost is Cost.HEAVY:
            ask = agent.run_check(running, given, force=query.force) if query.named else None
            answers[running.name] = await ask if ask is not None else agent.last_outcome(running)
    return node_answer(agent.node, endpoint, [answers[name] for name in query.check_names])
