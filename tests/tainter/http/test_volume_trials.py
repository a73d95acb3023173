"""POST /api/trials/pvc: who may ask, how many at once, and what becomes of it when nobody waits."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import uvicorn
from tests.kube.conftest import FakeApi, Reply, Wire
from tests.loop_time import LoopTime
from tests.plain_http import plain_http
from tests.tainter.http.service import ASKED, WRITTEN

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, Reviews
from muster_kube.volume_trial import VolumeTrial
from muster_tainter.controller import Tainter
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.http.job_nodes import NodeLocator
from muster_tainter.http.routes import make_app
from muster_tainter.http.volume_trials import AT_ONCE, HttpRefusal, TrialAuthorizer, TrialRequest, VolumeTrials
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import load_policy

GUARD_S = 60.0  # what hangs fails, what is slow does not
POD = "/api/v1/namespaces/muster/pods/agent-7"


class Volumes:
    """Trials that end when ``may_end`` is set. over: nodes whose objects are deleted again."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.over: list[str] = []
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def try_claim(self, node: str, **asked: Any) -> VolumeTrial:
        self.asked.append((node, asked))
        try:
            await self.may_end.wait()
            if self.error is not None:
                raise self.error
            return WRITTEN
        finally:
            await asyncio.sleep(0)  # deleting takes calls
            self.over.append(node)

    async def begun(self, count: int = 1) -> None:
        await Wire.until(lambda: len(self.asked) == count)


class Counted(VolumeTrials):
    """Counts who waits for a trial, and who no longer does."""

    let_in = gone = 0

    async def run(self, asked: Any, user: str) -> VolumeTrial:
        self.let_in += 1
        try:
            return await super().run(asked, user)
        finally:
            self.gone += 1


class Bench:
    """A tainter's HTTP side on loopback, and the API server behind it. ``users``: token to what TokenReview says."""

    def __init__(self, api: FakeApi, client: KubeClient) -> None:
        self.api = api
        self.users: dict[str, dict[str, Any]] = {}
        self.rights: set[tuple[str, str, str]] = set()  # user, verb, resource
        api.on("POST", TOKEN_REVIEWS, self._review_token)
        api.on("POST", ACCESS_REVIEWS, self._review_access)
        self.pod_runs_on("node-7")
        self.volumes = Volumes()
        self.trials = Counted(self.volumes, "busybox")  # type: ignore[arg-type] # stands in for VolumeTrials
        metrics = TainterMetrics()
        tainter = Tainter(
            Connections.shared(client), lambda: load_policy(None), Replica(may_write=lambda: False), metrics
        )
        doorkeeper = TrialAuthorizer(client, Reviews(client), "trials")
        self.app = make_app(tainter, metrics, doorkeeper, self.trials, NodeLocator(client))
        self.port = 0

    def pod_runs_on(self, node: str, uid: str = "p-1") -> None:
        pod = {"metadata": {"name": "agent-7", "uid": uid}, "spec": {"nodeName": node}}
        self.api.on("GET", POD, Reply(200, pod))

    def knows_agent(self, token: str, **claims: str) -> None:
        """Of service account muster-agent, bound to pod agent-7, which ``claims`` can say otherwise."""
        claims = {"pod-name": "agent-7", "pod-uid": "p-1"} | claims
        extra = {f"authentication.kubernetes.io/{key}": [value] for key, value in claims.items() if value}
        self.users[token] = {"username": "system:serviceaccount:muster:muster-agent", "extra": extra}
        self.rights.add(("system:serviceaccount:muster:muster-agent", "patch", "nodehealths"))

    def knows_person(self, token: str, *rights: tuple[str, str]) -> None:
        """Whose token is for the API server."""
        self.users[f"{token} for the API server"] = {"username": "ann"}
        self.rights |= {("ann", verb, resource) for verb, resource in rights}

    def _review_token(self, asked: Any) -> Reply:
        spec = json.loads(asked.body)["spec"]
        audiences = spec.get("audiences", [])
        user = self.users.get(spec["token"] if audiences else f"{spec['token']} for the API server")
        return Reply(201, {"status": {"authenticated": bool(user), "user": user or {}, "audiences": audiences}})

    def _review_access(self, asked: Any) -> Reply:
        spec = json.loads(asked.body)["spec"]
        attributes = spec["resourceAttributes"]
        if attributes["resource"] == "pods":
            assert attributes["namespace"] == "trials"
        else:
            assert (attributes["group"], attributes["subresource"]) == ("muster.dev", "status")
        allowed = (spec["user"], attributes["verb"], attributes["resource"]) in self.rights
        return Reply(201, {"status": {"allowed": allowed}})

    async def ask(self, bearer: str = "t-agent", body: bytes | None = None, **changed: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
        content = json.dumps(ASKED | changed).encode() if body is None else body
        async with plain_http(GUARD_S) as http:
            return await http.post(f"http://127.0.0.1:{self.port}/api/trials/pvc", content=content, headers=headers)

    async def hang_up(self) -> None:
        """Ask, wait to be let in, and be gone."""
        let_in, gone = self.trials.let_in, self.trials.gone
        _, writer = await self.send(json.dumps(ASKED).encode())
        await Wire.until(lambda: self.trials.let_in > let_in)
        writer.close()
        await Wire.until(lambda: self.trials.gone > gone)

    async def send(
        self, body: bytes, *, length: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        size = len(body) if length is None else length
        head = f"POST /api/trials/pvc HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t-agent\r\nContent-Length: {size}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        return reader, writer


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    api = FakeApi()
    await api.start()
    listener = socket.create_server(("127.0.0.1", 0))
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=GUARD_S) as client:
        made = Bench(api, client)
        made.knows_agent("t-agent")
        made.port = listener.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(made.app, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=1)
        )
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] # signals are pytest's
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield made
        await made.trials.stop()
        server.should_exit = True
        await serving
    await api.stop()


