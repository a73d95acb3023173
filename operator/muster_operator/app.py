"""Connects the operator to settings, cluster, lease, proxy, HTTP and signals."""

import asyncio
import contextlib
import gc
import logging
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi.responses import PlainTextResponse, Response

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.reviews import Reviews
from muster_kube.controller.leader_client import LeaderClient
from muster_kube.controller.lease import LeaderElector
from muster_kube.http.responses import described
from muster_kube.http.server import make_server
from muster_kube.http.service import Service
from muster_kube.process.address import open_listener
from muster_kube.process.lifetime import (
    cancel_tasks,
    package_version,
    print_address,
    stop_on_signals,
    wait_until_one_ends,
)
from muster_kube.webhook.certificate_files import CertificateFiles
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.proxy_token import ProxyToken
from muster_operator.admission.server import WebhookEndpoint, prepare_webhooks
from muster_operator.admission.unadmitted import UnadmittedReview
from muster_operator.controller import WORKERS, JobPlanner, Operator, WriteAccess
from muster_operator.metrics import OperatorMetrics
from muster_operator.metrics_server import OwnCertificate, metrics_app
from muster_operator.observe.cluster import ClusterCache, WatchScope
from muster_operator.plan.phase_table import plan
from muster_operator.settings import OperatorSettings
from muster_operator.visibility.advertiser import IpuAdvertiser
from muster_operator.visibility.extender_app import extender_app
from muster_operator.visibility.ipu_capacity import IpuCapacity

log = logging.getLogger(__name__)

LEASE = "muster-operator"
CALLS = 2 * WORKERS + 8  # connections beside those of the watches: for the workers, Events and the advertiser
STOP_S = 5.0


async def run(settings: OperatorSettings) -> int:
    """Run until SIGTERM or SIGINT. Exit code 0, or EXIT_FAILED if a task ends. Raises ConfigError, OSError."""
    stop = stop_on_signals()
    config = load_config(settings.kubeconfig)
    log.info("cluster %s, configured by %s", config.server, config.origin)
    proxy_token = ProxyToken(settings.proxy_token)
    await proxy_token.header()  # fail at the start, not with the first job
    metrics = OperatorMetrics()
    agent = f"muster-operator/{package_version()}"
    namespace = settings.namespace or config.namespace
    async with contextlib.AsyncExitStack() as stack:
        # separate connections: a burst of jobs must not delay the renewal of the lease
        renewing = await stack.enter_async_context(KubeClient(config, user_agent=agent, max_connections=2))
        elector = LeaderElector(renewing, namespace, LEASE, f"{socket.gethostname()}_{uuid.uuid4()}")
        scope = _watch_scope(settings, namespace)
        client = await stack.enter_async_context(
            LeaderClient(config, may_write=elector.leading, user_agent=agent, max_connections=scope.watches + CALLS)
        )
        reviewing = await stack.enter_async_context(KubeClient(config, user_agent=agent, max_connections=4))
        proxy = await stack.enter_async_context(
            ProxyClient(settings.vipu_proxy, proxy_token, may_write=elector.leading, note=metrics.proxy_called)
        )
        limits = settings.limits()
        operator = Operator(
            WriteAccess(client, proxy, elector.leading),
            JobPlanner(plan, settings.setup(), UnadmittedReview(limits)),
            scope,
            metrics,
        )
        capacity = IpuCapacity(proxy)
        advertiser = IpuAdvertiser(client, operator.cluster.nodes, capacity, settings.advertising())
        health = stack.enter_context(contextlib.closing(open_listener(settings.host, settings.port)))
        measured = stack.enter_context(contextlib.closing(open_listener(settings.host, settings.metrics_port)))
        certificate = _find_certificate(settings)
        servers = [
            (make_server(health_app(operator)), health),
            (make_server(metrics_app(metrics.registry, Reviews(reviewing)), tls=certificate.ssl_context), measured),
        ]
        if settings.extender_port is not None:
            extended = stack.enter_context(contextlib.closing(open_listener(settings.host, settings.extender_port)))
            app = extender_app(operator.cluster, capacity, settings.max_ipus)
            servers.append((make_server(app, tls=certificate.ssl_context), extended))
            print_address("extender", extended)
        place = WebhookEndpoint(
            namespace,
            host=settings.host,
            port=settings.webhook_port,
            name=settings.webhook_name,
            cert_dir=settings.cert_dir,
            scope=settings.scope,
            limits=limits,
            ipu_pods=settings.setup() if settings.ipu_pods else None,
        )
        admission = await stack.enter_async_context(prepare_webhooks(place, config, agent, metrics.registry))

        async def lead() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(operator.lead())
                if settings.ipu_visibility != "none":
                    group.create_task(advertiser.run())

        leadership = asyncio.create_task(compete(operator.cluster, elector, lead))
        parts = _start_tasks(operator.watch(), certificate.run(), admission)
        if settings.ipu_visibility != "none" or settings.extender_port is not None:
            operator.cluster.followers += [capacity.note_change, advertiser.note_change]
            capacity.followers.append(advertiser.note_change)
            parts += _start_tasks(capacity.run())
        serving = [asyncio.create_task(server.serve(sockets=[bound])) for server, bound in servers]
        print_address("listening", health)
        print_address("metrics", measured)
        gc.collect()
        gc.freeze()  # objects that exist now are permanent, so the collector need not scan them
        try:
            return await wait_until_one_ends("operator", [leadership, *parts, *serving], stop)
        finally:
            await cancel_tasks(leadership)  # releases the lease while everything that it needs still works
            for server, _ in servers:
                server.should_exit = True
            await asyncio.wait(serving, timeout=STOP_S)
            await cancel_tasks(*parts, *serving)


async def compete(cluster: ClusterCache, elector: LeaderElector, lead: Callable[[], Awaitable[None]]) -> None:
    """Compete for the lease, but not before ``cluster`` has listed a namespace: others may be able to do so."""
    await cluster.wait_synced()
    await elector.run(lead)


def _watch_scope(settings: OperatorSettings, namespace: str) -> WatchScope:
    proxy_namespace = settings.proxy_namespace or namespace
    return WatchScope(
        tracker=(proxy_namespace, settings.tracker),
        quarantine=(settings.quarantine_namespace or proxy_namespace, settings.quarantine),
        namespaces=tuple(dict.fromkeys(settings.scope)),
        ipu_pods=settings.ipu_pods,
    )


def _find_certificate(settings: OperatorSettings) -> OwnCertificate | CertificateFiles:
    return CertificateFiles(settings.cert_dir) if settings.cert_dir is not None else OwnCertificate("muster-operator")


def health_app(operator: Operator) -> Service:
    service = Service("muster operator", package_version())

    @service.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """The event loop responds."""
        return "ok\n"

    @service.get(
        "/readyz", response_class=PlainTextResponse, responses={503: described("what is missing, one reason per line")}
    )
    async def readyz() -> Response:
        """What all jobs need and what one namespace needs is watched, on every replica; lists what is not."""
        status = 503 if operator.not_ready() else 200  # 200: at least one namespace's jobs can be handled
        return PlainTextResponse("".join(f"{reason}\n" for reason in operator.disconnected()) or "ok\n", status)

    return service


def _start_tasks(*jobs: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(job) for job in jobs]
