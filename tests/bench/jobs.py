"""1,000 IPUJobs of 8 workers and a launcher: what they cost the API server, the operator and the V-IPU proxy.

On the real API server with the real scheduler and webhooks, simulated kubelets, and a simulated V-IPU controller whose
partitions take no time. Writes are counted from the API server's audit log and held against what the jobs needed:
objects, changes of status that an watcher saw, and intents of the tracker (each partition is meant, is there, is let
go, is gone). Beside it a bare client makes the same objects, for the same scheduler and the same kubelets.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from harness.footprint import Footprint
from harness.progress import say
from harness.supervised_bed import LIMIT_S, SupervisedBed, until
from jobs_floor import TEMPLATE

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.ipujob.operator_bed import SELECTOR, TRACKER, training

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.objects import Api, Metadata
from muster_kube.controller.reflector import Reflector
from muster_operator.job import names
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import API_VERSION, PLURAL, IPUJob, jobs_path
from muster_operator.observe.cluster import objects_path as place_of
from muster_operator.plan.workload import small_objects
from muster_operator.resources import pods
from muster_sandbox.controlplane.audit import AuditedRequest
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import install
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes, for_each

WORKERS, IPUS = 8, 8
FLEET_IPUS = 12_800  # the most that the simulator takes
PODS_A_NODE = 200
SPACE, FLOOR_SPACE = "jobs", "floor"
REST_S = 10.0
ACCOUNTS = (":muster-operator", ":muster-vipu-proxy")
# leases, certificates, reviews, and watches that begin anew
CLOCK = re.compile(r"leases|secrets|.*webhookconfigurations|.*reviews")
READS = (": get", ": list")
INTENTS = 4  # creating, active, deleting, gone
FINALISER, STATUS, INTENT = "IPUJob: finaliser on and off", "IPUJob: status", "tracker: intents"


class _Seen(Api, frozen=True):
    metadata: Metadata
    status: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass
class JobObserver:
    """Follows every IPUJob. changes: of statuses, without those that only moved a time."""

    changes: int = 0
    now: dict[str, str] = field(default_factory=dict)  # launcherStatus by key
    at: dict[tuple[str, str], float] = field(default_factory=dict)  # when a job first had it, monotonic seconds

    def note(self, key: str, old: _Seen | None, new: _Seen | None) -> None:
        if new is None:
            self.now.pop(key, None)
            return
        if old is not None:  # a new one's status is the API server's default
            self.changes += _without_times(new.status) != _without_times(old.status)
        state = new.status.get("launcherStatus", "")
        self.now[key] = state
        self.at.setdefault((key, state), time.monotonic())


def _without_times(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name != "lastReconcileTime"}


@dataclass(frozen=True)
class Leg:
    """wall_s: since the leg began; the others: processor seconds in it."""

    name: str
    wall_s: float
    operator_s: float
    proxy_s: float


@dataclass(frozen=True)
class Outcome:
    """written: writes by kind, of ``counted`` jobs; needed: as many as there should be. alone_s: from submission until
    it runs, of a job in the idle cluster and of one while the others run; first_s: until the first of the others runs.
    tracker: bytes with all jobs in it. made_s, running_s, cpu_s: of the floor, until all objects are made, until all
    pods run, and its processor seconds."""

    jobs: int
    counted: int
    legs: list[Leg]
    written: Counter[str]
    needed: dict[str, int]
    alone_s: tuple[float, float]
    first_s: float
    operator: tuple[Footprint, Footprint]
    proxy: tuple[Footprint, Footprint]
    tracker: int
    made_s: float
    running_s: float
    cpu_s: float


def measure(binaries: Path, jobs: int) -> Outcome:
    with (
        ControlPlane(binaries) as plane,
        contextlib.closing(ProcessReaper()) as reaper,
        tempfile.TemporaryDirectory(prefix="muster-bench-") as place,
    ):
        reaper.remove_at_end(Path(place))
        install(plane.admin)
        for space in (SPACE, FLOOR_SPACE):
            plane.admin.create_namespace(space)
        return asyncio.run(_measure(plane, reaper, Path(place), jobs))


async def _measure(plane: ControlPlane, reaper: ProcessReaper, place: Path, jobs: int) -> Outcome:
    config = load_config(plane.kubeconfig)
    async with (
        KubeClient(config, user_agent="muster-bench", timeout_s=120) as api,
        KubeClient(config, user_agent="muster-bench-kubelets", timeout_s=120) as theirs,
        Kubelets(theirs) as kubelets,
    ):
        fleet = SimulatedNodes(api)
        shape = NodeShape(labels={SELECTOR[0]: SELECTOR[1]}, pods=PODS_A_NODE, gpus=0)
        await fleet.create(-(-(jobs + 2) * (WORKERS + 1) // PODS_A_NODE) + 4, prefix="ipu", shape=shape)
        bed = SupervisedBed(api, plane, kubelets, fleet, place, SPACE, reaper=reaper)
        watcher = JobObserver()
        looking: Reflector[_Seen] = Reflector(api, f"/apis/{API_VERSION}/{PLURAL}", _Seen, on_change=watcher.note)
        task = asyncio.create_task(looking.run())
        try:
            await bed.start(ipus=FLEET_IPUS, nodes=0)
            await looking.wait_synced()
            run = _Run(bed, watcher, jobs)
            return await run.all()
        except BaseException:
            for program in bed.programs:
                say("\n".join([program.log.name, *program.lines().splitlines()[-15:]]))
            raise
        finally:
            await bed.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _Run:
    def __init__(self, bed: SupervisedBed, watcher: JobObserver, jobs: int) -> None:
        self.bed = bed
        self.watcher = watcher
        self.keys = [f"{SPACE}/job-{number}" for number in range(jobs)]
        self.legs: list[Leg] = []
        self.first_s = 0.0

    async def all(self) -> Outcome:
        bed, jobs = self.bed, len(self.keys)
        idle_s = await self._alone(TEMPLATE)
        text = json.dumps(await self._template())
        await self._delete([f"{SPACE}/{TEMPLATE}"])
        await asyncio.sleep(REST_S)  # what the start took is given back
        before = bed.footprint(bed.operator), bed.footprint(bed.proxy)
        since, changes = bed.control_plane.audit.mark(), self.watcher.changes
        say(f"jobs: {jobs} of {WORKERS} workers")
        await self._leg("all run", self._submit)
        tracker = len(json.dumps((await bed.api.get(TRACKER))["data"]))
        busy_s = await self._alone("one-more")
        self.keys.append(f"{SPACE}/one-more")
        await self._leg("all are completed", self._finish)
        await self._leg("all are gone, partitions too", lambda: self._delete(self.keys))
        await asyncio.sleep(REST_S)
        after = bed.footprint(bed.operator), bed.footprint(bed.proxy)
        counted = len(self.keys)
        written = self._written(since)
        needed = {name: each_job * counted for name, each_job in _objects().items()}
        needed |= {STATUS: self.watcher.changes - changes, INTENT: INTENTS * counted}
        say("jobs: the floor")
        floor = await self._floor(text, jobs)
        return Outcome(
            jobs, counted, self.legs, written, needed, (idle_s, busy_s), self.first_s,
            (before[0], after[0]), (before[1], after[1]), tracker, *floor,
        )  # fmt: skip

    async def _leg(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        bed, began = self.bed, time.monotonic()
        before = bed.footprint(bed.operator).cpu_s, bed.footprint(bed.proxy).cpu_s
        await act()
        after = bed.footprint(bed.operator).cpu_s, bed.footprint(bed.proxy).cpu_s
        leg = Leg(name, time.monotonic() - began, after[0] - before[0], after[1] - before[1])
        took = f"operator {leg.operator_s:.1f} s, proxy {leg.proxy_s:.1f} s"
        say(f"jobs: until {name}: {leg.wall_s:.1f} s; processor: {took}")
        self.legs.append(leg)

    async def _alone(self, name: str) -> float:
        began = time.monotonic()
        await self.bed.submit(name, _spec())
        await self._until_all([f"{SPACE}/{name}"], "Running")
        return self.watcher.at[f"{SPACE}/{name}", "Running"] - began

    async def _submit(self) -> None:
        async def submit(key: str) -> None:
            await self.bed.submit(key.partition("/")[2], _spec())

        began = time.monotonic()
        await for_each(self.keys, submit)
        await self._until_all(self.keys, "Running")
        self.first_s = min(self.watcher.at[key, "Running"] for key in self.keys) - began

    async def _finish(self) -> None:
        for key in self.keys:
            self.bed.kubelets.finish(f"{SPACE}/{names.launcher_pod(key.partition('/')[2])}")
        await self._until_all(self.keys, "Completed")

    async def _delete(self, keys: list[str]) -> None:
        async def delete(key: str) -> None:
            await self.bed.api.delete(f"{jobs_path(SPACE)}/{key.partition('/')[2]}")

        await for_each(keys, delete)

        async def gone() -> bool:
            return not self.watcher.now and not await self.bed.tracker() and not await self.bed.vipu_partitions()

        await until(gone, "every job and every partition is gone")

    async def _until_all(self, keys: list[str], state: str) -> None:
        async def so() -> bool:
            for program in self.bed.programs:
                self.bed.footprint(program)  # it lives
            wrong = [key for key in keys if self.watcher.now.get(key) == "Failed"]
            if wrong:
                raise RuntimeError(f"jobs: failed: {wrong[:5]}")
            return all(self.watcher.now.get(key) == state for key in keys)

        await until(so, f"{len(keys)} jobs are {state}; now {Counter(self.watcher.now.values())}")

    # what was written

    def _written(self, since: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for request in self.bed.control_plane.audit.requests(since):
            by_the_clock = request.verb == "watch" or CLOCK.fullmatch(request.resource)
            if request.user.endswith(ACCOUNTS) and not by_the_clock:
                found[_kind(request)] += 1
        return found

    # the floor

    async def _template(self) -> list[tuple[str, Any]]:
        """What the operator has just made, as it made it; nobody's, and with labels that nobody watches."""
        job = msgspec.convert(await self.bed.api.get(f"{jobs_path(SPACE)}/{TEMPLATE}"), IPUJob)
        [entry] = (await self.bed.tracker()).values()
        bodies = [*small_objects(job), *_pods(job, entry)]
        for body in bodies:
            meta = body["metadata"]
            meta["namespace"] = FLOOR_SPACE
            del meta["ownerReferences"]
            meta["labels"][names.MANAGED_BY] = "muster-floor"
        return [(place_of(body["kind"], FLOOR_SPACE), body) for body in bodies]

    async def _floor(self, text: str, jobs: int) -> tuple[float, float, float]:
        await until(self._collected, "what the jobs owned is collected")
        file = self.bed.folder / "objects.json"
        file.write_text(text)
        began = time.monotonic()
        program = Path(__file__).with_name("jobs_floor.py")
        command = [sys.executable, str(program), str(self.bed.control_plane.kubeconfig), str(file), str(jobs)]
        done = await asyncio.to_thread(
            subprocess.run, command, check=True, timeout=LIMIT_S, stdout=subprocess.PIPE, text=True
        )
        made_s = time.monotonic() - began
        wanted = jobs * (WORKERS + 1)

        async def running() -> bool:
            there = self.bed.kubelets.pods.values()
            return sum(p.metadata.namespace == FLOOR_SPACE and p.status.phase == "Running" for p in there) == wanted

        await until(running, f"{wanted} bare pods run")
        return made_s, time.monotonic() - began, float(done.stdout)

    async def _collected(self) -> bool:
        for kind in ("Pod", "ServiceAccount", "RoleBinding"):
            page = await self.bed.api.get(
                place_of(kind, SPACE), params={"labelSelector": names.OWNED_SELECTOR, "limit": 1}
            )
            if page["items"]:
                await asyncio.sleep(1.0)
                return False
        return True


