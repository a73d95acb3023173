"""How the tainter's costs grow with the fleet, and the operator's and the proxy's with the number of jobs.

For each size one tainter, on the same API server: what its start takes, what rest takes, and what each of some single
faults takes. Its requests are counted from the audit log, its bytes by a relay in front of the API server. A law
``cost = base + factor * size ** exponent`` is fitted to each cost (harness/growth_law.py); if one grows faster than it
may, `make bench` ends with status 1.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jobs as jobs_part
from burst import NO_BUDGET
from harness.byte_relay import Bytes, counted
from harness.footprint import Footprint
from harness.growth_law import Fit, fit, too_fast
from harness.progress import say
from harness.resting_fleet import RestingFleet
from harness.tainter_process import TainterProcess
from latency import percentile

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, TAINTER, install
from muster_sandbox.processes import ProcessReaper

SIZES = (100, 1_000, 5_000, 15_000)
JOBS = (10, 100, 1_000)
TURNS = 2  # each size is measured so often
FAULTS = 40
PAUSE_S = 0.25  # between single faults: each meets a tainter at rest
REST_S = 10.0
SETTLE_S = 5.0  # what the start allocated is given back
EXTRAPOLATED = 50_000
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{TAINTER}"


@dataclass(frozen=True)
class FleetPoint:
    """One tainter over ``nodes`` nodes.

    start_*:  from its start until it leads and has decided about all nodes
    rest_*:   a second of rest; requests without the Lease
    fault_*:  of one fault, from the PATCH of the NodeHealth on; requests and bytes with all that follows it
    """

    nodes: int
    start_s: float
    start_cpu_s: float
    start_requests: int
    start_bytes: int
    rss_bytes: int
    rest_cpu_s: float
    rest_requests: float
    rest_bytes: float
    fault_cpu_s: float
    fault_requests: float
    fault_bytes: float
    fault_ms: list[float]


@dataclass(frozen=True)
class JobsPoint:
    jobs: int
    cpu_s: float
    rss_bytes: int
    writes: float
    tracker_bytes: int


@dataclass(frozen=True)
class Law:
    """allowed: the exponent that the cost may have; unit: of ``at_extrapolated``, with its interval's ends."""

    cost: str
    unit: str
    allowed: float
    fit: Fit
    extrapolated_at: int
    extrapolated: float
    too_fast: str


@dataclass(frozen=True)
class Outcome:
    fleets: list[FleetPoint]
    jobs: list[JobsPoint]
    laws: list[Law]


def measure(binaries: Path, sizes: Sequence[int] = SIZES, jobs: Sequence[int] = JOBS) -> Outcome:
    fleets: list[FleetPoint] = []
    with ControlPlane(binaries) as plane, contextlib.closing(ProcessReaper()) as reaper:
        install(plane.admin)
        there = 0
        for size in (0, *sorted(sizes)):
            fleets += asyncio.run(_grow(plane, reaper, there, size))
            there = size
    runs = [_jobs_point(number, jobs_part.measure(binaries, number)) for number in jobs]
    return Outcome(fleets, runs, laws(fleets, runs))


async def _grow(plane: ControlPlane, reaper: ProcessReaper, there: int, nodes: int) -> list[FleetPoint]:
    async with KubeClient(load_config(plane.kubeconfig), user_agent="muster-bench", timeout_s=60) as api:
        fleet = RestingFleet(api, "growth", nodes=there)
        say(f"growth: {nodes} nodes")
        await fleet.grow_to(nodes)
        return [await _fleet_point(plane, reaper, fleet) for _ in range(TURNS if nodes else 1)]


