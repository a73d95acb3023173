"""Wires the agent to its edges: settings, disk, cluster, HTTP, signals."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from muster_agent.checks.node_check import Context, NodeCheck
from muster_agent.checks.run_queue import CpuShare, RunQueue
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.state_file import StateFile, StateSaver, StoredState
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.fleet.members import FleetMembers
from muster_agent.fleet.ping_peers import PingPeers
from muster_agent.http.access import AccessControl
from muster_agent.http.routes import make_app
from muster_agent.idle.detector import IdleDetector
from muster_agent.idle.pod_resources import PodResources
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.metrics.node_hardware import read_hardware
from muster_agent.node_agent import Agent, Publication
from muster_agent.process.memory_trim import AFTER_START_S, trim_memory
from muster_agent.publish.publisher import Publisher
from muster_agent.settings import AgentSettings, check_parameters, check_periods
from muster_checks.base.declaration import NodeView, VolumeTrialLender
from muster_checks.ping.neighbours import NodeAmongOthers
from muster_checks.registry import registry
from muster_kube.api.client import KubeClient
from muster_kube.api.config import SERVICE_ACCOUNT_DIR, ClusterConfig, load_config
from muster_kube.api.errors import ConfigError
from muster_kube.api.reviews import Reviews
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import PATH, NodeHealth
from muster_kube.process.address import bind
from muster_kube.process.lifetime import QuietServer, stop_on_signals, tell_address, until_one_ends, version
from muster_kube.process.settings import SettingsError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

log = logging.getLogger(__name__)

UNPUBLISHED_LIMIT_S = 60.0
WATCH_DOWN_LIMIT_S = 15.0  # watches end every few minutes by design; the next one is up within seconds
LOCK_RETRY_S = 1.0
STOP_S = 5.0
SERVER_TICK_S = 0.5  # how long HTTP goes on after it was told to stop, at most; Date is right to the second
FLUSH_S = 3.0  # at the end the disk gets so long; what is not saved is read again


async def run(
    settings: AgentSettings, opened: Mapping[Path, int] | None = None, kubelet: PodResources | None = None
) -> int:
    """Until SIGTERM or SIGINT. Raises SettingsError for what shows only when checks and cluster are looked up.

    opened, kubelet: descriptors by path, and the connection, that this process may not open any more (rights.py)
    """
    stop = stop_on_signals()
    cluster = _cluster(settings)
    running = _Wired(settings, cluster, opened or {}, kubelet)
    return await running.serve(stop)


def _cluster(settings: AgentSettings) -> ClusterConfig | None:
    """None where there is no cluster to speak to; the log says so, and the agent serves HTTP only."""
    try:
        config = load_config(settings.kubeconfig)
    except ConfigError as error:
        named = settings.kubeconfig is not None or os.environ.get("KUBECONFIG") or SERVICE_ACCOUNT_DIR.exists()
        if named or (Path.home() / ".kube/config").exists():
            raise SettingsError(str(error)) from error  # there is one, and it cannot be used
        log.warning("standalone: nothing is published, only HTTP is served: %s", error)
        return None
    log.info("cluster %s, from %s", config.server, config.origin)
    return config


class _Wired:
    """One agent's objects and tasks."""

    def __init__(
        self,
        settings: AgentSettings,
        cluster: ClusterConfig | None,
        opened: Mapping[Path, int],
        kubelet: PodResources | None,
    ) -> None:
        self._kubelet = kubelet
        self._settings = settings
        self._cluster = cluster
        self._version = version()
        self._metrics = AgentMetrics(settings.node, self._version)
        self._state = StateFile(settings.state_directory, settings.node)
        self._peers = (
            PingPeers(settings.node, settings.namespace or cluster.namespace, settings.service) if cluster else None
        )
        self._view = NodeAmongOthers(
            settings.root, name=settings.node, volumes=_lent_volumes(settings), opened=opened, neighbours=self._peers
        )
        self._checks = registry(plugins_folder=settings.plugins)
        self._parameters = check_parameters(settings, self._checks)
        self._publisher: Publisher | None = None
        self._reflector: Reflector[NodeHealth] | None = None
        self._watch_down_since: float | None = None
        self._locked_out = False
        self._agent: Agent | None = None
        self._saver: StateSaver | None = None

    async def serve(self, stop: asyncio.Event) -> int:
        """Until ``stop``; 0, or EXIT_FAILED when a part of the agent has ended by itself."""
        context = Context(
            node=self._settings.node,
            view=self._view,
            boot_id=_boot_id(self._view),
            on_change=self._changed,
            on_progress=self._progressed,
            on_rerun=self._rerun,
            on_stream_failure=self._metrics.stream_failed,
            on_detected=self._metrics.detected,
        )
        if not await self._lock(stop):
            return 0
        listener = _listen(self._settings.host, self._settings.port)
        agent = self._make_agent(context, self._state.load())
        async with contextlib.AsyncExitStack() as stack:
            client = asking = None
            if self._cluster is not None:
                product = f"muster-agent/{self._version}"
                client = await stack.enter_async_context(
                    KubeClient(self._cluster, user_agent=product, max_connections=4)
                )
                # connections of its own: whoever asks for a fleet must not hold up a finding
                asking = await stack.enter_async_context(
                    KubeClient(self._cluster, user_agent=product, max_connections=4)
                )
                if self._peers is not None:
                    self._peers.connect(asking)
            return await self._work(agent, listener, client, asking, stop)

    async def _work(
        self,
        agent: Agent,
        listener: socket.socket,
        client: KubeClient | None,
        asking: KubeClient | None,
        stop: asyncio.Event,
    ) -> int:
        server = _server(make_app(agent, self._metrics, self._fleet(asking), self._access(asking)))
        saver = StateSaver(agent.stored, self._state.save, on_error=self._metrics.state_write_failed)
        self._agent, self._saver = agent, saver
        self._metrics.bind(agent.readings(), agent.occupancy)
        jobs = [saver.run(), agent.run(), *(running.run() for running in agent.checks.values())]
        tasks = [asyncio.create_task(job) for job in jobs]
        http = asyncio.create_task(server.serve(sockets=[listener]))
        cluster = asyncio.create_task(self._speak_to_cluster(agent, client, stop)) if client is not None else None
        tell_address("listening", listener)
        gc.collect()
        gc.freeze()  # what is there now stays: no need to look through it again and again
        asyncio.get_running_loop().call_later(AFTER_START_S, trim_memory)
        try:
            return await until_one_ends("agent", [*tasks, http, *([cluster] if cluster else [])], stop)
        finally:
            stop.set()
            await self._shut_down(tasks, cluster, http, server, saver, agent)

    def _make_agent(self, context: Context, stored: StoredState | None) -> Agent:
        if stored is not None:
            self._view.history.restore(stored.counters, context.boot_id)
        running: list[NodeCheck] = []
        for name, parameters in self._parameters.items():
            check = self._checks[name]
            kind = StreamCheck if check.stream is not None else SnapshotCheck
            running.append(kind(check, parameters, context, stored.checks.get(name) if stored else None))
        settings = self._settings
        occupancy = IdleDetector(
            self._view,
            socket=settings.pod_resources,
            kubelet=self._kubelet,
            since=stored.idle_since if stored else 0.0,
            on_change=lambda: self._agent.occupancy_changed() if self._agent is not None else None,
        )
        cpu = CpuShare(settings.light_cpu_share)
        return Agent(
            running,
            context,
            pod_uid=settings.pod_uid or f"process-{uuid.uuid4()}",
            version=self._version,
            hardware=read_hardware(self._view),
            publication=self._publication,
            periods=check_periods(settings, self._checks),
            occupancy=occupancy,
            turns=RunQueue(occupancy, light_at_once=settings.light_at_once, cpu=cpu),
            own_plan=settings.plan == "local" or (settings.plan == "auto" and self._cluster is None),
            post_flight=settings.post_flight,
            stored=stored,
        )

    async def _lock(self, stop: asyncio.Event) -> bool:
        """Wait for the state folder: two agents of one node must not both count its faults. False: told to stop."""
        while not self._state.lock():
            if not self._locked_out:
                log.warning("%s is in use: another agent of this node is running; waiting", self._state.path.parent)
                self._locked_out = True
            try:
                async with asyncio.timeout(LOCK_RETRY_S):
                    await stop.wait()
            except TimeoutError:
                continue
            return False
        return True

    def _fleet(self, asking: KubeClient | None) -> FleetMembers | None:
        settings = self._settings
        if asking is None or self._cluster is None:
            return None
        return FleetMembers(
            asking,
            settings.node,
            settings.namespace or self._cluster.namespace,
            settings.service,
            tainter_url=settings.tainter_url,
            tainter_token=settings.tainter_token,
            tainter_ca=settings.tainter_ca,
            fleet_at_once=settings.fleet_at_once,
            heavy_at_once=settings.heavy_at_once,
        )

    def _access(self, asking: KubeClient | None) -> AccessControl:
        reviews = Reviews(asking) if asking is not None else None
        return AccessControl(reviews, require_token=self._settings.require_token)

    async def _speak_to_cluster(self, agent: Agent, client: KubeClient, stop: asyncio.Event) -> None:
        publisher = Publisher(
            client,
            self._settings.node,
            agent.pod_uid,
            agent.desired,
            self._metrics,
            on_health=agent.take_health,
            claim_grace_s=self._settings.claim_grace_s,
        )
        reflector = Reflector(
            client,
            PATH,
            NodeHealth,
            on_change=publisher.observe,
            on_undecodable=publisher.observe_undecodable,
            params={"fieldSelector": f"metadata.name={self._settings.node}"},
        )
        self._publisher, self._reflector = publisher, reflector
        # a first pass that takes too long is told of as it is
        asyncio.get_running_loop().call_later(agent.first_pass_ends_in_s() + 0.1, publisher.notify)
        tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(publisher.run())]
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
        finally:
            for task in [*tasks, stopping]:
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
        await publisher.release()

    async def _shut_down(
        self,
        tasks: list[asyncio.Task[None]],
        cluster: asyncio.Task[None] | None,
        http: asyncio.Task[None],
        server: "uvicorn.Server",
        saver: StateSaver,
        agent: Agent,
    ) -> None:
        server.should_exit = True
        await agent.stop()  # so that whoever waits for a run is answered, and its tools are gone in time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await saver.flush()  # while the streams still stand where they are
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        waited = [http, *([cluster] if cluster else [])]
        _, late = await asyncio.wait(waited, timeout=STOP_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*waited, return_exceptions=True)
        self._state.unlock()

    def _changed(self) -> None:
        # the publisher first: its PATCH is on the wire before the disk is asked for anything
        if self._publisher is not None:
            self._publisher.notify()
        if self._saver is not None:
            self._saver.now()

    def _progressed(self) -> None:
        if self._publisher is not None:
            self._publisher.look()
        if self._saver is not None:
            self._saver.sometime()

    def _rerun(self) -> None:
        if self._publisher is not None:
            self._publisher.look()
        if self._saver is not None:
            self._saver.lazily()

    def _publication(self) -> Publication:
        if self._cluster is None:
            return Publication()
        publisher, reflector = self._publisher, self._reflector
        now = asyncio.get_running_loop().time()
        connected = reflector is not None and reflector.connected
        if connected:
            self._watch_down_since = None
        elif self._watch_down_since is None:
            self._watch_down_since = now if reflector is not None and reflector.synced else float("-inf")
        since = publisher.unpublished_since if publisher is not None else None
        unpublished_s = 0.0 if since is None else now - since
        complaint = ""
        if publisher is not None and publisher.claim.holder:
            complaint = f"the node is claimed by another agent (pod UID {publisher.claim.holder})"
        elif self._watch_down_since is not None and now - self._watch_down_since > WATCH_DOWN_LIMIT_S:
            complaint = f"the watch of NodeHealth {self._settings.node} is down"
            complaint += f": {reflector.error}" if reflector is not None and reflector.error else ""
        elif unpublished_s > UNPUBLISHED_LIMIT_S:
            complaint = f"a change is unpublished for {unpublished_s:.0f} s"
            if publisher is not None and publisher.seen is None:
                complaint += f": there is no NodeHealth {self._settings.node} (the tainter makes it)"
            elif publisher is not None and publisher.error:
                complaint += f": {publisher.error}"
        return Publication(complaint=complaint, unpublished_s=unpublished_s)