def _spec() -> dict[str, Any]:
    return training(ipus=IPUS, workers=WORKERS)


def _pods(job: IPUJob, entry: PartitionEntry) -> list[dict[str, Any]]:
    setup = JobSetup()
    return [
        *(pods.build_worker(job, index, entry, entry.attempt, setup) for index in range(WORKERS)),
        pods.build_launcher(job, [entry], entry.attempt, setup),
    ]


def _objects() -> dict[str, int]:
    """Writes of one job that are neither status nor tracker."""
    small = {f"{kind}: create": 1 for kind in ("configmaps", "serviceaccounts", "roles", "rolebindings")}
    return {FINALISER: 2, **small, "pods: create": WORKERS + 1, "pods: delete": WORKERS + 1}


def _kind(request: AuditedRequest) -> str:
    if request.writes and request.status >= 400:
        return f"refused ({request.status} {request.verb} {request.resource})"
    known = {("patch", "ipujobs"): FINALISER, ("patch", "ipujobs/status"): STATUS, ("patch", "configmaps"): INTENT}
    if (found := known.get((request.verb, request.resource))) is not None:
        return found
    return f"{request.resource}: {request.verb}"


def table(outcome: Outcome) -> str:
    return "\n\n".join(["\n".join(part(outcome)) for part in (_times, _memory, _writes)])


