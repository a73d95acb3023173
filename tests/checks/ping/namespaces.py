"""Two network namespaces with a wire between them, made for one test: the only network that these tests send to.

They need root. Without it the tests fail in CI; on a person's machine they are skipped.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.machine import require, skip

from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, LocalCommands, Output

_numbers = iter(range(1, 1_000_000))


class Inside(LocalCommands):
    """Runs commands of this machine inside a namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.calls: list[tuple[str, ...]] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        self.calls.append(tuple(argv))
        wrapped = ["ip", "netns", "exec", self.namespace, *argv]
        return await super().run(wrapped, timeout_s=timeout_s, environment=environment, limit_bytes=limit_bytes)


class Wire:
    """``here`` (10.77.0.1, fd77::1) and ``there`` (10.77.0.2, fd77::2 and what a test adds), by device ``wire``."""

    def __init__(self, prefix: str) -> None:
        self.here, self.there = f"{prefix}-here", f"{prefix}-there"
        self._residents: list[subprocess.Popen[bytes]] = []

    def ip(self, namespace: str, *words: str) -> None:
        _run("ip", "-n", namespace, *words)

    def inside(self, namespace: str, *argv: str) -> None:
        _run("ip", "netns", "exec", namespace, *argv)

    def add_addresses(self, *addresses: str) -> None:
        for address in addresses:
            self.ip(self.there, "addr", "add", address, "dev", "wire", *(["nodad"] if ":" in address else []))

    def resident(self, namespace: str) -> int:
        """A process that lives in ``namespace`` until the wire goes; its /proc shows the namespace's sockets."""
        argv = ["ip", "netns", "exec", namespace, "sleep", "300"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        self._residents.append(process)
        ours = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{process.pid}/ns/net").readlink() == ours:  # it has not moved in yet
            time.sleep(0.01)
        return process.pid

    def end_residents(self) -> None:
        for process in self._residents:
            process.kill()
            process.wait(timeout=20)

    def narrow(self, *how: str) -> None:
        """A token bucket on what leaves ``here``: slow, late and lossy, by its numbers."""
        self.inside(self.here, "tc", "qdisc", "replace", "dev", "wire", "root", "tbf", *how)


@contextmanager
def wire() -> Iterator[Wire]:
    need_rights()
    made = Wire(f"muster-{os.getpid()}-{next(_numbers)}")
    try:
        for namespace in (made.here, made.there):
            _run("ip", "netns", "add", namespace)
            made.ip(namespace, "link", "set", "lo", "up")
        made.ip(made.here, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", made.there)
        for namespace, number in ((made.here, 1), (made.there, 2)):
            made.ip(namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "wire")
            made.ip(namespace, "addr", "add", f"fd77::{number}/64", "dev", "wire", "nodad")
            made.ip(namespace, "link", "set", "wire", "up")
        yield made
    finally:
        made.end_residents()
        for namespace in (made.here, made.there):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False, timeout=20)
        left = subprocess.run(["ip", "netns"], capture_output=True, check=False, timeout=20).stdout.decode()
        assert made.here not in left and made.there not in left, left  # noqa: PT018 - one thought


def need_rights() -> None:
    """Skips (in CI: fails) where namespaces cannot be made, or what is measured in them is missing."""
    require("root", "ip", "iperf3", "ping")
    probe = f"muster-{os.getpid()}-may-i"
    tried = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False, timeout=20)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False, timeout=20)
    if tried.returncode:
        skip("network namespaces", tried.stderr.decode().strip())


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=20)
