"""Many IPUJobs under random faults of everything around them; what must be so when the faults have ended.

Operator, proxy and V-IPU run inside this process on a real API server with the real scheduler, controllers and garbage
collection. What watches the jobs and the kubelets that run their pods are spared.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.cluster.ipujob.operator_bed import inference, training
from tests.cluster.ipujob_failures.api_faults import FAULTS, ApiFaults, ExposedProcess
from tests.cluster.ipujob_failures.embedded_operator import Installation, make_vipu
from tests.cluster.ipujob_failures.ipujob_watcher import IPUJobWatcher, watch_ipujobs

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError, Conflict, NotFound
from muster_kube.api.times import seconds
from muster_operator.job.names import JOB_UID, LAUNCHER, ROLE
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.status import is_finished
from muster_operator.job.types import API_VERSION, IPUJob, jobs_path
from muster_operator.plan.hardware.degradation import DEGRADED
from muster_operator.vipu.simulator.fleet import InjectedFaults
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NODES, NodeShape, node_object
from muster_sandbox.simulation.pods import PodScript, SimulatedPod

SPACE = "soak"
IPUS, NODE_NUMBER = 128, 8
SHAPE = NodeShape(labels={"ipunode": "rack1"}, gpus=0, pods=250)
CALL_S = 5.0  # of the operator's and the proxy's calls: one that hangs is given up
SETTLE_S = 600.0  # after the faults, until all is at rest: far more than it takes
REST_S, RESTS = 3.0, 5
_FAILED = re.compile(r"pod (\S+)(?: on node \S+)? failed: .*?(?:exit code (\d+)|nothing says why)")
_LOST = re.compile(r"pod (\S+) was lost with node (\S+): ")
_DEGRADED = re.compile(r" is on node (\S+): ")

Object = dict[str, Any]


@dataclass
class Tally:
    """faults: by kind. ends: jobs by how they ended. wrong: what must not be, in words."""

    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    jobs: int = 0
    restarts: int = 0
    moves: int = 0
    processes: int = 0
    met: int = 0
    settled_s: float = 0.0


@dataclass
class Soak:
    config: ClusterConfig
    api: KubeClient
    watcher: IPUJobWatcher
    rng: random.Random
    say: Callable[[str], None]
    tally: Tally = field(default_factory=Tally)
    api_faults: ApiFaults = field(default_factory=ApiFaults)
    wanted: dict[str, str] = field(default_factory=dict)  # uid by name of every job that was submitted
    given_up: set[str] = field(default_factory=set)  # names of jobs that their users deleted before they ended
    codes: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # exit codes given, by (job uid, pod)
    lost: set[str] = field(default_factory=set)  # nodes that were not Ready, or gone, at any time
    tainted: set[str] = field(default_factory=set)  # nodes that had our taint at any time
    kubelets: Kubelets = field(init=False)

    def __post_init__(self) -> None:
        self.vipu = make_vipu(IPUS, delay_s=0.05)
        self.runs = Installation(
            self.config,
            SPACE,
            self.vipu,
            setup=JobSetup(restart_delay_s=0.2, restart_delay_limit_s=2.0, moves_per_hour=8),
            operator_fate=ExposedProcess(self.api_faults),
            proxy_fate=ExposedProcess(self.api_faults),
            fate=lambda: ExposedProcess(self.api_faults),
            timeout_s=CALL_S,
        )

    # the pods

    def script(self, pod: SimulatedPod) -> PodScript:
        """Launchers end by themselves, as do the workers of jobs without one; how is in the pod's uid."""
        labels = pod.metadata.labels
        chance = random.Random(pod.metadata.uid)
        leads = labels.get(ROLE) == LAUNCHER
        if not leads and pod.metadata.annotations.get("soak") == "launcher":
            return PodScript(start_after_s=chance.uniform(0, 0.3))
        code = chance.choice((1, 2, 137, 139)) if chance.random() < 0.25 else 0
        self.codes.setdefault((labels[JOB_UID], pod.metadata.name), set()).add(code)
        return PodScript(start_after_s=chance.uniform(0, 0.3), run_s=chance.uniform(0.3, 5.0), exit_code=code)

    # jobs

    def spec(self) -> Object:
        rng = self.rng
        ipus = rng.choice((1, 2, 4, 8, 16))
        more: Object = {
            "restartPolicy": rng.choice((
                {"type": "Never"},
                {"type": "OnFailure", "backOffLimit": rng.randint(0, 6)},
                {"type": "ExitCode", "exitCodes": "128-255", "backOffLimit": 4},
                {"type": "Always", "backOffLimit": 2},
            )),
            "cleanPodPolicy": rng.choice(("None", "Workers", "All")),
        }  # fmt: skip
        if rng.random() < 0.5:
            more["ttlSecondsAfterFinished"] = rng.randint(0, 5)
        if rng.random() < 0.1:
            more["activeDeadlineSeconds"] = rng.randint(2, 20)
        if rng.random() < 0.6:
            more["healthPolicy"] = rng.choice((
                {"onFault": "Fail"},
                {"onFault": "Move"},
                {"onFault": "Move", "gracePeriodSeconds": 1, "checkpoint": {"signal": "SIGUSR1"}},
            ))  # fmt: skip
        template: Object = {"spec": {"containers": [{"name": "worker", "image": "poplar:1"}]}}
        if rng.random() < 0.6:
            template["metadata"] = {"annotations": {"soak": "launcher"}}
            instances = rng.choice((1, 1, 2)) if ipus < 16 else 1
            return training(instances=instances, ipus=ipus, workers=min(ipus, rng.choice((1, 2))), template=template,
                            **more)  # fmt: skip
        return inference(instances=rng.randint(1, 3) if ipus < 16 else 1, ipus=ipus, template=template, **more)

    async def submit(self, number: int) -> None:
        name = f"j{number}"
        body = {"apiVersion": API_VERSION, "kind": "IPUJob", "metadata": {"name": name, "namespace": SPACE},
                "spec": self.spec()}  # fmt: skip
        made = await self.api.create(jobs_path(SPACE), body)
        self.wanted[name] = made["metadata"]["uid"]

    async def submit_all(self, jobs: int, over_s: float) -> None:
        begun = time.monotonic()
        for number in range(jobs):
            await asyncio.sleep(max(0.0, begun + over_s * number / jobs - time.monotonic()))
            await self.submit(number)

    async def tidy(self) -> None:
        """Users delete what has ended, which may hold IPUs until then; for ever."""
        while True:
            await asyncio.sleep(0.5)
            for job in self.watcher.jobs(SPACE):
                if is_finished(job.status) and not job.metadata.deletion_timestamp and self.rng.random() < 0.3:
                    await self._tried(self.api.delete(_path(job)))

    async def use(self) -> None:
        """What else users do with their jobs; for ever."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))
            there = [each for each in self.watcher.jobs(SPACE) if not each.metadata.deletion_timestamp]
            if going := [each for each in there if not is_finished(each.status)]:
                await self._meddle(self.rng.choice(going))

    async def _meddle(self, job: IPUJob) -> None:
        path = _path(job)
        match self.rng.choice(("nothing", "nothing", "delete", "suspend", "scale", "edit")):
            case "delete":
                self.given_up.add(job.metadata.name)
                await self._tried(self.api.delete(path))
            case "suspend":
                await self._tried(self.api.patch(path, {"spec": {"suspend": True}}))
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
                await self._tried(self.api.patch(path, {"spec": {"suspend": False}}))
            case "scale" if isinstance(job.spec.launcher, msgspec.UnsetType):
                await self._tried(self.api.patch(f"{path}/scale", {"spec": {"replicas": self.rng.randint(1, 4)}}))
            case "edit" if isinstance(job.spec.launcher, msgspec.UnsetType):
                containers = [{"name": "worker", "image": f"poplar:{self.rng.randint(1, 9)}"}]
                anew = {"spec": {"workers": {"template": {"spec": {"containers": containers}}}}}
                await self._tried(self.api.patch(path, anew))

    async def _tried(self, call: Any) -> None:
        with suppress(NotFound, Conflict):
            await call

    # faults

    async def break_the_cluster(self) -> None:
        """Pods, nodes and IPUs; for ever."""
        kinds: list[Callable[[], Any]] = [
            self._kill_pod, self._kill_pod, self._delete_pod, self._node_not_ready, self._node_tainted,
            self._node_tainted, self._node_tainted, self._node_deleted, self._ipu_fails,
        ]  # fmt: skip
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))
            kind = self.rng.choice(kinds)
            self.tally.faults[kind.__name__.strip("_").replace("_", " ")] += 1
            await kind()

    async def break_the_system(self) -> None:
        """API server, V-IPU, and Muster itself; for ever."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.3, 2.0))
            await self.rng.choice((self._storm, self._storm, self._sick_vipu, self._kill, self._kill))()

    async def _storm(self) -> None:
        kind = self.rng.choice(FAULTS)
        self.tally.faults[f"API server: {kind}"] += 1
        self.api_faults.storm, self.api_faults.share = kind, self.rng.choice((0.3, 1.0))
        try:
            if kind == "ends watches":
                self.api_faults.end_watches()
            else:
                await asyncio.sleep(self.rng.uniform(0.5, 6.0))
        finally:
            self.api_faults.storm = ""

    async def _sick_vipu(self) -> None:
        fleet = self.vipu.clocked_fleet
        held = [each.name for each in fleet.fleet.partitions]
        kind = self.rng.choice(("down", "slow", "loses answers", "stuck", "lies"))
        if kind in ("stuck", "lies") and not held:
            return
        self.tally.faults[f"V-IPU: {kind}"] += 1
        if kind == "lies":
            fleet.forget(self.rng.choice(held))
            return
        changes: dict[str, Object] = {
            "down": {"down": True},
            "slow": {"slow": self.rng.uniform(0.2, 3.0)},
            "loses answers": {"lose_answers": self.rng.randint(1, 5)},
            "stuck": {"stuck": tuple(self.rng.sample(held, 1)) if held else ()},
        }
        fleet.set_faults(msgspec.structs.replace(fleet.faults, **changes[kind]))
        try:
            await asyncio.sleep(self.rng.uniform(0.5, 6.0))
        finally:
            fleet.set_faults(msgspec.structs.replace(fleet.faults, down=False, slow=0.0, lose_answers=0, stuck=()))

    async def _kill(self) -> None:
        who = self.rng.choice(("operator", "proxy"))
        self.tally.faults[f"{who} killed"] += 1
        (self.runs.operator_fate if who == "operator" else self.runs.proxy_fate).dead.set()

    def _a_pod(self) -> SimulatedPod | None:
        found = [each for each in self.kubelets.pods.values() if each.metadata.namespace == SPACE]
        return self.rng.choice(found) if found else None

    async def _kill_pod(self) -> None:
        pod = self._a_pod()
        if pod is not None and pod.status.phase == "Running" and not pod.metadata.deletion_timestamp:
            self.codes.setdefault((pod.metadata.labels[JOB_UID], pod.metadata.name), set()).add(137)
            self.kubelets.finish(pod.key, 137)

    async def _delete_pod(self) -> None:
        if (pod := self._a_pod()) is not None:
            options = {"gracePeriodSeconds": 0} if self.rng.random() < 0.5 else {}
            await self._tried(self.api.delete(pod.path, options))

    async def _node_not_ready(self) -> None:
        name = self._a_node()
        self.lost.add(name)
        path = f"{NODES}/{name}"
        for status in ("False", "True"):
            body = {"status": {"conditions": [{"type": "Ready", "status": status, "reason": "soak"}]}}
            await self._tried(self.api.patch(f"{path}/status", body, kind="strategic"))
            await asyncio.sleep(self.rng.uniform(0.2, 2.0))

    async def _node_tainted(self) -> None:
        name = self._a_node()
        self.tainted.add(name)
        path = f"{NODES}/{name}"
        taints: list[Object] = [{"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}]
        for wanted in (taints, []):
            await self._tried(self.api.patch(path, {"spec": {"taints": wanted}}))
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))

    async def _node_deleted(self) -> None:
        name = self._a_node()
        self.lost.add(name)
        await self._tried(self.api.delete(f"{NODES}/{name}"))
        await asyncio.sleep(self.rng.uniform(0.2, 2.0))
        await self._tried(self.api.create(NODES, node_object(name, int(name.rpartition("-")[2]), SHAPE)))

    def _a_node(self) -> str:
        return f"soak-{self.rng.randrange(NODE_NUMBER)}"

    async def _ipu_fails(self) -> None:
        fleet = self.vipu.clocked_fleet
        fleet.set_faults(msgspec.structs.replace(fleet.faults, ipus=(self.rng.randrange(IPUS),)))
        await asyncio.sleep(self.rng.uniform(0.2, 4.0))
        fleet.set_faults(msgspec.structs.replace(fleet.faults, ipus=()))

    async def heal(self) -> None:
        """Nothing is wrong any more."""
        self.api_faults.storm = ""
        self.vipu.clocked_fleet.set_faults(InjectedFaults())
        there = {each["metadata"]["name"] for each in (await self.api.get(NODES))["items"]}
        for number in range(NODE_NUMBER):
            body = node_object(f"soak-{number}", number, SHAPE)
            if body["metadata"]["name"] not in there:
                await self.api.create(NODES, body)
            else:
                path = f"{NODES}/soak-{number}"
                await self.api.patch(path, {"spec": {"taints": []}})
                await self.api.patch(f"{path}/status", {"status": body["status"]}, kind="strategic")
        for job in self.watcher.jobs(SPACE):
            if job.spec.suspend:
                await self._tried(self.api.patch(_path(job), {"spec": {"suspend": False}}))

    # what must be so

    def unended(self) -> list[str]:
        """Jobs that nobody gave up and that have not come to an end."""
        return [
            name for name, uid in self.wanted.items()
            if name not in self.given_up and not ((job := self.watcher.last.get(uid)) and is_finished(job.status))
        ]  # fmt: skip

    def judge(self) -> None:
        for name, uid in self.wanted.items():
            job = self.watcher.last[uid]
            self.tally.restarts += job.status.restart_count
            self.tally.moves += job.status.moves
            if not is_finished(job.status):
                self.tally.ends["given up by its user"] += 1
                continue
            self.tally.ends[job.status.launcher_status] += 1
            if problem := self._untrue(job):
                self.tally.wrong.append(f"{name}: {problem}; its status: {job.status}; codes: {self._codes_of(uid)}")

    def _untrue(self, job: IPUJob) -> str:
        """What is not true of what is said of it; empty: all is."""
        said, uid = job.status, job.metadata.uid
        policy = job.spec.restart_policy
        if not isinstance(policy, msgspec.UnsetType) and said.restart_count > policy.back_off_limit:
            return "restarted more often than it may"
        if said.launcher_status == "Completed":
            wanted = f"{job.metadata.name}-launcher"
            leads = not isinstance(job.spec.launcher, msgspec.UnsetType)
            well = {pod for owner, pod in self.watcher.succeeded if owner == uid}
            return "" if (wanted in well if leads else bool(well)) else "completed, and no pod of it has"
        [failed] = [each for each in said.conditions if each.type == "Failed"]
        if failed.reason == "DeadlineExceeded":
            limit_s = job.spec.active_deadline_seconds
            assert isinstance(limit_s, int)
            ran_s = seconds(said.completion_time or "") - seconds(said.start_time or "")
            return "" if ran_s >= limit_s else f"late after {ran_s:g} s"
        if failed.reason == DEGRADED:
            blamed, asked = set(_DEGRADED.findall(failed.message)), job.spec.health_policy
            wants = not isinstance(asked, msgspec.UnsetType) and asked.on_fault == "Fail"
            if not wants or not blamed or blamed - self.tainted - self.lost:
                return f"failed for the health of nodes {blamed}, which were well, or it had not asked for that"
            return ""
        # lastMessage may be about its deletion by now
        if lost := _LOST.search(failed.message):
            return "" if lost[2] in self.lost else f"node {lost[2]} was always there and Ready"
        named = _FAILED.search(failed.message)
        if named is None:
            return "failed without a reason"
        pod, code = named[1], named[2]
        given = self.codes.get((uid, pod), set())
        return "" if code is not None and int(code) in given else f"{pod} never ended with {code}"

    def _codes_of(self, uid: str) -> dict[str, set[int]]:
        return {pod: found for (owner, pod), found in self.codes.items() if owner == uid}

    def disagreement(self) -> str:
        """Between tracker, V-IPU and the jobs that are there; empty: none."""
        tracked = self.watcher.tracker(SPACE)
        held = {each.name: each.state for each in self.vipu.clocked_fleet.fleet.partitions}
        if dict.fromkeys(tracked, "ACTIVE") != held or any(each.state != "active" for each in tracked.values()):
            return f"tracker: {tracked}; V-IPU: {held}"
        there = {each.metadata.uid for each in self.watcher.jobs(SPACE)}
        leaked = {name: each.job for name, each in tracked.items() if each.job not in there}
        return f"partitions of no job: {leaked}" if leaked else ""

    def left(self) -> str:
        """Of a namespace whose jobs were all deleted."""
        found = [each.metadata.name for each in self.watcher.jobs(SPACE)]
        pods, small = sorted(self.watcher.pods(SPACE)), self.watcher.small(SPACE)
        held = [each.name for each in self.vipu.clocked_fleet.fleet.partitions]
        everything = (found, pods, small, held, list(self.watcher.tracker(SPACE)))
        return str(everything) if any(everything) else ""


