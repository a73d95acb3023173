"""A kernel line that is logged while the API server is away for 30 s: from its return until the node is tainted.

Eight agents follow one file with the form of /dev/kmsg, each for a node of its own, so that each line gives eight
times; what other programs write to this machine's kernel log does not matter. The server
is stopped (its connections stay open and silent) and killed (they break), in turns. It is back when it answers /readyz
again.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.bench_agent import BenchAgent, health_object
from harness.bounds import OUTAGE_P99_S
from harness.progress import say
from harness.tainter_process import TainterProcess
from latency import percentile
from line_to_taint import HEALTHS, LINE, NODES

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.tainter.fleet_findings import recording

from muster_checks.registry import load_registry
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.simulation.nodes import SimulatedNodes, for_each

AGENTS, ROUNDS = 8, 6
AWAY_S = 30.0
LINE_AFTER_S = 15.0  # the clients have backed off by then
LIMIT_S = 180.0  # far more than anything takes
WITHOUT_BUDGET = "rules: [{name: hardware, match: {verdict: FAIL}, action: taint, holdDown: 0s}]"


@dataclass(frozen=True)
class Outcome:
    """Seconds from the server's return to each taint, by how the server was away; away_s: of each round."""

    stopped_s: list[float]
    killed_s: list[float]
    away_s: list[float]


def measure(binaries: Path, rounds: int = ROUNDS, agents: int = AGENTS) -> Outcome:
    with (
        ControlPlane(binaries) as plane,
        contextlib.closing(ProcessReaper()) as reaper,
        tempfile.TemporaryDirectory(prefix="muster-bench-") as place,
        contextlib.ExitStack() as stack,
    ):
        install(plane.admin)
        names = asyncio.run(_make_nodes(plane, agents))
        checks: dict[str, object] = {name: {"enabled": False} for name in load_registry()}
        log = Path(place) / "kmsg"
        log.touch()
        settings = {"checks": checks | {"dmesg": {"parameters": {"start": "now", "path": str(log)}}}}
        for name in names:
            folder = Path(place) / name
            folder.mkdir()
            agent = BenchAgent(plane, reaper, folder, name, settings)
            stack.callback(agent.process.stop)
            agent.start()
        return asyncio.run(_measure(plane, reaper, names, rounds, log))


async def _make_nodes(plane: ControlPlane, agents: int) -> list[str]:
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:
        names = await SimulatedNodes(api).create(agents, prefix="outage")
        for name in names:
            await api.create(HEALTHS, health_object(name))
    return names


async def _measure(plane: ControlPlane, reaper: ProcessReaper, names: list[str], rounds: int, log: Path) -> Outcome:
    outcome = Outcome([], [], [])
    async with TainterProcess(reaper, plane.kubeconfig_for(TAINTER, NAMESPACE), WITHOUT_BUDGET) as tainter:
        await tainter.until_settled(len(names))
        for number in range(rounds):
            stopped = number % 2 == 0
            say(f"outage: round {number + 1} of {rounds}, the server is {'stopped' if stopped else 'killed'}")
            await _until_healthy(plane, names)
            line = f"4,{number},{time.monotonic_ns() // 1000},-;{LINE}"
            away_s, taken = await _round(plane, names, log, line, stopped=stopped)
            (outcome.stopped_s if stopped else outcome.killed_s).extend(taken)
            outcome.away_s.append(away_s)
            await _clear(plane, names)
    return outcome


async def _round(
    plane: ControlPlane, names: list[str], log: Path, line: str, *, stopped: bool
) -> tuple[float, list[float]]:
    began = time.monotonic()
    plane.pause() if stopped else plane.kill_apiserver()
    await asyncio.sleep(LINE_AFTER_S)
    with log.open("a") as file:
        file.write(f"{line}\n")
    await asyncio.sleep(AWAY_S - LINE_AFTER_S)
    if stopped:
        plane.resume()
    else:
        await asyncio.to_thread(plane.restart_apiserver)
    back = time.monotonic()
    async with (
        KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api,
        recording(api, names) as seen,
    ):
        for name in names:  # those that were tainted before the watch began
            node = await api.get(f"{NODES}/{name}")
            if any(taint["key"] == "muster.dev/faulty" for taint in node["spec"].get("taints", [])):
                seen.first_tainted.setdefault(name, time.monotonic())
        await seen.until(partial(_all_in, names, seen.first_tainted), "every node is tainted", LIMIT_S)
        return back - began, [seen.first_tainted[name] - back for name in names]


def _all_in(names: list[str], found: dict[str, float]) -> bool:
    return all(name in found for name in names)


async def _clear(plane: ControlPlane, names: list[str]) -> None:
    """What `muster clear` writes, for each node."""
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:

        async def clear(name: str) -> None:
            health = await api.get(f"{HEALTHS}/{name}")
            found = [finding for check in health["status"]["checks"] for finding in check.get("findings", [])]
            highest = max(finding.get("occurrence", 1) for finding in found)
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            entry = {"check": "dmesg", "component": "*", "occurrence": highest, "by": "bench", "at": at}
            await api.patch(f"{HEALTHS}/{name}", {"spec": {"clear": [entry]}})

        await for_each(names, clear)


async def _until_healthy(plane: ControlPlane, names: list[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:
        while True:
            with contextlib.suppress(ApiError):
                nodes = [await api.get(f"{NODES}/{name}") for name in names]
                labels = [node["metadata"]["labels"].get("muster.dev/health") for node in nodes]
                if set(labels) == {"pass"} and not any(node["spec"].get("taints") for node in nodes):
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"outage: not every node is healthy after {LIMIT_S:.0f} s")
            await asyncio.sleep(0.5)


def table(outcome: Outcome) -> str:
    lines = [f"{f'{AWAY_S:.0f} s without API server':<44}times   P50 s   P99 s   most s"]
    everything = [*outcome.stopped_s, *outcome.killed_s]
    for name, taken in (("stopped", outcome.stopped_s), ("killed", outcome.killed_s), ("both", everything)):
        if taken:
            told = f"its return -> taint, it was {name}" if name != "both" else "its return -> taint"
            p50, p99 = percentile(taken, 50), percentile(taken, 99)
            lines.append(f"{told:<44}{len(taken):>5}{p50:>8.2f}{p99:>8.2f}{max(taken):>9.2f}")
    lines.append(f"{'bound':<44}{'':>5}{'':>8}{OUTAGE_P99_S:>8.0f}")
    return "\n".join(lines)
