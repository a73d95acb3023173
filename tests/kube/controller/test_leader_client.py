"""Writes of a process that led a moment ago."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.kube.conftest import Asked, FakeApi, Reply

from muster_kube.api.config import ClusterConfig
from muster_kube.controller.leader_client import LeaderClient, NotLeading

NODE = "/api/v1/nodes/n1"


@dataclass
class Bench:
    """leads: asked as a body goes out; a call to it may change it for the next one."""

    api: FakeApi
    leads: bool = True


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(FakeApi())
    await made.api.start()
    made.api.on("PATCH", NODE, Reply(200, {"ok": True}))
    made.api.on("GET", NODE, Reply(200, {"ok": True}))
    made.api.on("DELETE", NODE, Reply(200, {"ok": True}))
    yield made
    await made.api.stop()


def client(bench: Bench) -> LeaderClient:
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{bench.api.port}")
    return LeaderClient(config, may_write=lambda: bench.leads, timeout_s=30.0)


async def test_a_write_whose_head_has_gone_out_is_not_carried_out_when_the_lease_is_lost_before_its_body(
    bench: Bench,
) -> None:
    async with client(bench) as api:
        await api.get(NODE)
        bench.leads = False  # whoever asked before, asked in time
        for write in (api.patch(NODE, {"spec": {}}), api.create(NODE, {"a": 1}), api.delete(NODE)):
            with pytest.raises(NotLeading, match="/api/v1/nodes/n1"):
                await write
        assert [asked.method for asked in bench.api.asked] == ["GET"]


async def test_the_connections_serve_again_and_reading_needs_no_lead(bench: Bench) -> None:
    async with client(bench) as api:
        bench.leads = False
        with pytest.raises(NotLeading):
            await api.patch(NODE, {"spec": {}})
        await api.get(NODE)
        bench.leads = True
        await api.patch(NODE, {"spec": {"taints": None}})
    [asked] = bench.api.asked_for("PATCH")
    assert (json.loads(asked.body), asked.headers["content-length"]) == ({"spec": {"taints": None}}, "24")


async def test_a_lease_lost_while_a_fresh_token_was_fetched_stops_the_second_try(bench: Bench) -> None:
    def refuse(asked: Asked) -> Any:
        bench.leads = False
        return Reply(401, {"kind": "Status", "reason": "Unauthorized"})

    class Renewed:
        async def header(self) -> str:
            return "Bearer fresh"

        def refused(self, header: str | None) -> bool:
            return True

    bench.api.on("PATCH", NODE, refuse)
    config = ClusterConfig(
        origin="test",
        server=f"http://127.0.0.1:{bench.api.port}",
        credentials=Renewed(),  # as much of it as a call needs
    )
    async with LeaderClient(config, may_write=lambda: bench.leads, timeout_s=30.0) as api:
        with pytest.raises(NotLeading):
            await api.patch(NODE, {"spec": {}})
    assert len(bench.api.asked) == 1