# --- who may ask


async def test_a_nodes_agent_gets_the_trial_as_json(bench: Bench):
    bench.volumes.may_end.set()
    answer = await bench.ask()
    assert answer.status_code == 200
    assert answer.json() == {
        "stage": "written",
        "storageClass": "fast",
        "boundAfterSeconds": 1.5,
        "writtenAfterSeconds": 2.25,
        "said": "",
    }
    [(node, asked)] = bench.volumes.asked
    assert node == "node-7"
    assert asked == {
        "storage_class": "fast",
        "size_mib": 8,
        "image": "busybox",
        "bind_timeout_s": 30.0,
        "write_timeout_s": 40.5,
    }


async def test_the_tokens_own_word_on_its_node_is_enough_where_the_api_server_gives_it(bench: Bench):
    bench.volumes.may_end.set()
    bench.knows_agent("t-new", **{"node-name": "node-7"})
    assert (await bench.ask("t-new")).status_code == 200
    assert not bench.api.asked_for("GET", POD)
    assert (await bench.ask("t-new", node="node-8")).status_code == 403


@pytest.mark.parametrize(
    ("node", "uid"), [("node-8", "p-1"), ("", "p-1"), ("node-7", "p-2")], ids=["elsewhere", "unbound", "another pod"]
)
async def test_an_agent_whose_pod_is_not_there_is_refused(bench: Bench, node: str, uid: str):
    bench.pod_runs_on(node, uid)
    answer = await bench.ask()
    assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
    facts = ("system:serviceaccount:muster:muster-agent", "node-7", "trials")
    assert [fact for fact in facts if fact not in answer.json()["message"]] == []
    assert bench.volumes.asked == []


async def test_an_agent_whose_pod_is_gone_or_which_has_none_is_refused(bench: Bench):
    bench.api.on("GET", POD, Reply(404, Wire.failure(404, "NotFound")))
    assert (await bench.ask()).status_code == 403
    bench.knows_agent("t-unbound", **{"pod-name": ""})
    assert (await bench.ask("t-unbound")).status_code == 403


async def test_any_other_pod_on_the_node_is_refused_whatever_audience_it_had_itself_given(bench: Bench):
    bench.knows_agent("t-tenant")
    bench.users["t-tenant"]["username"] = "system:serviceaccount:muster:tenant"
    assert (await bench.ask("t-tenant")).status_code == 403


async def test_a_person_who_may_make_pods_there_may_ask_for_any_node(bench: Bench):
    bench.volumes.may_end.set()
    bench.knows_person("t-ann", ("create", "pods"))
    assert (await bench.ask("t-ann", node="node-8")).status_code == 200
    bench.knows_person("t-bob")
    bench.rights.clear()
    bench.users["t-bob for the API server"]["username"] = "bob"
    assert (await bench.ask("t-bob")).status_code == 403


async def test_an_agents_account_is_no_agent_with_a_token_for_the_api_server(bench: Bench):
    bench.users["t-plain for the API server"] = bench.users["t-agent"]
    assert (await bench.ask("t-plain")).status_code == 403


