"""From the taint of a node to the release of the spare that replaces it: twenty nodes, two of them spares.

A round: two nodes fail, one after the other, and each releases a spare; a third one finds none, and what the alert
MusterSparesExhausted asks for holds; then the three recover, and the pool has two spares again. Both times are those at
which one watch of Nodes delivered the write, so a release may come before its taint.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from harness.bounds import SPARE_RELEASE_S
from harness.progress import say
from harness.tainter_process import TainterProcess
from latency import percentile

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.tainter.fleet_findings import FATAL, HEALTHS, KIND, NODES, Object, Recorder, recording, status

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import AlreadyExists
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes, for_each

FLEET, SPARES, ROUNDS = 20, 2, 15  # a new boot ends the faults that are used, FATAL[0]
LIMIT_S = 120.0  # far more than anything takes
LABEL = "muster.dev/bench-pool"
POLICY = f"""
rules: [{{name: hardware, match: {{verdict: FAIL}}, action: taint, holdDown: 0s}}]
pools: [{{name: bench, selector: {{matchLabels: {{{LABEL}: spares}}}}, spares: {{nodes: {SPARES}, checks: [pciebw]}}}}]
testing: {{atOnce: 0}}
"""


@dataclass(frozen=True)
class Outcome:
    """released_s: from the taint to the release, of each; found_s: from the finding to the release. exhausted: rounds
    in which the alert's condition held after the third fault; refilled_s: until the pool had its spares again."""

    nodes: int
    released_s: list[float]
    found_s: list[float]
    exhausted: int
    refilled_s: list[float]


def measure(binaries: Path, rounds: int = ROUNDS) -> Outcome:
    with ControlPlane(binaries) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        return asyncio.run(_measure(plane, reaper, rounds))


async def _measure(plane: ControlPlane, reaper: ProcessReaper, rounds: int) -> Outcome:
    outcome = Outcome(FLEET, [], [], 0, [])
    exhausted = 0
    async with (
        KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api,
        TainterProcess(reaper, plane.kubeconfig_for(TAINTER, NAMESPACE), POLICY) as tainter,
    ):
        bench = _Bench(api, tainter, outcome)
        await bench.prepare()
        for number in range(rounds):
            say(f"spares: round {number + 1} of {rounds}")
            exhausted += await bench.round(number)
    return Outcome(FLEET, outcome.released_s, outcome.found_s, exhausted, outcome.refilled_s)