async def _fleet_point(plane: ControlPlane, reaper: ProcessReaper, fleet: RestingFleet) -> FleetPoint:
    with counted(plane.kubeconfig_for(TAINTER, NAMESPACE)) as (kubeconfig, crossed):
        meter = Meter(plane, crossed)
        async with TainterProcess(reaper, kubeconfig, NO_BUDGET) as tainter:
            began = time.monotonic()
            await tainter.until_settled(fleet.nodes)
            start_s = time.monotonic() - began
            start = meter.take(tainter.footprint())
            await asyncio.sleep(SETTLE_S)
            settled = meter.take(tainter.footprint())
            await asyncio.sleep(REST_S)
            rest = meter.take(tainter.footprint())
            faults = min(FAULTS, fleet.nodes)
            names = fleet.sample(faults)
            taken_ms = await fleet.fault_one_by_one(names, PAUSE_S)
            fault = meter.take(tainter.footprint())
        await fleet.renew(names)
    return FleetPoint(
        nodes=fleet.nodes,
        start_s=start_s,
        start_cpu_s=start.cpu_s,
        start_requests=start.requests,
        start_bytes=start.bytes,
        rss_bytes=settled.rss,
        rest_cpu_s=rest.cpu_s / REST_S,
        rest_requests=rest.requests / REST_S,
        rest_bytes=rest.bytes / REST_S,
        # without what rest takes in the same time
        fault_cpu_s=max(fault.cpu_s - rest.cpu_s * fault.seconds / rest.seconds, 0.0) / max(faults, 1),
        fault_requests=fault.requests / max(faults, 1),
        fault_bytes=max(fault.bytes - rest.bytes * fault.seconds / rest.seconds, 0.0) / max(faults, 1),
        fault_ms=taken_ms,
    )


@dataclass(frozen=True)
class Reading:
    """Since the reading before."""

    seconds: float
    cpu_s: float
    rss: int
    requests: int
    bytes: int


class Meter:
    """Reads what the tainter has taken since the last reading."""

    def __init__(self, plane: ControlPlane, crossed: Bytes) -> None:
        self._plane, self._crossed = plane, crossed
        self._at, self._cpu_s, self._bytes = time.monotonic(), 0.0, 0
        self._mark = plane.audit.mark()

    def take(self, now: Footprint) -> Reading:
        at, passed, mark = time.monotonic(), self._crossed.received + self._crossed.sent, self._plane.audit.mark()
        requests = self._plane.audit.count(
            self._mark, mark, keep=lambda each: each.user == ACCOUNT and each.resource != "leases"
        )
        reading = Reading(
            at - self._at, now.cpu_s - self._cpu_s, now.rss, requests.total(), passed - self._bytes
        )  # fmt: skip
        self._at, self._cpu_s, self._bytes, self._mark = at, now.cpu_s, passed, mark
        return reading


def _jobs_point(number: int, outcome: jobs_part.Outcome) -> JobsPoint:
    done = sum(count for kind, count in outcome.written.items() if not kind.endswith(jobs_part.READS))
    return JobsPoint(
        jobs=number,
        cpu_s=sum(leg.operator_s + leg.proxy_s for leg in outcome.legs),
        rss_bytes=outcome.operator[1].peak + outcome.proxy[1].peak,
        writes=done,
        tracker_bytes=outcome.tracker,
    )


