"""Connects the proxy to settings, cluster, V-IPU, HTTP and signals."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.objects import Api, Metadata
from muster_kube.api.reviews import Reviews
from muster_kube.controller.reflector import Reflector
from muster_kube.http.connection_guard import ConnectionLimits
from muster_kube.http.server import make_server
from muster_kube.process.address import open_listener
from muster_kube.process.lifetime import (
    QuietServer,
    cancel_tasks,
    package_version,
    print_address,
    stop_on_signals,
    wait_until_one_ends,
)
from muster_operator.proxy.client_timeouts import Limits, timed
from muster_operator.proxy.controllers.list_source import ControllerListSource, ListMap
from muster_operator.proxy.logs import REQUESTS
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partition_limits import PartitionLimits
from muster_operator.proxy.routes import make_app
from muster_operator.proxy.settings import ProxySettings
from muster_operator.proxy.tracker.config_map import TrackerConfigMap
from muster_operator.proxy.vipu_proxy import VipuProxy
from muster_operator.vipu.backends import create_controller

log = logging.getLogger(__name__)

OPERATOR = "muster-operator"
# one client, the operator, has a connection for each partition that it waits for
CONNECTIONS = ConnectionLimits(connections=1024, per_address=768)
STOP_S = 3.0


class QuarantineMap(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


async def run(settings: ProxySettings) -> int:
    """Run until SIGTERM or SIGINT. Exit code 0, or EXIT_FAILED if a task ends. Raises ConfigError, OSError."""
    stop = stop_on_signals()
    config = load_config(settings.kubeconfig)
    log.info("cluster %s, configured by %s", config.server, config.origin)
    namespace = settings.namespace or config.namespace
    product = f"muster-vipu-proxy/{package_version()}"
    async with contextlib.AsyncExitStack() as stack:

        async def connect(number: int) -> KubeClient:
            return await stack.enter_async_context(KubeClient(config, user_agent=product, max_connections=number))

        # separate connections: clients with invalid tokens must not delay partition requests
        client, watching, reviewing = await connect(4), await connect(4), await connect(4)
        proxy = VipuProxy(
            TrackerConfigMap(client, namespace, settings.tracker),
            partial(create_controller, settings.backend),
            ProxyMetrics(),
            limits=PartitionLimits(settings.max_ipus, settings.parked_limit),
        )
        accounts = settings.allowed or (f"{namespace}/{OPERATOR}",)
        allowed = frozenset((name.partition("/")[0], name.partition("/")[2]) for name in accounts)
        app = make_app(proxy, Reviews(reviewing), allowed=allowed)
        quarantine = watch_quarantine(proxy, watching, settings.quarantine_namespace or namespace, settings.quarantine)
        listener = open_listener(settings.host, settings.port)
        stack.callback(listener.close)
        server = _create_server(settings, app)
        source = ControllerListSource(proxy.controllers)
        follow, watches = _follow_controller_list(source, settings, watching, namespace)
        verify = _verify_at_start(proxy, quarantine, *watches)
        parts = [proxy.store.run(watching), quarantine.run(), verify, *follow]
        tasks = [asyncio.create_task(part) for part in parts]
        http = asyncio.create_task(server.serve(sockets=[listener]))
        print_address("listening", listener)
        try:
            return await wait_until_one_ends("proxy", [*tasks, http], stop)
        finally:
            server.should_exit = True
            await proxy.stop()
            await asyncio.wait([http], timeout=STOP_S)
            await cancel_tasks(*tasks, http)


def watch_quarantine(proxy: VipuProxy, client: KubeClient, namespace: str, name: str) -> Reflector[QuarantineMap]:
    """What has to run for the proxy to know the quarantined IPUs, which the tainter lists in this ConfigMap."""
    return Reflector(
        client,
        f"/api/v1/namespaces/{namespace}/configmaps",
        QuarantineMap,
        on_change=lambda _key, _old, new: proxy.update_quarantine({} if new is None else new.data),
        params={"fieldSelector": f"metadata.name={name}"},
        newest=True,  # what the proxy before this one parked stays parked
    )


async def _verify_at_start(proxy: VipuProxy, *watches: Reflector[QuarantineMap] | Reflector[ListMap]) -> None:
    """Continue unfinished work once quarantine and controllers are known. Never returns, like the other tasks."""
    await proxy.store.wait_loaded()
    for watch in watches:
        await watch.wait_synced()
    await proxy.reconciler.verify_all()
    await asyncio.Event().wait()


def _follow_controller_list(
    source: ControllerListSource, settings: ProxySettings, watching: KubeClient, namespace: str
) -> tuple[list[Coroutine[Any, Any, None]], list[Reflector[ListMap]]]:
    """What to run, and the watch among it, which has to be synced before the list is known."""
    if settings.controllers is not None:
        source.apply(settings.controllers, "the setting controllers")
        return [], []
    if settings.controllers_file is not None:
        source.read_file(settings.controllers_file)
        return [source.follow_file(settings.controllers_file)], []
    assert settings.controllers_map is not None  # noqa: S101 - validated: one of the three
    watch = source.watch_map(watching, namespace, settings.controllers_map)
    return [watch.run()], [watch]


class _RequestLog:
    """Logs requests at log level 5."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = logging.getLogger(REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._log.debug("%s %s", scope.get("method"), scope.get("path"))
        await self._app(scope, receive, send)


def _create_server(settings: ProxySettings, app: ASGIApp) -> QuietServer:
    times = Limits(settings.read_timeout, settings.write_timeout, settings.idle_timeout)
    return make_server(
        _RequestLog(app),
        limits=CONNECTIONS,
        protocol=timed(times),
        keep_alive_s=max(1, int(settings.idle_timeout)),
        stop_s=2,
    )
