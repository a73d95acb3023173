"""Connects the agent to its settings, disk, cluster, HTTP server and signals.

:func:`run` creates an AgentProcess, whose ``run`` locks the state, creates the node's agent, runs its tasks and shuts
them down.
"""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from muster_agent.checks.local_node import LocalNode, read_boot_id
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.run_admission import CpuShare, RunQueue
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.state_file import StateFile, StateSaver, StoredState
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.fleet import FleetLimits
from muster_agent.fleet.agent_fleet import AgentFleet
from muster_agent.fleet.members import AgentService, FleetMembers
from muster_agent.fleet.ping_peers import PingPeers
from muster_agent.fleet.tainter_access import TainterAccess
from muster_agent.http.access import AccessControl
from muster_agent.http.routes import make_app
from muster_agent.identity.own_identity import NoIdentity, OwnIdentity, make_identity
from muster_agent.identity.published_keys import PublishedKeys
from muster_agent.identity.tls_protocol import TlsProtocol
from muster_agent.idle.idle_detector import IdleDetector
from muster_agent.idle.pod_resources import PodResources
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.metrics.node_hardware import read_hardware
from muster_agent.node_agent import Agent, AgentReadings, RunPlan
from muster_agent.process.memory_trim import AFTER_START_S, trim_memory
from muster_agent.process.pod_logs import AgentPodLogs, LogHelper
from muster_agent.process.privileges import KeptAccess
from muster_agent.publish.change_signal import Delivery
from muster_agent.publish.kernel_log_echo import KernelLogEcho
from muster_agent.publish.node_claim import NodeClaim
from muster_agent.publish.publisher import OwnNodeHealth, Publisher
from muster_agent.settings import AgentSettings, check_parameters, check_periods
from muster_checks.base.commands import LocalCommands
from muster_checks.base.declaration import VolumeTrialLender
from muster_checks.ping.neighbours import NodeAmongOthers
from muster_checks.registry import load_registry
from muster_kube.api.client import KubeClient
from muster_kube.api.config import SERVICE_ACCOUNT_DIR, ClusterConfig, load_config
from muster_kube.api.errors import ConfigError
from muster_kube.api.self_reviews import SelfReviews
from muster_kube.controller.reflector import Reflector
from muster_kube.http.server import listen, make_server
from muster_kube.nodehealth import PATH, AgentIdentity, NodeHealth
from muster_kube.process.lifetime import package_version, print_address, stop_on_signals, wait_until_one_ends
from muster_kube.process.settings import SettingsError
from muster_kube.run_permit import is_permitted

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger(__name__)

LOCK_RETRY_S = 1.0
STOP_S = 5.0
FLUSH_S = 3.0  # limit for saving the state at the end; logs that are not saved are read again


async def run(
    settings: AgentSettings,
    kept: KeptAccess | None = None,
    kubelet: PodResources | None = None,
    log_helper: LogHelper | None = None,
) -> int:
    """Run until SIGTERM or SIGINT. Raises SettingsError for settings that do not fit the checks or the cluster.

    kept, kubelet, log_helper: access, the connection to the kubelet, and the process that opens log files, all from
        before privileges were dropped
    """
    stop = stop_on_signals()
    process = AgentProcess(settings, _load_cluster(settings), kept or KeptAccess(), kubelet, log_helper)
    return await process.run(stop)


