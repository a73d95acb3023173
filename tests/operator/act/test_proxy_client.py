"""Calls of the V-IPU proxy: whatever comes back is one of three values."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_kube.api.credentials import StaticToken
from muster_kube.controller.leader_client import NotLeading
from muster_operator.act.proxy_client import ANSWER_LIMIT, ProxyClient
from muster_operator.job.partition_api import (
    ControllerCapacity,
    IpuCount,
    PartitionCapacity,
    PartitionEntry,
    PartitionRefusal,
    PartitionRequest,
)

URL = "http://proxy:8080"
WISH = PartitionRequest(job="u1", namespace="ns", name="train", instance=0, attempt=0, size=4, gcds=2)
ENTRY = PartitionEntry(job="u1", namespace="ns", name="train", size=4, gcds=2, state="active", controller="c:8090")


class Tokens:
    """One that is refused, then another."""

    def __init__(self) -> None:
        self.current = "Bearer old"

    async def header(self) -> str | None:
        return self.current

    def refused(self, header: str | None) -> bool:
        self.current = "Bearer new"
        return True


class Bench:
    def __init__(self, answer: Callable[[httpx2.Request], Any], *, leads: bool = True, timeout_s: float = 60.0) -> None:
        self.noted: list[tuple[str, str]] = []
        self.asked: list[httpx2.Request] = []
        self.leads = leads

        async def handle(request: httpx2.Request) -> httpx2.Response:
            self.asked.append(request)
            found = answer(request)
            response: httpx2.Response = await found if asyncio.iscoroutine(found) else found
            return response

        self.proxy = ProxyClient(
            URL,
            StaticToken("t"),
            may_write=lambda: self.leads,
            note=lambda call, outcome: self.noted.append((call, outcome)),
            timeout_s=timeout_s,
            transport=httpx2.MockTransport(handle),
        )


def answering(status: int, body: object) -> Bench:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Bench(lambda _: httpx2.Response(status, content=raw))


async def test_a_partition_is_taken_with_the_wish_and_the_token() -> None:
    bench = answering(200, ENTRY)
    async with bench.proxy as proxy:
        assert await proxy.take("p-train-ns-0", WISH) == ENTRY
    [asked] = bench.asked
    assert (asked.method, str(asked.url)) == ("PUT", f"{URL}/partitions/p-train-ns-0")
    assert asked.headers["authorization"] == "Bearer t"
    assert msgspec.json.decode(asked.content, type=PartitionRequest) == WISH
    assert bench.noted == [("take", "ok")]


async def test_one_that_is_under_way_is_an_entry_too() -> None:
    bench = answering(202, msgspec.structs.replace(ENTRY, state="creating"))
    async with bench.proxy as proxy:
        answer = await proxy.take("p", WISH)
    assert isinstance(answer, PartitionEntry)
    assert answer.state == "creating"
    assert bench.noted == [("take", "pending")]


@pytest.mark.parametrize("status", [400, 401, 403, 409, 503])
async def test_a_refusal_is_passed_on(status: int) -> None:
    refusal = PartitionRefusal(why="NotOurs", message="of job u2")
    bench = answering(status, refusal)
    async with bench.proxy as proxy:
        assert await proxy.take("p", WISH) == refusal
        assert await proxy.free("p", "u1") == refusal
        assert await proxy.room(4) == refusal
    assert bench.noted == [("take", "NotOurs"), ("free", "NotOurs"), ("query", "NotOurs")]


@pytest.mark.parametrize(("status", "done"), [(200, True), (202, False)])
async def test_freeing_says_whether_it_is_done(status: int, done: bool) -> None:
    bench = answering(status, {})
    async with bench.proxy as proxy:
        assert await proxy.free("p", "u1") is done
    assert str(bench.asked[0].url) == f"{URL}/partitions/p?job=u1"


async def test_room_is_asked_for_by_size() -> None:
    bench = answering(200, {"available": True, "numOfPartitions": 3, "message": ""})
    async with bench.proxy as proxy:
        assert await proxy.room(4) == PartitionCapacity(available=True, num_of_partitions=3)
    [asked] = bench.asked
    assert msgspec.json.decode(asked.content) == {"size": 4}
    assert "authorization" not in asked.headers, "the proxy asks for none here, and the connection is not encrypted"


@pytest.mark.parametrize(
    ("status", "body", "why", "shown"),
    [
        (502, b"<html>Bad\nGateway</html>", "Unreachable", "HTTP 502: <html>Bad Gateway</html>"),
        (404, b"", "Refused", "HTTP 404: nothing"),
        (200, b'{"job": 1}', "Refused", 'HTTP 200: {"job": 1}'),
        (409, b'{"why": "Because"}', "Refused", "HTTP 409"),
        (200, b"\xff\xfe", "Refused", "HTTP 200"),
        (200, b" " * (ANSWER_LIMIT + 1), "Refused", f"{ANSWER_LIMIT} bytes"),
    ],
)
async def test_an_unreadable_response_becomes_a_refusal_that_shows_it(
    status: int, body: bytes, why: str, shown: str
) -> None:
    async with answering(status, body).proxy as proxy:
        answer = await proxy.take("p", WISH)
    assert isinstance(answer, PartitionRefusal)
    assert answer.why == why
    assert URL in answer.message
    assert shown in answer.message


async def test_a_refused_connection_is_unreachable() -> None:
    def fail(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    async with Bench(fail).proxy as proxy:
        answer = await proxy.take("p", WISH)
    assert isinstance(answer, PartitionRefusal)
    assert answer.why == "Unreachable"
    assert not missing_facts(answer.message, URL, "refused")


async def test_a_call_is_bounded_as_a_whole() -> None:
    async def never() -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with Bench(lambda _: never(), timeout_s=0.05).proxy as proxy:
        answer = await proxy.take("p", WISH)
    assert isinstance(answer, PartitionRefusal)
    assert answer.why == "Unreachable"
    assert not missing_facts(answer.message, URL, "0.05 s")


async def test_a_token_that_has_been_replaced_is_read_again_once() -> None:
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"])
        refusal = msgspec.json.encode(PartitionRefusal(why="Denied", message="who?"))
        return httpx2.Response(401, content=refusal) if len(seen) == 1 else httpx2.Response(
            200, content=msgspec.json.encode(ENTRY)
        )  # fmt: skip

    proxy = ProxyClient(URL, Tokens(), may_write=lambda: True, transport=httpx2.MockTransport(answer))
    async with proxy:
        assert await proxy.take("p", WISH) == ENTRY
    assert seen == ["Bearer old", "Bearer new"]


async def test_a_replica_that_does_not_lead_calls_nothing() -> None:
    bench = answering(200, ENTRY)
    bench.leads = False
    async with bench.proxy as proxy:
        with pytest.raises(NotLeading):
            await proxy.take("p", WISH)
        with pytest.raises(NotLeading):
            await proxy.free("p", "u1")
    assert bench.asked == []


async def test_every_replica_may_ask_for_free_ipus_and_sends_no_token() -> None:
    listed = [
        ControllerCapacity("a:8090", "ipunode=a", IpuCount(64, 28, 16)),
        ControllerCapacity("b:8090", "", message="down"),
    ]
    raw = msgspec.json.encode(listed)
    bench = Bench(lambda _: httpx2.Response(200, content=raw), leads=False)
    assert await bench.proxy.controllers() == listed
    [asked] = bench.asked
    assert (asked.url.path, "authorization" in asked.headers) == ("/controllers", False)
    assert bench.noted == [("controllers", "ok")]
    for body in (b"{}", b'[{"controller": 1}]', b"<html>"):
        assert isinstance(await answering(200, body).proxy.controllers(), PartitionRefusal)
