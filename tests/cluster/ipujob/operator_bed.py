"""The operator as it runs on a cluster: a simulated V-IPU controller, the proxy and the operator, each a process of its
own with its own account, on the real API server with the real webhooks.

Whatever a test does, at its end no process runs, no IPUJob is left, and no webhook stands in other tests' way.
"""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from tests.machine import require
from tests.part_processes import PartProcess
from tests.plain_http import plain_http
from tests.polling import pause_s

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, NotFound
from muster_operator.admission.configurations import TIMEOUT_S, WebhookAddress, webhook_configurations
from muster_operator.admission.server import NAME as WEBHOOKS
from muster_operator.job.partition_api import PROXY_AUDIENCE, PartitionEntry
from muster_operator.job.types import API_VERSION, FINALIZER, PLURAL, jobs_path
from muster_sandbox.controlplane.cluster import ControlPlane, free_ports
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes

WAIT_S = 120.0  # far more than anything takes: what hangs fails, what is slow does not
OWN = "muster"  # the namespace of operator, proxy and tracker
OPERATOR, PROXY = "muster-operator", "muster-vipu-proxy"
TRACKER = f"/api/v1/namespaces/{OWN}/configmaps/ipu-partitions-tracker"
SELECTOR = ("ipunode", "rack1")  # label of the nodes that reach the simulator's IPUs
SAMPLES = Path(__file__).parents[2] / "operator" / "samples"
_REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
_OURS = ("MUSTER_", "PROXY_")

MODULES = {
    "vipu-sim": "muster_operator.vipu.simulator",
    "vipu-proxy": "muster_operator.proxy",
    "operator": "muster_operator",
}

Object = dict[str, Any]


async def until(ask: Callable[[], Awaitable[Any]], what: str, timeout_s: float = WAIT_S) -> Any:
    """What ``ask`` returns once that is true; an error of the server, or what is not there yet, counts as not yet."""
    begun = time.monotonic()
    last: object = None
    while time.monotonic() < begun + timeout_s:
        try:
            last = await ask()
        except (ApiError, httpx2.TransportError) as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        await asyncio.sleep(pause_s(begun))
    raise AssertionError(f"not within {timeout_s} s: {what}; last: {last!r}")


