"""The processes of a sandbox: one agent for each node, tainter, operator and proxy. Restarts ended ones."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster_sandbox.controlplane.install import NAMESPACE
from muster_sandbox.processes import ManagedProcess, ProcessDied, ProcessReaper
from muster_sandbox.session.folder import SandboxNode
from muster_sandbox.session.reboot import PID_FILE

LOOK_S = 0.3  # interval of the checks for ended processes
START_AGAIN_S = 1.0
IPUS = 32
IPU_LABEL, IPU_LABEL_VALUE = "ipunode", "sandbox"  # label of the nodes that reach the simulated IPUs


@dataclass(frozen=True)
class PartCommand:
    """name: of its log file. pid_file: in which `muster sandbox reboot` finds its process ID."""

    name: str
    command: Sequence[str]
    pid_file: Path | None = None


def agent_command(
    node: SandboxNode, *, kubeconfig: Path, ports: tuple[int, int], pod_uid: str, folder: Path
) -> PartCommand:
    """ports: for everybody, and for other agents."""
    port, tls_port = ports
    config = folder / f"agent-{node.name}.yaml"
    # Checks run on request only (repeat: 0); just the kernel log is followed. This machine's log may still contain
    # lines of an earlier sandbox or test, so the agent starts at its end.
    start = "" if node.simulated else "checks: {dmesg: {parameters: {start: now}}}\n"
    config.write_text(f"repeat: 0\nnamespace: {NAMESPACE}\ntls_port: {tls_port}\n{start}")
    state = Path(node.root) / "state" if node.simulated else folder / "state"
    return PartCommand(
        name=f"agent-{node.name}",
        command=[
            *(sys.executable, "-m", "muster_agent"),
            *("--config", str(config), "--kubeconfig", str(kubeconfig), "--node", node.name, "--root", node.root),
            *("--kmsg", node.kmsg, "--state-dir", str(state), "--pod-uid", pod_uid),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        pid_file=Path(node.root) / PID_FILE if node.simulated else None,
    )


def tainter_command(*, kubeconfig: Path, port: int, policy: Path | None) -> PartCommand:
    command = [sys.executable, "-m", "muster_tainter", "--kubeconfig", str(kubeconfig)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--namespace", "muster"]
    return PartCommand(name="tainter", command=[*command, *(("--policy", str(policy)) if policy else ())])


def vipu_simulator_command(*, port: int, folder: Path) -> PartCommand:
    command = [sys.executable, "-m", "muster_operator.vipu.simulator", "--ipus", str(IPUS)]
    return PartCommand(
        name="vipu-sim",
        command=[*command, "--state", str(folder / "vipu"), "--host", "127.0.0.1", "--port", str(port)],
    )


def vipu_proxy_command(*, kubeconfig: Path, port: int, controller: str) -> PartCommand:
    """controller: ``host:port`` of the simulator."""
    command = [sys.executable, "-m", "muster_operator.proxy", "--kubeconfig", str(kubeconfig), "--backend", "sim"]
    command += ["--controllers", f"{controller}:{IPU_LABEL}={IPU_LABEL_VALUE}", "--namespace", NAMESPACE]
    return PartCommand(name="vipu-proxy", command=[*command, "--host", "127.0.0.1", "--port", str(port)])


def operator_command(
    *, kubeconfig: Path, port: int, metrics_port: int, webhook_port: int, proxy: str, proxy_token: Path
) -> PartCommand:
    """proxy: its ``host:port``. proxy_token: file with the token for it."""
    command = [sys.executable, "-m", "muster_operator", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE]
    command += ["--vipu-proxy", f"http://{proxy}", "--proxy-token", str(proxy_token)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    ports = ["--metrics-port", str(metrics_port), "--webhook-port", str(webhook_port)]
    return PartCommand(name="operator", command=[*command, *ports])


class PartSupervisor:
    """Running components. None outlives this process, even after SIGKILL (see muster_sandbox.processes)."""

    def __init__(self, reaper: ProcessReaper, folder: Path, say: Callable[[str], None]) -> None:
        self._reaper = reaper
        self._folder = folder
        self._say = say
        self._parts: list[tuple[PartCommand, ManagedProcess]] = []

    def start(self, part: PartCommand) -> None:
        component = ManagedProcess(part.name, part.command, self._folder / f"{part.name}.log", self._reaper)
        self._parts.append((part, component))
        self._start(part, component)

    def _start(self, part: PartCommand, component: ManagedProcess) -> None:
        component.start()
        if part.pid_file is not None:
            draft = part.pid_file.with_suffix(".new")
            draft.write_text(f"{component.pid}\n")
            draft.replace(part.pid_file)  # atomically: a reboot may be reading it

    async def supervise(self) -> None:
        """Restart ended components until cancelled. Raises ProcessDied if one exits twice within a short time."""
        ended_at: dict[str, float] = {}
        while True:
            await asyncio.sleep(LOOK_S)
            now = asyncio.get_running_loop().time()
            for part, component in self._parts:
                try:
                    component.require_alive()
                except ProcessDied:
                    if not component.killed:  # reboots kill agents, any number of times
                        if now - ended_at.get(part.name, -60.0) < START_AGAIN_S + 2:
                            raise
                        ended_at[part.name] = now
                    self._say(f"{part.name} has ended: restarting it")
                    component.kill()
                    self._start(part, component)

    async def stop(self) -> None:
        """Stop all components at the same time, each with SIGTERM first."""
        await asyncio.gather(*(asyncio.to_thread(component.stop) for _, component in self._parts))
