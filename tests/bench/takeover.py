"""A new leader over 15,000 nodes with 500 open faults that nobody has tainted; and 5,000 healthy nodes that reboot at
once while other nodes fail.

The new leader is measured twice: a process that has just been started (it has to read the fleet first), and a standby
whose leader ends (its caches are warm, the lease is released). Times are those of the API server's audit log.

A reboot writes the Node as NotReady, the NodeHealth with a new boot, and the Node as Ready again with the new boot; as
fast as the API server takes them, which is far faster than machines start. Meanwhile nodes fail one by one.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from burst import NO_BUDGET, _answered
from harness.bounds import FIRST_TAINT_S, REBOOT_P99_S
from harness.progress import say
from harness.resting_fleet import RestingFleet
from harness.tainter_process import TainterProcess
from latency import percentile

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.tainter.fleet_findings import FATAL, HEALTHS, NODES, finding_of_each, publish, recording, status

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.simulation.nodes import for_each

FLEET, FAULTS, REBOOTS, FAILURES = 15_000, 500, 5_000, 100
LIMIT_S = 600.0  # far more than anything takes
REBOOTS_AT_ONCE = 16


@dataclass(frozen=True)
class Leader:
    """Seconds from ``begin`` to the first and the last taint, and from its lease to the first. begin: the start of the
    process, or the end of the leader before."""

    first_s: float
    last_s: float
    from_lease_s: float


@dataclass(frozen=True)
class Outcome:
    """failed_ms: finding -> taint of each node that failed while others rebooted; written_ms: of the PATCH of the
    finding alone, which any way to the taint begins with. tainted_reboots: nodes that only rebooted and were tainted.
    """

    nodes: int
    faults: int
    started: Leader
    standby: Leader
    reboots: int
    reboots_s: float
    failed_ms: list[float]
    written_ms: list[float]
    tainted_reboots: int


def measure(
    binaries: Path, nodes: int = FLEET, faults: int = FAULTS, reboots: int = REBOOTS, failures: int = FAILURES
) -> Outcome:
    with ControlPlane(binaries) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        return asyncio.run(_measure(plane, reaper, nodes, faults, reboots, failures))


async def _measure(
    plane: ControlPlane, reaper: ProcessReaper, nodes: int, faults: int, reboots: int, failures: int
) -> Outcome:
    account = plane.kubeconfig_for(TAINTER, NAMESPACE)
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:
        fleet = RestingFleet(api, "takeover")
        say(f"takeover: making {nodes} nodes")
        await fleet.grow_to(nodes)
        names = fleet.sample(2 * faults + failures + reboots)
        first, second = names[:faults], names[faults : 2 * faults]
        failing, rebooting = names[2 * faults : 2 * faults + failures], names[2 * faults + failures :]
        log = plane.data / "audit.log"

        say(f"takeover: {faults} faults, a new process")
        await publish(api, finding_of_each(first, FATAL))
        mark, began = plane.audit.mark(), time.time()
        leader = TainterProcess(reaper, account, NO_BUDGET)
        async with leader:
            await _until_tainted(log, mark, first)
            started = _leader(log, mark, first, began)
            await leader.until_settled(nodes)
            async with TainterProcess(reaper, account, NO_BUDGET) as standby:
                await standby.until_synced(nodes)
                say(f"takeover: {faults} faults more, a standby")
                leader.process.signal(signal.SIGSTOP)
                await publish(api, finding_of_each(second, FATAL))
                mark, began = plane.audit.mark(), time.time()
                await asyncio.to_thread(leader.process.kill)
                await _until_tainted(log, mark, second)
                waiting = _leader(log, mark, second, began)
                await standby.until_settled(nodes)
                say(f"takeover: {reboots} reboots and {failures} failures")
                storm = await _reboots(api, failing, rebooting)
    return Outcome(nodes, faults, started, waiting, reboots, *storm)


async def _reboots(
    api: KubeClient, failing: Sequence[str], rebooting: Sequence[str]
) -> tuple[float, list[float], list[float], int]:
    failed_ms: list[float] = []
    written_ms: list[float] = []
    async with recording(api, [*failing, *rebooting]) as seen:
        began = time.monotonic()
        storm = asyncio.create_task(for_each(rebooting, lambda name: _reboot(api, name), concurrency=REBOOTS_AT_ONCE))
        for number, name in enumerate(failing):
            at = time.monotonic()
            await api.patch(f"{HEALTHS}/{name}/status", status(FATAL[number % len(FATAL)]))
            written_ms.append((time.monotonic() - at) * 1000)
            await seen.until(partial(seen.tainted.__contains__, name), f"{name} is tainted", LIMIT_S)
            failed_ms.append((seen.first_tainted[name] - at) * 1000)
        if storm.done():
            say("takeover: the reboots were over before the failures were")
        await storm
        took_s = time.monotonic() - began
        await asyncio.sleep(5.0)  # whatever the reboots cause has come
    return took_s, failed_ms, written_ms, len(set(seen.first_tainted) & set(rebooting))


async def _reboot(api: KubeClient, name: str) -> None:
    path = f"{NODES}/{name}/status"
    await api.patch(path, _node_status(ready="False", boot=name), kind="strategic")
    await api.patch(f"{HEALTHS}/{name}/status", status(boot="boot-2"))
    again = _node_status(ready="True", boot=f"{name}-2")
    await api.patch(path, again, kind="strategic")


def _node_status(*, ready: str, boot: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"bootID": boot}}}


async def _until_tainted(log: Path, since: int, names: Sequence[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while set(names) - _answered(log, since).keys():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {len(names)} nodes were tainted within {LIMIT_S:.0f} s")
        await asyncio.sleep(1.0)


def _leader(log: Path, since: int, names: Sequence[str], began: float) -> Leader:
    answered = _answered(log, since)
    when = [answered[name] for name in names]
    lease = _first_lease(log, since, min(when))
    return Leader(min(when) - began, max(when) - began, min(when) - lease)


def _first_lease(log: Path, since: int, before: float) -> float:
    """When the server answered the write of the Lease that the new leader then acted on."""
    found = before
    with log.open("rb") as lines:
        lines.seek(since)
        for line in lines:
            if not line.endswith(b"\n") or b'"leases"' not in line:
                continue
            event = json.loads(line)
            done = event["stage"] == "ResponseComplete" and event.get("responseStatus", {}).get("code") in (200, 201)
            if done and event["verb"] in ("update", "patch", "create") and TAINTER in event["user"]["username"]:
                return datetime.fromisoformat(event["stageTimestamp"]).timestamp()
    return found


def table(outcome: Outcome) -> str:
    p50, p99 = percentile(outcome.failed_ms, 50), percentile(outcome.failed_ms, 99)
    written = percentile(outcome.written_ms, 99)
    lines = [
        f"a new leader, {outcome.nodes} nodes, {outcome.faults} open faults"
        "     first taint s   last s   from its lease s",
    ]
    for name, each in (
        ("a process that starts", outcome.started),
        ("a standby after a kill (its lease has to end)", outcome.standby),
    ):
        lines.append(f"{name:<52}{each.first_s:>14.1f}{each.last_s:>9.1f}{each.from_lease_s:>19.2f}")
    lines.append(f"{'bound':<52}{FIRST_TAINT_S:>14.1f}")
    lines += [
        "",
        f"{outcome.reboots} nodes reboot in {outcome.reboots_s:.0f} s, {len(outcome.failed_ms)} others fail"
        "    P50 ms   P99 ms   of rebooted nodes tainted",
        f"{'finding -> taint':<48}{p50:>9.1f}{p99:>9.1f}{outcome.tainted_reboots:>28}",
        f"{'the PATCH of the finding alone':<57}{written:>9.1f}",
        f"{'bound':<57}{REBOOT_P99_S * 1000:>9.0f}{0:>28}",
    ]
    return "\n".join(lines)
