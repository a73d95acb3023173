"""Bring a sandbox up, keep it running, and take it down to nothing."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from muster_cli.commands.explain import POLICY_KEY, POLICY_MAP
from muster_cli.sandbox import parts
from muster_cli.sandbox.live import View, show
from muster_cli.sandbox.place import Claim, Sandbox, SandboxNode, folder
from muster_cli.sandbox.reboot import new_boot
from muster_cli.sandbox.service import publish_agents
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_operator.admission.configurations import WebhookAddress, webhook_configurations
from muster_operator.admission.server import NAME as WEBHOOKS
from muster_sandbox.build.binaries import NoControlPlane
from muster_sandbox.build.programs import find_or_build
from muster_sandbox.controlplane.cluster import ControlPlane, free_ports
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, OPERATOR, PROXY, TAINTER, install
from muster_sandbox.processes import ComponentDied, Keeper
from muster_sandbox.simulation.agents import create_agent_pods
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NODES, SIMULATED, Fleet, NodeShape, node_object

Say = Callable[[str], None]
DEVICE = Path("/dev/kmsg")
SIMULATED_SHAPE = NodeShape(labels={parts.IPU_LABEL: parts.IPU_LABEL_VALUE})


@dataclass(frozen=True)
class Wishes:
    """policy: the tainter's rules, or its own. terminal: a live table. for_s: end by itself after so many seconds."""

    policy: Path | None
    terminal: bool
    for_s: float | None
    simulated: int


def up(wishes: Wishes) -> int:
    """0 after Ctrl-C or ``for_s``. Raises NoSandbox where one runs already."""
    try:
        with Claim(folder()) as claim, interruptible():
            return _up(wishes, claim)
    except (NoControlPlane, ComponentDied, TimeoutError) as error:
        say(f"muster: {error}")
        return EXIT_UNKNOWN
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
        return 0


