"""A few hosts on a switch, as network namespaces made for one test: the only network that these tests send to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import msgspec
import psutil
from tests.checks.ping.namespaces import need_rights
from tests.part_processes import PartProcess

from muster_checks.base.vocabulary import Result

HERE = Path(__file__).parent
LIMIT_S = 120.0  # far beyond what a slow machine takes
LOOK_S = 0.05
FAST, SLOW = "100mbit", "3mbit"
_numbers = count(1)


class Fabric:
    """Hosts node-1, node-2 … with ``eth0`` (10.78.0.N) and ``net1`` (10.79.0.N, fd79::N) on bridges of a namespace of
    their own, from which they are asked."""

    def __init__(self, prefix: str, hosts: int) -> None:
        self.switch = f"{prefix}-switch"
        self.hosts = {f"node-{number}": f"{prefix}-{number}" for number in range(1, hosts + 1)}
        self._processes: list[subprocess.Popen[bytes] | PartProcess] = []

    @property
    def peers(self) -> list[str]:
        return [f"{node}=10.78.0.{number}" for number, node in enumerate(self.hosts, 1)]

    def make(self) -> None:
        for namespace in (self.switch, *self.hosts.values()):
            _run("ip", "netns", "add", namespace)
            self.ip(namespace, "link", "set", "lo", "up")
        for bridge in ("mgmt", "data"):
            self.ip(self.switch, "link", "add", bridge, "type", "bridge")
            self.ip(self.switch, "link", "set", bridge, "up")
        self.ip(self.switch, "addr", "add", "10.78.0.254/24", "dev", "mgmt")
        for number, namespace in enumerate(self.hosts.values(), 1):
            for device, bridge, network in (("eth0", "mgmt", 78), ("net1", "data", 79)):
                port = f"{bridge}{number}"
                wire = ("link", "add", port, "type", "veth", "peer", "name", device, "netns", namespace)
                self.ip(self.switch, *wire)
                self.ip(self.switch, "link", "set", port, "master", bridge, "up")
                self.ip(namespace, "addr", "add", f"10.{network}.0.{number}/24", "dev", device)
                self.ip(namespace, "link", "set", device, "up")

    def ip(self, namespace: str, *words: str) -> None:
        _run("ip", "-n", namespace, *words)

    def rate(self, device: str, rate: str, nodes: Sequence[str] = ()) -> None:
        """What the links of ``device`` carry, both ways; of all nodes if none is named."""
        for number, (node, namespace) in enumerate(self.hosts.items(), 1):
            if nodes and node not in nodes:
                continue
            port = f"{'mgmt' if device == 'eth0' else 'data'}{number}"
            for where, name in ((namespace, device), (self.switch, port)):
                limits = ("rate", rate, "burst", "64k", "limit", "300k")
                self.inside(where, "tc", "qdisc", "replace", "dev", name, "root", "tbf", *limits)

    def inside(self, namespace: str, *argv: str) -> None:
        _run("ip", "netns", "exec", namespace, *argv)

    def start(self, namespace: str, script: str, *words: str) -> "subprocess.Popen[bytes]":
        argv = ["ip", "netns", "exec", namespace, sys.executable, str(HERE / script), *words]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._processes.append(process)
        return process

    def start_hosts(self) -> dict[str, PartProcess]:
        started = {
            node: PartProcess("tests.agent.network_host", [node], os.environ, Path("/dev/stderr"), namespace)
            for node, namespace in self.hosts.items()
        }
        self._processes += started.values()
        for process in started.values():
            assert process.stdout.readline() == b"listening\n"
        return started

    def measure(self, *words: str) -> dict[str, Result]:
        process = self.start(self.switch, "network_measurer.py", *self.peers, *words)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
        return msgspec.json.decode(output, type=dict[str, Result])

    def iperfs(self) -> list[str]:
        """Command lines of the iperf3 that run on the hosts."""
        return list(self._iperfs().values())

    def _iperfs(self) -> dict[int, str]:
        found = {}
        for namespace in self.hosts.values():
            listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, check=False, timeout=20)
            for pid in map(int, listed.stdout.split()):
                with suppress(psutil.Error):  # it has ended
                    words = psutil.Process(pid).cmdline()
                    if any(word.endswith("iperf3") for word in words):
                        found[pid] = " ".join(words)
        return found

    def unmake(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(timeout=20)
            if process.stdout is not None:
                process.stdout.close()
        with suppress(TimeoutError):
            wait_until(lambda: not self.iperfs(), 20.0)
        left = self._iperfs()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for namespace in (*self.hosts.values(), self.switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False, timeout=20)
        assert not left, left


@contextmanager
def fabric(hosts: int = 4) -> Iterator[Fabric]:
    need_rights()
    made = Fabric(f"muster-{os.getpid()}-{next(_numbers)}", hosts)
    try:
        made.make()
        yield made
    finally:
        made.unmake()


def wait_until(true: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Raises TimeoutError."""
    ends = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(LOOK_S)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=20)
