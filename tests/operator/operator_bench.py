"""A scripted API server, a scripted proxy and a clock that stands still, around the operator's own parts."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
from tests.kube.conftest import Asked, FakeApi, Reply, Stream

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_operator.act.executor import ActionExecutor
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.refusal_cache import RefusalCache
from muster_operator.act.unseen_pods import UnseenPods
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.snapshot import Action, ActionResult, JobPod
from muster_operator.job.types import API_VERSION, FINALIZER, IPUJob, decode_job
from muster_operator.observe.cluster import ChangeListener, ClusterCache, WatchScope

NS = "ns"
JOBS = f"/apis/graphcore.ai/v1alpha1/namespaces/{NS}/ipujobs"
PODS = f"/api/v1/namespaces/{NS}/pods"
LISTED = {
    "/apis/graphcore.ai/v1alpha1/ipujobs": "IPUJobList",
    "/api/v1/pods": "PodList",
    "/api/v1/configmaps": "ConfigMapList",
    "/api/v1/serviceaccounts": "ServiceAccountList",
    "/apis/rbac.authorization.k8s.io/v1/roles": "RoleList",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings": "RoleBindingList",
    "/api/v1/namespaces/muster/configmaps": "ConfigMapList",
    "/api/v1/nodes": "NodeList",
    "/apis/muster.dev/v1alpha1/nodehealths": "NodeHealthList",
}

Object = dict[str, Any]


def job_object(name: str = "train", *, uid: str = "u1", finalizer: bool = True, **status: Any) -> Object:
    return {
        "apiVersion": "graphcore.ai/v1alpha1",
        "kind": "IPUJob",
        "metadata": {
            "name": name,
            "namespace": NS,
            "uid": uid,
            "resourceVersion": "5",
            "generation": 1,
            "finalizers": [FINALIZER] if finalizer else [],
        },
        "spec": {
            "jobInstances": 2,
            "ipusPerJobInstance": "4",
            "workersPerJobInstance": "2",
            "workers": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        },
        "status": {"launcherStatus": "Pending"} | status,
    }


def a_job(name: str = "train", **given: Any) -> IPUJob:
    return decode_job(json.dumps(job_object(name, **given)).encode())


def pod_object(name: str, *, owner: str = "u1", version: int = 9, **meta: Any) -> Object:
    owners = [{"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "train", "uid": owner,
               "controller": True}]  # fmt: skip
    labels = {"app.kubernetes.io/managed-by": "muster-operator", "muster.dev/ipujob-uid": owner}
    found = {"name": name, "namespace": NS, "uid": f"pod-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": found | {"labels": labels, "ownerReferences": owners} | meta}


def pod_list(*pods: Object) -> Reply:
    return Reply(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": pods})


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not only an event's
            await asyncio.sleep(0.002)


def failure(code: int, reason: str, message: str = "words") -> Reply:
    return Reply(code, {"kind": "Status", "code": code, "reason": reason, "message": message, "metadata": {}})


class ScriptedProxy:
    """answers: by (method, path) of what was asked; each is an Entry, a Refusal, or plain JSON, with its status."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[tuple[str, str], tuple[int, object]] = {}

    def on(self, method: str, path: str, status: int, body: object) -> None:
        self.answers[method, path] = status, body

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        key = request.method, request.url.path
        self.asked.append(key)
        refusal = PartitionRefusal(why="Unreachable", message="V-IPU is away")
        status, body = self.answers.get(key, (503, refusal))
        if isinstance(body, PartitionEntry) and request.method == "PUT":
            wish = msgspec.json.decode(request.content)
            body = msgspec.structs.replace(body, instance=wish["instance"], attempt=wish["attempt"])
        return httpx2.Response(status, content=msgspec.json.encode(body))


class OperatorBench:
    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.played = ScriptedProxy()
        self.now = 1000.0
        self.leads = True
        self.looked: list[str] = []

    def clock(self) -> float:
        return self.now

    def may_write(self) -> bool:
        return self.leads

    def lists(self, **items: list[Object]) -> None:
        """Every list and watch there is; items by the plural."""
        for path, kind in LISTED.items():
            found = items.get("tracker" if "/muster/" in path else path.rpartition("/")[2], [])
            body = {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": found}
            self.api.on("GET", path, Reply(200, body))
            self.api.on("WATCH", path, Stream())
        for job in items.get("ipujobs", []):
            where = f"/apis/{API_VERSION}/namespaces/{job['metadata']['namespace']}/ipujobs/{job['metadata']['name']}"
            self.api.on("GET", where, Reply(200, job))

    async def execute(self, job: IPUJob, action: Action, *known: JobPod) -> ActionResult:
        """known: the pods that the decision was based on."""
        pods = {pod.metadata.name: pod for pod in known}
        key = f"{job.metadata.namespace}/{job.metadata.name}"
        return await self.executor.execute(
            job, action, UnseenPods(self.client, self.cluster, key, job.metadata.uid, pods)
        )

    def written(self) -> list[Asked]:
        return [asked for asked in self.api.asked if asked.method != "GET"]

    client: KubeClient
    proxy: ProxyClient
    cluster: ClusterCache
    refusals: RefusalCache
    executor: ActionExecutor


@asynccontextmanager
async def bench_around(
    on_change: Callable[[str], None] | None = None,
    answered_by: Callable[[httpx2.Request], Awaitable[httpx2.Response]] | None = None,
) -> AsyncIterator[OperatorBench]:
    """answered_by: in place of the scripted proxy."""
    api = FakeApi()
    await api.start()
    bench = OperatorBench(api)
    api.on("GET", PODS, pod_list())
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    try:
        async with KubeClient(config, timeout_s=30.0) as client:
            transport = httpx2.MockTransport(answered_by or bench.played.handle)
            bench.client = client
            bench.proxy = ProxyClient("http://proxy", StaticToken("t"), may_write=bench.may_write, transport=transport)
            async with bench.proxy:
                bench.cluster = ClusterCache(
                    client,
                    WatchScope(tracker=("muster", "tracker")),
                    ("muster.dev/faulty",),
                    ChangeListener(on_change or bench.looked.append),
                    bench.clock,
                )
                bench.refusals = RefusalCache(bench.clock, random.Random(1))
                bench.executor = ActionExecutor(client, bench.proxy, bench.cluster, bench.refusals)
                yield bench
    finally:
        await api.stop()
