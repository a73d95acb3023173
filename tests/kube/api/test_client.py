import asyncio
import time
from dataclasses import replace

import msgspec
import pytest

from muster_kube.api import errors
from muster_kube.api.client import KubeClient
from muster_kube.api.credentials import FileToken
from muster_kube.api.objects import Node

PATH = "/api/v1/nodes/a"


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (503, "ServiceUnavailable", errors.ApiError),
    ],
)
async def test_each_status_has_its_type_and_keeps_the_servers_words(api, client, wire, status, reason, kind):
    api.on("PATCH", PATH, wire.Reply(status, wire.failure(status, reason, "the words")))
    with pytest.raises(errors.ApiError) as caught:
        await client.patch(PATH, {})
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.reason, error.message, error.path) == (status, reason, "the words", PATH)


async def test_a_proxys_page_of_html_is_shown(api, client, wire):
    api.on("GET", PATH, wire.Reply(502, b"<h1>Bad gateway</h1>"))
    with pytest.raises(errors.ApiError, match=r"502 Unknown: <h1>Bad gateway</h1>"):
        await client.get(PATH)


async def test_calls_share_one_kept_alive_connection(api, client, wire):
    api.on("GET", PATH, wire.Reply(200, wire.node("a", 1)))
    api.on("PATCH", PATH, wire.Reply(409, wire.failure(409, "Conflict")))
    for _ in range(5):
        assert (await client.get(PATH, type=Node)).metadata.name == "a"
        with pytest.raises(errors.Conflict):
            await client.patch(PATH, {})
    assert api.connections == 1


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("json", "application/json-patch+json"),
    ],
)
async def test_a_patch_says_what_kind_it_is(api, client, wire, kind, content_type):
    api.on("PATCH", PATH, wire.Reply())
    await client.patch(PATH, {"a": 1}, kind=kind)
    assert api.asked[0].headers["content-type"] == content_type
    assert api.asked[0].body == b'{"a":1}'


async def test_apply_names_its_manager_and_whether_it_forces(api, client, wire):
    api.on("PATCH", PATH, wire.Reply())
    await client.apply(PATH, {}, field_manager="muster", force=True)
    assert api.asked[0].query == {"fieldManager": "muster", "force": "true"}
    assert api.asked[0].headers["content-type"] == "application/apply-patch+yaml"


async def test_a_get_told_to_slow_down_waits_and_asks_again(api, client, wire, fake_time):
    api.on("GET", PATH, wire.Reply(429, b"{}", {"Retry-After": "1"}), wire.Reply())
    assert await client.get(PATH) == {}
    assert len(fake_time.slept) == 1
    assert 1.0 <= fake_time.slept[0] <= 1.25


async def test_a_get_told_to_wait_longer_than_it_may_last_fails_and_says_how_long(api, client, wire, fake_time):
    api.on("GET", PATH, wire.Reply(429, b"{}", {"Retry-After": "60"}))
    with pytest.raises(errors.TooManyRequests) as caught:
        await client.get(PATH)
    assert caught.value.retry_after_s == 60
    assert fake_time.slept == []


async def test_a_server_that_always_says_slow_down_is_asked_three_times(api, client, wire):
    api.on("GET", PATH, wire.Reply(429, b"{}", {"Retry-After": "1"}))
    with pytest.raises(errors.TooManyRequests):
        await client.get(PATH)
    assert len(api.asked) == 3


async def test_a_write_told_to_slow_down_is_the_callers_to_repeat(api, client, wire, fake_time):
    api.on("PATCH", PATH, wire.Reply(429, b"{}", {"Retry-After": "1"}))
    with pytest.raises(errors.TooManyRequests):
        await client.patch(PATH, {})
    assert len(api.asked) == 1


async def test_a_write_without_an_answer_is_never_sent_twice(api, client, wire):
    api.on("PATCH", PATH, wire.Drop())
    with pytest.raises(errors.Unreachable):
        await client.patch(PATH, {})
    assert len(api.asked) == 1


async def test_a_get_on_a_connection_that_the_server_just_closed_is_sent_again(api, client, wire):
    api.on("GET", PATH, wire.Drop(), wire.Reply())
    assert await client.get(PATH) == {}


async def test_a_refused_connection_names_the_server(config):
    async with KubeClient(replace(config, server="http://127.0.0.1:1")) as client:
        with pytest.raises(errors.Unreachable, match=r"/api/v1/nodes/a: .*127\.0\.0\.1:1"):
            await client.get(PATH)