def say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads: ending in order matters more
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """TERM and HUP end a sandbox as Ctrl-C does: in order. nohup's word, that HUP does not, is kept."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)  # asyncio takes this one as a cancellation of its main task

    wanted: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {
        signal.SIGTERM: interrupt,
        signal.SIGHUP: interrupt,
        signal.SIGINT: signal.default_int_handler,
    }
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del wanted[signal.SIGHUP]
    # SIGINT too: shells have the background jobs of a script ignore it, and with it what interrupt() raises
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _up(wishes: Wishes, claim: Claim) -> int:
    binaries = find_or_build(say)
    say("starting etcd, API server, controller-manager and scheduler on loopback …")
    with ControlPlane(binaries) as plane, contextlib.closing(Keeper()) as keeper:
        install(plane.admin)
        (claim.path / "admin.kubeconfig").symlink_to(plane.kubeconfig)
        asyncio.run(_live(wishes, claim, plane, keeper))
    say("stopped; nothing is left running")
    return 0


async def _live(wishes: Wishes, claim: Claim, plane: ControlPlane, keeper: Keeper) -> None:
    config = load_config(claim.path / "admin.kubeconfig")
    async with KubeClient(config, user_agent="muster-sandbox") as client, Kubelets(client):
        if wishes.policy is not None:
            await _publish_policy(client, wishes.policy)
        nodes = await _make_nodes(client, wishes.simulated, claim.path)
        page, simulator, proxy, operator, metrics, webhooks, *ports = free_ports(6 + len(nodes))
        await _call_webhooks(client, webhooks, plane.server_version)
        ready_urls = {node.name: f"http://127.0.0.1:{port}/readyz" for node, port in zip(nodes, ports, strict=True)}
        by_node = {node.name: port for node, port in zip(nodes, ports, strict=True)}
        if alone := await publish_agents(client, by_node):
            say(alone)
        uids = await create_agent_pods(client, ready_urls, ready_urls=ready_urls)
        running = parts.Running(keeper, claim.path, say)
        try:
            tainter = plane.kubeconfig_for(TAINTER, NAMESPACE)
            running.start(parts.tainter(kubeconfig=tainter, port=page, policy=wishes.policy))
            agent_kubeconfig = plane.kubeconfig_for(AGENT, NAMESPACE)
            for node, port in zip(nodes, ports, strict=True):
                running.start(
                    parts.agent(
                        node, kubeconfig=agent_kubeconfig, port=port, pod_uid=uids[node.name], folder=claim.path
                    )
                )
            running.start(parts.vipu_simulator(port=simulator, folder=claim.path))
            running.start(
                parts.vipu_proxy(
                    kubeconfig=plane.kubeconfig_for(PROXY, NAMESPACE), port=proxy, controller=f"127.0.0.1:{simulator}"
                )
            )
            running.start(
                parts.operator(
                    kubeconfig=plane.kubeconfig_for(OPERATOR, NAMESPACE),
                    port=operator,
                    metrics_port=metrics,
                    webhook_port=webhooks,
                    proxy=f"127.0.0.1:{proxy}",
                )
            )
            claim.publish(Sandbox(pid=os.getpid(), kubeconfig=str(claim.path / "admin.kubeconfig"), nodes=tuple(nodes)))
            await _watch(wishes, client, running, nodes, claim.path, plane.server_version, ports[0], page)
        finally:
            await running.stop()


async def _call_webhooks(client: KubeClient, port: int, version: str) -> None:
    """The API server asks the operator about IPUJobs. version: the server's, as v1.20.2."""
    minor = int(version.split(".")[1])
    both = webhook_configurations(WEBHOOKS, WebhookAddress(url=f"https://127.0.0.1:{port}"), minor=minor)
    for kind, body in zip(("mutating", "validating"), both, strict=True):
        await client.create(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations", body)


async def _publish_policy(client: KubeClient, policy: Path) -> None:
    """Where `muster explain` looks for the rules in force, as they are at the start."""
    body = {"metadata": {"name": POLICY_MAP}, "data": {POLICY_KEY: policy.read_text()}}
    await client.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", body)


async def _make_nodes(client: KubeClient, simulated: int, place: Path) -> list[SandboxNode]:
    """This machine first, then the simulated ones, each with a file system and a kernel log of its own."""
    name = this_machine()
    await client.create(NODES, this_node(name))
    nodes = [SandboxNode(name=name, kmsg=str(DEVICE), root="/", simulated=False)]
    for sim in await Fleet(client).create(simulated, prefix="sim", first=1, shape=SIMULATED_SHAPE):
        root = place / sim
        new_boot(root)
        nodes.append(SandboxNode(name=sim, kmsg=str(root / "dev/kmsg"), root=str(root), simulated=True))
    return nodes


def this_node(name: str) -> dict[str, Any]:
    """This machine as a Node, with the processors and memory it has."""
    memory_kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    node = node_object(name, shape=NodeShape(cpu=str(os.cpu_count() or 1), memory=f"{memory_kib}Ki", gpus=0))
    del node["metadata"]["labels"][SIMULATED]
    return node


def this_machine() -> str:
    """The host name as a Node may be called."""
    name = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-.")
    return name or "this-machine"


async def _watch(
    wishes: Wishes,
    client: KubeClient,
    running: parts.Running,
    nodes: list[SandboxNode],
    place: Path,
    version: str,
    port: int,
    page: int,
) -> None:
    view = View(client, first=nodes[0].name)
    hints = [
        f"Kubernetes {version} on loopback; {nodes[0].name} is this machine. In another terminal:",
        f"  export KUBECONFIG={place / 'admin.kubeconfig'}",
        "  muster sandbox inject sim-3 'NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.'",
        "  kubectl apply -f examples/ipujob.yaml;  kubectl get ipujobs,pods -o wide",
        "  muster explain sim-3;  muster sandbox pod trial;  muster clear sim-3;  muster status",
        f"  muster run --url http://127.0.0.1:{port} --check dmesg;  curl '127.0.0.1:{port}/status?check=dmesg'",
        f"The fleet's page: http://127.0.0.1:{page}/",
        f"Logs: {place}/*.log. Ctrl-C ends it and leaves nothing behind.",
    ]
    if not wishes.terminal:
        say("\n".join(hints))
    caption = "\n".join(hints)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wishes.for_s):
            await until_one_ends(
                view.nodes.run(),
                view.healths.run(),
                running.keep(),
                show(view, caption, terminal=wishes.terminal, say=print_line),
            )


async def until_one_ends(*endless: Coroutine[None, None, None]) -> None:
    """Run them together; what ends one (an error, as a rule) ends all and is raised."""
    tasks = [asyncio.create_task(each) for each in endless]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def print_line(line: str) -> None:
    print(line, flush=True)
