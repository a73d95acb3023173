"""200 fatal and 1,800 harmless findings over 10,000 nodes, written as fast as the API server takes them.

The tainter runs with its built-in policy. Every state that any write makes of a Node is seen, so a taint that was set
and taken back would be, too. It is over when each of the 2,000 nodes carries what the tainter makes of its finding.
"""

import asyncio
import contextlib
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from burst import tainter
from harness.bench_agent import health_object
from harness.progress import say
from latency import PASSED, percentile

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.tainter.fleet_findings import (
    FATAL,
    HARMLESS,
    HEALTHS,
    NODES,
    finding_of_each,
    publish,
    recording,
    status,
)

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.simulation.nodes import for_each, node_object

FLEET, FATALS, HARMLESSES = 10_000, 200, 1_800
SETTLE_S = 900.0  # far more than anything takes
AT_ONCE = 24


@dataclass(frozen=True)
class Outcome:
    """tainted: nodes with a fatal finding that were tainted in the end; others: nodes without one that ever were.

    written_s: until all findings were written; last_s: until the last taint, from the first finding on
    waited_s: of each fatal finding, from its being written to its node's taint
    """

    tainted: int
    others: int
    written_s: float
    last_s: float
    waited_s: list[float]


def measure(binaries: Path, fleet: int = FLEET, fatals: int = FATALS, harmlesses: int = HARMLESSES) -> Outcome:
    with ControlPlane(binaries) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        return asyncio.run(_measure(plane, reaper, fleet, fatals, harmlesses))


async def _measure(plane: ControlPlane, reaper: ProcessReaper, fleet: int, fatals: int, harmlesses: int) -> Outcome:
    account = plane.kubeconfig_for(TAINTER, NAMESPACE)
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:
        say(f"selectivity: making {fleet} nodes")
        names = await _fleet_at_rest(api, fleet)
        chosen = random.Random(7).sample(names, fatals + harmlesses)
        fatal, harmless = chosen[:fatals], chosen[fatals:]
        said = finding_of_each(fatal, FATAL) | finding_of_each(harmless, HARMLESS)
        order = random.Random(8).sample(chosen, len(chosen))
        with tainter(reaper, account, ""):
            await _until_it_leads(api)
            async with recording(api, names) as seen:
                say(f"selectivity: {fatals} fatal findings among {harmlesses} harmless ones")
                began = time.monotonic()
                written: dict[str, float] = {}
                await publish(api, {name: said[name] for name in order}, AT_ONCE, written)
                written_s = time.monotonic() - began

                def settled() -> bool:
                    # the tainter's label says that it has taken in what its agent found
                    return all(name in seen.now and seen.now[name].health != "pass" for name in chosen)

                await seen.until(settled, "every node has the label of its finding", SETTLE_S)
    tainted = seen.tainted & set(fatal)
    return Outcome(
        tainted=len(tainted),
        others=len(set(seen.first_tainted) - set(fatal)),
        written_s=written_s,
        last_s=max(seen.first_tainted.values(), default=began) - began,
        waited_s=[max(seen.first_tainted[name] - written[name], 0.0) for name in tainted],
    )


async def _fleet_at_rest(api: KubeClient, fleet: int) -> list[str]:
    """Every node has said PASS, and carries what the tainter makes of that."""

    async def make(index: int) -> None:
        node = node_object(f"node-{index}", index)
        node["metadata"]["labels"]["muster.dev/health"] = "pass"
        node["status"]["conditions"].append(PASSED)
        await api.create(NODES, node)
        await api.create(HEALTHS, health_object(f"node-{index}"))
        await api.patch(f"{HEALTHS}/node-{index}/status", status())

    await for_each(range(fleet), make)
    return [f"node-{index}" for index in range(fleet)]


async def _until_it_leads(api: KubeClient) -> None:
    """Its caches are full: it has made a NodeHealth for one node more."""
    await api.create(NODES, node_object("last-of-all"))
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        node = await api.get(f"{NODES}/last-of-all")
        if "muster.dev/health" in node["metadata"]["labels"]:
            return
        await asyncio.sleep(0.5)
    raise TimeoutError(f"the tainter has not taken in its fleet within {SETTLE_S:.0f} s")


def table(outcome: Outcome) -> str:
    waited = outcome.waited_s
    p50, p99 = percentile(waited, 50), percentile(waited, 99)
    told = f"{outcome.tainted}, {outcome.others}"
    return "\n".join(
        [
            f"{FATALS} fatal, {HARMLESSES} harmless   all written   last taint   finding -> taint s   nodes tainted",
            f"findings, {FLEET} nodes         after s      after s       P50      P99   fatal, others",
            f"{'muster':<28}{outcome.written_s:>11.1f} {outcome.last_s:>12.1f} {p50:>9.2f} {p99:>8.2f} {told:>15}",
            f"{'bound':<28}{'':>11} {'':>12} {'':>9} {'':>8} {f'{FATALS}, 0':>15}",
        ]
    )