@pytest.mark.parametrize("header", ["", "Basic YTpi", "Bearer"])
async def test_without_a_token_nobody_is_asked(bench: Bench, header: str):
    async with plain_http(GUARD_S) as http:
        headers = {"authorization": header} if header else {}
        answer = await http.post(f"http://127.0.0.1:{bench.port}/api/trials/pvc", content=b"{}", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in answer.json()["message"]
    assert bench.api.asked == []


async def test_a_token_that_nobody_knows_is_unauthorized(bench: Bench):
    answer = await bench.ask("t-strange")
    assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")


async def test_an_api_server_that_cannot_be_asked_is_no_refusal_of_the_caller(bench: Bench):
    bench.api.on("POST", TOKEN_REVIEWS, Reply(403, Wire.failure(403, "Forbidden", "cannot create tokenreviews")))
    answer = await bench.ask()
    assert (answer.status_code, answer.json()["reason"]) == (503, "ServiceUnavailable")
    assert "cannot create tokenreviews" in answer.json()["message"]


# --- bodies


async def test_a_body_that_is_too_large_or_wrong_costs_no_review(bench: Bench):
    assert (await bench.ask(body=b"x" * 5000)).status_code == 413
    assert (await bench.ask(body=b"{}")).status_code == 400
    assert bench.api.asked == []


async def test_a_body_that_does_not_come_is_not_waited_for(bench: Bench):
    loop_time = LoopTime()
    reader, writer = await bench.send(b"{", length=100)
    line = asyncio.create_task(reader.readline())
    for _ in range(500):  # until the request is there, and its time is over
        if line.done():
            break
        await loop_time.passes(6)
        await asyncio.sleep(0.01)
    writer.close()
    assert b" 408 " in await line


async def test_only_post_is_taken(bench: Bench):
    async with plain_http(GUARD_S) as http:
        answer = await http.get(f"http://127.0.0.1:{bench.port}/api/trials/pvc")
    assert answer.status_code == 405


# --- how many, and how they end


async def test_callers_who_ask_the_same_share_a_run_others_come_again(bench: Bench):
    both = [asyncio.create_task(bench.ask()) for _ in range(2)]
    await bench.volumes.begun()
    other = await bench.ask(sizeMib=9)
    assert (other.status_code, other.json()["reason"]) == (429, "TooManyRequests")
    assert int(other.headers["retry-after"]) > 0
    await Wire.until(lambda: bench.trials.let_in == 3)
    bench.volumes.may_end.set()
    assert [(await answer).status_code for answer in both] == [200, 200]
    assert len(bench.volumes.asked) == 1


async def test_more_nodes_than_may_be_tried_at_once_come_again(bench: Bench):
    bench.knows_person("t-ann", ("create", "pods"))
    running = [asyncio.create_task(bench.ask("t-ann", node=f"node-{n}")) for n in range(AT_ONCE)]
    await bench.volumes.begun(AT_ONCE)
    answer = await bench.ask("t-ann", node="node-x")
    assert (answer.status_code, answer.json()["reason"]) == (429, "TooManyRequests")
    assert str(AT_ONCE) in answer.json()["message"]
    bench.volumes.may_end.set()
    await asyncio.gather(*running)
    assert (await bench.ask("t-ann", node="node-x")).status_code == 200


async def test_a_caller_who_hangs_up_leaves_nothing_behind(bench: Bench):
    await bench.hang_up()
    await Wire.until(lambda: bench.volumes.over == ["node-7"])
    bench.volumes.may_end.set()
    assert (await bench.ask()).status_code == 200, "the node is free again"


async def test_the_run_goes_on_while_one_of_its_callers_is_there(bench: Bench):
    staying = asyncio.create_task(bench.ask())
    await bench.volumes.begun()
    await bench.hang_up()
    assert bench.volumes.over == []
    bench.volumes.may_end.set()
    assert (await staying).status_code == 200


async def test_a_run_that_is_being_called_off_takes_nobody_in():
    volumes = Volumes()
    trials = VolumeTrials(volumes, "busybox")  # type: ignore[arg-type] # stands in for VolumeTrials
    asked = TrialRequest.model_validate(ASKED)
    first = asyncio.create_task(trials.run(asked, "ann"))
    await volumes.begun()
    first.cancel()
    await asyncio.sleep(0)
    with pytest.raises(HttpRefusal, match="node-7") as refused:
        await trials.run(asked, "bob")
    assert (refused.value.status, refused.value.reason) == (429, "TooManyRequests")
    await asyncio.gather(first, return_exceptions=True)


async def test_a_replica_that_stops_deletes_first_and_begins_nothing_more(bench: Bench):
    asking = asyncio.create_task(bench.ask())
    await bench.volumes.begun()
    await bench.trials.stop()
    assert bench.volumes.over == ["node-7"]
    assert ((await asking).status_code, (await bench.ask()).status_code) == (503, 503)


async def test_a_trial_that_breaks_is_a_servers_error_and_frees_the_node(bench: Bench):
    bench.volumes.error = RuntimeError("no such thing")
    bench.volumes.may_end.set()
    assert (await bench.ask()).status_code == 500
    bench.volumes.error = None
    assert (await bench.ask()).status_code == 200
