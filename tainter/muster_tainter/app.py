"""Wires the tainter together: settings, policy file, cluster, Lease, HTTP, signals."""

import asyncio
import contextlib
import gc
import importlib
import logging
import socket
import time
import uuid
from collections.abc import Coroutine
from functools import partial
from typing import Any

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.times import seconds
from muster_kube.controller.leader_client import LeaderClient
from muster_kube.controller.lease import LeaderElector
from muster_kube.process.address import bind_socket, open_listener
from muster_kube.process.lifetime import (
    cancel_tasks,
    package_version,
    print_address,
    stop_on_signals,
    wait_until_one_ends,
)
from muster_kube.webhook.key_files import check_key_files
from muster_tainter.controller import Tainter
from muster_tainter.events.recorder import record_policy_event
from muster_tainter.fleet.replica import AgentPodSelector, Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.page.feed import FleetStatus
from muster_tainter.pause import Pause, record_pause_event
from muster_tainter.policy.file import FileWatch, LivePolicy
from muster_tainter.settings import TainterSettings
from muster_tainter.verification.fleet_plan_executor import WRITERS

log = logging.getLogger(__name__)

LEASE = "muster-tainter"
CONNECTIONS = 40  # workers of nodes and of device rules, watches, Events
RELOAD_AFTER_S = 0.05  # editors write a file in several steps
PAUSE_KNOWN_S = 3.0
TAKES_NOTHING_MS = 30_000


async def run(settings: TainterSettings) -> int:
    """Run until SIGTERM or SIGINT: 0; EXIT_FAILED if a part ends early. Raises ConfigError, PolicyError, OSError."""
    stop = stop_on_signals()
    config = load_config(settings.kubeconfig)
    log.info("cluster %s, from %s", config.server, config.origin)
    policy = LivePolicy(settings.policy)
    metrics = TainterMetrics()
    metrics.dry_run.set(settings.dry_run)
    agent = f"muster-tainter/{package_version()}"
    namespace = settings.namespace or config.namespace
    async with contextlib.AsyncExitStack() as stack:
        # separate connections: a burst of taints must not delay the renewal
        renewing = await stack.enter_async_context(KubeClient(config, user_agent=agent, max_connections=2))
        elector = LeaderElector(renewing, namespace, LEASE, f"{socket.gethostname()}_{uuid.uuid4()}")
        leading = (lambda: True) if settings.dry_run else elector.leading
        leads = partial(LeaderClient, config, may_write=leading, user_agent=agent)
        client = await stack.enter_async_context(leads(max_connections=CONNECTIONS))
        # separate: heavy checks have a lower priority than faults
        planning = await stack.enter_async_context(leads(max_connections=WRITERS))
        repairing = await stack.enter_async_context(leads(max_connections=12))
        replica = Replica(
            leading,
            settings.dry_run,
            namespace,
            led_until=lambda: seconds(elector.led_until or "") or None,
            follows_another=lambda: elector.follows_another,
            took_over=elector.took_over,
            repairs_in=settings.repair_namespace or "",
        )
        tainter = Tainter(
            Connections(client, planning, repairing),
            lambda: policy.current,
            replica,
            metrics,
            agents=AgentPodSelector(settings.agent_namespace or namespace, settings.agent_selector),
            accelerators=settings.accelerators,
        )
        pause_changed = asyncio.Event()
        pause = Pause(client, namespace, on_change=pause_changed.set, registry=metrics.registry)
        tainter.fleet.withheld = lambda: pause.reason
        tainter.blind = lambda: pause.not_ready

        async def pause_known() -> None:
            with contextlib.suppress(TimeoutError):  # an unknown state counts as paused; recovery continues
                async with asyncio.timeout(PAUSE_KNOWN_S):
                    await pause.wait_synced()
                    await pause.read_newest()

        tainter.wait_pause_known = pause_known
        status = FleetStatus(
            leading, tainter.budgets.usage, tainter.incidents.all, lambda: pause.reason, dry_run=settings.dry_run
        )
        listener = listen(settings.host, settings.port)
        stack.callback(listener.close)
        webhook = bind_webhook(settings)
        if webhook is not None:
            stack.callback(webhook.close)
        # not before the checks above: a replica that ends at each start must not take the Lease each time
        leadership = asyncio.create_task(tainter.lead() if settings.dry_run else elector.run(tainter.lead))
        parts = _started(
            tainter.watch(),
            pause.run(),
            follow_pause(pause, pause_changed, tainter, client, replica),
            follow_policy(policy, tainter, client, metrics, replica),
        )
        # from here on, what no taint needs, while the API server prepares the lists: of a large fleet, that takes it
        # a second or more
        try:
            await asyncio.to_thread(importlib.import_module, "muster_tainter.service")
            from muster_tainter.service import serving

            async with serving(listener, config, agent, settings, tainter, metrics, status) as http:
                print_address("listening", listener)
                if webhook is not None:
                    # imported only if needed: its certificates load the cryptography library
                    await asyncio.to_thread(importlib.import_module, "muster_tainter.agents.webhook")
                    from muster_tainter.agents.webhook import prepare

                    own_node = prepare(settings, webhook, config, namespace, agent, metrics.registry)
                    parts += _started(await stack.enter_async_context(own_node))
                gc.collect()
                gc.freeze()  # these objects live as long as the process
                try:
                    return await wait_until_one_ends("tainter", [leadership, *parts, http], stop)
                finally:
                    await cancel_tasks(leadership)  # releases the Lease while everything it needs still runs
        finally:
            await cancel_tasks(leadership)
            await cancel_tasks(*parts)


