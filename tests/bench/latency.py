"""Kernel line to taint, and to the rule for one GPU: a cluster of so many nodes, its tainter and one agent, which take
turns with the floor."""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from harness.bench_agent import health_object
from harness.bounds import LATENCY_P50, LATENCY_P99, RULE_P50, RULE_P99
from harness.floor import BareClient, Server
from harness.priority import real_time
from harness.progress import say
from line_to_rule import POLICY, publish_devices, rule_observer, rule_round
from line_to_taint import HEALTHS, NODES, Sightings, bare_round, bare_way, muster_round, observer
from tests.cluster.devices.feature_gates import DEVICE_TAINT_RULES

from muster_checks.registry import load_registry
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane, read_minor_version
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, TAINTER, install
from muster_sandbox.processes import ManagedProcess, ProcessReaper
from muster_sandbox.simulation.nodes import for_each, node_object

BENCH_NODE, FLOOR_NODE = "bench-0", "floor-0"
RULES = "rules of bench-0"  # among the sightings
PASSED = {  # as the tainter writes it
    "type": "muster.dev/Healthy",
    "status": "True",
    "reason": "Passed",
    "message": "every check passed",
    "lastTransitionTime": "2000-01-01T00:00:00Z",
}
# An agent may publish ten changes at once and one a second after that; a round is two. With this rest every round finds
# it as a fault finds it in life: not in the middle of a hundred others.
REST_S = 2.0
WARM_UP = 5  # rounds of each way that do not count: connections and caches fill
READY_LIMIT_S = 180.0
MOST_DISTURBED = 2.0  # times the rounds that count


@dataclass(frozen=True)
class Outcome:
    """disturbed: rounds that do not count, because another program wrote a kernel line meanwhile."""

    fleet: int
    floor_ms: list[float]
    muster_ms: list[float]
    rule_ms: list[float]
    disturbed: int = 0


def percentile(values: list[float], percent: int) -> float:
    """The smallest value that ``percent`` of all do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def measure(binaries: Path, fleet: int, rounds: int, *, alone: bool = False) -> Outcome:
    """alone: the rounds run with real-time priority."""
    arguments = DEVICE_TAINT_RULES.get(read_minor_version(binaries / "kube-apiserver"), {})
    with ControlPlane(binaries, extra_args=arguments) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        say(f"fleet of {fleet}: making nodes")
        asyncio.run(make_nodes(plane.kubeconfig, fleet))
        rules = asyncio.run(publish_devices(plane.kubeconfig, BENCH_NODE))
        with parts(plane, reaper):
            asyncio.run(until_settled(plane.kubeconfig))
            with real_time(wanted=alone):
                return take_turns(plane, fleet, rounds, rules)


async def make_nodes(kubeconfig: Path, fleet: int) -> None:
    """A fleet at rest: every idle node has said PASS, and carries what the tainter makes of that."""
    async with KubeClient(load_config(kubeconfig), user_agent="muster-bench", timeout_s=60) as client:
        floor = node_object(FLOOR_NODE)
        floor["metadata"]["labels"]["muster.dev/managed"] = "false"  # the tainter leaves it to the floor
        await client.create(NODES, floor)
        await client.create(HEALTHS, health_object(FLOOR_NODE))
        await client.create(NODES, node_object(BENCH_NODE))
        status = {"verdict": "PASS", "bootID": "0", "checks": [{"name": "dmesg", "verdict": "PASS"}]}

        async def at_rest(index: int) -> None:
            node = node_object(f"idle-{index}", index)
            node["metadata"]["labels"]["muster.dev/health"] = "pass"
            node["status"]["conditions"].append(PASSED)
            await client.create(NODES, node)
            await client.create(HEALTHS, health_object(f"idle-{index}"))
            await client.patch(f"{HEALTHS}/idle-{index}/status", {"status": status})

        await for_each(range(fleet - 1), at_rest)


@contextlib.contextmanager
def parts(plane: ControlPlane, reaper: ProcessReaper) -> Iterator[None]:
    """The tainter and the agent of :data:`BENCH_NODE`, as their own accounts."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as place:
        folder = Path(place)
        config = folder / "agent.yaml"
        # the kernel log's check alone: what ails this machine would keep the node from ever being well
        checks: dict[str, object] = {name: {"enabled": False} for name in load_registry()}
        config.write_text(json.dumps({"checks": checks | {"dmesg": {"parameters": {"start": "now"}}}}))
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        tainter = [sys.executable, "-m", "muster_tainter", "--port", "0", "--host", "127.0.0.1"]
        tainter += ["--policy", str(policy)]
        tainter += ["--kubeconfig", str(plane.kubeconfig_for(TAINTER, NAMESPACE)), "--namespace", NAMESPACE]
        agent = [sys.executable, "-m", "muster_agent", "--port", "0", "--host", "127.0.0.1", "--node", BENCH_NODE]
        agent += ["--kubeconfig", str(plane.kubeconfig_for(AGENT, NAMESPACE)), "--config", str(config)]
        agent += ["--state-dir", str(folder / "state"), "--pod-uid", "bench"]
        running = [
            ManagedProcess("tainter", tainter, folder / "tainter.log", reaper),
            ManagedProcess("agent", agent, folder / "agent.log", reaper),
        ]
        try:
            for component in running:
                component.start()
            yield
            for component in running:
                component.require_alive()
        except Exception:
            for component in running:
                say(f"--- {component.name}\n{component.tail()}")
            raise
        finally:
            for component in running:
                component.stop()


