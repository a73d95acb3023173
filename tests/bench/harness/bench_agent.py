"""A real agent against a real API server, as a process of its own."""

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster_checks.base.declaration import Cost
from muster_checks.registry import load_registry
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE
from muster_sandbox.processes import ManagedProcess, ProcessReaper

LIMIT_S = 180.0
_LISTENING = re.compile(r"^listening on 127\.0\.0\.1:(\d+)$", re.MULTILINE)


def health_object(name: str) -> dict[str, Any]:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}}


def always_on() -> list[str]:
    """Checks that run by themselves on every node: streams, and the light ones that have a period.

    From the registry, not the agent: to list its checks an agent builds thirty JSON schemas, which is not idleness.
    """
    return [
        name
        for name, check in load_registry().items()
        if check.stream is not None or (check.cost is Cost.LIGHT and check.period_s)
    ]


class BenchAgent:
    """settings: those of its file; JSON is YAML, too."""

    def __init__(
        self, plane: ControlPlane, reaper: ProcessReaper, folder: Path, node: str, settings: Mapping[str, object]
    ) -> None:
        config, self._log = folder / "agent.yaml", folder / "agent.log"
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "muster_agent", "--port", "0", "--host", "127.0.0.1", "--node", node]
        command += ["--kubeconfig", str(plane.kubeconfig_for(AGENT, NAMESPACE)), "--config", str(config)]
        command += ["--state-dir", str(folder / "state"), "--pod-uid", "bench"]
        self.process = ManagedProcess("agent", command, self._log, reaper)
        self.port = 0

    @property
    def pid(self) -> int:
        self.process.require_alive()
        assert self.process.pid is not None
        return self.process.pid

    def start(self) -> None:
        self.process.start()
        self.until(self._has_port, "prints where it listens")

    def _has_port(self) -> bool:
        found = _LISTENING.search(self._log.read_text())
        self.port = int(found[1]) if found else 0
        return self.port > 0

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S) as answer:
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as error:
            return str(error.read(), "utf-8")

    def until_first_pass(self) -> None:
        """Every check that is always on has run."""
        names = always_on()

        def have_run() -> bool:
            report = self.report()  # without what is off by default
            return all(report[name]["reason"] != "NotRun" for name in names if name in report)

        self.until(have_run, "all light checks have run")
        self.until(lambda: self.get("/readyz") == "ok\n", "is ready")

    def report(self) -> dict[str, dict[str, Any]]:
        """The last result of each check, by name."""
        return {check["check"]: check for check in json.loads(self.get("/report"))["checks"]}

    def until(self, look: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not look():
            self.process.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"agent: not within {LIMIT_S:.0f} s: {what}\n{self.process.tail()}")
            time.sleep(0.1)
