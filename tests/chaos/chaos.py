"""One run of chaos on a control plane: Muster whole, everything around it broken, and an observer who judges.

The control plane must write its audit log by :data:`~tests.chaos.audit_records.AUDIT_POLICY`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import psutil
import yaml
from tests.chaos.audit_records import AUDIT_POLICY, Write, read_writes, without_bulk
from tests.chaos.injections import Injector, schedule
from tests.chaos.installation import IPU_LABEL, Installation
from tests.chaos.observer import FinalState, Observed, Violation, judge, last_change, later, stamp
from tests.chaos.world import SPACE, Fleet, Jobs, RealAgents, insist
from tests.cluster.tainter.fleet_findings import HEALTHS

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import NotFound
from muster_operator.admission.configurations import WebhookAddress, webhook_configurations
from muster_operator.admission.server import NAME as WEBHOOKS
from muster_operator.job.names import TRACKER
from muster_operator.job.types import API_VERSION, PLURAL, jobs_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE, install
from muster_sandbox.session.agent_service import NAME as AGENT_SERVICE
from muster_sandbox.session.agent_service import publish_agents, served_version
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NODES, NodeShape, SimulatedNodes

POOL_LABEL = "testbed.muster.dev/pool"
POOL = "chaos"
QUIET_S = 10.0  # without a write: at rest. Longer than a lease, so that a change of leaders shows
REST_S = 120.0  # after the last injection, within which all must be at rest
IPU_NODES = 4
OURS = {"labelSelector": POOL_LABEL}
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"

Object = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """events_per_s: of nodes and people."""

    nodes: int
    jobs: int
    lasts_s: float
    tainters: int = 3
    operators: int = 2
    agents: int = 3
    events_per_s: float = 5.0

    @property
    def budget(self) -> int:
        return max(5, self.nodes // 20)


@dataclass
class Verdict:
    """rest_s: from the end of the last injection to the last write. met: requests that met weather, by link."""

    violations: list[Violation]
    rest_s: float
    injections: int
    kinds: frozenset[StrEnum]
    writes: int
    taints: int
    met: dict[str, int]
    cpu_s: float
    ends: dict[str, int] = field(default_factory=dict)


async def run_chaos(plane: ControlPlane, folder: Path, scale: Scale, seed: int, say: Callable[[str], None]) -> Verdict:
    """:func:`clean` removes what it leaves in the cluster. Raises TimeoutError, ProcessDied."""
    before = _cpu_s()
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(_prepared(plane, folder, scale, seed, say))
        await run.break_everything()
        await run.until_rest()
        plane.require_alive()  # without a scheduler every job waits, and nobody writes
        observed = await run.observed()
        (folder / "jobs.json").write_bytes(msgspec.json.encode(run.last_jobs))
        for name, path in (("pods", "/api/v1/pods"), ("nodes", NODES), ("healths", HEALTHS)):
            (folder / f"{name}.json").write_bytes(msgspec.json.encode((await run.api.get(path))["items"]))
    violations = await asyncio.to_thread(judge, observed)
    last = last_change(observed.writes)
    rest_s = (datetime.fromisoformat(last.at) - run.healed).total_seconds() if last else 0.0
    taints = sum(write.resource == "nodes" and write.user.endswith("tainter") for write in observed.writes)
    met = {name: link.link.met for name, link in run.runs.links.items()}
    met["peers"] = sum(peer.met for peer in run.runs.peers)
    return Verdict(
        violations,
        rest_s,
        len(run.injections),
        frozenset(each.kind for each in run.injections),
        len(observed.writes),
        taints,
        met,
        _cpu_s() - before,
        run.ends,
    )


class ChaosRun:
    def __init__(
        self, plane: ControlPlane, api: KubeClient, runs: Installation, scale: Scale, seed: int,
        say: Callable[[str], None], since: int,
    ) -> None:  # fmt: skip
        """since: where the audit log of this run begins."""
        self.plane, self.api, self.runs, self.scale, self.say = plane, api, runs, scale, say
        rng = random.Random(seed)
        names = [f"chaos-{number}" for number in range(scale.nodes)]
        self.fleet = Fleet(api, rng, names, scale.budget + scale.budget // 3, frozenset(names[-IPU_NODES:]))
        logs = {name: runs.kernel_log(name) for name in runs.agent_ports()}
        # one is never broken, so that nobody may call it so
        self.well = frozenset(list(logs)[:1])
        self.real = RealAgents(api, rng, {name: log for name, log in logs.items() if name not in self.well})
        self.jobs = Jobs(api, rng, scale.jobs)
        disks = [name for name, part in runs.parts.items() if part.disk is not None]
        self.injections = schedule(seed, scale.lasts_s, list(runs.parts), list(runs.links), disks)
        self.healed = datetime.now(UTC)
        self.snapshots: list[Object] = []
        self.called_faulty: list[tuple[str, str]] = []
        self.ends: dict[str, int] = {}
        self.last_jobs: list[Object] = []
        self._since = since
        self._writes: list[Write] = []

    async def break_everything(self) -> None:
        injector = Injector(self.runs, self.fleet, self.list_nodes)
        ongoing = [
            asyncio.create_task(each)
            for each in (self.fleet.live(self.scale.events_per_s), self.real.live(), self._ask_peers())
        ]
        jobs = asyncio.create_task(self.jobs.live(0.7 * self.scale.lasts_s))
        try:
            await injector.carry_out(self.injections, self.say)
            self.healed = datetime.now(UTC)
            self.say("the last injection has ended")
        finally:
            for task in ongoing:
                task.cancel()
            ends = await asyncio.gather(*ongoing, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        await self.list_nodes()
        await self.fleet.finish()
        await self.fleet.publish_all()
        await jobs
        self.healed = max(self.healed, datetime.now(UTC))

    async def until_rest(self) -> None:
        """Nothing is written any more, or the time for it is over, which is a violation."""
        limit = later(stamp(self.healed), REST_S)
        while (now := stamp(datetime.now(UTC))) < limit:
            await asyncio.sleep(1.0)
            self._read()
            last = last_change(self._writes)
            jobs = await self._jobs_now()
            if jobs == self.jobs.right and later(last.at if last else stamp(self.healed), QUIET_S) < now:
                return

    def _read(self) -> None:
        new, self._since = read_writes(self.plane.data / "audit.log", self._since)
        self._writes += new

    async def list_nodes(self) -> None:
        """The observer's own list."""
        found = (await insist(lambda: self.api.get(NODES)))["items"]
        self.snapshots += [without_bulk(node) or node for node in found]

    async def _jobs_now(self) -> dict[str, tuple[str, int]]:
        found = (await insist(lambda: self.api.get(f"/apis/{API_VERSION}/{PLURAL}")))["items"]
        told = {}
        self.last_jobs = found
        for job in found:
            status = job.get("status") or {}
            running = status.get("currentReplicas", 0) if status.get("launcherStatus") == "Running" else 0
            told[job["metadata"]["name"]] = (status.get("launcherStatus", ""), running)
        return told

    async def observed(self) -> Observed:
        await self.list_nodes()
        nodes = {node["metadata"]["name"]: node for node in self.snapshots}  # the last of each
        jobs = await self._jobs_now()
        for status, _ in jobs.values():
            self.ends[status] = self.ends.get(status, 0) + 1
        self._read()
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"http://127.0.0.1:{self.runs.parts['vipu-sim'].port}/partitions")
        final = FinalState(
            [node for name, node in nodes.items() if name.startswith(("chaos-", "agent-"))],
            self.fleet.foreign,
            jobs,
            self.jobs.right,
            [each["name"] for each in answer.json()],
            frozenset(self.jobs.partitions),
            frozenset(self.jobs.optional),
            frozenset(self.real.faulty - self.real.doubtful),
            self.well,
            self.called_faulty,
        )
        rest_by = later(stamp(self.healed), REST_S)
        return Observed(
            self._writes, self.snapshots, self.runs.calls, {POOL: self.scale.budget}, POOL_LABEL, final, rest_by
        )

    async def _ask_peers(self) -> None:
        """For ever: a person asks each agent about all. One that cannot be reached is UNKNOWN, never FAIL."""
        ports = self.runs.agent_ports()
        async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as http:
            while True:
                await asyncio.sleep(3.0)
                for port in ports.values():
                    with suppress(httpx2.HTTPError):
                        answer = await http.get(f"http://127.0.0.1:{port}/status?check=dmesg&format=json")
                        self._note_answer(answer)

    def _note_answer(self, answer: httpx2.Response) -> None:
        if answer.status_code != 200:
            return
        for node in answer.json()["nodes"]:
            if any(result["verdict"] == "FAIL" for result in node["results"]):
                self.called_faulty.append((node["node"], stamp(datetime.now(UTC))))


