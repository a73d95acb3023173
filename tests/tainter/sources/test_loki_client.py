"""Loki over HTTP: who asks, with what rights, and what each failure is called."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.tainter.sources.loki_stub import LokiServer, Store, serving

from muster_sandbox.controlplane.certificates import Authority
from muster_tainter.policy.sections.sources import LokiSource
from muster_tainter.sources.http_client import NS, AnswerTooLarge, SourceError, SourceRefused
from muster_tainter.sources.loki.client import LokiClient

NOW = 1_700_000_000
QUERY = '{job="x"}'


@pytest.fixture
async def server() -> AsyncIterator[LokiServer]:
    async with serving(LokiServer(Store(clock=lambda: float(NOW)))) as made:
        yield made


def settings(url: str, **fields: Any) -> LokiSource:
    return LokiSource.model_validate({"url": url, "kernel": [{"query": QUERY}], **fields})


async def ask(where: LokiSource, **limits: Any) -> list[str]:
    async with LokiClient(where, now=lambda: float(NOW), **limits) as client:
        page = await client.ask(QUERY, (NOW - 60) * NS, (NOW + 60) * NS, 10)
        return [entry.line for entry in page.entries]


async def test_lines_are_asked_for_forward_by_nanoseconds(server: LokiServer) -> None:
    server.store.push("one", (NOW - 2) * NS, job="x")
    server.store.push("two", (NOW - 1) * NS, job="x")
    assert await ask(settings(server.url)) == ["one", "two"]
    assert server.store.asked[0] == {
        "query": QUERY,
        "start": str((NOW - 60) * NS),
        "end": str((NOW + 60) * NS),
        "limit": "10",
        "direction": "forward",
    }
    assert "x-scope-orgid" not in server.headers[0]
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("told_s", "asked_at_s"),
    [(25, 0), (0, 0), (30 + 3600, 3600), (-3600, -3600)],
    ids=["at the end", "at the beginning", "an hour ahead", "an hour behind"],
)
async def test_an_answer_that_takes_long_is_no_clock_that_is_ahead(
    server: LokiServer, told_s: int, asked_at_s: int
) -> None:
    """What reached Loki while it was busy with the answer has not been read."""
    times = iter([float(NOW), NOW + 30.0])
    server.store.clock = lambda: float(NOW + told_s)
    async with LokiClient(settings(server.url), now=lambda: next(times, NOW + 30.0)) as client:
        page = await client.ask(QUERY, (NOW - 60) * NS, (NOW + 60) * NS, 10)
    assert page.asked_ns == (NOW + asked_at_s) * NS


async def test_a_tenant_is_named_and_another_s_lines_are_not_seen(server: LokiServer) -> None:
    server.tenant = "blue"
    server.store.push("one", (NOW - 1) * NS, job="x")
    assert await ask(settings(server.url, tenant="red|blue")) == ["one"]
    assert await ask(settings(server.url, tenant="red")) == []
    with pytest.raises(SourceRefused, match="no org id"):
        await ask(settings(server.url))


@pytest.mark.parametrize(
    ("user", "header"), [(None, "Bearer tok1"), ("loki", "Basic bG9raTp0b2sx")], ids=["bearer", "basic"]
)
async def test_a_token_is_read_for_every_request(
    server: LokiServer, tmp_path: Path, user: str | None, header: str
) -> None:
    token = tmp_path / "token"
    token.write_text("tok1\n")
    server.authorization = header
    where = settings(server.url, tokenFile=str(token), **({"user": user} if user else {}))
    assert await ask(where) == []
    token.write_text("tok2\n")
    with pytest.raises(SourceRefused, match="401"):
        await ask(where)


@pytest.mark.parametrize("content", [None, "", "two\nlines", "caf\u00e9"])
async def test_a_token_that_cannot_be_one_is_never_sent(
    server: LokiServer, tmp_path: Path, content: str | None
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with pytest.raises(SourceRefused, match="tokenFile"):
        await ask(settings(server.url, tokenFile=str(token)))
    assert server.headers == []


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "words"),
    [
        (429, {"Retry-After": "7"}, b"too many outstanding requests", SourceError, "too many outstanding"),
        (500, {}, b"empty ring", SourceError, "500: empty ring"),
        (503, {"Retry-After": "soon"}, b"", SourceError, "503"),
        (400, {}, b"parse error : syntax error", SourceRefused, "syntax error"),
        (404, {}, b"404 page not found", SourceRefused, "404"),
        (302, {"Location": "http://elsewhere/"}, b"", SourceRefused, "302"),
        (
            400,
            {},
            b"max entries limit per query exceeded, limit > max_entries_limit (10 > 3)",
            AnswerTooLarge,
            "exceeded",
        ),
        (
            500,
            {},
            b"rpc error: trying to send message larger than max (9 vs. 4)",
            AnswerTooLarge,
            "larger than max",
        ),
        (200, {}, b"<html>proxy</html>", SourceError, "<html>proxy"),
        (200, {}, b'{"status":"success","data":{"resultType":"vector","result":[]}}', SourceError, "vector"),
    ],
)
async def test_each_failure_has_its_name(
    server: LokiServer, status: int, headers: dict[str, str], body: bytes, kind: type[SourceError], words: str
) -> None:
    server.instead = lambda _parameters: (status, headers, body)
    with pytest.raises(SourceError, match=words) as error:
        await ask(settings(server.url))
    assert type(error.value) is kind
    assert error.value.retry_after_s == (7.0 if status == 429 else 0.0)


async def test_loki_s_own_limit_is_in_its_refusal(server: LokiServer) -> None:
    server.store.most = 3
    with pytest.raises(AnswerTooLarge) as error:
        await ask(settings(server.url))
    assert error.value.most == 3


async def test_an_answer_without_end_is_cut_off(server: LokiServer) -> None:
    server.instead = lambda _parameters: (200, {}, b"x" * 100_000)
    with pytest.raises(AnswerTooLarge, match="1000 bytes"):
        await ask(settings(server.url), body_limit=1000)


async def test_nobody_there_is_no_refusal(server: LokiServer) -> None:
    async with serving(LokiServer()) as gone:
        url = gone.url
    with pytest.raises(SourceError) as error:
        await ask(settings(url))
    assert type(error.value) is SourceError


async def test_a_loki_that_stays_silent_is_given_up(server: LokiServer) -> None:
    server.instead = lambda _parameters: (200, {"Content-Length": "1000000"}, b"{")
    with pytest.raises(SourceError, match=r"0\.05 s"):
        await ask(settings(server.url), timeout_s=0.05)


@pytest.mark.parametrize("ahead_s", [-7200.0, 0.0, 1.0, 7200.0])
async def test_time_is_loki_s_where_its_clock_and_ours_differ(server: LokiServer, ahead_s: float) -> None:
    server.store.clock = lambda: NOW + ahead_s
    async with LokiClient(settings(server.url), now=lambda: float(NOW)) as client:
        page = await client.ask(QUERY, 0, NS, 1)
        expected = NOW + (ahead_s if abs(ahead_s) > 2 else 0.0)
        assert page.asked_ns == client.now_ns() == int(expected * NS)


async def test_a_certificate_is_held_against_the_ca_that_was_named(tmp_path: Path) -> None:
    authority = Authority("loki-ca")
    ca, pair = tmp_path / "ca.pem", tmp_path / "pair.pem"
    ca.write_bytes(authority.certificate)
    issued = authority.server("loki", ["127.0.0.1"])
    pair.write_bytes(issued.key + issued.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair)
    async with serving(LokiServer(Store(clock=lambda: float(NOW))), ssl=context) as server:
        assert await ask(settings(server.url, caFile=str(ca))) == []
        with pytest.raises(SourceError, match=r"(?i)certificate"):
            await ask(settings(server.url))
        with pytest.raises(SourceRefused, match="caFile"):
            await ask(settings(server.url, caFile=str(tmp_path / "none.pem")))


def test_the_stub_answers_as_the_reference_says() -> None:
    store = Store(clock=lambda: float(NOW))
    store.push("in", 5, {"k8s_node_name": "n1"}, job="x")
    store.push("in", 5, {"k8s_node_name": "n1"}, job="x")
    store.push("out", 6, job="x")
    told = store.query({"query": '{job="x"} |= "in"', "start": "5", "end": "6", "limit": "10", "direction": "forward"})
    assert json.loads(json.dumps(told))["data"]["result"] == [
        {"stream": {"job": "x", "k8s_node_name": "n1"}, "values": [["5", "in"]]}
    ]
