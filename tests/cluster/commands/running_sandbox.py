"""A running sandbox, and what a person does beside it."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from tests.machine import find_lack, require
from tests.part_processes import run_muster
from tests.polling import pause_s
from tests.processes import processes_with

from muster_sandbox.controlplane.admin import AdminClient
from muster_sandbox.session.agent_address import address_label
from muster_sandbox.session.nodes import machine_name

REPOSITORY = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "muster_cli", "sandbox", "--plain")
PLACE = f"{random.randrange(1 << 16):04x}:{random.randrange(1, 1 << 8):02x}"  # of a GPU that no other run writes of
GPU = f"gpu/{PLACE}:00.0"
XID_79 = f"NVRM: Xid (PCI:{PLACE}:00): 79, pid=1234, GPU has fallen off the bus."
FAULTY = "muster.dev/faulty"
# guards against hanging: far more than anything takes
START_LIMIT_S = 240.0
CHANGE_LIMIT_S = 120.0
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
# as an agent logs a finding or a lack of an answer that comes or goes, and a leader that it was starved for too long
TOLD = re.compile(r"node `\S+` (has|no longer has) |check \S+ is (no longer )?UNKNOWN|lost the leadership")


class RunningSandbox:
    """A running sandbox and the commands a person types beside it."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        self.folder = folder
        self.process = process
        self.kubeconfig = folder / "admin.kubeconfig"
        self.data = self.kubeconfig.resolve().parent
        self.admin = self.connect("the-test-itself")

    def connect(self, user_agent: str) -> AdminClient:
        pki = self.data / "pki"
        server = re.search(r"https://127\.0\.0\.1:\d+", self.kubeconfig.read_text())
        assert server
        client = (pki / "admin.crt", pki / "admin.key")
        return AdminClient(server[0], pki / "ca.crt", client=client, user_agent=user_agent)

    def close(self) -> None:
        self.admin.close()

    def ping(self, user_agent: str) -> None:
        with self.connect(user_agent) as admin:
            admin.get("/version")

    def muster(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return run_muster(words, environment(self.folder) | {"KUBECONFIG": str(self.kubeconfig)}, CHANGE_LIMIT_S)

    def kubectl(self, *words: str) -> str:
        require("kubectl")
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *words],
            capture_output=True, text=True, timeout=CHANGE_LIMIT_S + 60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def node(self, name: str) -> dict[str, Any]:
        return self.admin.get(f"/api/v1/nodes/{name}")

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.node(name)["spec"].get("taints", [])]

    def status(self, name: str) -> dict[str, Any]:
        """Empty while there is none: the tainter makes the NodeHealth, the agent fills it."""
        path = f"/apis/muster.dev/v1alpha1/nodehealths/{name}"
        status: dict[str, Any] = self.admin.get(path).get("status", {}) if self.admin.exists(path) else {}
        return status

    def findings(self, name: str) -> dict[str, str]:
        """Verdict by reason, of the GPU that these tests write of: this machine's kernel may have its own to say."""
        found = [each for check in self.status(name).get("checks", []) for each in check.get("findings", [])]
        return {each["reason"]: each["verdict"] for each in found if each["component"] == GPU}

    def events(self, name: str) -> list[str]:
        found = self.admin.get("/api/v1/events", {"fieldSelector": f"involvedObject.name={name}"})["items"]
        return [event["message"] for event in found]

    def until(self, done: Callable[[], bool], what: str) -> None:
        begun = time.monotonic()
        while not done():
            assert self.process.poll() is None, f"the sandbox ended while waiting for: {what}"
            assert time.monotonic() < begun + CHANGE_LIMIT_S, (
                f"not within {CHANGE_LIMIT_S:.0f} s: {what}\n{self.logs()}"
            )
            time.sleep(pause_s(begun))

    def told(self) -> int:
        """How often there was something to write so far: findings of all nodes, and new leaders."""
        return sum(len(TOLD.findall(log.read_text())) for log in self.folder.glob("*.log"))

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


def with_own_kernel_log(command: Sequence[str], log: Path) -> Sequence[str]:
    """The command where /dev/kmsg is the file ``log``, so that other tests may write to this machine's meanwhile. Where
    no mount namespace can be made nobody can write there, either."""
    allowed = subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, timeout=CHANGE_LIMIT_S, check=False)
    if allowed.returncode != 0 or not Path("/dev/kmsg").exists():
        return command
    log.touch()
    return [*OWN_MOUNTS, "sh", "-c", 'mount --bind "$0" /dev/kmsg && exec "$@"', str(log), *command]


def environment(folder: Path) -> dict[str, str]:
    return dict(os.environ) | {"MUSTER_SANDBOX": str(folder)}


def _verdicts(node: str) -> tuple[str, ...]:
    return ("PASS", "UNKNOWN") if node == machine_name() and find_lack("/dev/kmsg") else ("PASS",)


@contextlib.contextmanager
def start_sandbox(
    folder: Path, binaries: Path, *, command: Sequence[str] = COMMAND, checkout: Path = REPOSITORY
) -> Iterator[RunningSandbox]:
    """A sandbox whose nodes are all PASS, or this machine's UNKNOWN if this user cannot read the kernel log. Several
    signals end it; nothing of it is left, and it prints no traceback."""
    output = folder.with_name(folder.name + ".out")
    with output.open("w") as out:
        process = subprocess.Popen(
            command,
            env=environment(folder) | {"KUBEBUILDER_ASSETS": str(binaries)},
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=checkout,
            start_new_session=True,
        )
    stack = contextlib.ExitStack()
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not (folder / "sandbox.json").exists():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        box = stack.enter_context(contextlib.closing(RunningSandbox(folder, process)))
        names = [node["name"] for node in json.loads((folder / "sandbox.json").read_text())["nodes"]]
        box.until(lambda: all(box.status(name).get("verdict") in _verdicts(name) for name in names), "all nodes PASS")
        assert len(names) == 8
        yield box
        data = box.data
    finally:
        stack.close()
        for number in ENDING:
            process.send_signal(number)
        try:
            code = process.wait(timeout=CHANGE_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert code == 0, output.read_text()
    assert "Traceback" not in output.read_text(), output.read_text()
    assert not folder.exists()
    assert not data.exists()
    assert not processes_of(folder, data), "left running"
    assert not published_addresses(folder), "left on lo"


def published_addresses(folder: Path) -> list[str]:
    """On this machine's loopback interface, of the sandbox in ``folder``."""
    found = psutil.net_if_addrs().get(address_label(folder), [])
    return [each.address for each in found if each.family == socket.AF_INET]


def processes_of(*folders: Path) -> list[str]:
    found = processes_with(lambda words: any(str(folder) in word for folder in folders for word in words))
    return [" ".join(process.info["cmdline"]) for process in found]
