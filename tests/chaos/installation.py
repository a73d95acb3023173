"""Muster's parts as processes on one machine, each behind a proxy of its own to everything that it calls.

A part keeps its ports and its disk when it is started again, as a pod keeps its Service and its node.
"""

import asyncio
import json
import random
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import yaml
from tests.agent.kernel_log_only import kernel_log_only
from tests.chaos.fault_proxy import FaultProxy
from tests.chaos.observer import VipuCall
from tests.chaos.raw_proxy import RawProxy
from tests.chaos.small_disk import SmallDisk
from tests.chaos.stepped_part import write_offset

from muster_operator.job.partition_api import PROXY_AUDIENCE
from muster_sandbox.controlplane.certificates import Authority, write_private
from muster_sandbox.controlplane.cluster import ControlPlane, free_ports
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, OPERATOR, PROXY, TAINTER
from muster_sandbox.processes import ManagedProcess, ProcessReaper
from muster_sandbox.session.agent_address import add_address

STEPPED = Path(__file__).with_name("stepped_part.py")
IPU_LABEL = ("ipunode", "rack1")
EXPIRED = timedelta(minutes=-1)
LISTENS_S = 120.0


class Part:
    """One process. up: whether it is meant to run; it may be stopped by a signal."""

    def __init__(
        self, name: str, module: str, words: Sequence[str], port: int, folder: Path, reaper: ProcessReaper,
        disk: SmallDisk | None = None,
    ) -> None:  # fmt: skip
        self.name, self.port, self.disk = name, port, disk
        self.log = folder / f"{name}.log"
        self._offset = folder / f"{name}.offset"
        write_offset(self._offset, 0.0)
        inside = disk.enter if disk is not None else []
        command = [*inside, sys.executable, str(STEPPED), str(self._offset), module, *words]
        self.process = ManagedProcess(name, command, self.log, reaper)

    def step_clock(self, seconds: float) -> None:
        write_offset(self._offset, seconds)

    async def start(self) -> None:
        """Returns when it listens. Raises ProcessDied, TimeoutError."""
        self.process.start()
        async with asyncio.timeout(LISTENS_S):
            while True:
                self.process.require_alive()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.1)
                else:
                    writer.close()
                    return


