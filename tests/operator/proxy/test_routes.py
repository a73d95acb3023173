"""The routes over a real socket: shapes as published, who may do what, and clients that take their time."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx2
import msgspec
import pytest
from tests.loop_time import LoopTime
from tests.operator.proxy.world import FAR_S, World, build_request, partition_name
from tests.plain_http import plain_http

from muster_kube.api.errors import Unreachable
from muster_kube.api.reviews import Identity
from muster_kube.http.connection_guard import ConnectionLimits
from muster_kube.http.server import make_server
from muster_kube.process.address import open_listener
from muster_operator.job.partition_api import PROXY_AUDIENCE
from muster_operator.proxy.client_timeouts import Limits, timed
from muster_operator.proxy.routes import BODY_LIMIT, make_app
from muster_operator.vipu.simulator.fleet import InjectedFaults

OPERATOR = {"authorization": "Bearer operators"}


class Accounts:
    """Stands for the API server's TokenReview."""

    def __init__(self) -> None:
        self.is_away = False

    async def who(self, token: str, audience: str = "") -> Identity | None:
        if self.is_away:
            raise Unreachable("away", "/tokenreviews")
        known = {"operators": "system:serviceaccount:muster:muster-operator", "others": "system:serviceaccount:x:y"}
        return Identity(user=known[token]) if token in known and audience == PROXY_AUDIENCE else None


class Served:
    def __init__(self, world: World, http: httpx2.AsyncClient, accounts: Accounts, address: tuple[str, int]) -> None:
        self.world, self.http, self.accounts, self.address = world, http, accounts, address


@contextlib.asynccontextmanager
async def serving(limits: Limits, connections: ConnectionLimits | None = None) -> AsyncIterator[Served]:
    world = World(32)
    proxy = await world.start()
    accounts = Accounts()
    app = make_app(proxy, accounts, allowed=frozenset({("muster", "muster-operator")}))
    listener = open_listener("127.0.0.1", 0)
    address = listener.getsockname()[:2]
    server = make_server(app, protocol=timed(limits), limits=connections, keep_alive_s=int(FAR_S))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://{address[0]}:{address[1]}"
    try:
        async with plain_http(FAR_S, url) as http:
            yield Served(world, http, accounts, address)
    finally:
        server.should_exit = True
        await running
        listener.close()
        await world.kill()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(Limits(FAR_S, FAR_S, FAR_S)) as running:
        yield running


def seed(name: str) -> object:
    return json.loads(SAMPLES[name])


SAMPLES = {
    "stats": '{"default": {"used": 4, "available": 28}, "total": {"used": 4, "available": 28}}',
    "size2": '{"available": true, "numOfPartitions": 14, "message": ""}',
    "size64": '{"available": true, "numOfPartitions": 0, "message": ""}',
}


async def put(served: Served, **changes: object) -> httpx2.Response:
    asked = msgspec.structs.replace(build_request(), **changes)
    return await served.http.put(
        f"/partitions/{partition_name(asked)}", content=msgspec.json.encode(asked), headers=OPERATOR
    )


async def test_52_53_stats_and_query_answer_as_published(served: Served) -> None:
    assert (await put(served)).status_code == 200
    stats = await served.http.get("/stats")
    assert (stats.status_code, stats.json()) == (200, seed("stats"))
    assert list(stats.json()) == ["default", "total"]
    assert list(stats.json()["total"]) == ["used", "available"]
    for size, name in ((2, "size2"), (64, "size64")):
        answer = await served.http.post("/query", content=f'{{"size":{size}}}')
        assert (answer.status_code, answer.json()) == (200, seed(name))
        assert list(answer.json()) == ["available", "numOfPartitions", "message"]
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"size":"2"}', '{"size":3}', '{"size":0}', '{"size":-2}', '{"size":128}', '{"size":1.5}']
)
async def test_53_a_bad_size_is_400_with_the_allowed_sizes(served: Served, body: str) -> None:
    answer = await served.http.post("/query", content=body)
    assert answer.status_code == 400
    assert "1, 2, 4, 8, 16, 32, 64" in answer.json()["message"]


async def test_53_get_on_query_is_405(served: Served) -> None:
    answer = await served.http.get("/query")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_53_without_a_controller_that_answers_nothing_is_available(served: Served) -> None:
    served.world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    answer = await served.http.post("/query", content='{"size":2}')
    room = answer.json()
    assert (list(room), room["available"], room["numOfPartitions"]) == (
        ["available", "numOfPartitions", "message"], False, 0,
    )  # fmt: skip
    assert "v0:8090" in room["message"]
    stats = await served.http.get("/stats")
    assert stats.json() == {"total": {"used": 0, "available": 0}}


async def test_partitions_are_for_the_operator_alone(served: Served) -> None:
    name = partition_name(build_request())
    for headers, status in (
        ({}, 401),
        ({"authorization": "Basic x"}, 401),
        ({"authorization": "Bearer unknown"}, 401),
        ({"authorization": "Bearer others"}, 403),
    ):
        for method, path in (("GET", ""), ("GET", f"/{name}"), ("PUT", f"/{name}"), ("DELETE", f"/{name}?job=u")):
            answer = await served.http.request(method, f"/partitions{path}", headers=headers, content=b"{}")
            assert answer.status_code == status, (headers, method)
            assert answer.json()["why"] == "Denied"
    assert served.world.api.data == {}
    served.accounts.is_away = True
    answer = await put(served)
    assert (answer.status_code, answer.json()["why"]) == (503, "Unreachable")