def _times(outcome: Outcome) -> list[str]:
    jobs = outcome.jobs
    lines = [f"{f'{jobs} IPUJobs of {WORKERS} workers':<36}  wall s   a second   CPU s: operator   proxy    bare"]
    for leg in outcome.legs:
        told = f"{f'until {leg.name}':<36}{leg.wall_s:>8.1f}{jobs / leg.wall_s:>11.1f}"
        lines.append(f"{told}{leg.operator_s:>18.1f}{leg.proxy_s:>8.1f}")
    made_s, running_s = outcome.made_s, outcome.running_s
    return [
        *lines,
        f"{'floor: the same objects are made':<36}{made_s:>8.1f}{jobs / made_s:>11.1f}{outcome.cpu_s:>34.1f}",
        f"{'floor: their pods run':<36}{running_s:>8.1f}{jobs / running_s:>11.1f}",
        f"{'the first of them runs after':<36}{outcome.first_s:>8.1f}",
        f"{'one alone runs after':<36}{outcome.alone_s[0]:>8.1f}",
        f"{f'one more beside the {jobs} runs after':<36}{outcome.alone_s[1]:>8.1f}",
    ]


def _memory(outcome: Outcome) -> list[str]:
    lines = [f"{'memory':<36}  RSS MB before     most    after"]
    for name, (before, after) in (("operator", outcome.operator), ("V-IPU proxy", outcome.proxy)):
        lines.append(f"{name:<36}{before.rss / 1e6:>15.1f}{after.peak / 1e6:>9.1f}{after.rss / 1e6:>9.1f}")
    return [*lines, f"{'the tracker, of 1,024 KiB':<36}{outcome.tracker / 1024:>11.0f} KiB"]


def _writes(outcome: Outcome) -> list[str]:
    """What else there was is no write, or one that should not be."""
    written, needed, counted = outcome.written, outcome.needed, outcome.counted
    lines = [f"{'API writes a job':<36}measured   bound"]
    for kind in [*needed, *sorted(written.keys() - needed.keys())]:
        lines.append(f"{kind:<36}{written[kind] / counted:>8.2f}{needed.get(kind, 0) / counted:>8.2f}")
    done = sum(number for kind, number in written.items() if not kind.endswith(READS))
    return [*lines, f"{'all writes':<36}{done / counted:>8.2f}{sum(needed.values()) / counted:>8.2f}"]