@dataclass
class Installation:
    """links: the proxies by the part that calls through them; ``vipu`` is the one in front of V-IPU, ``proxy`` of the
    V-IPU proxy. calls: all that reached V-IPU. peer_address: on ``lo``, where agents find each other: a proxy, not the
    agent."""

    plane: ControlPlane
    folder: Path
    rng: random.Random
    policy: Path
    tainters: int
    operators: int
    agents: int
    ipus: int
    parts: dict[str, Part] = field(default_factory=dict)
    links: dict[str, FaultProxy] = field(default_factory=dict)
    peers: list[RawProxy] = field(default_factory=list)
    disks: list[SmallDisk] = field(default_factory=list)
    calls: list[VipuCall] = field(default_factory=list)
    webhooks: RawProxy = field(init=False)

    def __post_init__(self) -> None:
        self._reaper = ProcessReaper()
        self.peer_address = add_address(self._reaper, self.folder)
        self._authority = Authority("muster-chaos")
        self.certificate = self._server_certificate()
        self.expired = self._server_certificate(EXPIRED)

    # -- start and end

    async def start(self) -> None:
        await self._add_operators(*await self._add_vipu())
        for number in range(self.tainters):
            [port] = free_ports(1)
            words = ["--policy", str(self.policy), "--namespace", NAMESPACE]
            await self._add(f"tainter-{number}", "muster_tainter", words, port, TAINTER)
        for number in range(self.agents):
            await self._add_agent(f"agent-{number}")
        await asyncio.gather(*(part.start() for part in self.parts.values()))

    async def close(self) -> None:
        for part in self.parts.values():
            await asyncio.to_thread(part.process.stop)
        for each in (*self.links.values(), *self.peers, *([self.webhooks] if hasattr(self, "webhooks") else ())):
            await each.close()
        for disk in self.disks:
            disk.stop()
        await asyncio.to_thread(self._reaper.close)

    async def _add(
        self, name: str, module: str, words: Sequence[str], port: int, account: str, disk: SmallDisk | None = None
    ) -> None:
        kubeconfig = await self._kubeconfig(name, account)
        flags = [*words, "--kubeconfig", str(kubeconfig), "--host", "127.0.0.1", "--port", str(port)]
        self.parts[name] = Part(name, module, flags, port, self.folder, self._reaper, disk)

    async def _add_vipu(self) -> tuple[int, int]:
        """The ports of the V-IPU proxy, itself and through its link."""
        simulated, proxy_port = free_ports(2)
        disk = self._disk("vipu-state")
        words = ["--ipus", str(self.ipus), "--delay", "0.05", "--state", str(disk.folder), "--host", "127.0.0.1"]
        self.parts["vipu-sim"] = Part(
            "vipu-sim", "muster_operator.vipu.simulator", [*words, "--port", str(simulated)], simulated,
            self.folder, self._reaper, disk,
        )  # fmt: skip
        self.links["vipu"] = FaultProxy(("127.0.0.1", simulated), self.rng, record=self._record)
        self.links["proxy"] = FaultProxy(("127.0.0.1", proxy_port), self.rng)
        for name in ("vipu", "proxy"):
            await self.links[name].start()
        controllers = f"127.0.0.1:{self.links['vipu'].port}:{'='.join(IPU_LABEL)}"
        words = ["--backend", "sim", "--controllers", controllers]
        await self._add("vipu-proxy", "muster_operator.proxy", words, proxy_port, PROXY)
        return proxy_port, self.links["proxy"].port

    async def _add_operators(self, _own: int, proxy_port: int) -> None:
        served = free_ports(self.operators)
        self.webhooks = RawProxy([("127.0.0.1", port) for port in served])
        await self.webhooks.start()
        token = await asyncio.to_thread(self.plane.token_file_for, OPERATOR, NAMESPACE, PROXY_AUDIENCE)
        for number, port in enumerate(served):
            words = ["--vipu-proxy", f"http://127.0.0.1:{proxy_port}", "--proxy-token", str(token)]
            words += ["--metrics-port", "0"]
            [health] = free_ports(1)
            await self._add(
                f"operator-{number}", "muster_operator", [*words, "--webhook-port", str(port)], health, OPERATOR
            )

    async def _add_agent(self, name: str) -> None:
        port, tls_port = free_ports(2)
        disk = self._disk(f"{name}-state")
        settings = self.folder / f"{name}-settings"
        settings.mkdir()
        config = kernel_log_only(settings, {"start": "boot"}, tls_port=tls_port, namespace=NAMESPACE)
        self.kernel_log(name).touch()
        words = ["--node", name, "--config", str(config), "--kmsg", str(self.kernel_log(name)),
                 "--state-dir", str(disk.folder), "--pod-uid", f"pod-{name}"]  # fmt: skip
        await self._add(name, "muster_agent", words, port, AGENT, disk)
        peer = RawProxy([("127.0.0.1", tls_port)], self.peer_address, tls_port)
        await peer.start()
        self.peers.append(peer)

    def kernel_log(self, agent: str) -> Path:
        return self.folder / f"{agent}.kmsg"

    def agent_ports(self) -> Mapping[str, int]:
        return {name: part.port for name, part in self.parts.items() if name.startswith("agent-")}

    def _disk(self, name: str) -> SmallDisk:
        disk = SmallDisk(self.folder / name, self._reaper)
        disk.start()
        self.disks.append(disk)
        return disk

    # -- links

    async def _kubeconfig(self, name: str, account: str) -> Path:
        """Of an account, through a proxy of the part's own."""
        to_server = ssl.create_default_context(cafile=str(self.plane.ca_file))
        server = ("127.0.0.1", int(self.plane.server.rpartition(":")[2]))
        link = FaultProxy(server, self.rng, to_server=to_server, certificate=self.certificate)
        await link.start()
        self.links[name] = link
        made = await asyncio.to_thread(self.plane.kubeconfig_for, account, NAMESPACE)
        config = yaml.safe_load(made.read_text())
        authority = self.folder / "chaos-ca.crt"
        authority.write_bytes(self._authority.certificate)
        cluster = {"server": f"https://127.0.0.1:{link.port}", "certificate-authority": str(authority)}
        config["clusters"][0]["cluster"] = cluster
        return write_private(self.folder / f"{name}.kubeconfig", json.dumps(config).encode())

    def _server_certificate(self, valid: timedelta | None = None) -> ssl.SSLContext:
        issued = self._authority.server("api", ["127.0.0.1"], *([valid] if valid is not None else []))
        place = self.folder / f"api-{'expired' if valid else 'good'}.pem"
        write_private(place, issued.certificate + issued.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place)
        return context

    def _record(self, method: str, target: str, body: bytes, status: int, at: str) -> None:
        if method == "GET":
            return
        name = json.loads(body)["name"] if body else target.removeprefix("/partitions/")
        self.calls.append(VipuCall(at, method, target, name, status))

    def called_parts(self) -> list[str]:
        """Parts that call the API server."""
        return [name for name in self.links if name not in ("vipu", "proxy")]