async def test_a_partition_is_put_shown_and_deleted(served: Served) -> None:
    name = partition_name(build_request())
    made = await put(served)
    assert (made.status_code, made.json().get("state", "creating")) == (200, "active")
    assert (await served.http.get(f"/partitions/{name}", headers=OPERATOR)).json() == made.json()
    assert (await served.http.get("/partitions", headers=OPERATOR)).json() == {name: made.json()}
    other = await put(served, job="uid-2")
    assert (other.status_code, other.json()["why"]) == (409, "NotOurs")
    assert (await put(served, attempt=1)).status_code == 200
    assert (await put(served)).json()["why"] == "OldAttempt"
    assert (await served.http.delete(f"/partitions/{name}", headers=OPERATOR)).status_code == 400
    assert (await served.http.delete(f"/partitions/{name}?job=uid-2", headers=OPERATOR)).status_code == 409
    for _ in range(2):
        assert (await served.http.delete(f"/partitions/{name}?job=uid-1", headers=OPERATOR)).status_code == 200
    assert (await served.http.get(f"/partitions/{name}", headers=OPERATOR)).status_code == 404


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (b"", ["body", "job, namespace, name, instance, attempt, size, gcds"]),
        (b"\xff", ["body", "job, namespace, name, instance, attempt, size, gcds"]),
        (b"[" * 10_000, ["body"]),
        (b'{"job":"u"}', ["body.namespace", "body.name"]),
        (msgspec.json.encode(msgspec.to_builtins(build_request()) | {"extra": 1}), ["body.extra"]),
        (msgspec.json.encode(msgspec.to_builtins(build_request()) | {"gcds": "1"}), ["body.gcds", "'1'"]),
        (msgspec.json.encode(msgspec.to_builtins(build_request()) | {"size": 3}), ["size: 3"]),
    ],
)
async def test_a_bad_wish_is_400_and_says_why(served: Served, body: bytes, facts: list[str]) -> None:
    answer = await served.http.put(f"/partitions/{partition_name(build_request())}", content=body, headers=OPERATOR)
    assert (answer.status_code, answer.json()["why"]) == (400, "Invalid")
    assert [fact for fact in facts if fact not in answer.json()["message"]] == []


async def test_a_body_without_end_is_cut_off(served: Served) -> None:
    answer = await served.http.post("/query", content=b" " * (BODY_LIMIT + 1))
    assert answer.status_code == 413


async def test_health_and_metrics_are_open(served: Served) -> None:
    await put(served)
    assert (await served.http.get("/health")).text == "ok\n"
    text = (await served.http.get("/metrics")).text
    for line in (
        'muster_vipu_proxy_partitions{state="active"} 1.0',
        'muster_vipu_proxy_ipus{state="used"} 4.0',
        'muster_vipu_proxy_intents_total{intent="create"} 1.0',
        'muster_vipu_proxy_vipu_seconds_count{call="create"} 1.0',
        "muster_vipu_proxy_tracker_conflicts_total 0.0",
    ):
        assert line in text
    served.world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    await served.http.get("/stats")
    text = (await served.http.get("/metrics")).text
    assert 'muster_vipu_proxy_vipu_errors_total{call="partitions",kind="unreachable"} 1.0' in text


@pytest.mark.parametrize(
    "sent", [b"", b"GET /stats", b'POST /query HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{"']
)
async def test_a_client_that_does_not_finish_its_request_is_dropped_and_delays_no_other(
    sent: bytes, loop_time: LoopTime
) -> None:
    async with serving(Limits(read_s=FAR_S / 2, write_s=FAR_S, idle_s=FAR_S)) as served:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(sent)
        assert (await served.http.get("/health")).status_code == 200
        await loop_time.passes(FAR_S / 2)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(FAR_S):
                assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_an_idle_connection_is_closed() -> None:
    async with serving(Limits(read_s=FAR_S, write_s=FAR_S, idle_s=0.2)) as served:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(FAR_S):
                assert (await reader.read()).endswith(b"ok\n")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_connections_that_ask_nothing_make_room_for_those_that_do() -> None:
    few = ConnectionLimits(connections=4, per_address=4)
    async with serving(Limits(read_s=FAR_S, write_s=FAR_S, idle_s=FAR_S), few) as served:
        silent = [await asyncio.open_connection(*served.address) for _ in range(6)]
        assert (await served.http.get("/health")).status_code == 200
        assert (await put(served)).status_code == 200
        for reader, _ in silent[:3]:  # the oldest went first
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(FAR_S):
                    assert await reader.read() == b""
        for _, writer in silent:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_an_answer_that_takes_too_long_is_given_up(loop_time: LoopTime) -> None:
    async with serving(Limits(read_s=FAR_S, write_s=FAR_S / 2, idle_s=FAR_S)) as served:
        await served.world.wait_idle()
        vipu = served.world.vipus[0]
        vipu.inner.clocked_fleet.set_faults(InjectedFaults(slow=10))
        reads = vipu.reads
        asking = asyncio.create_task(served.http.get("/stats"))
        await served.world.until(lambda: vipu.reads > reads, "it is asked")
        await loop_time.passes(FAR_S / 2)  # the client itself waits for twice as long
        with pytest.raises(httpx2.TransportError):
            await asking
        assert (await served.http.get("/health")).status_code == 200
