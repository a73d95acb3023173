"""`muster vipu-sim` as a real process, and the command that stands in for Graphcore's."""

import http.client
import json
import os
import selectors
import sys
from pathlib import Path
from typing import Any

from tests.part_processes import PartProcess

START_S = 120.0  # far beyond what a loaded machine takes


class SimulatorProcess:
    """One at a time over ``folder``; its port changes with each start."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self._flags = flags
        self.port = 0
        self._process: PartProcess | None = None

    def start(self) -> None:
        words = ["--port", "0", "--state", str(self.folder / "state"), *self._flags]
        process = PartProcess("muster_operator.vipu.simulator", words, os.environ, Path(os.devnull))
        self._process = process
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            assert waiting.select(START_S), "the simulator does not say where it listens"
        line = process.stdout.readline().decode()
        assert line.startswith("listening on 127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL: it is told of nothing."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._end()

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        code = process.wait(START_S)
        process.stdout.close()
        return code

    def call(self, method: str, target: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and decoded answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def healthz(self) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def fault(self, **asked: object) -> None:
        status, answer = self.call("POST", "/faults", json.dumps(asked).encode())
        assert status == 200, answer

    def empty(self) -> None:
        """No fault and, where nothing takes time, no partition."""
        self.call("DELETE", "/faults")
        for each in self.call("GET", "/partitions")[1]:
            self.call("DELETE", f"/partitions/{each['name']}")


def write_vipu(folder: Path, body: str = "") -> Path:
    """An executable ``vipu``: ``body`` in Python, by default the simulator's command. Its path."""
    path = folder / "vipu"
    simulators = "from muster_operator.vipu.simulator.simulated_command import main\nimport sys\nsys.exit(main())\n"
    path.write_text(f"#!{sys.executable} -P\n{body or simulators}")
    path.chmod(0o755)
    return path