async def reviewed(ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The answer to a caller whose token could be reviewed in time; 503 says that it could not."""

    async def answer() -> httpx2.Response | None:
        found = await ask()
        return None if found.status_code == 503 else found

    answered: httpx2.Response = await until(answer, "the token is reviewed")
    return answered


@dataclass
class Program:
    """A process that has printed where it listens. told: what stands before ``HOST:PORT`` -> ``HOST:PORT``."""

    process: PartProcess
    log: Path
    told: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://{self.told['listening']}"

    def lines(self) -> str:
        return self.log.read_text()

    async def get(self, path: str) -> httpx2.Response:
        async with plain_http(WAIT_S) as http:
            return await http.get(self.url + path)

    async def post(self, path: str, body: object) -> httpx2.Response:
        async with plain_http(WAIT_S) as http:
            return await http.post(self.url + path, json=body)

    async def ready(self) -> bool:
        return (await self.get("/readyz")).status_code == 200

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)  # a test may have failed while it was stopped
        ended = await asyncio.to_thread(self.process.wait, WAIT_S)
        self.process.stdout.close()
        return ended


async def started(
    folder: Path, name: str, words: tuple[str, ...], expected: tuple[str, ...], environ: Mapping[str, str]
) -> Program:
    """A part of Muster's, WORDS[0], once it has said where it listens for each of ``expected``."""
    log = folder / f"{name}.log"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    program = Program(PartProcess(MODULES[words[0]], words[1:], kept | dict(environ), log), log, {})
    command = f"muster {' '.join(words)}"
    try:
        async with asyncio.timeout(WAIT_S):
            while set(expected) - program.told.keys():
                line = (await asyncio.to_thread(program.process.stdout.readline)).decode()
                assert line, f"{command} has ended:\n{log.read_text()}"
                program.told.update(re.findall(r"^(\w+) on (\S+)\n", line))
    except TimeoutError:
        program.process.kill()
        raise AssertionError(f"{command} printed no address within {WAIT_S} s:\n{log.read_text()}") from None
    return program


@dataclass
class Job:
    """One IPUJob of a test."""

    bed: "Bed"
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return f"{jobs_path(self.namespace)}/{self.name}"

    async def get(self) -> Object:
        return await self.bed.api.get(self.path)

    async def status(self) -> Object:
        """With what the API server leaves out until there is a first one."""
        return {"currentReplicas": 0, "desiredReplicas": 0, "lastMessage": ""} | (
            (await self.get()).get("status") or {}
        )

    async def uid(self) -> str:
        return str((await self.get())["metadata"]["uid"])

    async def gone(self) -> bool:
        try:
            await self.get()
        except NotFound:
            return True
        return False

    async def until(self, what: str, condition: Callable[[Object], Any], timeout_s: float = WAIT_S) -> Object:
        """The status once ``condition`` holds of it."""

        async def ask() -> Object | _Falsy:
            status = await self.status()
            said = f"{status.get('launcherStatus')}: {status['lastMessage']}"
            return status if condition(status) else _Falsy(said)

        return dict(await until(ask, f"{self.namespace}/{self.name}: {what}", timeout_s))

    async def until_running(self) -> Object:
        return await self.until("runs", lambda status: status.get("launcherStatus") == "Running")

    async def until_says(self, *facts: str) -> Object:
        """Until its last message holds all of them."""
        return await self.until(f"says {facts}", lambda status: all(fact in status["lastMessage"] for fact in facts))

    async def until_gone(self) -> None:
        await until(self.gone, f"{self.namespace}/{self.name} is gone")

    async def delete(self) -> None:
        await self.bed.api.delete(self.path)

    async def pods(self) -> dict[str, Object]:
        uid = await self.uid()
        found = await self.bed.api.get(
            f"/api/v1/namespaces/{self.namespace}/pods", params={"labelSelector": f"muster.dev/ipujob-uid={uid}"}
        )
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    async def until_pods(self, *names: str) -> dict[str, Object]:
        async def ask() -> tuple[dict[str, Object]] | None:
            pods = await self.pods()
            return (pods,) if set(pods) == set(names) else None

        [pods] = await until(ask, f"{self.namespace}/{self.name} has the pods {names}")
        return dict(pods)

    async def until_pods_run(self, least: int = 1) -> dict[str, Object]:
        """Its pods, once there are ``least`` and all of them run: the job already does before its last worker."""

        async def ask() -> dict[str, Object] | None:
            pods = await self.pods()
            run = all(pod["status"]["phase"] == "Running" for pod in pods.values())
            return pods if run and len(pods) >= least else None

        return dict(await until(ask, f"all pods of {self.namespace}/{self.name} run"))

    async def until_event(self, reason: str) -> str:
        """Its message."""

        async def ask() -> str | None:
            return (await self.events()).get(reason)

        return str(await until(ask, f"{self.namespace}/{self.name} has the Event {reason}"))

    async def events(self) -> dict[str, str]:
        """Messages by reason."""
        found = await self.bed.api.get(f"/api/v1/namespaces/{self.namespace}/events")
        return {
            each["reason"]: each["message"]
            for each in found["items"]
            if each["involvedObject"]["kind"] == "IPUJob" and each["involvedObject"]["name"] == self.name
        }

    async def partitions(self) -> dict[str, PartitionEntry]:
        """The tracker's, by name."""
        return {
            name: entry
            for name, entry in (await self.bed.tracker()).items()
            if (entry.namespace, entry.name) == (self.namespace, self.name)
        }

    async def scale(self, instances: int) -> None:
        await self.bed.api.patch(f"{self.path}/scale", {"spec": {"replicas": instances}})

    def finish(self, pod: str, exit_code: int = 0) -> None:
        self.bed.kubelets.finish(f"{self.namespace}/{pod}", exit_code)

    async def fail_launcher(self, message: str) -> None:
        """With a message, which no simulated kubelet gives."""
        name = f"{self.name}-launcher"
        [container] = (await self.pods())[name]["spec"]["containers"]
        told = {"name": container["name"], "image": "", "imageID": "", "ready": False, "restartCount": 0}
        ended = {"exitCode": 1, "reason": "Error", "message": message}
        status = {
            "phase": "Failed",
            "conditions": [{"type": "Ready", "status": "False"}],  # else the kubelet writes a status of its own
            "containerStatuses": [told | {"state": {"terminated": ended}}],
        }
        pod = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        await self.bed.api.patch(f"{pod}/status", {"status": status}, kind="strategic")


class _Falsy(str):
    """Shown when it takes too long, and not yet what is waited for."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


@dataclass
class Bed:
    """simulator, proxy, operator: those that run now."""

    api: KubeClient
    control_plane: ControlPlane
    kubelets: Kubelets
    fleet: SimulatedNodes
    folder: Path
    namespace: str
    webhook_port: int = 0
    programs: list[Program] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    simulator: Program | None = None
    proxy: Program | None = None
    operator: Program | None = None

    async def start_simulator(self, *, ipus: int = 32, delay_s: float = 0.0, port: int = 0) -> Program:
        words = ("vipu-sim", "--ipus", str(ipus), "--delay", str(delay_s), "--state", str(self.folder / "vipu"))
        self.simulator = await self._start("simulator", (*words, "--host", "127.0.0.1", "--port", str(port)))
        return self.simulator

    async def start_proxy(self, *, port: int = 0, environ: Mapping[str, str] | None = None) -> Program:
        assert self.simulator is not None
        account = self.control_plane.kubeconfig_for(PROXY, OWN)
        controllers = f"{self.simulator.told['listening']}:{SELECTOR[0]}={SELECTOR[1]}"
        self.proxy = await self._start(
            "proxy",
            ("vipu-proxy", "--kubeconfig", str(account), "--backend", "sim", "--controllers", controllers,
             "--host", "127.0.0.1", "--port", str(port)),
            environ=environ,
        )  # fmt: skip

        async def healthy() -> bool:
            assert self.proxy is not None
            return (await self.proxy.get("/health")).status_code == 200

        await until(healthy, "the proxy is healthy")
        return self.proxy

    async def start_operator(
        self,
        *flags: str,
        account: Path | None = None,
        ready: bool = True,
        webhook_port: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Program:
        """webhook_port: None is where the API server calls them."""
        assert self.proxy is not None
        kubeconfig = account or self.control_plane.kubeconfig_for(OPERATOR, OWN)
        token = self.control_plane.token_file_for(OPERATOR, OWN, PROXY_AUDIENCE)
        served_at = self.webhook_port if webhook_port is None else webhook_port
        self.operator = await self._start(
            "operator",
            ("operator", "--kubeconfig", str(kubeconfig), "--vipu-proxy", self.proxy.url, "--proxy-token", str(token),
             "--host", "127.0.0.1", "--port", "0", "--metrics-port", "0", "--webhook-port", str(served_at), *flags),
            ("listening", "metrics", "webhooks"),
            environ,
        )  # fmt: skip
        if ready:
            await until(self.operator.ready, "the operator is ready")
        return self.operator

    @property
    def minor(self) -> int:
        """Of the API server."""
        return self.control_plane.minor

    async def start_webhooks(self, *, ipu_pods: bool = False) -> None:
        """Registered once the operator serves them, so that nobody waits for what does not come up. ipu_pods: pods,
        too, as this version selects them."""
        called = WebhookAddress(url=f"https://127.0.0.1:{self.webhook_port}")
        minor = self.minor if ipu_pods else 20
        mutating, validating = webhook_configurations(WEBHOOKS, called, minor=minor, ipu_pods=ipu_pods)
        for webhook in mutating["webhooks"]:
            webhook["timeoutSeconds"] = TIMEOUT_S  # else pods pass a starved operator: theirs is short and fails open
        for plural, body in (("mutating", mutating), ("validating", validating)):
            await self.api.create(f"{_REGISTRATION}/{plural}webhookconfigurations", body)

    async def until_admission(self) -> None:
        """The webhooks are trusted and called."""

        async def refused() -> bool:
            body = self.body("probe", {"jobInstances": 1, "ipusPerJobInstance": "3", "workers": WORKERS})
            try:
                await self.api.create(jobs_path(self.namespace), body, params={"dryRun": "All"})
            except ApiError as error:
                return "spec.ipusPerJobInstance" in error.message
            return False

        await until(refused, "the webhooks are called")

    async def start(
        self,
        *flags: str,
        ipus: int = 32,
        delay_s: float = 0.0,
        nodes: int = 2,
        max_ipus: int = 64,
        ipu_pods: bool = False,
    ) -> None:
        """All of it, ready. max_ipus: of one partition, for operator and proxy."""
        shape = NodeShape(labels={SELECTOR[0]: SELECTOR[1]}, gpus=0)
        if nodes:
            self.nodes = await self.fleet.create(nodes, prefix=f"ipu-{self.namespace}", shape=shape)
        # a test may start the proxy again on its port, which no client has then
        self.webhook_port, proxy_port = free_ports(2)
        await self.start_webhooks(ipu_pods=ipu_pods)
        await self.start_simulator(ipus=ipus, delay_s=delay_s)
        await self.start_proxy(port=proxy_port, environ={"MUSTER_VIPU_PROXY_MAX_IPUS": str(max_ipus)})
        await self.start_operator(*flags, environ={"MUSTER_OPERATOR_MAX_IPUS": str(max_ipus)})
        await self.until_admission()

    async def _start(
        self,
        name: str,
        words: tuple[str, ...],
        expected: tuple[str, ...] = ("listening",),
        environ: Mapping[str, str] | None = None,
    ) -> Program:
        program = await started(self.folder, name, words, expected, environ or {})
        self.programs.append(program)
        return program

    # what tests ask of it

    def body(self, name: str, spec: Object, namespace: str = "") -> Object:
        meta = {"name": name, "namespace": namespace or self.namespace}
        return {"apiVersion": API_VERSION, "kind": "IPUJob", "metadata": meta, "spec": spec}

    async def submit(self, name: str, spec: Object, namespace: str = "") -> Job:
        made = await self.api.create(
            jobs_path(namespace or self.namespace), self.body(name, spec, namespace), timeout_s=60.0
        )
        return Job(self, made["metadata"]["namespace"], made["metadata"]["name"])

    def job(self, name: str) -> Job:
        """One that is there."""
        return Job(self, self.namespace, name)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """What kubectl prints, as an administrator in the test's namespace. Raises AssertionError with what it says."""
        require("kubectl")
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.control_plane.kubeconfig), "--namespace", self.namespace, *words],
            input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sample(self, name: str) -> Job:
        """Apply one of the sample files as it is; its job."""
        text = (SAMPLES / name).read_text()
        namespace = self.namespace
        self.kubectl_anywhere("apply", "-f", str(SAMPLES / name), default_namespace=namespace)
        [job] = [each for each in yaml.safe_load_all(text) if each["kind"] == "IPUJob"]
        return Job(self, job["metadata"].get("namespace", namespace), job["metadata"]["name"])

    def kubectl_anywhere(self, *words: str, default_namespace: str) -> str:
        """As :meth:`kubectl`, for files that name a namespace themselves."""
        require("kubectl")
        loaded = yaml.safe_load(self.control_plane.kubeconfig.read_text())
        for context in loaded["contexts"]:
            context["context"]["namespace"] = default_namespace
        file = self.folder / "kubeconfig"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(loaded))
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(file), *words], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def tracker(self) -> dict[str, PartitionEntry]:
        try:
            data = (await self.api.get(TRACKER)).get("data") or {}
        except NotFound:
            return {}
        return {name: msgspec.json.decode(text, type=PartitionEntry) for name, text in data.items()}

    async def vipu_partitions(self) -> dict[str, Object]:
        """As the simulator has them, by name."""
        assert self.simulator is not None
        answer = (await self.simulator.get("/partitions")).json()
        found = answer["partitions"] if isinstance(answer, dict) else answer
        return {each["name"]: each for each in found}

    async def fault(self, **fault: object) -> None:
        assert self.simulator is not None
        assert (await self.simulator.post("/faults", fault)).status_code == 200

    async def unstick(self, name: str) -> None:
        assert self.simulator is not None
        async with plain_http(WAIT_S) as http:
            assert (await http.delete(self.simulator.url + "/faults", params={"stuck": name})).status_code == 200

    async def end_faults(self) -> None:
        assert self.simulator is not None
        async with plain_http(WAIT_S) as http:
            assert (await http.delete(self.simulator.url + "/faults")).status_code == 200

    async def metrics(self) -> str:
        """The operator's, as somebody with the right to read them, once the API server knows of that right."""
        assert self.operator is not None
        url = f"https://{self.operator.told['metrics']}/metrics"
        headers = {"Authorization": f"Bearer {self.token_for('scraper', reader=True)}"}

        async def ask() -> str:
            async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S, verify=False) as http:
                answer = await http.get(url, headers=headers)
            return answer.text if answer.status_code == 200 else _Falsy(answer.text)

        return str(await until(ask, "the operator shows its metrics"))

    def token_for(self, account: str, *, reader: bool = False) -> str:
        """Of a service account in the test's namespace, with the role that the chart gives to who scrapes."""
        admin = self.control_plane.admin
        accounts = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        admin.create(accounts, {"metadata": {"name": account}}, exist_ok=True)
        if reader:
            admin.create(
                "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
                {
                    "metadata": {"name": f"reads-metrics-{self.namespace}-{account}"},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "ClusterRole",
                        "name": "muster-metrics-reader",
                    },
                    "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}],
                },
                exist_ok=True,
            )
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        return str(admin.create(f"{accounts}/{account}/token", request)["status"]["token"])

    # the end of it

    async def close(self) -> None:
        try:
            await self._delete_jobs()
        finally:
            for program in reversed(self.programs):
                await program.stop()
            for plural in ("mutating", "validating"):
                await _deleted(self.api, f"{_REGISTRATION}/{plural}webhookconfigurations/{WEBHOOKS}")
            await self._drop_finalizers()
            await _deleted(self.api, TRACKER)

    async def _delete_jobs(self) -> None:
        for job in (await self.api.get(f"/apis/{API_VERSION}/{PLURAL}"))["items"]:
            await _deleted(self.api, f"{jobs_path(job['metadata']['namespace'])}/{job['metadata']['name']}")

    async def _drop_finalizers(self) -> None:
        """Of jobs that nobody looks after any more."""
        for job in (await self.api.get(f"/apis/{API_VERSION}/{PLURAL}"))["items"]:
            path = f"{jobs_path(job['metadata']['namespace'])}/{job['metadata']['name']}"
            left = [each for each in job["metadata"].get("finalizers", []) if each != FINALIZER]
            try:
                await self.api.patch(path, {"metadata": {"finalizers": left}})
            except (NotFound, Conflict):
                continue
            await _deleted(self.api, path)