@asynccontextmanager
async def _prepared(
    plane: ControlPlane, folder: Path, scale: Scale, seed: int, say: Callable[[str], None]
) -> AsyncIterator[ChaosRun]:
    plane.set_audit_policy(AUDIT_POLICY)
    since = plane.data.joinpath("audit.log").stat().st_size
    config = load_config(plane.kubeconfig)
    runs = Installation(
        plane, folder, random.Random(seed), _policy(folder, scale.budget),
        scale.tainters, scale.operators, scale.agents, ipus=max(32, _power_of_two(scale.jobs * 4)),
    )  # fmt: skip
    async with (
        KubeClient(config, user_agent="chaos-people", timeout_s=20.0) as api,
        KubeClient(config, user_agent="chaos-kubelets", timeout_s=20.0) as theirs,
        AsyncExitStack() as stack,
    ):
        nodes = SimulatedNodes(api)
        stack.push_async_callback(runs.close)
        await asyncio.to_thread(plane.admin.create_namespace, SPACE)
        await nodes.create(scale.nodes - IPU_NODES, prefix="chaos", shape=_shape(POOL))
        ipus = NodeShape(labels={POOL_LABEL: POOL, IPU_LABEL[0]: IPU_LABEL[1]}, gpus=0, pods=1000)
        await nodes.create(IPU_NODES, prefix="chaos", shape=ipus, first=scale.nodes - IPU_NODES)
        await nodes.create(scale.agents, prefix="agent", shape=_shape("real"))
        await runs.start()
        run = ChaosRun(plane, api, runs, scale, seed, say, since)
        await publish_agents(api, runs.agent_ports(), runs.peer_address)
        await _start_webhooks(api, runs)
        await run.fleet.publish_all()
        say(f"{scale.nodes} nodes, {scale.jobs} jobs, {len(run.injections)} injections in {scale.lasts_s:.0f} s")
        async with Kubelets(theirs, script=run.jobs.script):
            yield run


