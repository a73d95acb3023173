"""A real tainter as a process of its own, for the parts of the bench that ask it how far it is."""

import asyncio
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.footprint import Footprint, footprint
from harness.progress import say

from muster_sandbox.controlplane.install import NAMESPACE
from muster_sandbox.processes import ManagedProcess, ProcessReaper

LIMIT_S = 300.0
LOOK_S = 0.5  # each look makes the tainter count its nodes


class TainterProcess:
    """policy: the file's text, empty for the built-in one. Stopped at the end with SIGTERM."""

    def __init__(self, reaper: ProcessReaper, kubeconfig: Path, policy: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="muster-bench-")
        place = Path(self._folder.name)
        file = place / "policy.yaml"
        file.write_text(policy)
        self._log = place / "tainter.log"
        command = [sys.executable, "-m", "muster_tainter", "--port", "0", "--host", "127.0.0.1"]
        command += ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE]
        command += ["--policy", str(file)] if policy else []
        self.process = ManagedProcess("tainter", command, self._log, reaper)
        self.url = ""

    async def __aenter__(self) -> Self:
        self.process.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            say(self.process.tail())
        await asyncio.to_thread(self.process.stop)
        self._folder.cleanup()

    def footprint(self) -> Footprint:
        self.process.require_alive()
        assert self.process.pid is not None
        return footprint(self.process.pid)

    async def until_settled(self, nodes: int) -> None:
        """It leads, knows as many nodes, and none waits to be decided about."""
        await self._until(self._listens, "listens")
        await self._until(lambda: self._leads(nodes), "leads")

    async def until_synced(self, nodes: int) -> None:
        """It knows as many nodes, leading or not."""
        await self._until(self._listens, "listens")
        await self._until(lambda: _sum(self.metrics(), "muster_tainter_nodes") >= nodes, "knows its nodes")

    def _listens(self) -> bool:
        found = [line for line in self._log.read_text().splitlines() if line.startswith("listening on ")]
        self.url = f"http://{found[0].split()[-1]}" if found else ""
        return bool(self.url)

    def _leads(self, nodes: int) -> bool:
        metrics = self.metrics()
        return (
            "muster_tainter_leader 1.0" in metrics
            and _sum(metrics, "muster_tainter_nodes") >= nodes
            and _sum(metrics, "muster_tainter_queue_depth") == 0
        )

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:  # noqa: S310 - our own, on loopback
            return str(answer.read(), "utf-8")

    async def _until(self, done: object, what: str) -> None:
        assert callable(done)
        deadline = time.monotonic() + LIMIT_S
        while not await asyncio.to_thread(done):
            self.process.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"tainter: not within {LIMIT_S:.0f} s: {what}\n{self.process.tail()}")
            await asyncio.sleep(LOOK_S)


def _sum(metrics: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name + "{"))
