"""A tainter that starts, or takes over, knows of a pause that the API server's cache does not have yet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.kube.conftest import Asked, FakeApi, Reply, Stream

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_tainter.pause import NAME, Pause, config_maps

PAUSED = {"metadata": {"name": NAME, "namespace": "muster", "resourceVersion": "15"}, "data": {"reason": "repair"}}
MISSING = Reply(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
FAILED = Reply(500, {"kind": "Status", "code": 500, "reason": "InternalError"})


async def test_the_pause_is_read_from_etcd_at_the_start() -> None:
    def listed(asked: Asked) -> Reply:
        return _page() if "resourceVersion" in asked.query else _page(PAUSED)

    async with _watching(listed, MISSING) as pause:
        assert "repair" in pause.reason


@pytest.mark.parametrize(("answer", "paused"), [(Reply(200, PAUSED), True), (MISSING, False), (FAILED, False)])
async def test_the_pause_is_read_from_etcd_where_a_replica_takes_over(answer: Reply, paused: bool) -> None:
    async with _watching(_page(), answer) as pause:
        assert not pause.reason
        await pause.read_newest()
        assert ("repair" in pause.reason) is paused


async def test_a_pause_that_is_not_found_is_ended_by_the_watch_alone() -> None:
    async with _watching(_page(PAUSED), MISSING) as pause:
        await pause.read_newest()
        assert "repair" in pause.reason


def _page(*items: dict[str, Any]) -> Reply:
    return Reply(200, {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": list(items)})


@asynccontextmanager
async def _watching(listed: Any, read: Reply) -> AsyncIterator[Pause]:
    api = FakeApi()
    await api.start()
    api.on("GET", config_maps("muster"), listed)
    api.on("GET", f"{config_maps('muster')}/{NAME}", read)
    api.on("WATCH", config_maps("muster"), Stream())
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        pause = Pause(client, "muster", on_change=lambda: None, registry=CollectorRegistry())
        running = asyncio.create_task(pause.run())
        await pause.wait_synced()
        yield pause
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await api.stop()