def _shape(pool: str) -> NodeShape:
    return NodeShape(labels={POOL_LABEL: pool})


def _policy(folder: Path, budget: int) -> Path:
    """As the built-in one, with short times, and nothing that waits for a heavy check."""
    pool = {"name": POOL, "selector": {"matchLabels": {POOL_LABEL: POOL}}, "budget": {"tainted": budget}}
    rule = {"name": "hardware", "match": {"verdict": "FAIL", "class": ["reset", "reboot", "replace", "contact"]}}
    policy = {
        "pools": [pool],
        "rules": [rule | {"action": "taint"}],
        "incidents": {"nodes": 100_000},
        "holdDown": {"base": "1s", "longest": "5s", "halfLife": "1m"},
        "deadMan": {"grace": "24h"},  # simulated agents have no pods
        "testing": {"atOnce": 0},
    }
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(policy))
    return file


async def _start_webhooks(api: KubeClient, runs: Installation) -> None:
    address = WebhookAddress(url=f"https://127.0.0.1:{runs.webhooks.port}")
    for plural, body in zip(
        ("mutating", "validating"), webhook_configurations(WEBHOOKS, address, minor=20), strict=True
    ):
        await api.create(f"{REGISTRATION}/{plural}webhookconfigurations", body)


async def clean(plane: ControlPlane) -> None:
    """Nothing is left of a run on this control plane, whatever state it was left in, but Muster's CRDs and roles."""
    if "etcd" not in plane.process_ids:
        await asyncio.to_thread(plane.restart_etcd)
    await asyncio.to_thread(plane.set_audit_policy)
    await asyncio.to_thread(install, plane.admin)
    async with KubeClient(load_config(plane.kubeconfig), user_agent="chaos-clean", timeout_s=60.0) as api:
        for plural in ("mutating", "validating"):
            await _deleted(api, f"{REGISTRATION}/{plural}webhookconfigurations/{WEBHOOKS}")
        for job in (await api.get(f"/apis/{API_VERSION}/{PLURAL}"))["items"]:
            path = f"{jobs_path(SPACE)}/{job['metadata']['name']}"
            await api.patch(path, {"metadata": {"finalizers": None}})
            await _deleted(api, path)
        for lease in ("muster-tainter", "muster-operator"):
            await _deleted(api, f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease}")
        own = f"/api/v1/namespaces/{NAMESPACE}"
        for name in (f"configmaps/{TRACKER}", f"services/{AGENT_SERVICE}", f"secrets/{WEBHOOKS}"):
            await _deleted(api, f"{own}/{name}")
        slices = f"/apis/discovery.k8s.io/{await served_version(api)}/namespaces/{NAMESPACE}/endpointslices"
        for each in (await api.get(slices))["items"]:
            await _deleted(api, f"{slices}/{each['metadata']['name']}")
        await asyncio.to_thread(plane.admin.delete, f"/api/v1/namespaces/{SPACE}/pods", grace_s=0)
        await _deleted(api, f"/api/v1/namespaces/{SPACE}")
        nodes = SimulatedNodes(api)
        await nodes.delete(each["metadata"]["name"] for each in (await api.get(NODES, params=OURS))["items"])


async def _deleted(api: KubeClient, path: str) -> None:
    with suppress(NotFound):
        await api.delete(path)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _cpu_s() -> float:
    """Of this process and of all that it has started: those that have ended as well."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:2])
    return total
