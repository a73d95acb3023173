"""`muster sandbox` without an action: start a sandbox, show it, and remove it at the end.

:mod:`muster_sandbox.session.cluster` runs the cluster. This module adds what depends on the command line, the
operator's webhook configurations and the terminal.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_cli.cluster.active_policy import POLICY_KEY, POLICY_MAP
from muster_cli.sandbox.display import FleetView, show_fleet
from muster_cli.sandbox.interruption import Interruption
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_operator.admission.configurations import WebhookAddress, webhook_configurations
from muster_operator.admission.server import NAME as WEBHOOKS
from muster_operator.job.partition_api import PROXY_AUDIENCE
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import install
from muster_sandbox.processes import ProcessDied
from muster_sandbox.programs.binaries import NoControlPlane
from muster_sandbox.programs.control_plane import find_or_build
from muster_sandbox.session.cluster import KUBECONFIG, ClusterContents, SandboxCluster, run_cluster
from muster_sandbox.session.folder import SandboxFolder, SandboxRecord, sandbox_folder


@dataclass(frozen=True)
class SandboxOptions:
    """policy: the tainter's policy file; None: the built-in policy. terminal: show a live table. for_s: duration."""

    policy: Path | None
    terminal: bool
    for_s: float | None
    simulated: int


def run_sandbox(options: SandboxOptions) -> int:
    """Returns 0 after Ctrl-C or ``for_s``. Raises NoSandbox if a sandbox is already running in this folder."""
    return run_until_interrupted(lambda folder, interruption: _run(options, folder, interruption))


def run_until_interrupted(run: Callable[[SandboxFolder, Interruption], None]) -> int:
    try:
        with Interruption() as interruption, SandboxFolder(sandbox_folder()) as folder:
            try:
                run(folder, interruption)
            except KeyboardInterrupt:
                pass
            finally:
                interruption.begin_shutdown()
    except (NoControlPlane, ProcessDied, TimeoutError) as error:
        say(f"muster: {error}")
        return EXIT_UNKNOWN
    except KeyboardInterrupt:
        pass  # before the folder was there
    say("stopped; nothing is left running")
    return 0


def say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the shutdown must go on even if nobody reads its messages
        print(line, file=sys.stderr, flush=True)


def _run(options: SandboxOptions, folder: SandboxFolder, interruption: Interruption) -> None:
    binaries = find_or_build(say)
    say("starting etcd, API server, controller-manager and scheduler on loopback …")
    with ControlPlane(binaries) as plane:
        try:
            install(plane.admin)
            (folder.path / KUBECONFIG).symlink_to(plane.kubeconfig)
            interruption.run(lambda: _run_cluster(options, folder, plane, interruption))
        finally:
            interruption.begin_shutdown()


async def _run_cluster(
    options: SandboxOptions, folder: SandboxFolder, plane: ControlPlane, interruption: Interruption
) -> None:
    contents = ClusterContents(
        simulated=options.simulated,
        policy=options.policy,
        policy_map=_policy_map(options.policy) if options.policy is not None else None,
        webhooks=_webhook_configurations,
        proxy_audience=PROXY_AUDIENCE,
    )
    async with run_cluster(plane, folder, contents, say) as cluster:
        kubeconfig = str(folder.path / KUBECONFIG)
        folder.publish(SandboxRecord(pid=os.getpid(), kubeconfig=kubeconfig, nodes=cluster.nodes))
        try:
            await _show(options, cluster, folder.path, plane.server_version)
        finally:
            interruption.begin_shutdown()


def _webhook_configurations(port: int, version: str) -> Mapping[str, dict[str, Any]]:
    """Make the API server call the operator's webhooks on ``port``. version: the API server's, such as v1.20.2."""
    minor = int(version.split(".")[1])
    both = webhook_configurations(WEBHOOKS, WebhookAddress(url=f"https://127.0.0.1:{port}"), minor=minor)
    return dict(zip(("mutatingwebhookconfigurations", "validatingwebhookconfigurations"), both, strict=True))


def _policy_map(policy: Path) -> dict[str, Any]:
    """The ConfigMap from which `muster explain` reads the active policy; a copy made at the start."""
    return {"metadata": {"name": POLICY_MAP}, "data": {POLICY_KEY: policy.read_text()}}


async def _show(options: SandboxOptions, cluster: SandboxCluster, place: Path, version: str) -> None:
    """Show the fleet until Ctrl-C, ``for_s`` or an error."""
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
        f"Fleet page: http://127.0.0.1:{cluster.page_port}/",
        f"Logs: {place}/*.log. Ctrl-C ends it and removes all its files.",
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
    """Run the coroutines together until one ends, then cancel the others. Raises the exception that ended it."""
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