class AgentProcess:
    """The objects and tasks of one agent."""

    def __init__(
        self,
        settings: AgentSettings,
        cluster: ClusterConfig | None,
        kept: KeptAccess,
        kubelet: PodResources | None,
        log_helper: LogHelper | None,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._service = AgentService(settings.namespace or cluster.namespace, settings.service) if cluster else None
        self._tainter = _tainter_access(settings)
        self._identity = AgentIdentity(pod_uid=settings.pod_uid or f"process-{uuid.uuid4()}", version=package_version())
        self._metrics = AgentMetrics(settings.node, self._identity.version)
        self._delivery = Delivery(settings.node, self._metrics, in_cluster=cluster is not None)
        self._state = StateFile(settings.state_directory, settings.node)
        self._kubelet = kubelet or PodResources(settings.pod_resources)
        self._log_helper = log_helper
        self._ping_peers = PingPeers(settings.node, self._service) if self._service else None
        self._helper = kept.helper
        self._echo = None if kept.kernel_log_writer is None else KernelLogEcho(kept.kernel_log_writer)
        view = NodeAmongOthers(
            settings.root,
            commands=kept.helper or LocalCommands(),
            name=settings.node,
            volumes=_volume_trials(self._tainter),
            opened=kept.opened,
            pod_logs=AgentPodLogs(self._kubelet, log_helper),
            echo=self._echo,
            neighbours=self._ping_peers,
        )
        self._local = LocalNode(name=settings.node, view=view, boot_id=read_boot_id(view))
        self._checks = load_registry(plugins_folder=settings.plugins)
        self._parameters = check_parameters(settings, self._checks)
        self._agent: Agent | None = None
        self._own: OwnIdentity | None = None

    async def run(self, stop: asyncio.Event) -> int:
        """Run until ``stop``. Returns 0, or EXIT_FAILED if a part of the agent has ended unexpectedly."""
        if not await self._lock_state(stop):
            return 0
        listener = listen(self._settings.host, self._settings.port)
        for_agents = await self._make_identity()
        agent = self._agent = self._make_agent(self._state.load())
        saver = StateSaver(agent.stored, self._state.save, on_error=self._metrics.record_state_write_failure)
        self._delivery.bind_saver(saver)
        self._metrics.bind(AgentReadings(agent, read_hardware(self._local.view)), agent.occupancy)
        async with contextlib.AsyncExitStack() as stack:
            # separate connections: a query of the fleet must not delay the publication of a finding
            publishing, querying = await self._connect(stack), await self._connect(stack)
            if self._ping_peers is not None and querying is not None:
                self._ping_peers.connect(querying)
            app = make_app(agent, self._metrics, self._make_fleet(querying), self._make_access(querying))
            serving = [(make_server(app), listener)]
            if for_agents is not None and self._own is not None:
                serving.append((make_server(app, tls=self._own.server, protocol=TlsProtocol), for_agents))
            jobs = [saver.run(), agent.run(), *(check.run() for check in agent.checks.values())]
            if self._helper is not None:
                jobs.append(self._helper.watch())
            if self._log_helper is not None:
                jobs.append(self._log_helper.watch())
            tasks = [asyncio.create_task(job) for job in jobs]
            edges = [asyncio.create_task(server.serve(sockets=[bound])) for server, bound in serving]
            if publishing is not None:
                edges.append(asyncio.create_task(self._publish(agent, publishing, stop)))
            print_address("listening", listener)
            _settle_memory()
            try:
                return await wait_until_one_ends("agent", [*tasks, *edges], stop)
            finally:
                stop.set()
                await self._shut_down(agent, saver, [server for server, _ in serving], tasks, edges)

    # --- from the start to the agent of the node

    async def _make_identity(self) -> socket.socket | None:
        """Make the key for other agents, and listen for them; None without a cluster, in which there are none."""
        settings = self._settings
        if self._cluster is None:
            return None
        try:
            self._own = await make_identity()
        except NoIdentity as error:
            raise SettingsError(str(error)) from error
        listener = listen(settings.host, settings.port_for_agents)
        port: int = listener.getsockname()[1]
        self._identity = msgspec.structs.replace(self._identity, fingerprint=self._own.fingerprint, tls_port=port)
        log.info("serving other agents on port %d, with the key %s", port, self._own.fingerprint)
        return listener

    async def _lock_state(self, stop: asyncio.Event) -> bool:
        """Wait for the lock of the state directory, because two agents must not both count faults. False: stopped."""
        waiting = False
        while not self._state.lock():
            if not waiting:
                log.warning(
                    "%s is locked by another agent of this node; waiting until it ends", self._state.path.parent
                )
                waiting = True
            try:
                async with asyncio.timeout(LOCK_RETRY_S):
                    await stop.wait()
            except TimeoutError:
                continue
            return False
        return True

    def _make_agent(self, stored: StoredState | None) -> Agent:
        settings = self._settings
        if stored is not None:
            self._local.view.history.restore(stored.counters, self._local.boot_id)
        idle = IdleDetector(
            self._local.view,
            self._kubelet,
            since=stored.idle_since if stored else 0.0,
            on_change=self._occupancy_changed,
        )
        agent = Agent(
            self._local,
            self._make_checks(stored),
            self._identity,
            queue=RunQueue(idle, light_at_once=settings.light_at_once, cpu=CpuShare(settings.light_cpu_share)),
            plan=RunPlan(
                periods=check_periods(settings, self._checks),
                local=settings.plan == "local" or (settings.plan == "auto" and self._cluster is None),
                post_flight=settings.post_flight,
            ),
            reporter=self._delivery,
            echo=self._echo,
        )
        agent.disowns = self._state.locked
        if stored is not None:
            agent.requests.restore(stored.requests)
        return agent

    def _make_checks(self, stored: StoredState | None) -> list[NodeCheck]:
        checks: list[NodeCheck] = []
        for name, parameters in self._parameters.items():
            check = self._checks[name]
            kind = StreamCheck if check.stream is not None else SnapshotCheck
            known = stored.checks.get(name) if stored else None
            checks.append(kind(check, parameters, self._local, known, self._delivery))
        return checks

    def _occupancy_changed(self) -> None:
        if self._agent is not None:
            self._agent.occupancy_changed()

    # --- the cluster

    async def _connect(self, stack: contextlib.AsyncExitStack) -> KubeClient | None:
        if self._cluster is None:
            return None
        product = f"muster-agent/{self._identity.version}"
        return await stack.enter_async_context(KubeClient(self._cluster, user_agent=product, max_connections=4))

    def _make_fleet(self, client: KubeClient | None) -> AgentFleet | None:
        settings = self._settings
        if client is None or self._service is None:
            return None
        return AgentFleet(
            settings.node,
            FleetMembers(client, settings.node, self._service, tainter=self._tainter),
            self._own,
            FleetLimits(fleet_at_once=settings.fleet_at_once, heavy_at_once=settings.heavy_at_once),
            on_wrong_key=partial(self._metrics.record_wrong_key, "to"),
        )

    def _make_access(self, client: KubeClient | None) -> AccessControl:
        wrong = partial(self._metrics.record_wrong_key, "from")
        settings = self._settings
        return AccessControl(
            SelfReviews(self._cluster) if self._cluster is not None else None,
            keys=PublishedKeys(client, on_wrong=wrong) if client is not None else None,
            permits=partial(is_permitted, client) if client is not None else None,
            require_token=settings.require_token,
            open_heavy_checks=settings.open_heavy_checks,
        )

    async def _publish(self, agent: Agent, client: KubeClient, stop: asyncio.Event) -> None:
        """Watch and write the node's NodeHealth until ``stop``, then release the node."""
        claim = NodeClaim(agent.identity.pod_uid, grace_s=self._settings.claim_grace_s)
        publisher = Publisher(OwnNodeHealth(client, agent.node), claim, agent, self._metrics)
        reflector = Reflector(
            client,
            PATH,
            NodeHealth,
            on_change=publisher.observe,
            on_undecodable=publisher.observe_undecodable,
            params={"fieldSelector": f"metadata.name={agent.node}"},
            # the state file may be older than what the agent before this one published (NodeCheck.reconcile), and the
            # API server's cache too
            newest=True,
        )
        self._delivery.bind_publisher(publisher, reflector)
        # publishes a first pass that takes too long as it is
        asyncio.get_running_loop().call_later(agent.first_pass_ends_in_s() + 0.1, publisher.notify_change)
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

    # --- the end

    async def _shut_down(
        self,
        agent: Agent,
        saver: StateSaver,
        servers: "list[uvicorn.Server]",
        tasks: list[asyncio.Task[None]],
        edges: list[asyncio.Task[None]],
    ) -> None:
        """edges: the HTTP servers and the publisher, which end after ``stop``; ``tasks`` are cancelled."""
        for server in servers:
            server.should_exit = True
        await agent.stop()  # ends tools, and answers clients that wait for a run
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await saver.flush()  # before the streams are cancelled
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _, late = await asyncio.wait(edges, timeout=STOP_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*edges, return_exceptions=True)
        self._state.unlock()


def _load_cluster(settings: AgentSettings) -> ClusterConfig | None:
    """None without a cluster. The agent then logs it and only serves HTTP."""
    try:
        config = load_config(settings.kubeconfig)
    except ConfigError as error:
        named = settings.kubeconfig is not None or os.environ.get("KUBECONFIG") or SERVICE_ACCOUNT_DIR.exists()
        if named or (Path.home() / ".kube/config").exists():
            raise SettingsError(str(error)) from error  # a cluster is configured but unusable
        log.warning("serving HTTP only, publishing nothing: %s", error)
        return None
    log.info("using cluster %s from %s", config.server, config.origin)
    return config


def _tainter_access(settings: AgentSettings) -> TainterAccess | None:
    if settings.tainter_url is None:
        return None
    return TainterAccess(settings.tainter_url, settings.tainter_token, settings.tainter_ca)


def _volume_trials(tainter: TainterAccess | None) -> VolumeTrialLender | None:
    if tainter is None:
        return None
    from muster_agent.fleet.tainter_client import VolumeTrialClient

    return VolumeTrialClient(tainter)


def _settle_memory() -> None:
    """Exclude objects that live as long as the process from garbage collection."""
    gc.collect()
    gc.freeze()
    asyncio.get_running_loop().call_later(AFTER_START_S, trim_memory)
