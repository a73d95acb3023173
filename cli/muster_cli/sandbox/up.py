"""`muster sandbox` without an action: bring a sandbox up, show it, and take it down to nothing.

The cluster itself is :mod:`muster_sandbox.session.cluster`; here is what needs the command's options, the operator's
webhook configurations and a terminal.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from muster_cli.commands.explain import POLICY_KEY, POLICY_MAP
from muster_cli.sandbox.display import FleetView, show_fleet
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_operator.admission.configurations import WebhookAddress, webhook_configurations
from muster_operator.admission.server import NAME as WEBHOOKS
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import install
from muster_sandbox.processes import ProcessDied
from muster_sandbox.programs.binaries import NoControlPlane
from muster_sandbox.programs.control_plane import find_or_build
from muster_sandbox.session.cluster import KUBECONFIG, ClusterContents, SandboxCluster, run_cluster
from muster_sandbox.session.folder import SandboxFolder, SandboxRecord, sandbox_folder


@dataclass(frozen=True)
class SandboxOptions:
    """policy: the tainter's rules, or its own. terminal: a live table. for_s: end by itself after so many seconds."""

    policy: Path | None
    terminal: bool
    for_s: float | None
    simulated: int


def run_sandbox(options: SandboxOptions) -> int:
    """0 after Ctrl-C or ``for_s``. Raises NoSandbox where one runs already."""
    try:
        with SandboxFolder(sandbox_folder()) as folder, interruptible():
            return _run(options, folder)
    except (NoControlPlane, ProcessDied, TimeoutError) as error:
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


def _run(options: SandboxOptions, folder: SandboxFolder) -> int:
    binaries = find_or_build(say)
    say("starting etcd, API server, controller-manager and scheduler on loopback …")
    with ControlPlane(binaries) as plane:
        install(plane.admin)
        (folder.path / KUBECONFIG).symlink_to(plane.kubeconfig)
        asyncio.run(_run_cluster(options, folder, plane))
    say("stopped; nothing is left running")
    return 0


async def _run_cluster(options: SandboxOptions, folder: SandboxFolder, plane: ControlPlane) -> None:
    contents = ClusterContents(
        simulated=options.simulated,
        policy=options.policy,
        policy_map=_policy_map(options.policy) if options.policy is not None else None,
        webhooks=_webhook_configurations,
    )
    async with run_cluster(plane, folder, contents, say) as cluster:
        kubeconfig = str(folder.path / KUBECONFIG)
        folder.publish(SandboxRecord(pid=os.getpid(), kubeconfig=kubeconfig, nodes=cluster.nodes))
        await _show(options, cluster, folder.path, plane.server_version)


def _webhook_configurations(port: int, version: str) -> Mapping[str, dict[str, Any]]:
    """The API server asks the operator about IPUJobs. version: the server's, as v1.20.2."""
    minor = int(version.split(".")[1])
    both = webhook_configurations(WEBHOOKS, WebhookAddress(url=f"https://127.0.0.1:{port}"), minor=minor)
    return dict(zip(("mutatingwebhookconfigurations", "validatingwebhookconfigurations"), both, strict=True))


def _policy_map(policy: Path) -> dict[str, Any]:
    """Where `muster explain` looks for the rules in force, as they are at the start."""
    return {"metadata": {"name": POLICY_MAP}, "data": {POLICY_KEY: policy.read_text()}}


async def _show(options: SandboxOptions, cluster: SandboxCluster, place: Path, version: str) -> None:
    """Until Ctrl-C, ``for_s`` or an error."""
    machine = cluster.nodes[0].name
    view = FleetView(cluster.client, first=machine)
    port = cluster.agent_port
    hints = [
        f"Kubernetes {version} on loopback; {machine} is this machine. In another terminal:",
        f"  export KUBECONFIG={place / KUBECONFIG}",
        "  muster sandbox inject sim-3 'NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.'",
        "  kubectl apply -f examples/ipujob.yaml;  kubectl get ipujobs,pods -o wide",
        "  muster explain sim-3;  muster sandbox pod trial;  muster clear sim-3;  muster status",
        f"  muster run --url http://127.0.0.1:{port} --check dmesg;  curl '127.0.0.1:{port}/status?check=dmesg'",
        f"The fleet's page: http://127.0.0.1:{cluster.page_port}/",
        f"Logs: {place}/*.log. Ctrl-C ends it and leaves nothing behind.",
    ]
    if not options.terminal:
        say("\n".join(hints))
    caption = "\n".join(hints)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(options.for_s):
            await run_until_first_end(
                view.nodes.run(),
                view.healths.run(),
                cluster.supervisor.supervise(),
                show_fleet(view, caption, terminal=options.terminal, say=print_line),
            )


async def run_until_first_end(*endless: Coroutine[None, None, None]) -> None:
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
