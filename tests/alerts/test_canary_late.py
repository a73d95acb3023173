"""The canary's alert fires within two periods of breaking any hop, by the real promtool.

The agents' part of the canary and the tainter's run on one virtual clock, and each hop between them is broken in turn.
promtool evaluates the alert over what the tainter's metric then says, as often as Prometheus scrapes it.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.alerts.test_rules import RULES, run, tools, with_values_only
from tests.tainter.canary.test_task import RULES as POLICY
from tests.tainter.canary.test_task import World

from muster_agent.clock import AgentClock
from muster_agent.publish.canary import Canary
from muster_kube.nodehealth import CanaryReport, CanaryRequest
from muster_sandbox.prometheus import PrometheusPrograms

__all__ = ["tools"]  # a fixture

PERIOD_S = 600
SCRAPE_S = 30
NOON = 1_767_268_800.0
TURNS = 20  # of the event loop, until everything that a moment causes has happened
LATE = ("agent", "report", "decision")

ALL = frozenset({"n0", "n1", "n2", "n3"})
ONE = frozenset({"n0"})


class VirtualTime:
    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), woken))
        await woken

    async def advance_to(self, at: float) -> None:
        while self._sleepers and self._sleepers[0][0] <= at:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        self.now = at


class Fleet:
    """Four nodes that send canaries. broken: the hops that are broken, each with the nodes whose canaries it keeps."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.tainter = World(POLICY + f"canary: {{nodes: 4, period: {PERIOD_S}s}}\n")
        self.broken: dict[str, frozenset[str]] = {}
        self.arrived: dict[str, float] = {}
        self.series: dict[str, list[float]] = {state: [] for state in LATE}
        self._agents = {name: self._start_agent(name) for name in sorted(ALL)}

    def _start_agent(self, name: str) -> asyncio.Task[None]:
        clock = AgentClock(monotonic=lambda: self.time.now, wall=lambda: NOON + self.time.now, sleep=self.time.sleep)
        agent = Canary(name, clock, lambda: self._publish(name, agent.report))
        agent.apply(CanaryRequest(period_seconds=PERIOD_S), CanaryReport())
        return asyncio.create_task(agent.run())

    def _publish(self, name: str, canary: CanaryReport) -> None:
        if name in self.broken.get("write", ()) or name in self.broken.get("watch", ()):
            return
        self.tainter.now = 1000.0 + self.time.now
        self.tainter.send(name, canary)
        if name not in self.broken.get("decision", ()):
            self.tainter.task.decide(name)
            self.arrived[name] = self.time.now

    async def break_hop(self, hop: str, nodes: frozenset[str]) -> None:
        self.broken[hop] = nodes
        for name in nodes if hop == "agent" else ():
            self.tainter.agents_down.add(name)
            self._agents[name].cancel()
            await asyncio.gather(self._agents[name], return_exceptions=True)

    def mend(self) -> None:
        self.tainter.agents_down.clear()
        for name in self.broken.pop("agent", ()):
            self._agents[name] = self._start_agent(name)
        for name in self.broken.pop("decision", ()):
            self.tainter.task.decide(name)
        self.broken.clear()

    async def run_until(self, done: Callable[[], bool]) -> None:
        """Scrape until then."""
        while not done():
            await self.time.advance_to(self.time.now + SCRAPE_S)
            for task in self._agents.values():
                if task.done() and not task.cancelled():
                    task.result()  # its error
            self.tainter.now = 1000.0 + self.time.now
            states = self.tainter.states()
            for state, values in self.series.items():
                values.append(states.get(state, 0.0))

    async def stop(self) -> None:
        for task in self._agents.values():
            task.cancel()
        await asyncio.gather(*self._agents.values(), return_exceptions=True)


@pytest.mark.parametrize("after_s", [0, PERIOD_S - SCRAPE_S], ids=["just-sent", "nearly-due"])
@pytest.mark.parametrize(
    ("hop", "nodes", "state"),
    [
        ("agent", ONE, "agent"),  # it has died, and its claim on the NodeHealth stays
        ("write", ONE, "report"),  # it cannot write its NodeHealth
        ("watch", ALL, "report"),  # the tainter's watch is down
        ("decision", ALL, "decision"),  # the tainter's queue is stuck, and canaries are delivered all the time
    ],
)
async def test_it_fires_within_two_periods_and_names_the_hop(
    tools: PrometheusPrograms, tmp_path: Path, hop: str, nodes: frozenset[str], state: str, after_s: float
) -> None:
    fleet = Fleet()
    async with fleet.tainter.leading():
        await fleet.run_until(lambda: len(fleet.arrived) == len(ALL))
        sent = fleet.arrived["n0"]
        await fleet.run_until(lambda: fleet.arrived["n0"] > sent)
        at = fleet.time.now + after_s
        await fleet.run_until(lambda: fleet.time.now >= at)
        broken_at = fleet.time.now
        await fleet.break_hop(hop, nodes)
        await fleet.run_until(lambda: fleet.time.now >= broken_at + 2 * PERIOD_S)
        fleet.mend()
        mended_at = fleet.time.now
        await fleet.run_until(lambda: fleet.time.now >= mended_at + 2 * PERIOD_S)
        await fleet.stop()
    fires = {
        "exp_labels": {"severity": "warning", "namespace": "autopilot", "state": state},
        "exp_annotations": {"values": f"{len(nodes)} {state}"},
    }
    judge(
        tools, tmp_path, fleet.series,
        {broken_at: [], broken_at + 2 * PERIOD_S: [fires], mended_at + 2 * PERIOD_S: []},
    )  # fmt: skip


def judge(
    tools: PrometheusPrograms, folder: Path, series: dict[str, list[float]], expected: dict[float, list[Any]]
) -> None:
    """expected: the alerts at each time, in seconds since the first scrape but one."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(with_values_only(yaml.safe_load(RULES.read_text()))))
    test = {
        "interval": f"{SCRAPE_S}s",
        "input_series": [
            {
                "series": f'muster_tainter_canaries{{namespace="autopilot",state="{state}",pod="a"}}',
                "values": " ".join(["0", *(f"{value:g}" for value in values)]),
            }
            for state, values in series.items()
        ],
        "alert_rule_test": [
            {"eval_time": f"{at:g}s", "alertname": "MusterCanaryLate", "exp_alerts": alerts}
            for at, alerts in expected.items()
        ],
    }
    file = folder / "canary.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": f"{SCRAPE_S}s", "tests": [test]})
    )
    run(tools.promtool, "test", "rules", file)
