"""The real programs of a sandbox, kept running as a kubelet would: an agent a node, tainter, operator and proxy."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster_sandbox.controlplane.install import NAMESPACE
from muster_sandbox.processes import Component, ComponentDied, Keeper
from muster_sandbox.session.folder import SandboxNode
from muster_sandbox.session.reboot import PID_FILE

LOOK_S = 0.3  # how soon a program that ended is seen
START_AGAIN_S = 1.0
IPUS = 32
IPU_LABEL, IPU_LABEL_VALUE = "ipunode", "sandbox"  # of the nodes that reach the simulated IPUs


@dataclass(frozen=True)
class Part:
    """name: of its log file. pid_file: where its process id stands for `muster sandbox reboot`."""

    name: str
    command: Sequence[str]
    pid_file: Path | None = None


def agent(node: SandboxNode, *, kubeconfig: Path, port: int, pod_uid: str, folder: Path) -> Part:
    config = folder / f"agent-{node.name}.yaml"
    # what ails this machine, or simulated nodes lack, is for `muster check`: only the kernel log speaks by itself.
    # An earlier sandbox's or test's lines may still be in this machine's log: only what comes from now on counts here
    start = "" if node.simulated else "checks: {dmesg: {parameters: {start: now}}}\n"
    config.write_text(f"repeat: 0\nnamespace: {NAMESPACE}\n{start}")
    state = Path(node.root) / "state" if node.simulated else folder / "state"
    return Part(
        name=f"agent-{node.name}",
        command=[
            *(sys.executable, "-m", "muster_agent"),
            *("--config", str(config), "--kubeconfig", str(kubeconfig), "--node", node.name, "--root", node.root),
            *("--kmsg", node.kmsg, "--state-dir", str(state), "--pod-uid", pod_uid),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        pid_file=Path(node.root) / PID_FILE if node.simulated else None,
    )


def tainter(*, kubeconfig: Path, port: int, policy: Path | None) -> Part:
    command = [sys.executable, "-m", "muster_tainter", "--kubeconfig", str(kubeconfig)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--namespace", "muster"]
    return Part(name="tainter", command=[*command, *(("--policy", str(policy)) if policy else ())])


def vipu_simulator(*, port: int, folder: Path) -> Part:
    command = [sys.executable, "-m", "muster_operator.vipu.simulator", "--ipus", str(IPUS)]
    return Part(
        name="vipu-sim",
        command=[*command, "--state", str(folder / "vipu"), "--host", "127.0.0.1", "--port", str(port)],
    )


def vipu_proxy(*, kubeconfig: Path, port: int, controller: str) -> Part:
    """controller: ``host:port`` of the simulator."""
    command = [sys.executable, "-m", "muster_operator.proxy", "--kubeconfig", str(kubeconfig), "--backend", "sim"]
    command += ["--controllers", f"{controller}:{IPU_LABEL}={IPU_LABEL_VALUE}", "--namespace", NAMESPACE]
    return Part(name="vipu-proxy", command=[*command, "--host", "127.0.0.1", "--port", str(port)])


def operator(*, kubeconfig: Path, port: int, metrics_port: int, webhook_port: int, proxy: str) -> Part:
    """proxy: its ``host:port``."""
    command = [sys.executable, "-m", "muster_operator", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE]
    command += ["--vipu-proxy", f"http://{proxy}", "--host", "127.0.0.1", "--port", str(port)]
    ports = ["--metrics-port", str(metrics_port), "--webhook-port", str(webhook_port)]
    return Part(name="operator", command=[*command, *ports])


class Running:
    """Parts that run; none outlives this process, however it ends (see muster_sandbox.processes)."""

    def __init__(self, keeper: Keeper, folder: Path, say: Callable[[str], None]) -> None:
        self._keeper = keeper
        self._folder = folder
        self._say = say
        self._parts: list[tuple[Part, Component]] = []

    def start(self, part: Part) -> None:
        component = Component(part.name, part.command, self._folder / f"{part.name}.log", self._keeper)
        self._parts.append((part, component))
        self._start(part, component)

    def _start(self, part: Part, component: Component) -> None:
        component.start()
        if part.pid_file is not None:
            draft = part.pid_file.with_suffix(".new")
            draft.write_text(f"{component.pid}\n")
            draft.replace(part.pid_file)  # whole at every moment: a reboot may be reading it

    async def keep(self) -> None:
        """Start again what ended, forever. Raises ComponentDied for what ends by itself twice within a short time."""
        ended_at: dict[str, float] = {}
        while True:
            await asyncio.sleep(LOOK_S)
            now = asyncio.get_running_loop().time()
            for part, component in self._parts:
                try:
                    component.require_alive()
                except ComponentDied:
                    if not component.killed:  # a reboot kills, and may come as often as it likes
                        if now - ended_at.get(part.name, -60.0) < START_AGAIN_S + 2:
                            raise
                        ended_at[part.name] = now
                    self._say(f"{part.name} ended; starting it again")
                    component.kill()
                    self._start(part, component)

    async def stop(self) -> None:
        """Agents and tainter end in order, all at once."""
        await asyncio.gather(*(asyncio.to_thread(component.stop) for _, component in self._parts))
