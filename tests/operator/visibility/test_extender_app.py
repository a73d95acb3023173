"""The extender over HTTP: as kube-scheduler writes and reads, and input that is no scheduler's."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from tests.operator.visibility.capacities import Proxy, capacity_of, controller, node

from muster_operator.job.partition_api import PartitionEntry
from muster_operator.visibility.extender_app import extender_app
from muster_operator.visibility.extender_args import BODY_LIMIT, HELD_LIMIT, NODES_LIMIT

MIB = 1 << 20
HELD = PartitionEntry(job="held", namespace="ns", name="n", selector="ipunode=b")


@pytest.fixture
async def http() -> httpx2.AsyncClient:
    capacity = capacity_of(Proxy(controller("a", 4), controller("b", 0)))
    await capacity.refresh()
    nodes = SimpleNamespace(store={name: node(name, name[0]) for name in ("a1", "b1")})
    tracker = SimpleNamespace(of_job=lambda uid: {"p": HELD} if uid == "held" else {})
    cluster: Any = SimpleNamespace(nodes=nodes, tracker=tracker)
    transport = httpx2.ASGITransport(app=extender_app(cluster, capacity, 64))
    return httpx2.AsyncClient(transport=transport, base_url="http://extender")


def asked(ipus: str | None = "4", names: object = ("a1", "b1"), uid: str = "u") -> dict[str, Any]:
    """With more of a pod than is read."""
    annotations = {"graphcore.ai/ipus": ipus} if ipus is not None else None
    pod = {"metadata": {"name": "p", "uid": uid, "annotations": annotations}, "spec": {"containers": []}, "status": {}}
    return {"Pod": pod, "Nodes": None, "NodeNames": names}


def owned(*owners: object) -> dict[str, Any]:
    found = asked()
    found["Pod"]["metadata"]["ownerReferences"] = owners
    return found


async def test_filter_and_prioritize_answer_in_the_form_of_the_scheduler(http: httpx2.AsyncClient) -> None:
    found = (await http.post("/filter", json=asked())).json()
    assert set(found) == {"NodeNames", "FailedNodes"}
    assert (found["NodeNames"], set(found["FailedNodes"])) == (["a1"], {"b1"})
    scores = (await http.post("/prioritize", json=asked())).json()
    assert scores == [{"Host": "a1", "Score": 10}, {"Host": "b1", "Score": 0}]
    old = {key.lower(): value for key, value in asked().items()}
    assert (await http.post("/filter", json=old)).json() == found


async def test_a_pod_without_the_annotation_is_let_through_unread(http: httpx2.AsyncClient) -> None:
    names = ["elsewhere"] * 3
    found = (await http.post("/filter", json=asked(None, names))).json()
    assert (found["NodeNames"], found["FailedNodes"]) == (names, {})
    scores = (await http.post("/prioritize", json=asked(None, names))).json()
    assert {each["Score"] for each in scores} == {0}


async def test_a_pod_with_a_partition_is_found_by_its_uid(http: httpx2.AsyncClient) -> None:
    found = (await http.post("/filter", json=asked("4", uid="held"))).json()
    assert found["NodeNames"] == ["b1"]


@pytest.mark.parametrize(
    ("owner", "nodes"),
    [
        ({"kind": "IPUJob", "apiVersion": "graphcore.ai/v1alpha1", "controller": True}, ["a1", "b1", "ghost"]),
        ({"kind": "IPUJob", "apiVersion": "graphcore.ai/v1alpha1"}, ["a1"]),
        ({"kind": "IPUJob", "apiVersion": "example.com/v1", "controller": True}, ["a1"]),
        ({"kind": "Job", "apiVersion": "batch/v1", "controller": True}, ["a1"]),
    ],
)
async def test_the_annotation_has_no_effect_on_a_pod_of_an_ipu_job(
    http: httpx2.AsyncClient, owner: dict[str, Any], nodes: list[str]
) -> None:
    sent = owned({"name": "train", "uid": "j", **owner}) | {"NodeNames": ["a1", "b1", "ghost"]}
    assert (await http.post("/filter", json=sent)).json()["NodeNames"] == nodes
    assert (await http.post("/prioritize", json=sent)).status_code == (200 if "ghost" in nodes else 400)


async def test_a_pod_without_owners_asks_by_its_annotation(http: httpx2.AsyncClient) -> None:
    without = owned()
    without["Pod"]["metadata"]["ownerReferences"] = None
    for sent in (owned(), without):
        assert (await http.post("/filter", json=sent)).json()["NodeNames"] == ["a1"]


async def test_the_request_is_described(http: httpx2.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert set(document["components"]["schemas"]["ExtenderArgs"]["required"]) == {"Pod", "NodeNames"}


async def test_unknown_nodes_are_named(http: httpx2.AsyncClient) -> None:
    found = (await http.post("/filter", json=asked(names=["a1", "ghost"]))).json()
    assert (found["NodeNames"], set(found["FailedNodes"])) == (["a1"], {"ghost"})
    answer = await http.post("/prioritize", json=asked(names=["a1", "ghost"]))
    assert (answer.status_code, "ghost" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "fact"),
    [
        ("", 400, "body"),
        ("{", 400, "JSON"),
        ("[]", 400, "body"),
        ("{}", 400, "Pod"),
        (json.dumps({"Pod": {}, "NodeNames": []}), 400, "metadata"),
        (json.dumps(asked(names=None)), 400, "NodeNames"),
        (json.dumps(asked(names=["a1", 7])), 400, "NodeNames"),
        (json.dumps(asked(names=[""])), 400, "NodeNames"),
        (json.dumps(asked(names=["n" * 254])), 400, "NodeNames"),
        (json.dumps(asked(names=["n"] * (NODES_LIMIT + 1))), 400, str(NODES_LIMIT)),
        (json.dumps(asked(4)), 400, "annotations"),  # type: ignore[arg-type] # a number is no annotation
        (json.dumps(owned({"kind": "IPUJob"})), 400, "ownerReferences"),
        (json.dumps(owned("o" * (64 << 10))), 400, "ownerReferences"),
        ("[" * 100_000, 400, "body"),
        (" " * (BODY_LIMIT + 1), 413, str(BODY_LIMIT)),
    ],
    ids=lambda each: str(each)[:30],
)
async def test_what_no_scheduler_sends_is_refused_with_its_place(
    http: httpx2.AsyncClient, body: str, status: int, fact: str
) -> None:
    for verb in ("/filter", "/prioritize"):
        answer = await http.post(verb, content=body)
        assert (answer.status_code, fact in answer.text) == (status, True), answer.text
        assert len(answer.text) < 1000


def many(text: str) -> str:
    """That text, again and again, in 2 MiB of JSON."""
    return ",".join([text] * (2 * MIB // (len(text) + 1)))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (f'{{"Pod":{{"metadata":{{}}}},"NodeNames":[],"x":[{many("[]")}]}}', 200),
        (f'{{"Pod":{{"metadata":{{}},"spec":[{many("{}")}]}},"NodeNames":[]}}', 200),
        (f'{{"Pod":{{"metadata":{{"labels":[{many("1.5")}]}}}},"NodeNames":[]}}', 200),
        (f'{{"Pod":{{"metadata":{{}}}},"NodeNames":[{many(json.dumps("n"))}]}}', 400),
    ],
    ids=["unknown", "pod", "metadata", "names"],
)
async def test_what_is_not_used_takes_no_memory_beyond_its_bytes(
    http: httpx2.AsyncClient, body: str, status: int
) -> None:
    tracemalloc.start()
    try:
        answer = await http.post("/filter", content=body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status_code == status
    assert peak < 8 * MIB  # the client's copy, the body, the names


async def test_many_annotations_are_skipped(http: httpx2.AsyncClient) -> None:
    sent = asked()
    sent["Pod"]["metadata"]["annotations"] |= {f"a{number}": "" for number in range(200_000)}
    body = json.dumps(sent)
    tracemalloc.start()
    try:
        answer = await http.post("/filter", content=body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.json()["NodeNames"] == ["a1"]
    assert peak < 5 * len(body)


async def test_requests_under_way_share_a_limit_and_give_it_back(http: httpx2.AsyncClient) -> None:
    held, go_on = 0, asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        nonlocal held
        for _ in range(BODY_LIMIT // MIB):
            yield b" " * MIB
            held += MIB
            if held == HELD_LIMIT:
                go_on.set()
        await finish.wait()

    finish = asyncio.Event()
    slow = [asyncio.create_task(http.post("/filter", content=slowly())) for _ in range(HELD_LIMIT // BODY_LIMIT)]
    async with asyncio.timeout(60):
        await go_on.wait()
        assert (await http.post("/filter", json=asked())).status_code == 503
        finish.set()
        assert [(await each).status_code for each in slow] == [400, 400]
        assert (await http.post("/filter", json=asked())).status_code == 200


async def test_a_client_that_goes_away_gives_its_bytes_back(http: httpx2.AsyncClient) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b" " * BODY_LIMIT
        raise ConnectionResetError

    for _ in range(HELD_LIMIT // BODY_LIMIT + 1):
        with pytest.raises(ConnectionResetError):
            await http.post("/filter", content=broken())
    assert (await http.post("/filter", json=asked())).status_code == 200
