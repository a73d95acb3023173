"""Wires the proxy to its edges: settings, cluster, V-IPU, HTTP, signals."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.objects import Api, Metadata
from muster_kube.api.reviews import Reviews
from muster_kube.controller.reflector import Reflector
from muster_kube.process.address import bind_socket
from muster_kube.process.lifetime import (
    QuietServer,
    cancel_tasks,
    package_version,
    print_address,
    stop_on_signals,
    wait_until_one_ends,
)
from muster_operator.proxy.controllers.list_source import Listing
from muster_operator.proxy.controllers.reachable import Make
from muster_operator.proxy.core import Core
from muster_operator.proxy.logs import REQUESTS
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.routes import make_app
from muster_operator.proxy.settings import Settings
from muster_operator.proxy.slow_clients import Limits, timed
from muster_operator.vipu.controller import Controller

log = logging.getLogger(__name__)

OPERATOR = "muster-operator"
CONNECTIONS_LIMIT = 1024
BACKLOG = 256
STOP_S = 3.0


class QuarantineMap(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


async def run(settings: Settings) -> int:
    """Until SIGTERM or SIGINT: 0; EXIT_FAILED when a part ends by itself. Raises ConfigError, OSError."""
    stop = stop_on_signals()
    config = load_config(settings.kubeconfig)
    log.info("cluster %s, from %s", config.server, config.origin)
    namespace = settings.namespace or config.namespace
    product = f"muster-vipu-proxy/{package_version()}"
    async with contextlib.AsyncExitStack() as stack:

        async def connected(number: int) -> KubeClient:
            return await stack.enter_async_context(KubeClient(config, user_agent=product, max_connections=number))

        # connections of their own: strangers with made-up tokens hold up no intent
        client, watching, reviewing = await connected(4), await connected(4), await connected(4)
        core = Core(
            client,
            namespace,
            settings.tracker,
            _maker(settings),
            Metrics(),
            max_ipus=settings.max_ipus,
            parked_limit=settings.parked_limit,
        )
        accounts = settings.allowed or (f"{namespace}/{OPERATOR}",)
        allowed = frozenset((name.partition("/")[0], name.partition("/")[2]) for name in accounts)
        app = make_app(core, Reviews(reviewing), allowed=allowed, max_ipus=settings.max_ipus)
        there: Reflector[QuarantineMap] = Reflector(
            watching,
            f"/api/v1/namespaces/{settings.quarantine_namespace or namespace}/configmaps",
            QuarantineMap,
            on_change=lambda _key, _old, new: core.quarantine({} if new is None else new.data),
            params={"fieldSelector": f"metadata.name={settings.quarantine}"},
        )
        listener = bind_socket(settings.host, settings.port)
        listener.listen(BACKLOG)  # who reads that we listen may ask at once
        stack.callback(listener.close)
        server = _server(settings, app)
        followed = _followed(Listing(core.reaching), settings, watching, namespace)
        parts = [core.store.run(watching), there.run(), _first(core, there), *followed]
        tasks = [asyncio.create_task(part) for part in parts]
        http = asyncio.create_task(server.serve(sockets=[listener]))
        print_address("listening", listener)
        try:
            return await wait_until_one_ends("proxy", [*tasks, http], stop)
        finally:
            server.should_exit = True
            await core.stop()
            await asyncio.wait([http], timeout=STOP_S)
            await cancel_tasks(*tasks, http)


async def _first(core: Core, there: Reflector[QuarantineMap]) -> None:
    """Everything that was unfinished, once it is known what is quarantined. Goes on for ever, as the other parts do."""
    await core.store.wait_loaded()
    await there.wait_synced()
    await core.settling.verify_all()
    await asyncio.Event().wait()


def _followed(
    listing: Listing, settings: Settings, watching: KubeClient, namespace: str
) -> list[Coroutine[Any, Any, None]]:
    if settings.controllers is not None:
        listing.take(settings.controllers, "the setting controllers")
        return []
    if settings.controllers_file is not None:
        listing.read(settings.controllers_file)
        return [listing.follow(settings.controllers_file)]
    assert settings.controllers_map is not None  # noqa: S101 - validated: one of the three
    return [listing.watch(watching, namespace, settings.controllers_map)]


def _maker(settings: Settings) -> Make:
    from muster_operator.vipu.backends import make_controller

    def make(host: str, port: int) -> Controller:
        return make_controller(settings.backend, host, port)

    return make


class _Told:
    """Requests in the log, at its level 5."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = logging.getLogger(REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._log.debug("%s %s", scope.get("method"), scope.get("path"))
        await self._app(scope, receive, send)


def _server(settings: Settings, app: ASGIApp) -> QuietServer:
    limits = Limits(settings.read_timeout, settings.write_timeout, settings.idle_timeout, CONNECTIONS_LIMIT)
    return QuietServer(
        uvicorn.Config(
            _Told(app),
            http=timed(limits),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            limit_concurrency=CONNECTIONS_LIMIT + 1,  # of requests under way at once; uvicorn counts connections, too
            timeout_keep_alive=max(1, int(settings.idle_timeout)),
            timeout_graceful_shutdown=2,
            server_header=False,
        )
    )
