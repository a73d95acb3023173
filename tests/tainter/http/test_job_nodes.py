"""Which nodes a job runs on, and which have a label: what is taken, and what is asked of the API server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest
from tests.kube.conftest import Asked as Seen
from tests.kube.conftest import Drop, FakeApi, Reply
from tests.tainter.http.service import bare_service

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_tainter.controller import Tainter
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.http.job_nodes import FRESH_S, WAITING_AT_MOST, NodeLocator, ObjectQuery, object_queries
from muster_tainter.http.routes import make_app
from muster_tainter.http.volume_trials import HttpRefusal
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import load_policy

NODES = "/api/v1/nodes"
POLICY = load_policy(None)
PODS = "/api/v1/namespaces/team-a/pods"


def listed(*items: dict[str, Any], more: str = "") -> Reply:
    metadata = {"resourceVersion": "1"} | ({"continue": more} if more else {})
    return Reply(200, {"kind": "List", "metadata": metadata, "items": list(items)})


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def pod(name: str, node: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team-a"}, "spec": {"nodeName": node} if node else {}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    made = FakeApi()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def locator(api: FakeApi) -> AsyncIterator[NodeLocator]:
    async with KubeClient(
        ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}"), timeout_s=30.0
    ) as client:
        yield NodeLocator(client, clock=Clock())


async def test_labels_and_jobs_are_met_together(api: FakeApi, locator: NodeLocator) -> None:
    api.on("GET", NODES, listed(named("n1"), more="2"), listed(named("n2"), named("n3")))
    api.on("GET", PODS, listed(pod("a", "n2"), pod("b", "n2"), pod("c", ""), pod("d", "n9")))
    asked = object_queries("size=big,zone=a", "team-a:job=train")
    assert await locator.names(asked) == {"n2"}
    [nodes, more], [pods] = api.asked_for("GET", NODES), api.asked_for("GET", PODS)
    assert nodes.query == {"labelSelector": "size=big,zone=a", "limit": "500"}
    assert more.query["continue"] == "2"
    assert pods.query["labelSelector"] == "job=train"
    assert pods.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


async def test_nothing_asked_names_nothing(api: FakeApi, locator: NodeLocator) -> None:
    assert await locator.names(object_queries(None, None)) is None
    assert api.asked == []


async def test_callers_of_one_moment_share_an_answer(api: FakeApi, locator: NodeLocator) -> None:
    api.on("GET", NODES, listed(named("n1")))
    asked = (ObjectQuery("a=b"),)
    assert await asyncio.gather(*(locator.names(asked) for _ in range(20))) == [{"n1"}] * 20
    assert await locator.names(asked) == {"n1"}
    assert len(api.asked) == 1
    locator._clock.now = FRESH_S  # type: ignore[attr-defined]
    await locator.names(asked)
    assert len(api.asked) == 2


async def test_a_caller_who_hangs_up_takes_no_other_s_answer_along(api: FakeApi, locator: NodeLocator) -> None:
    let = asyncio.Event()

    def asked_for(_: Seen) -> Reply:
        let.set()
        return listed(named("n1"))

    api.on("GET", NODES, asked_for)
    first, second = (asyncio.create_task(locator.names((ObjectQuery("a=b"),))) for _ in range(2))
    await let.wait()
    first.cancel()
    assert await second == {"n1"}
    await asyncio.gather(first, return_exceptions=True)


async def test_an_api_server_that_cannot_be_asked_is_said(api: FakeApi, locator: NodeLocator) -> None:
    for script in (Drop(), Reply(403, {"kind": "Status", "reason": "Forbidden", "message": "no"}), Reply(200, b"{")):
        api.on("GET", NODES, script)
        with pytest.raises(HttpRefusal) as caught:
            await locator.names((ObjectQuery("a=b"),))
        assert (caught.value.status, caught.value.reason) == (503, "ServiceUnavailable")


async def test_more_questions_than_the_server_should_have_wait_elsewhere(api: FakeApi, locator: NodeLocator) -> None:
    api.on("GET", NODES, listed(named("n1")))
    asking = [asyncio.create_task(locator.names((ObjectQuery(f"a={n}"),))) for n in range(WAITING_AT_MOST + 1)]
    ends = await asyncio.gather(*asking, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, HttpRefusal)]
    assert [(end.status, end.reason) for end in refused] == [(429, "TooManyRequests")]


async def ask(query: Mapping[str, str]) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=bare_service())
    async with httpx2.AsyncClient(transport=transport, base_url="http://tainter") as http:
        return await http.get("/api/nodes", params=query)


async def test_a_bad_value_is_quoted_once() -> None:
    answer = await ask({"nodelabel": "gpu"})
    assert answer.text.count("'gpu'") == 1


@pytest.mark.parametrize(("query", "facts"), [
    ({"host": "n1"}, ["'host'", "nodelabel, job"]),
    ({"nodelabel": ""}, ["nodelabel: ''", "key=value[,key=value]"]),
    ({"nodelabel": "a"}, ["nodelabel: 'a'", "key=value[,key=value]"]),
    ({"nodelabel": "a=b,"}, ["nodelabel: 'a=b,'", "''", "key=value[,key=value]"]),
    ({"nodelabel": "a in (b)=c"}, ["nodelabel", "'a in (b)'"]),
    ({"nodelabel": "a=b=c"}, ["nodelabel", "'b=c'"]),
    ({"nodelabel": "a!=b"}, ["nodelabel", "'a!'"]),
    ({"nodelabel": ",".join(["a=b"] * 17)}, ["nodelabel", "16"]),
    ({"nodelabel": "a=" + "b" * 3000}, ["nodelabel", "2048"]),
    ({"job": "train"}, ["job: 'train'", "NAMESPACE:key=value[,key=value]"]),
    ({"job": "../../x:a=b"}, ["job", "NAMESPACE:key=value"]),
    ({"job": "Team:a=b"}, ["job", "NAMESPACE:key=value"]),
    ({"job": "-a:a=b"}, ["job", "NAMESPACE:key=value"]),
    ({"job": ":a=b"}, ["job", "NAMESPACE:key=value"]),
    ({"job": "é:a=b"}, ["job", "NAMESPACE:key=value"]),
    ({"job": "team-a:"}, ["job", "''", "key=value"]),
    ({"job": "train", "nodelabel": "a"}, ["job: 'train'", "nodelabel: 'a'"]),
])  # fmt: skip
async def test_what_is_no_question_is_refused(query: dict[str, str], facts: list[str]) -> None:
    answer = await ask(query)
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
    assert [fact for fact in facts if fact not in answer.json()["message"]] == []


async def test_a_label_without_a_value_is_one() -> None:
    assert (await ask({"nodelabel": "node-role.kubernetes.io/gpu="})).status_code == 200
    assert object_queries("node-role.kubernetes.io/gpu=", None) == (ObjectQuery("node-role.kubernetes.io/gpu="),)


async def test_over_http_a_question_is_answered_once_the_nodes_are_known(api: FakeApi) -> None:
    metrics = TainterMetrics()
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        tainter = Tainter(Connections.shared(client), lambda: POLICY, Replica(may_write=lambda: False), metrics)
        nobody: Any = None
        app = make_app(tainter, metrics, nobody, nobody, NodeLocator(client))
        api.on("GET", NODES, listed(named("n1")))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://tainter") as http:
            answers = [
                await http.get(f"/api/nodes{query}")
                for query in ("", "?nodelabel=a=b", "?nodelabel=a=b&nodelabel=c=d", "?x=y")
            ]
    assert [answer.status_code for answer in answers] == [200, 503, 400, 400]
    assert "nodelabel" in answers[2].json()["message"]


async def test_a_list_of_many_nodes_lets_others_have_their_turn(api: FakeApi) -> None:
    api.on("GET", NODES, listed(*(named(f"n{number}") for number in range(4000))))
    metrics = TainterMetrics()
    nobody: Any = None
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        tainter = Tainter(Connections.shared(client), lambda: POLICY, Replica(may_write=lambda: False), metrics)
        app = make_app(tainter, metrics, nobody, nobody, NodeLocator(client))
        watching = asyncio.create_task(tainter.fleet.node_watch.run())
        await tainter.fleet.node_watch.wait_synced()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://tainter") as http:
            counting = asyncio.create_task(count())
            few = await http.get("/healthz")
            own, turns = turns, 0
            many = await http.get("/api/nodes")
        for task in (watching, counting):
            task.cancel()
        await asyncio.gather(watching, counting, return_exceptions=True)
    assert (few.status_code, len(many.json())) == (200, 4000)
    assert turns >= own + 15