async def until_settled(kubeconfig: Path) -> None:
    """The agent of :data:`BENCH_NODE` has said PASS and the tainter, its caches full, has taken that in."""
    async with KubeClient(load_config(kubeconfig), user_agent="muster-bench") as client:
        deadline = time.monotonic() + READY_LIMIT_S
        while True:
            node = await client.get(f"{NODES}/{BENCH_NODE}")
            if node["metadata"]["labels"].get("muster.dev/health") == "pass":
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{BENCH_NODE} is not labelled muster.dev/health=pass after {READY_LIMIT_S:.0f} s")
            await asyncio.sleep(0.5)


def bare_server(kubeconfig: Path) -> Server:
    """The API server for the floor's clients, as the account of ``kubeconfig``."""
    config = load_config(kubeconfig)
    address = urlsplit(config.server)
    header = asyncio.run(config.credentials.header()) or ""
    return Server(address.hostname or "", address.port or 443, config.ssl_context(), header.removeprefix("Bearer "))


def take_turns(plane: ControlPlane, fleet: int, rounds: int, rules: str) -> Outcome:
    """rules: the path of DeviceTaintRules"""
    server = bare_server(plane.kubeconfig)
    agent, tainter = (bare_server(plane.kubeconfig_for(account, NAMESPACE)) for account in (AGENT, TAINTER))
    seen, client = Sightings(), BareClient(server)
    outcome = Outcome(fleet, [], [], [])
    with (
        observer(server, BENCH_NODE, seen),
        observer(server, FLOOR_NODE, seen),
        rule_observer(server, rules, RULES, seen),
        bare_way(agent, tainter, FLOOR_NODE),
    ):
        for node in (BENCH_NODE, FLOOR_NODE):
            seen.wait_for(node, tainted=False)  # its watch is up
        number = disturbed = 0
        while number < WARM_UP + rounds:
            floor_s = bare_round(client, FLOOR_NODE, seen)
            muster_s = muster_round(client, BENCH_NODE, seen)
            time.sleep(REST_S)
            if muster_s is None:
                disturbed += 1
                if disturbed > MOST_DISTURBED * (WARM_UP + rounds):
                    raise RuntimeError(f"{disturbed} rounds were disturbed by kernel lines of other programs")
                continue
            if number >= WARM_UP:
                outcome.floor_ms.append(floor_s * 1000)
                outcome.muster_ms.append(muster_s * 1000)
            rule_s = rule_round(client, BENCH_NODE, RULES, seen)
            if number >= WARM_UP:
                outcome.rule_ms.append(rule_s * 1000)
            time.sleep(REST_S)
            if number % 25 == 0:
                say(f"fleet of {fleet}: round {number} of {WARM_UP + rounds}")
            number += 1
    client.close()
    return replace(outcome, disturbed=disturbed)


def table(outcomes: list[Outcome]) -> str:
    lines = [
        "kernel line -> taint          floor ms        muster ms          ratio        bound",
        "fleet   rounds             P50      P99      P50      P99     P50    P99",
    ]
    taint, rule = (LATENCY_P50, LATENCY_P99), (RULE_P50, RULE_P99)
    lines += [row(each, each.muster_ms, taint) for each in outcomes]
    lines += ["kernel line -> rule for one GPU, the same floor"]
    lines += [row(each, each.rule_ms, rule) for each in outcomes]
    return "\n".join(lines)


def row(outcome: Outcome, muster: list[float], bound: tuple[float, float]) -> str:
    floor = outcome.floor_ms
    p50 = statistics.median(floor), statistics.median(muster)
    p99 = percentile(floor, 99), percentile(muster, 99)
    return (
        f"{outcome.fleet:>5}   {len(muster):>6}        {p50[0]:>8.1f} {p99[0]:>8.1f} {p50[1]:>8.1f} {p99[1]:>8.1f}"
        f"   {p50[1] / p50[0]:>5.2f}  {p99[1] / p99[0]:>5.2f}   {bound[0]} / {bound[1]}"
    )
