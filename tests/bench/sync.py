"""What a tainter takes for a large fleet at rest: processor time until it knows all of it and leads, and memory a node
beyond what it takes for no node at all. The same program is measured twice, on the same API server."""

import asyncio
import contextlib
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from harness.bench_agent import health_object
from harness.bounds import NODE_BYTES, SYNC_CPU_S
from harness.footprint import Footprint, footprint
from harness.progress import say
from latency import PASSED
from line_to_taint import HEALTHS, NODES

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ManagedProcess, ProcessReaper
from muster_sandbox.simulation.nodes import for_each, node_object

READY_LIMIT_S = 300.0
REST_S = 20.0  # the first burst of labels and looks is over, and what the start allocated is given back


@dataclass(frozen=True)
class Outcome:
    """synced: when every node was known and decided about; rest: some time later. requests: sent in between."""

    nodes: int
    empty: Footprint
    synced: Footprint
    rest: Footprint
    wall_s: float
    requests: float


def measure(binaries: Path, nodes: int) -> Outcome:
    with ControlPlane(binaries) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        kubeconfig = plane.kubeconfig_for(TAINTER, NAMESPACE)
        empty, _, _, _ = _run(kubeconfig, reaper, 0)
        say(f"sync: making {nodes} nodes")
        asyncio.run(_make(plane.kubeconfig, nodes))
        synced, rest, wall_s, requests = _run(kubeconfig, reaper, nodes)
        return Outcome(nodes, empty, synced, rest, wall_s, requests)


async def _make(kubeconfig: Path, nodes: int) -> None:
    """Nodes that have said PASS, and carry what the tainter makes of that."""
    status = {"verdict": "PASS", "bootID": "0", "checks": [{"name": "dmesg", "verdict": "PASS"}]}
    async with KubeClient(load_config(kubeconfig), user_agent="muster-bench", timeout_s=60) as client:

        async def at_rest(index: int) -> None:
            name = f"sync-{index}"
            node = node_object(name, index)
            node["metadata"]["labels"]["muster.dev/health"] = "pass"
            node["status"]["conditions"].append(PASSED)
            await client.create(NODES, node)
            await client.create(HEALTHS, health_object(name))
            await client.patch(f"{HEALTHS}/{name}/status", {"status": status})

        await for_each(range(nodes), at_rest)


def _run(kubeconfig: Path, reaper: ProcessReaper, nodes: int) -> tuple[Footprint, Footprint, float, float]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as place:
        log = Path(place) / "tainter.log"
        command = [sys.executable, "-m", "muster_tainter", "--port", "0", "--host", "127.0.0.1"]
        tainter = ManagedProcess(
            "tainter", [*command, "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE], log, reaper
        )
        began = time.monotonic()
        tainter.start()
        try:
            assert tainter.pid is not None
            url = _listening(tainter, log)
            _until(tainter, lambda: _known(url) >= nodes and "muster_tainter_leader 1.0" in _read(url, "/metrics"))
            _until(tainter, lambda: _waiting(url) == 0)
            wall_s, synced, writes = time.monotonic() - began, footprint(tainter.pid), _writes(url)
            time.sleep(REST_S)
            tainter.require_alive()
            return synced, footprint(tainter.pid), wall_s, _writes(url) - writes
        finally:
            tainter.stop()


def _listening(tainter: ManagedProcess, log: Path) -> str:
    def address() -> str:
        lines = [line for line in log.read_text().splitlines() if line.startswith("listening on ")]
        return f"http://{lines[0].split()[-1]}" if lines else ""

    _until(tainter, lambda: bool(address()))
    return address()


def _until(tainter: ManagedProcess, done: object) -> None:
    assert callable(done)
    deadline = time.monotonic() + READY_LIMIT_S
    while not done():
        tainter.require_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the tainter has not come to rest in {READY_LIMIT_S:.0f} s\n{tainter.tail()}")
        time.sleep(0.5)


def _read(url: str, path: str) -> str:
    with urllib.request.urlopen(url + path, timeout=60) as answer:  # noqa: S310 - our own, on loopback
        text: str = answer.read().decode()
        return text


def _sum(url: str, metric: str) -> float:
    lines = _read(url, "/metrics").splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(metric + "{"))


def _known(url: str) -> float:
    return _sum(url, "muster_tainter_nodes")


def _waiting(url: str) -> float:
    return _sum(url, "muster_tainter_queue_depth")


def _writes(url: str) -> float:
    return _sum(url, "muster_tainter_writes_total")


def table(outcome: Outcome) -> str:
    each_node = (outcome.rest.rss - outcome.empty.rss) / max(outcome.nodes, 1)
    cpu_s = outcome.synced.cpu_s - outcome.empty.cpu_s
    return "\n".join(
        [
            "a tainter's fleet at rest    nodes   CPU s   wall s   RSS MB   bytes a node   writes",
            f"{'no node':<26} {0:7d} {outcome.empty.cpu_s:7.2f} {'':8} {outcome.empty.rss / 1e6:8.1f}",
            f"{'all of them':<26} {outcome.nodes:7d} {outcome.synced.cpu_s:7.2f} {outcome.wall_s:8.1f} "
            f"{outcome.rest.rss / 1e6:8.1f} {each_node:14.0f} {outcome.requests:8.0f}",
            f"{'the fleet alone, and bound':<26} {'':7} {cpu_s:7.2f} {SYNC_CPU_S:8.1f} {'':8} {NODE_BYTES:14d} {0:8d}",
        ]
    )
