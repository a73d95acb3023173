"""A tainter that starts knows of a pause that the API server's cache does not have yet."""

import asyncio

from prometheus_client import CollectorRegistry
from tests.kube.conftest import Asked, FakeApi, Reply, Stream

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_tainter.pause import NAME, Pause, config_maps


async def test_the_pause_is_read_from_etcd() -> None:
    paused = {"metadata": {"name": NAME, "namespace": "muster", "resourceVersion": "5"}, "data": {"reason": "repair"}}

    def listed(asked: Asked) -> Reply:
        items = [] if "resourceVersion" in asked.query else [paused]
        return Reply(200, {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": items})

    api = FakeApi()
    await api.start()
    api.on("GET", config_maps("muster"), listed)
    api.on("WATCH", config_maps("muster"), Stream())
    async with KubeClient(
        ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}"), timeout_s=30.0
    ) as client:
        pause = Pause(client, "muster", on_change=lambda: None, registry=CollectorRegistry())
        running = asyncio.create_task(pause.run())
        await pause.wait_synced()
        assert "repair" in pause.reason
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await api.stop()