def _lent_volumes(settings: AgentSettings) -> VolumeTrialLender | None:
    if settings.tainter_url is None:
        return None
    from muster_agent.fleet.tainter_client import VolumeTrialClient

    return VolumeTrialClient(settings.tainter_url, settings.tainter_token, settings.tainter_ca)


def _server(app: "Starlette") -> "uvicorn.Server":
    from uvicorn.config import Config

    from muster_agent.http.concurrency_limit import ConcurrencyLimit
    from muster_agent.http.slow_clients import Impatient

    class Slow(QuietServer):
        async def main_loop(self) -> None:
            # its own wakes ten times a second, which is a third of what an idle agent uses of a processor
            while not await self.on_tick(0):  # noqa: ASYNC110 - should_exit is a plain attribute
                await asyncio.sleep(SERVER_TICK_S)

    config = Config(
        ConcurrencyLimit(app),
        loop="asyncio",
        http=Impatient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # anybody could write that he comes over loopback
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    return Slow(config)


def _listen(host: str, port: int) -> socket.socket:
    """Raises SettingsError naming the address."""
    try:
        listener = bind(host, port)
        listener.listen(256)
    except OSError as error:
        raise SettingsError(f"--host {host} --port {port}: cannot listen there: {error.strerror or error}") from error
    return listener


def _boot_id(view: NodeView) -> str:
    try:
        return view.path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("no boot id, so a reboot cannot be told from a restart: %s", error)
        return ""
