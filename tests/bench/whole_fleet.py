"""One question to a whole fleet: /status?check=dmesg through one agent that asks 199 others over real sockets.

The fleet is that of tests/agent/many_agents.py, with its patience as agents have it in life: five nodes where nobody
listens and five that take the connection and stay silent are found out while the others' answers are passed on.
"""

import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.progress import say

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.agent.many_agents import many_agents

NODES, SICK = 200, 5
QUESTION = "/status?check=dmesg&format=json"
LIMIT_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """took_s of each question to a fleet that is well, and of one where SICK are dead and SICK silent; what the nodes
    of that one were told to be."""

    well_s: list[float]
    sick_s: float
    verdicts: Counter[str]


def measure(rounds: int) -> Outcome:
    # who does not answer is told of in the answer; the log would say it once more between the tables
    logging.disable(logging.WARNING)
    say(f"fleet: {rounds} questions to {NODES} agents, and one where {2 * SICK} do not answer")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as place:
        return asyncio.run(_measure(Path(place), rounds))


async def _measure(folder: Path, rounds: int) -> Outcome:
    async with asyncio.timeout(LIMIT_S), many_agents(folder, count=NODES) as fleet:
        well_s = []
        for _ in range(rounds + 1):
            began = time.monotonic()
            answer = await fleet.client.get(QUESTION)
            well_s.append(time.monotonic() - began)
            if len(json.loads(answer.text)["nodes"]) != NODES:
                raise RuntimeError(f"of {NODES} nodes: {answer.text[:500]}")
    async with asyncio.timeout(LIMIT_S), many_agents(folder, count=NODES, dead=SICK, silent=SICK) as fleet:
        began = time.monotonic()
        answer = await fleet.client.get(QUESTION)
        sick_s = time.monotonic() - began
    nodes = json.loads(answer.text)["nodes"]
    return Outcome(well_s[1:], sick_s, Counter(node["verdict"] for node in nodes))  # the first one finds the fleet


def table(outcome: Outcome) -> str:
    told = ", ".join(f"{times} {verdict}" for verdict, times in outcome.verdicts.most_common())
    well_s, name = outcome.well_s, f"{NODES} agents through one"
    return "\n".join(
        [
            f"{name:<28}questions   median s    most s   answers",
            f"{'all well':<28}{len(well_s):>9} {statistics.median(well_s):>10.2f} {max(well_s):>9.2f}   {NODES} PASS",
            f"{f'{SICK} dead and {SICK} silent':<28}{1:>9} {outcome.sick_s:>10.2f} {outcome.sick_s:>9.2f}   {told}",
        ]
    )