async def test_the_time_limit_is_for_the_whole_answer_not_for_each_byte(api, config, wire):
    api.on("GET", PATH, wire.Reply(200, b"{}" + b" " * 1000, trickle_s=0.02))
    async with KubeClient(config, timeout_s=0.2) as client:
        started = time.monotonic()
        with pytest.raises(errors.Unreachable, match=r"0\.2 s"):
            await client.get(PATH)
        assert time.monotonic() - started < 10, "the whole answer takes twenty seconds"


async def test_a_call_may_have_its_own_time_limit(api, client, wire):
    api.on("GET", PATH, wire.Stream())
    with pytest.raises(errors.Unreachable, match=r"0\.05 s"):
        await client.get(PATH, timeout_s=0.05)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"metadata": {"name": 7}}', r"Expected `str`, got `int` - at `\$\.metadata\.name`"),
        (b"<html>", "malformed"),
        (b"", "Expected `object`, got `null`"),
        (b'{"metadata": {"name": "a"', "truncated"),
    ],
)
async def test_an_answer_that_does_not_fit_says_what_where_and_how_it_begins(api, client, wire, body, words):
    api.on("GET", PATH, wire.Reply(200, body))
    with pytest.raises(errors.BadAnswer, match=words) as caught:
        await client.get(PATH, type=Node)
    assert caught.value.path == PATH
    assert repr(body.decode()) in str(caught.value)


async def test_an_answer_without_end_is_cut_off(api, client, wire):
    api.on("GET", PATH, wire.Reply(200, b" " * ((16 << 20) + 1)))
    with pytest.raises(errors.BadAnswer, match=str(16 << 20)):
        await client.get(PATH)


async def test_after_a_401_the_rotated_token_is_tried_once(api, config, wire, tmp_path, fake_time):
    path = tmp_path / "token"
    path.write_text("old")

    def judge(asked):
        good = asked.headers["authorization"] == "Bearer new"
        return wire.Reply() if good else wire.Reply(401, wire.failure(401, "Unauthorized"))

    api.on("PATCH", PATH, judge)
    async with KubeClient(
        replace(config, credentials=FileToken(path, clock=fake_time.clock)), timeout_s=30.0
    ) as client:
        with pytest.raises(errors.Unauthorized):
            await client.patch(PATH, {})
        assert len(api.asked) == 2
        path.write_text("new")
        assert await client.patch(PATH, {}) == {}
    assert [a.headers["authorization"] for a in api.asked[2:]] == ["Bearer old", "Bearer new"]


async def test_more_calls_than_connections_wait_their_turn(api, config, wire):
    api.on("GET", PATH, wire.Reply())
    async with KubeClient(config, max_connections=2, timeout_s=30.0) as client:
        await asyncio.gather(*(client.get(PATH) for _ in range(20)))
    assert api.connections <= 2


async def test_proxies_of_the_environment_are_not_used(api, config, wire, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    api.on("GET", PATH, wire.Reply())
    async with KubeClient(config, timeout_s=30.0) as client:
        assert await client.get(PATH) == {}


async def test_a_body_may_be_any_struct(api, client, wire):
    class Body(msgspec.Struct):
        x: int

    api.on("POST", "/x", wire.Reply(201))
    await client.create("/x", Body(3))
    assert api.asked[0].body == b'{"x":3}'


async def test_a_client_that_was_not_entered_says_so(config):
    with pytest.raises(RuntimeError, match="async with"):
        await KubeClient(config).get(PATH)


async def test_a_cancelled_call_gives_its_connection_back(api, config, wire):
    api.on("GET", PATH, wire.Stream())
    api.on("GET", "/x", wire.Reply())
    async with KubeClient(config, max_connections=1, timeout_s=30.0) as client:
        for n in range(3):
            call = asyncio.create_task(client.get(PATH))
            await wire.until(lambda n=n: len(api.asked) > n)
            call.cancel()
            await asyncio.wait([call])
        assert await client.get("/x") == {}


async def test_every_page_of_a_list_is_read_and_what_fails_in_the_middle_is_raised(api, client, wire):
    path = "/api/v1/nodes"
    api.on(
        "GET",
        path,
        wire.Reply(200, wire.listing(10, wire.node("a", 3), more="second")),
        wire.Reply(200, wire.listing(10, wire.node("b", 5), more="third")),
        wire.Reply(410, wire.failure(410, "Expired")),
    )
    pages = client.list_pages(path, Node, params={"labelSelector": "x", "resourceVersion": "0"})
    assert [(await anext(pages)).items[0].metadata.name for _ in range(2)] == ["a", "b"]
    with pytest.raises(errors.Gone):
        await anext(pages)
    assert [asked.query for asked in api.asked] == [
        {"labelSelector": "x", "resourceVersion": "0", "limit": "500"},
        {"labelSelector": "x", "continue": "second", "limit": "500"},
        {"labelSelector": "x", "continue": "third", "limit": "500"},
    ]