async def soak(control_plane_config: ClusterConfig, *, jobs: int, faults_s: float, seed: int,
               say: Callable[[str], None]) -> Tally:  # fmt: skip
    """The namespace SPACE is there. Raises AssertionError where something does not come to rest."""
    async with _around(control_plane_config, seed, say) as it, it.runs.running():
        breaking = [asyncio.create_task(each()) for each in (it.use, it.break_the_cluster, it.break_the_system)]
        tidying = asyncio.create_task(it.tidy())
        begun = time.monotonic()
        try:
            await _beside([*breaking, tidying], it.submit_all(jobs, faults_s * 0.8))
            while (left_s := begun + faults_s - time.monotonic()) > 0:
                await _beside([*breaking, tidying], asyncio.sleep(min(left_s, 30.0)))
                say(f"{it.tally.faults.total()} faults, {len(it.unended())} of {jobs} jobs have not ended yet")
            await _cancelled(breaking)
            await it.heal()
            healed = time.monotonic()
            say(f"the faults have ended, {len(it.unended())} jobs have not")
            until = it.watcher.until
            ending = until(lambda: not it.unended(), lambda: f"every job ends: {_told(it, it.unended())}", SETTLE_S)
            await _beside([tidying], ending)
        finally:
            await _cancelled([*breaking, tidying])
        await until(lambda: not it.disagreement(), it.disagreement, SETTLE_S)
        it.judge()
        for job in it.watcher.jobs(SPACE):
            await it._tried(it.api.delete(_path(job)))
        await until(lambda: not it.left(), it.left, SETTLE_S)
        it.tally.settled_s = time.monotonic() - healed
        if restless := await _written_at_rest(it.runs):
            it.tally.wrong.append(f"written at rest: {restless}")
        it.tally.jobs, it.tally.processes, it.tally.met = len(it.wanted), it.runs.ends, it.api_faults.met
    return it.tally


