"""What every service of ours answers to requests that are wrong, and how it documents itself."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated

import httpx2
import msgspec
import pytest
from fastapi import Depends, Query
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Message

from muster_kube.http.bad_request import FIELDS_LIMIT, check_query
from muster_kube.http.offline_docs import docs_page
from muster_kube.http.responses import StructResponse, described, struct
from muster_kube.http.service import Service

BODY_LIMIT = 200


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    size: int = Field(ge=1, le=8)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: list[Part]
    note: str = ""


class Choice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    page: int = Field(1, ge=1)
    sizes: list[int] = Field([])


async def discount(coupon: str = "") -> int:
    return len(coupon)


class Bill(msgspec.Struct, frozen=True):
    total: int


def make_service(**options: object) -> Service:
    service = Service("shop", "1.2", structs=[Bill], body_limit=BODY_LIMIT, **options)  # type: ignore[arg-type]

    @service.get("/stock", dependencies=[Depends(check_query)], response_class=PlainTextResponse)
    async def stock(
        off: Annotated[int, Depends(discount)], size: Annotated[int, Query(ge=1, le=8)] = 1, colour: str = "red"
    ) -> str:
        return f"{size} {colour} {off}\n"

    @service.get("/orders", dependencies=[Depends(check_query)], response_class=PlainTextResponse)
    async def orders(choice: Annotated[Choice, Query()]) -> str:
        return f"{choice.page}\n"

    @service.post("/orders", responses={200: described("the bill", {"application/json": struct(Bill)})})
    async def order(order: Order) -> Response:
        return StructResponse(Bill(sum(part.size for part in order.parts)))

    return service


@pytest.fixture
async def shop() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=make_service())
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


@pytest.mark.parametrize(
    ("query", "tokens"),
    [
        ("size=9", ["size: '9'", "8"]),
        ("size=many", ["size: 'many'"]),
        ("sise=1", ["'sise'", "size, colour, coupon"]),
        ("size=1&size=2", ["'size'", "twice"]),
        ("&".join(f"a{n}=" for n in range(FIELDS_LIMIT + 1)), [str(FIELDS_LIMIT)]),
    ],
)
async def test_a_wrong_query_is_answered_with_what_is_allowed(shop: httpx2.AsyncClient, query: str, tokens: list[str]):
    answer = await shop.get(f"/stock?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert all(token in answer.text for token in tokens), answer.text


async def test_a_query_that_is_a_model_is_held_to_it(shop: httpx2.AsyncClient):
    assert (await shop.get("/orders?page=2&sizes=3")).text == "2\n"
    for query, tokens in (("page=0", ["page: '0'"]), ("pages=1", ["'pages'", "page, sizes"]), ("sizes=x", ["'x'"])):
        answer = await shop.get(f"/orders?{query}")
        assert answer.status_code == 400
        assert all(token in answer.text for token in tokens), answer.text


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b"", ["body"]),
        (b"{", ["body", "1"]),
        (b"[]", ["body: []"]),
        (b'{"parts": 1}', ["body.parts: 1"]),
        (b'{"parts": [{"name": "a", "size": 9}]}', ["body.parts.0.size: 9", "8"]),
        (b'{"parts": [{"name": "a", "size": 1, "price": 2}]}', ["body.parts.0.price: 2", "name, size"]),
        (b'{"parts": [], "notes": "a"}', ["body.notes: 'a'", "parts, note"]),
        (b"[" * BODY_LIMIT, ["body"]),
        (b"\xff", ["body"]),
    ],
)
async def test_a_wrong_body_is_answered_with_where_and_what_is_allowed(
    shop: httpx2.AsyncClient, body: bytes, tokens: list[str]
):
    answer = await shop.post("/orders", content=body)
    assert answer.status_code == 400
    assert all(token in answer.text for token in tokens), answer.text


@pytest.mark.parametrize("kind", [None, "application/json", "application/x-www-form-urlencoded", "nonsense"])
async def test_a_body_is_json_whatever_it_is_called(shop: httpx2.AsyncClient, kind: str | None):
    headers = {"content-type": kind} if kind else {}
    answer = await shop.post("/orders", content=b'{"parts": [{"name": "a", "size": 3}]}', headers=headers)
    assert answer.json() == {"total": 3}


async def test_a_body_is_bounded(shop: httpx2.AsyncClient):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BODY_LIMIT + 1):
            yield b" "

    for content in (b" " * (BODY_LIMIT + 1), pieces()):
        answer = await shop.post("/orders", content=content)
        assert (answer.status_code, str(BODY_LIMIT) in answer.text) == (413, True)


async def test_a_body_that_does_not_come_is_not_waited_for():
    sent: list[Message] = []

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": []}
    await make_service(body_s=0.01)(scope, receive, send)
    assert sent[0]["status"] == 408


async def test_other_paths_and_methods_are_refused_in_text(shop: httpx2.AsyncClient):
    unknown, wrong = await shop.get("/nowhere"), await shop.post("/stock")
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert wrong.headers["allow"] == "GET"
    assert unknown.headers["content-type"].startswith("text/plain")


async def test_head_is_answered_as_get_is(shop: httpx2.AsyncClient):
    assert (await shop.head("/stock")).status_code == 200
    assert (await shop.head("/stock?size=9")).status_code == 400
    assert (await shop.head("/nowhere")).status_code == 404


async def test_a_part_refuses_in_its_own_form():
    def refuse(status, message, headers):
        return StructResponse({"why": message}, status)

    transport = httpx2.ASGITransport(app=make_service(refuse=refuse))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        for path, status in (("/nowhere", 404), ("/stock?size=9", 400), ("/stock?a=1", 400)):
            answer = await client.get(path)
            assert (answer.status_code, list(answer.json())) == (status, ["why"])


async def test_the_document_describes_structs_and_refusals_as_they_are(shop: httpx2.AsyncClient):
    document = (await shop.get("/openapi.json")).json()
    assert set(document["paths"]) == {"/stock", "/orders"}
    assert set(document["paths"]["/stock"]) == {"get"}, "HEAD goes without saying"
    answers = document["paths"]["/orders"]["post"]["responses"]
    assert set(answers) == {"200", "400"}
    assert answers["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Bill"}
    assert set(document["components"]["schemas"]) == {"Bill", "Order", "Part"}


async def test_document_and_page_are_made_once_however_often_they_are_requested():
    made: list[str] = []

    class Counting(Service):
        def openapi(self):
            made.append("document")
            return super().openapi()

    service = Counting("shop", "1")
    transport = httpx2.ASGITransport(app=service)
    docs_page.cache_clear()
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        answers = [(await client.get("/openapi.json")).content for _ in range(3)]
        pages = [(await client.get("/docs")).content for _ in range(3)]
    assert made == ["document"]
    assert docs_page.cache_info().misses == 1
    assert len(set(answers)) == len(set(pages)) == 1


async def test_the_page_of_the_document_asks_nobody_else(shop: httpx2.AsyncClient):
    page = await shop.get("/docs")
    addresses = re.findall(r"(?:src|href)=\"([^\"]*)\"", page.text)
    assert len(addresses) == 3
    for address in addresses:
        assert "//" not in address
        asset = await shop.get(f"http://shop/{address}")
        assert (asset.status_code, len(asset.content) > 1000) == (200, True)
    assert "'unsafe-eval'" not in page.headers["content-security-policy"]
    missing = await shop.get("/docs/redoc.standalone.js")
    assert (missing.status_code, "swagger-ui.css" in missing.text) == (404, True)