class _Bench:
    def __init__(self, api: KubeClient, tainter: TainterProcess, outcome: Outcome) -> None:
        self._api = api
        self._tainter = tainter
        self._outcome = outcome
        self._names: list[str] = []
        self._boots: dict[str, str] = {}
        self._occurrence = 0

    async def prepare(self) -> None:
        self._names = await SimulatedNodes(self._api).create(
            FLEET, prefix="spare", shape=NodeShape(labels={LABEL: "spares"})
        )
        tests = '{"checks":{"pciebw":{"at":"' + _ago(60) + '"}}}'

        async def make(name: str) -> None:
            with contextlib.suppress(AlreadyExists):  # the tainter makes one for each node, too
                await self._api.create(HEALTHS, KIND | {"metadata": {"name": name}})
            await self._api.patch(f"{HEALTHS}/{name}", {"metadata": {"annotations": {"muster.dev/tests": tests}}})
            await self._report(name)

        await for_each(self._names, make)
        await self._tainter.until_settled(FLEET)
        await _until(self._has_spares(SPARES), "two spares")

    async def round(self, number: int) -> bool:
        """Whether the third fault found the spares exhausted."""
        spares = await self._with_role("spare")
        first, second, third = sorted(set(self._names) - spares - await self._with_role("replacement"))[:3]
        for name in (first, second):
            left = len(await self._with_role("spare"))
            async with recording(self._api, self._names) as seen:
                began = time.monotonic()
                await self._report(name, FATAL[0])
                await seen.until(partial(_is_replaced, seen, name), f"a spare replaces {name}", LIMIT_S)
                released_at = _released(seen)[0]
                self._outcome.released_s.append(released_at - seen.first_tainted[name])
                self._outcome.found_s.append(released_at - began)
            await _until(self._has_spares(left - 1), "one spare less")
        await self._report(third, FATAL[0])
        await _until(self._is_tainted(third), "the third node is tainted")
        exhausted = await self._is_exhausted()
        began = time.monotonic()
        await asyncio.gather(*(self._report(name, boot=f"boot-{number}") for name in (first, second, third)))
        await _until(self._has_spares(SPARES), "the pool has its spares again")
        self._outcome.refilled_s.append(time.monotonic() - began)

        async def unmarked() -> bool:
            return not await self._with_role("replacement")

        await _until(unmarked, "no node replaces another one")
        return exhausted

    async def _report(self, name: str, *findings: Object, boot: str = "") -> None:
        """boot: a new one ends the findings; otherwise the node's last one goes on, and numbers rise."""
        self._boots[name] = boot or self._boots.get(name, "boot")
        self._occurrence += 1
        numbered = [finding | {"occurrence": self._occurrence} for finding in findings]
        body = status(*numbered, boot=self._boots[name])["status"]
        body |= {"agent": {"podUID": "a"}, "idleSince": _ago(600)}
        await self._api.patch(f"{HEALTHS}/{name}/status", {"status": body})

    async def _with_role(self, role: str) -> set[str]:
        listed = await self._api.get(NODES, params={"labelSelector": f"muster.dev/role={role}"})
        return {node["metadata"]["name"] for node in listed["items"]}

    def _has_spares(self, number: int) -> Callable[[], Awaitable[bool]]:
        async def so() -> bool:
            return len(await self._with_role("spare")) == number

        return so

    def _is_tainted(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def so() -> bool:
            node = await self._api.get(f"{NODES}/{name}")
            return any(taint["key"] == "muster.dev/faulty" for taint in node["spec"].get("taints", []))

        return so

    async def _is_exhausted(self) -> bool:
        """What the alert asks Prometheus."""
        metrics = await asyncio.to_thread(self._tainter.metrics)
        ready = [line for line in metrics.splitlines() if line.startswith("muster_tainter_spares{") and "ready" in line]
        wanted = [line for line in metrics.splitlines() if line.startswith("muster_tainter_spares_wanted{")]
        return _value(ready) == 0 and _value(wanted) == SPARES


def _is_replaced(seen: Recorder, name: str) -> bool:
    return name in seen.tainted and bool(_released(seen))


def _released(seen: Recorder) -> list[float]:
    return [state.at for state in seen.states if state.role == "replacement"]


def _value(lines: list[str]) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def _ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _until(done: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not await done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"spares: not within {LIMIT_S:.0f} s: {what}")
        await asyncio.sleep(0.1)


def table(outcome: Outcome) -> str:
    times = [(percentile(values, 50), percentile(values, 99)) for values in (outcome.released_s, outcome.found_s)]
    rounds = len(outcome.refilled_s)
    return "\n".join(
        [
            f"{outcome.nodes} nodes, {SPARES} spares           releases   P50 s   P99 s   most s",
            f"taint -> spare released      {len(outcome.released_s):>9}{times[0][0]:>8.3f}{times[0][1]:>8.3f}"
            f"{max(outcome.released_s):>9.3f}",
            f"finding -> spare released    {len(outcome.found_s):>9}{times[1][0]:>8.3f}{times[1][1]:>8.3f}"
            f"{max(outcome.found_s):>9.3f}",
            f"bound                        {'':>9}{'':>8}{SPARE_RELEASE_S:>8.0f}{SPARE_RELEASE_S:>9.0f}",
            f"a third fault exhausts them, and the alert's condition holds: {outcome.exhausted} of {rounds} rounds",
            f"recovered nodes refill them: {percentile(outcome.refilled_s, 50):.2f} s P50",
        ]
    )