def laws(fleets: Sequence[FleetPoint], runs: Sequence[JobsPoint]) -> list[Law]:
    empty = [point for point in fleets if point.nodes == 0]
    full = [point for point in fleets if point.nodes]

    def base(cost: str) -> float:
        return min((getattr(point, cost) for point in empty), default=0.0)

    def law(cost: str, unit: str, allowed: float, points: Sequence[tuple[float, float]], base: float = 0.0) -> Law:
        found = fit(points, base)
        return Law(cost, unit, allowed, found, EXTRAPOLATED, base + found.at(EXTRAPOLATED), too_fast(found, allowed))

    def of_fleet(cost: str, unit: str, name: str, *, whole: bool) -> Law:
        """whole: of the whole fleet; otherwise of one fault, which costs the same in every fleet."""
        points = [(point.nodes, getattr(point, name)) for point in full]
        return law(cost, unit, 1.0 if whole else 0.0, points, base(name) if whole else 0.0)

    p50 = [(point.nodes, percentile(point.fault_ms, 50)) for point in full]
    found = [
        of_fleet("start: CPU", "s", "start_cpu_s", whole=True),
        of_fleet("start: bytes", "B", "start_bytes", whole=True),
        of_fleet("memory", "B", "rss_bytes", whole=True),
        of_fleet("fault: CPU", "s", "fault_cpu_s", whole=False),
        of_fleet("fault: requests", "", "fault_requests", whole=False),
        of_fleet("fault: bytes", "B", "fault_bytes", whole=False),
        law("fault: finding to taint, P50", "ms", 0.0, p50),
    ]
    if len(runs) < 3:
        return found
    for cost, unit, name in (
        ("jobs: CPU of operator and proxy", "s", "cpu_s"),
        ("jobs: API writes", "", "writes"),
        ("jobs: tracker", "B", "tracker_bytes"),
    ):
        found.append(law(cost, unit, 1.0, [(point.jobs, getattr(point, name)) for point in runs]))
    return found


def failures(outcome: Outcome) -> list[str]:
    return [f"{law.cost}: grows too fast: {law.too_fast}" for law in outcome.laws if law.too_fast]


def table(outcome: Outcome) -> str:
    return "\n\n".join(["\n".join(part) for part in (_fleets(outcome), _jobs(outcome), _laws(outcome)) if part])


def _fleets(outcome: Outcome) -> list[str]:
    lines = [
        "a tainter's           start                       rest, a second        one fault",
        "fleet     RSS MB     s  CPU s      MB  requests   CPU ms  requests  B   CPU ms  requests  kB   P50 ms  P99 ms",
    ]
    for each in outcome.fleets:
        p50, p99 = (percentile(each.fault_ms, q) if each.fault_ms else 0.0 for q in (50, 99))
        lines.append(
            f"{each.nodes:>5}{each.rss_bytes / 1e6:>11.1f}{each.start_s:>6.1f}{each.start_cpu_s:>7.2f}"
            f"{each.start_bytes / 1e6:>8.1f}{each.start_requests:>10}{each.rest_cpu_s * 1e3:>9.1f}"
            f"{each.rest_requests:>10.2f}{each.rest_bytes:>5.0f}{each.fault_cpu_s * 1e3:>7.1f}"
            f"{each.fault_requests:>10.1f}{each.fault_bytes / 1e3:>5.0f}{p50:>9.1f}{p99:>8.1f}"
        )
    return lines


def _jobs(outcome: Outcome) -> list[str]:
    if not outcome.jobs:
        return []
    lines = ["jobs of 8 workers   CPU s   a job, ms   RSS MB at most   writes a job   tracker kB"]
    for each in outcome.jobs:
        lines.append(
            f"{each.jobs:>17}{each.cpu_s:>8.1f}{each.cpu_s / each.jobs * 1e3:>12.0f}{each.rss_bytes / 1e6:>17.1f}"
            f"{each.writes / each.jobs:>15.1f}{each.tracker_bytes / 1e3:>13.1f}"
        )
    return lines


def _laws(outcome: Outcome) -> list[str]:
    lines = [f"{'cost = base + factor * size ^ exponent':<41}exponent  95 % interval  allowed  {'at 50,000':>12}"]
    for law in outcome.laws:
        end = law.extrapolated
        size = f"{end / 1e6:.1f} MB" if end >= 1e6 else f"{end / 1e3:.1f} kB"
        shown = {"B": size, "s": f"{end:.3g} s", "ms": f"{end:.1f} ms", "": f"{end:,.1f}"}[law.unit]
        interval = f"{law.fit.low:.2f} to {law.fit.high:.2f}"
        lines.append(
            f"{law.cost:<41}{law.fit.exponent:>8.2f}{interval:>15}{law.allowed:>9g}{shown:>14}"
            f"{'  TOO FAST' if law.too_fast else ''}"
        )
    return lines
