"""500 faults that wait when the tainter starts, without a budget: how fast the taints go out.

Beside it stands what the API server gives clients that do nothing else. All are timed by the API server's own audit
log, from the first PATCH of a Node that it answered to the last one, with as many calls at once; the bare clients send
what the tainter sends. They take turns, so that each meets the same machine. The control plane has one half of the
cores and the clients have the other, as they have machines of their own in life: on shared cores every cycle of a
client would be one less for the server, and a slow client make a slow server.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
from harness.bounds import BURST
from harness.floor import BareClient
from harness.progress import say
from latency import bare_server

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.tainter.fleet_findings import FATAL, NODES, finding_of_each, healths, publish

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ManagedProcess, ProcessReaper
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes, for_each
from muster_tainter.controller import URGENT_WORKERS

FAULTS = 500
WAY_S = 120.0  # far more than any way takes
LEFT_ALONE = NodeShape(labels={"muster.dev/managed": "false"})  # of the bare clients: nothing is done about them
NO_BUDGET = "rules: [{name: hardware, match: {class: [reset, reboot, replace, contact]}, action: taint}]"


@dataclass(frozen=True)
class Round:
    """PATCHes a second."""

    threads: float
    coroutines: float
    muster: float

    @property
    def bare(self) -> float:
        """The faster of the two bare clients."""
        return max(self.threads, self.coroutines)


def measure(binaries: Path, rounds: int) -> list[Round]:
    with ControlPlane(binaries) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        done = []
        with _cores_apart(plane):
            for number in range(rounds + 1):
                say(f"burst: {FAULTS} faults, round {number} of {rounds}")
                done.append(asyncio.run(_round(plane, reaper, number)))
        return done[1:]  # the first one meets caches that are still empty


async def _round(plane: ControlPlane, reaper: ProcessReaper, number: int) -> Round:
    account = plane.kubeconfig_for(TAINTER, NAMESPACE)
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:
        fleet = SimulatedNodes(api)
        threads = await fleet.create(FAULTS, prefix=f"threads-{number}", shape=LEFT_ALONE)
        coroutines = await fleet.create(FAULTS, prefix=f"coroutines-{number}", shape=LEFT_ALONE)
        faulty = await fleet.create(FAULTS, prefix=f"burst-{number}")
        await healths(api, faulty)
        await publish(api, finding_of_each(faulty, FATAL))
        since = plane.audit.mark()
        await asyncio.to_thread(_by_threads, account, threads)
        await _by_coroutines(account, coroutines)
        with tainter(reaper, account, NO_BUDGET):
            await _until_patched(plane.data / "audit.log", since, faulty)
        when = _answered(plane.data / "audit.log", since)
        await fleet.delete()
    return Round(*(_rate(when, names) for names in (threads, coroutines, faulty)))


@contextlib.contextmanager
def _cores_apart(plane: ControlPlane) -> Iterator[None]:
    """The control plane's threads here, this process and what it starts there."""
    cores = sorted(os.sched_getaffinity(0))
    servers, clients = cores[: len(cores) // 2] or cores, cores[len(cores) // 2 :]
    for process in plane.process_ids.values():
        for thread in psutil.Process(process).threads():
            os.sched_setaffinity(thread.id, servers)
    os.sched_setaffinity(0, clients)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def _until_patched(log: Path, since: int, names: Sequence[str]) -> None:
    """Looks rarely, as this process has its cores in common with the tainter."""
    deadline = time.monotonic() + WAY_S
    while set(names) - _answered(log, since).keys():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {len(names)} nodes were tainted within {WAY_S:.0f} s")
        await asyncio.sleep(1.0)


def _body() -> dict[str, object]:
    """As large as what the tainter writes."""
    labels = {"bare.example/faulty": "true", "bare.example/health": "fail"}
    taint = {"key": "bare.example/faulty", "value": "true", "effect": "NoSchedule"}
    metadata = {"labels": labels, "annotations": {"bare.example/faults": "x" * 400}}
    return {"metadata": metadata, "spec": {"taints": [taint]}}


def _by_threads(kubeconfig: Path, names: Sequence[str]) -> None:
    """Blocking sockets, a thread each."""
    server, waiting, body = bare_server(kubeconfig), iter(names), _body()
    turn = threading.Lock()

    def work() -> None:
        client = BareClient(server)
        while True:
            with turn:
                name = next(waiting, None)
            if name is None:
                break
            client.patch(f"{NODES}/{name}", body)
        client.close()

    workers = [threading.Thread(target=work) for _ in range(URGENT_WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


async def _by_coroutines(kubeconfig: Path, names: Sequence[str]) -> None:
    """The tainter's own HTTP client."""
    async with KubeClient(load_config(kubeconfig), max_connections=URGENT_WORKERS, timeout_s=60) as client:

        async def patch(name: str) -> None:
            await client.patch(f"{NODES}/{name}", _body())

        await for_each(names, patch, concurrency=URGENT_WORKERS)


@contextlib.contextmanager
def tainter(reaper: ProcessReaper, kubeconfig: Path, policy: str) -> Iterator[ManagedProcess]:
    """Runs, with the account of ``kubeconfig``; ``policy``: the file's text, empty for the built-in one."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as place:
        file = Path(place) / "policy.yaml"
        file.write_text(policy)
        command = [sys.executable, "-m", "muster_tainter", "--port", "0", "--host", "127.0.0.1"]
        command += ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE]
        command += ["--policy", str(file)] if policy else []
        running = ManagedProcess("tainter", command, Path(place) / "tainter.log", reaper)
        try:
            running.start()
            yield running
        except BaseException:
            say(running.tail())
            raise
        finally:
            running.stop()


def _answered(log: Path, since: int) -> dict[str, float]:
    """By Node, when the server first had answered a PATCH of it with success, in seconds since the epoch."""
    first: dict[str, float] = {}
    with log.open("rb") as lines:
        lines.seek(since)
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the server is still writing it
            event = json.loads(line)
            reference = event.get("objectRef", {})
            done = (event["verb"], event["stage"], event.get("responseStatus", {}).get("code"))
            what = (reference.get("resource"), reference.get("subresource", ""))
            if (done, what) == (("patch", "ResponseComplete", 200), ("nodes", "")):
                first.setdefault(reference["name"], datetime.fromisoformat(event["stageTimestamp"]).timestamp())
    return first


def _rate(when: dict[str, float], names: Sequence[str]) -> float:
    times = [when[name] for name in names]
    return (len(times) - 1) / (max(times) - min(times))


def table(rounds: list[Round]) -> str:
    ratios = [each_one.muster / each_one.bare for each_one in rounds]
    lines = [
        f"{FAULTS} faults waiting       PATCHes a second of",
        "round   24 threads   24 coroutines   muster    ratio   bound",
    ]
    for number, each_one in enumerate(rounds, 1):
        lines.append(
            f"{number:>5}   {each_one.threads:>10.0f}   {each_one.coroutines:>13.0f}   {each_one.muster:>6.0f}"
            f"   {each_one.muster / each_one.bare:>6.2f}   {BURST:>5}"
        )
    lines.append(f"median{statistics.median(ratios):>50.2f}")
    return "\n".join(lines)