async def _deleted(api: KubeClient, path: str) -> None:
    try:
        await api.delete(path)
    except NotFound:
        return


@pytest.fixture(name="bed")
async def bed_fixture(
    api: KubeClient,
    control_plane: ControlPlane,
    kubelets: Kubelets,
    fleet: SimulatedNodes,
    tmp_path: Path,
    namespace: str,
) -> AsyncIterator[Bed]:
    """Nothing runs yet: ``await bed.start()``."""
    made = Bed(api, control_plane, kubelets, fleet, tmp_path, namespace)
    yield made
    await made.close()


# a pod template of one worker, and a launcher
TEMPLATE: Object = {"spec": {"containers": [{"name": "worker", "image": "poplar:1"}]}}
WORKERS: Object = {"template": TEMPLATE}
LAUNCHER: Object = {"command": ["mpirun", "-np", "2", "hostname"]}


def training(
    *, instances: int = 1, ipus: int = 2, workers: int = 2, template: Object = TEMPLATE, **spec: Any
) -> Object:
    """The spec of a job with a launcher."""
    return {
        "jobInstances": instances,
        "ipusPerJobInstance": str(ipus),
        "workersPerJobInstance": str(workers),
        "launcher": LAUNCHER,
        "workers": {"template": template},
    } | spec


def inference(*, instances: int = 1, ipus: int = 1, template: Object = TEMPLATE, **spec: Any) -> Object:
    """The spec of a job without one."""
    return {"jobInstances": instances, "ipusPerJobInstance": str(ipus), "workers": {"template": template}} | spec