def _started(*jobs: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(job) for job in jobs]


async def follow_pause(
    pause: Pause,
    pause_changed: asyncio.Event,
    tainter: Tainter,
    client: KubeClient,
    replica: Replica,
) -> None:
    """Decide again when somebody pauses or resumes, forever; the leader creates an Event."""
    reported = ""
    while True:
        await pause_changed.wait()
        pause_changed.clear()
        tainter.pause_changed()
        if pause.reason != reported and replica.may_write():
            await record_pause_event(client, pause.reason, namespace=replica.namespace, now=time.time())
        reported = pause.reason


async def follow_policy(
    policy: LivePolicy,
    tainter: Tainter,
    client: KubeClient,
    metrics: TainterMetrics,
    replica: Replica,
) -> None:
    """Reload on change, forever. An invalid file is reported by log, metric and Event; the last valid policy stays."""
    if policy.path is None:
        await asyncio.Event().wait()
        return
    loop = asyncio.get_running_loop()
    pending: list[str | None] = []
    policy.on_reload = pending.append
    watch = FileWatch(policy.path)
    changed = asyncio.Event()
    loop.add_reader(watch.fileno(), lambda: changed.set() if watch.drain() else None)
    try:
        while True:
            await changed.wait()
            await asyncio.sleep(RELOAD_AFTER_S)
            changed.clear()
            if policy.reload():
                tainter.policy_changed()
            for error in pending:
                metrics.policy_good.set(0 if error else 1)
                metrics.policy_reloads.labels("bad" if error else "good").inc()
                if error:
                    log.error("invalid policy file, the previous policy stays active: %s", error)
                else:
                    log.info("policy %s is active", policy.path)
                if replica.may_write():
                    await record_policy_event(
                        client, str(policy.path), error, namespace=replica.namespace, now=time.time()
                    )
            pending.clear()
    finally:
        loop.remove_reader(watch.fileno())
        watch.close()


def bind_webhook(settings: TainterSettings) -> socket.socket | None:
    """None: no webhook. Also checks its certificate, if that is in files. Raises ConfigError, OSError."""
    if settings.webhook_port is None:
        return None
    if settings.cert_dir is not None:
        check_key_files(settings.cert_dir)
    return bind_socket(settings.host, settings.webhook_port)


def listen(host: str, port: int) -> socket.socket:
    listener = open_listener(host, port)
    # inherited by its connections: one that receives nothing is closed, e.g. of a page that nobody reads any more
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TAKES_NOTHING_MS)
    return listener
