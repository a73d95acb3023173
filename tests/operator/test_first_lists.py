"""A part that starts knows of a quarantined IPU and of a controller that the API server's cache does not have yet."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.kube.conftest import Asked, FakeApi, Reply, Stream

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.controller.reflector import Reflector
from muster_operator.observe.cluster import ChangeListener, ClusterCache, WatchScope
from muster_operator.proxy.app import watch_quarantine
from muster_operator.proxy.controllers.list_source import KEY, ControllerListSource
from muster_operator.proxy.controllers.registry import ControllerRegistry
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.backends import create_controller

MAPS = "/api/v1/namespaces/muster/configmaps"


async def test_the_operators_quarantine_is_read_from_etcd() -> None:
    async with _cluster("quarantine", {"ipu-1": "{}"}) as client:
        scope = WatchScope(tracker=("muster", "tracker"), quarantine=("muster", "quarantine"))
        listener = ChangeListener(on_change=lambda _key: None)
        cache = ClusterCache(client, scope, (), listener, time.monotonic)
        quarantine = cache.reflectors()["the quarantine"]
        await _synced(quarantine)
        assert [found.data for found in quarantine.store.values()] == [{"ipu-1": "{}"}]


async def test_the_proxys_quarantine_is_read_from_etcd() -> None:
    parked: list[object] = []
    proxy = SimpleNamespace(update_quarantine=parked.append)
    async with _cluster("quarantine", {"ipu-1": "{}"}) as client:
        await _synced(watch_quarantine(proxy, client, "muster", "quarantine"))
    assert parked == [{"ipu-1": "{}"}]


async def test_the_list_of_controllers_is_read_from_etcd() -> None:
    async with _cluster("list", {KEY: "v0:8090:k=v"}) as client:
        controllers = ControllerRegistry(partial(create_controller, "sim"), ProxyMetrics())
        await _synced(ControllerListSource(controllers).watch_map(client, "muster", "list"))
        assert [place.address for place in controllers.endpoints] == ["v0:8090"]


@asynccontextmanager
async def _cluster(name: str, data: dict[str, str]) -> AsyncIterator[KubeClient]:
    """Its cache has no ConfigMap yet, etcd has this one."""
    written = {"metadata": {"name": name, "namespace": "muster", "resourceVersion": "5"}, "data": data}

    def listed(asked: Asked) -> Reply:
        items = [] if "resourceVersion" in asked.query else [written]
        return Reply(200, {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": items})

    api = FakeApi()
    await api.start()
    api.on("GET", MAPS, listed)
    api.on("WATCH", MAPS, Stream())
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        yield client
    await api.stop()


async def _synced(reflector: Reflector[Any]) -> None:
    running = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
