"""An operator that is limited to some namespaces: each is watched, and one that cannot be read holds up no other."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
import pytest
from tests.kube.conftest import FakeApi, Reply, Stream
from tests.operator.operator_bench import Object, ScriptedProxy, failure, job_object, until

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_kube.controller.lease import LeaderElector
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.app import CALLS, compete
from muster_operator.controller import WORKERS, JobPlanner, Operator, WriteAccess
from muster_operator.job.snapshot import JobPlan, JobSetup, Snapshot
from muster_operator.job.types import IPUJob
from muster_operator.metrics import OperatorMetrics
from muster_operator.observe.cluster import ChangeListener, ClusterCache, WatchScope

LEASES = "/apis/coordination.k8s.io/v1/namespaces/muster/leases"
EMPTY: Object = {"kind": "List", "metadata": {"resourceVersion": "7"}, "items": []}


@pytest.mark.parametrize("ipu_pods", [False, True])
@pytest.mark.parametrize("number", [0, 1, 5, 256])
def test_the_number_of_watches_is_known_in_advance(number: int, ipu_pods: bool) -> None:
    made = scope(*(f"ns{each}" for each in range(number)), ipu_pods=ipu_pods)
    client = KubeClient(ClusterConfig(origin="test", server="http://127.0.0.1:1"))
    cluster = ClusterCache(client, made, (), ChangeListener(lambda _key: None), time.monotonic)
    assert made.watches == len([*cluster.reflectors(), cluster.requests.reflector])


async def test_calls_are_answered_while_every_namespace_is_watched() -> None:
    """Each watch occupies a connection."""
    made = scope(*(f"ns{each}" for each in range(8)), ipu_pods=True)
    api = FakeApi()
    await api.start()
    api.on("GET", "/called", Reply(200, {"is": "answered"}))
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=5.0, max_connections=made.watches + CALLS) as client:
        cluster = ClusterCache(client, made, (), ChangeListener(lambda _key: None), time.monotonic)
        serve(api, cluster)
        watching = asyncio.create_task(cluster.watch())
        await until(lambda: all(each.connected for each in cluster.reflectors().values()))
        answers = await asyncio.gather(*(client.get("/called") for _ in range(2 * WORKERS)))
        assert answers == [{"is": "answered"}] * 2 * WORKERS
        await ended(watching)
    await api.stop()


class ScopedOperator:
    """Of the namespaces ``a`` and ``b``, with a job ``train`` in each. planned: the namespaces of jobs."""

    def __init__(self, api: FakeApi, client: KubeClient, proxy: ProxyClient) -> None:
        self.api = api
        self.client = client
        self.planned: set[str] = set()
        self.operator = Operator(
            WriteAccess(client, proxy, lambda: True),
            JobPlanner(self._plan, JobSetup()),
            scope("a", "b"),
            OperatorMetrics(),
        )
        jobs = [job_object(observedGeneration=1, conditions=[{"type": "Pending", "status": "True"}]) for _ in "ab"]
        for job, namespace in zip(jobs, "ab", strict=True):
            job["metadata"] |= {"namespace": namespace, "uid": f"u-{namespace}"}
        serve(api, self.operator.cluster, {f"/apis/graphcore.ai/v1alpha1/namespaces/{namespace}/ipujobs": [job]
                                           for job, namespace in zip(jobs, "ab", strict=True)})  # fmt: skip

    def forbid(self, kind: str, namespace: str = "b", *, always: bool = True) -> str:
        """The path of these lists. always: otherwise the second one succeeds."""
        path = self.operator.cluster.reflectors()[f"{kind} in {namespace}"]._path
        self.api.on("GET", path, failure(403, "Forbidden"), *([] if always else [Reply(200, EMPTY)]))
        return path

    def _plan(self, job: IPUJob, _seen: Snapshot, _setup: JobSetup) -> JobPlan:
        self.planned.add(job.metadata.namespace)
        return JobPlan(status=job.status)


@asynccontextmanager
async def scoped_operator() -> AsyncIterator[ScopedOperator]:
    api = FakeApi()
    await api.start()
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    transport = httpx2.MockTransport(ScriptedProxy().handle)
    try:
        async with (
            KubeClient(config, timeout_s=4.0, max_connections=64) as client,
            ProxyClient("http://proxy", StaticToken("t"), may_write=lambda: True, transport=transport) as proxy,
        ):
            yield ScopedOperator(api, client, proxy)
    finally:
        await api.stop()


@pytest.mark.parametrize("kind", ["ipujobs", "pods", "roles"])
async def test_a_namespace_that_cannot_be_listed_holds_up_no_other(kind: str) -> None:
    """For example, because it was deleted with the operator's RoleBinding in it."""
    async with scoped_operator() as it:
        it.forbid(kind)
        tasks = [asyncio.create_task(it.operator.watch()), asyncio.create_task(it.operator.lead())]
        await until(lambda: it.planned and not it.operator.not_ready() and len(it.operator.disconnected()) == 1)
        assert it.planned == {"a"}, "the pods of a job in b may not be known"
        [missing] = it.operator.disconnected()
        assert missing.startswith(f"{kind} in b")
        assert "403" in missing
        await ended(*tasks)


async def test_jobs_of_a_namespace_are_planned_once_it_can_be_listed() -> None:
    async with scoped_operator() as it:
        it.forbid("pods", always=False)
        tasks = [asyncio.create_task(it.operator.watch()), asyncio.create_task(it.operator.lead())]
        await until(lambda: it.planned == {"a", "b"})
        await until(lambda: not it.operator.disconnected())
        await ended(*tasks)


async def test_a_replica_that_can_list_no_namespace_does_not_take_the_lease() -> None:
    async with scoped_operator() as it:
        refused = [it.forbid("pods", namespace) for namespace in "ab"]
        elector = LeaderElector(it.client, "muster", "operator", "one")
        tasks = [
            asyncio.create_task(it.operator.watch()),
            asyncio.create_task(compete(it.operator.cluster, elector, it.operator.lead)),
        ]
        await until(lambda: len(it.operator.disconnected()) == 2 and all(map(it.api.asked_for, ["GET"] * 2, refused)))
        assert len(it.operator.not_ready()) == 2
        assert not [asked for asked in it.api.asked if asked.path.startswith(LEASES)]
        it.api.on("GET", refused[0], Reply(200, EMPTY))
        await until(lambda: it.api.asked_for("GET", f"{LEASES}/operator"))
        await ended(*tasks)


def scope(*namespaces: str, ipu_pods: bool = False) -> WatchScope:
    return WatchScope(("muster", "tracker"), ("muster", "quarantine"), namespaces, ipu_pods)


def serve(api: FakeApi, cluster: ClusterCache, items: Mapping[str, list[Object]] | None = None) -> None:
    """Every list and watch; items: by path."""
    for reflector in (*cluster.reflectors().values(), cluster.requests.reflector):
        path = reflector._path
        found = (items or {}).get(path, [])
        api.on("GET", path, Reply(200, EMPTY | {"items": found}))
        api.on("WATCH", path, Stream())


async def ended(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