@asynccontextmanager
async def _around(config: ClusterConfig, seed: int, say: Callable[[str], None]) -> AsyncIterator[Soak]:
    def client(what: str) -> KubeClient:
        return KubeClient(config, user_agent=f"soak-{what}", timeout_s=120.0)

    def ours(node: str) -> bool:
        return node.startswith("soak-")

    async with (
        client("users") as api,
        client("kubelets") as theirs,
        client("watcher") as looks,
        watch_ipujobs(looks) as watcher,
    ):
        it = Soak(config, api, watcher, random.Random(seed), say)
        for number in range(NODE_NUMBER):
            await api.create(NODES, node_object(f"soak-{number}", number, SHAPE))
        try:
            async with Kubelets(theirs, script=it.script, node=ours) as it.kubelets:
                yield it
        finally:
            for number in range(NODE_NUMBER):
                with suppress(ApiError):
                    await api.delete(f"{NODES}/soak-{number}")


async def _written_at_rest(runs: Installation) -> list[str]:
    """Empty once nothing was written for REST_S. The last write may be seen by all before its own answer comes."""
    last: list[str] = []
    for _ in range(RESTS):
        before = len(runs.operator_fate.written), len(runs.proxy_fate.written)
        await asyncio.sleep(REST_S)
        last = [*runs.operator_fate.written[before[0] :], *runs.proxy_fate.written[before[1] :]]
        if not last:
            break
    return last


async def _cancelled(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _beside(others: "list[asyncio.Task[None]]", work: Any) -> None:
    """Do it while they go on, of which none may end."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait([doing, *others], return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            if other.done():
                other.result()
        await doing
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


def _told(it: Soak, names: list[str]) -> str:
    found = [(name, it.watcher.last.get(it.wanted[name])) for name in names[:5]]
    return f"{len(names)}: " + "; ".join(
        f"{name}: {job.status.launcher_status}: {job.status.last_message}" if job else f"{name}: never seen"
        for name, job in found
    )


def _path(job: IPUJob) -> str:
    return f"{jobs_path(job.metadata.namespace)}/{job.metadata.name}"
