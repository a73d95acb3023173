"""The network of a small cluster: nodes that agents listen on, a pod, and the addresses of a cluster's own Services.

Nodes and pod are network namespaces on one bridge (tests/agent/network_fabric.py), made for one test module; nothing
is sent outside them. The pod is a process with that network and an /etc of its own, whose resolv.conf is the one that
a kubelet writes; there is neither container nor image behind it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.agent.network_fabric import LIMIT_S, Fabric, fabric

SERVICES = "10.96.0.0/16"  # as the API server is told (muster_sandbox.controlplane.cluster), which is 10.96.0.1 itself
API_SERVER, DNS = "10.96.0.1", "10.96.0.10"
ROOT = Path(__file__).parents[3]
# dnsPolicy ClusterFirst, for a pod in the namespace default
POD_ETC = {
    "resolv.conf": f"search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver {DNS}\n"
    "options ndots:5\n",
    "nsswitch.conf": "hosts: files dns\n",
    "hosts": "127.0.0.1 localhost\n",
}


class ClusterNetwork:
    """names: of its nodes; the last host of ``links`` is the pod. nodes: names with addresses (eth0)."""

    def __init__(self, links: Fabric, names: Sequence[str], folder: Path) -> None:
        self.fabric = links
        *nodes, pod = links.hosts
        self._pod = links.hosts[pod]
        self._hosts = dict(zip(names, nodes, strict=True))
        self._etc = folder / "etc"
        self.nodes = {name: f"10.78.0.{number}" for number, name in enumerate(names, 1)}

    def make(self) -> None:
        for address in (API_SERVER, DNS):
            self.fabric.ip(self.fabric.switch, "addr", "add", f"{address}/32", "dev", "mgmt")
        for space in self.fabric.hosts.values():
            self.fabric.ip(space, "route", "add", SERVICES, "dev", "eth0")
        self.fabric.ip(self._pod, "link", "del", "net1")
        self._etc.mkdir()
        for name, text in POD_ETC.items():
            (self._etc / name).write_text(text)

    def hold(self, node: str, rate: str, device: str = "eth0") -> None:
        """What ``device`` of ``node`` carries, both ways; of all nodes if none is named."""
        self.fabric.rate(device, rate, [self._hosts[node]] if node else list(self._hosts.values()))

    def on(self, node: str) -> list[str]:
        """The beginning of a command line: the rest of it runs on ``node``, under the same process id."""
        return ["ip", "netns", "exec", self.fabric.hosts[self._hosts[node]]]

    def in_pod(self) -> list[str]:
        # `ip netns exec` gives what it runs a mount namespace of its own, so the mount goes with it
        own_etc = f'mount --bind {self._etc} /etc && exec "$@"'
        return ["ip", "netns", "exec", self._pod, "sh", "-c", own_etc, "sh"]

    def run(self, where: Sequence[str], argv: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}  # no proxy, and nobody's .curlrc
        return subprocess.run(
            [*where, *argv], env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )


@contextmanager
def cluster_network(names: Sequence[str], folder: Path, kubeconfig: Path) -> Iterator[ClusterNetwork]:
    """``kubeconfig``: of an administrator, as whom the DNS asks for Services."""
    with fabric(len(names) + 1) as links:
        made = ClusterNetwork(links, names, folder)
        made.make()
        services = [sys.executable, "-m", "tests.cluster.chart.cluster_services", links.switch, str(kubeconfig)]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            services, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as running:
            try:
                assert running.stdout is not None
                assert running.stdout.readline() == b"listening\n"
                yield made
            finally:
                running.kill()
