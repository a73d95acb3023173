"""The agent as a process, against a real API server: what it publishes, what it survives, what it costs."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.part_processes import PartProcess, start_program
from tests.polling import pause_s

from muster_sandbox.controlplane.cluster import ControlPlane

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
XID = "[%.6f] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
GUARD_S = 120.0  # far more than anything takes: what hangs fails, what is slow does not
LISTENING = re.compile(r"listening on (\S+):(\d+)")
_numbers = iter(range(1, 1_000_000))


class AgentProcess:
    """One agent; its one check reads a kernel log that is a plain file."""

    def __init__(self, folder: Path, node: str, kubeconfig: Path, *flags: str, inside: Sequence[str] = ()) -> None:
        """inside: the beginning of a command line that ends with the agent's."""
        self.node, self.folder, self._inside = node, folder, inside
        self.kmsg = folder / "kernel.log"
        self.kmsg.touch()
        self.state = folder / "state" / "agent.json"
        self._words = [
            *("--node", node, "--kubeconfig", str(kubeconfig), "--kmsg", str(self.kmsg)),
            *("--host", "127.0.0.1", "--port", "0", "--state-dir", str(self.state.parent)),
            *flags,
        ]
        # no coverage or proxy of the environment: what runs in a pod has neither
        self.environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        self.process: PartProcess | subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self, *, wait: bool = True, loads_itself: bool = False) -> "AgentProcess":
        """loads_itself: where its memory is measured."""
        start = partial(start_program, inside=self._inside) if loads_itself or self._inside else PartProcess
        self.process = start("muster_agent", self._words, self.environment, self.folder / "agent.log")
        if wait:
            assert self.process.stdout is not None
            first = self.process.stdout.readline().decode()
            match = LISTENING.match(first)
            assert match, f"no address printed: {first!r}\n{self.log}"
            self.port = int(match[2])
        return self

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout:
                process.stdout.close()

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._end(signal.SIGKILL)

    def write(self, text: str) -> None:
        with self.kmsg.open("a") as log:
            log.write(text)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=GUARD_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def rss_mb(self) -> float:
        assert self.process is not None
        return psutil.Process(self.process.pid).memory_info().rss / (1 << 20)

    def cpu_s(self) -> float:
        assert self.process is not None
        used = psutil.Process(self.process.pid).cpu_times()
        return used.user + used.system


def until(look: Callable[[], Any], *, timeout_s: float = GUARD_S, what: str = "") -> Any:
    """What ``look`` returns once it is true. The real world has no clock to fake, so it is asked again and again."""
    begun = time.monotonic()
    while not (found := look()):
        assert time.monotonic() < begun + timeout_s, f"not within {timeout_s} s: {what or look}"
        time.sleep(pause_s(begun))
    return found


class Bench:
    """Makes NodeHealths as the tainter does, and agents for them."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = control_plane, folder
        self.kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")
        self.agents: list[AgentProcess] = []
        self.nodes: list[str] = []

    def node(self) -> str:
        name = f"agent-test-{next(_numbers)}"
        self.make(name)
        self.nodes.append(name)
        return name

    def make(self, name: str) -> None:
        body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}}
        self.plane.admin.create(HEALTHS, body)

    def agent(
        self, node: str, *flags: str, pod_uid: str = "pod-1", folder: str = "a", start: str = "boot", **settings: object
    ) -> AgentProcess:
        """``start``: where it begins in a kernel log it has not read yet."""
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        config = kernel_log_only(place, {"start": start}, **settings)
        agent = AgentProcess(place, node, self.kubeconfig, "--config", str(config), "--pod-uid", pod_uid, *flags)
        self.agents.append(agent)
        return agent

    def health(self, node: str) -> dict[str, Any]:
        return self.plane.admin.get(f"{HEALTHS}/{node}")

    def status(self, node: str) -> dict[str, Any]:
        return self.health(node).get("status", {})

    def dmesg(self, node: str) -> dict[str, Any]:
        return next((check for check in self.status(node).get("checks", []) if check["name"] == "dmesg"), {})

    def findings(self, node: str) -> list[tuple[str, str, int]]:
        return [(f["component"], f["reason"], f["occurrence"]) for f in self.dmesg(node).get("findings", [])]


@pytest.fixture
def bench(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(control_plane, tmp_path)
    yield made
    for agent in made.agents:
        agent.close()
    for node in made.nodes:
        control_plane.admin.delete(f"{HEALTHS}/{node}")


def test_a_kernel_line_ends_in_the_nodehealth_with_no_more_rights_than_the_agents_own(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    assert bench.status(node)["bootID"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    agent.write(XID % 12.5)
    until(lambda: bench.findings(node) == [("gpu/0000:3b:00.0", "Xid79", 1)])
    status = bench.status(node)
    assert status["verdict"] == "FAIL"
    assert status["failing"] == "dmesg"
    assert status["agent"]["podUID"] == "pod-1"
    code, text = agent.get(f"/status?check=dmesg&host={node}")
    assert code == 200
    assert f"{{'{node}': ['DMESG Failed']}}" in text
    assert until(lambda: agent.get("/readyz")[0] == 200)
    assert "NVRM: Xid (PCI:0000:3b:00): 79" in agent.log
    assert "Forbidden" not in agent.log


def test_a_healthy_agent_in_steady_state_asks_nothing_of_the_api_server(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    agent.write("[1.0] usb 1-1: new high-speed USB device number 2\n")
    agent.get("/status")
    audit = bench.plane.audit
    since = audit.mark()
    time.sleep(6)  # longer than the positions' and the health's turns
    asked = [request for request in audit.requests(since) if request.user_agent.startswith("muster-agent/")]
    assert asked == []


def test_an_agent_reads_first_what_was_published_and_not_what_a_cache_still_holds(bench: Bench):
    node = bench.node()
    audit = bench.plane.audit
    since = audit.mark()
    bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    own = f"fieldSelector=metadata.name%3D{node}"
    lists = [each.uri for each in audit.requests(since) if each.verb == "list" and own in each.uri]
    assert lists
    assert not any("resourceVersion=" in uri for uri in lists)


def test_a_person_clears_a_fault_and_only_a_new_one_is_told_again(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    agent.write(XID % 1)
    until(lambda: bench.findings(node))
    clear = {"check": "dmesg", "component": "*", "occurrence": 1, "by": "ann"}
    bench.plane.admin.patch(f"{HEALTHS}/{node}", {"spec": {"clear": [clear]}})
    until(lambda: bench.dmesg(node).get("verdict") == "PASS")
    assert [(over["occurrence"], over["how"]) for over in bench.dmesg(node)["cleared"]] == [(1, "request")]
    agent.write(XID % 700)
    until(lambda: bench.findings(node) == [("gpu/0000:3b:00.0", "Xid79", 2)])


def test_what_is_edited_by_hand_into_nonsense_is_written_anew(bench: Bench):
    node = bench.node()
    bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    wrong = {"name": "dmesg", "verdict": "FAIL", "findings": [{"component": "gpu/9", "reason": "X", "verdict": "FAIL"}]}
    bench.plane.admin.patch(
        f"{HEALTHS}/{node}/status", {"status": {"verdict": "FAIL", "checks": [wrong], "due": ["x"]}}
    )
    until(lambda: bench.status(node)["verdict"] == "PASS" and "due" not in bench.status(node))
    assert bench.findings(node) == []


def test_an_object_that_is_deleted_and_made_again_is_filled_again(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    agent.write(XID % 1)
    until(lambda: bench.findings(node))
    bench.plane.admin.delete(f"{HEALTHS}/{node}")
    bench.make(node)
    until(lambda: bench.findings(node) == [("gpu/0000:3b:00.0", "Xid79", 1)])


def test_an_api_server_that_hangs_for_twenty_seconds_loses_nothing(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    bench.plane.pause()
    try:
        agent.write(XID % 1)
        agent.write("[2.0] NVRM: Xid (PCI:0000:5e:00): 48, pid=7, DBE\n")
        time.sleep(20)
        assert "gpu/0000:5e:00.0" in agent.get("/status")[1], "people are answered meanwhile"
    finally:
        bench.plane.resume()
    until(lambda: {f[1] for f in bench.findings(node)} >= {"Xid79", "Xid48"})
    assert sorted(f[2] for f in bench.findings(node)) == [1, 2]


def test_a_killed_agent_goes_on_where_it_was(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    agent.write(XID % 1)
    until(lambda: bench.findings(node))
    agent.kill()
    agent.write("[2.0] NVRM: Xid (PCI:0000:5e:00): 48, pid=7, DBE\n")
    agent.start()
    until(lambda: len(bench.findings(node)) > 1)
    by_reason = {f["reason"]: (f["occurrence"], f.get("count", 1)) for f in bench.dmesg(node)["findings"]}
    assert by_reason["Xid79"] == (1, 1)
    assert by_reason["Xid48"] == (2, 1)


@pytest.mark.parametrize("moment_s", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05])
def test_killed_at_any_moment_each_firing_is_told_exactly_once(bench: Bench, moment_s: float):
    node = bench.node()
    agent = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    for n in range(1, 4):
        agent.write(f"[{n}.0] NVRM: Xid (PCI:0000:{n:02x}:00): 79, GPU has fallen off the bus.\n")
        time.sleep(moment_s)
        agent.kill()
        agent.start()
    until(lambda: len(bench.findings(node)) == 3)
    found = {f["component"]: (f["occurrence"], f.get("count", 1)) for f in bench.dmesg(node)["findings"]}
    assert found == {f"gpu/0000:{n:02x}:00.0": (n, 1) for n in range(1, 4)}


@pytest.mark.parametrize("loss", ["after it was saved", "before it is saved", "with half of it saved"])
def test_a_lost_state_file_neither_reopens_nor_forgets(bench: Bench, loss: str):
    node = bench.node()
    agent = bench.agent(node)
    if loss == "before it is saved":
        agent.state.mkdir(parents=True)  # where a folder stands, no file can be put
    agent.start()
    agent.write(XID % 1)
    agent.write("[2.0] NVRM: Xid (PCI:0000:5e:00): 48, pid=7, DBE\n")
    until(lambda: len(bench.findings(node)) == 2)
    gone = next(f[2] for f in bench.findings(node) if f[1] == "Xid48")
    kept = next(f for f in bench.findings(node) if f[1] == "Xid79")
    clear = {"check": "dmesg", "component": "gpu/0000:5e:00.0", "occurrence": gone, "by": "ann"}
    bench.plane.admin.patch(f"{HEALTHS}/{node}", {"spec": {"clear": [clear]}})
    until(lambda: bench.findings(node) == [kept])
    if loss == "before it is saved":
        agent.kill()
        agent.state.rmdir()
    else:
        # the clear is not only told but saved: its number shows
        until(lambda: agent.state.exists() and b'"how":"request"' in agent.state.read_bytes())
        agent.kill()
        if loss == "with half of it saved":
            os.truncate(agent.state, agent.state.stat().st_size // 2)
        else:
            agent.state.unlink()
    agent.start()
    until(lambda: agent.get("/readyz")[0] == 200)
    agent.write("[9.0] NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.\n")
    until(lambda: len(bench.findings(node)) > 1)
    assert {(c, r) for c, r, _ in bench.findings(node)} == {kept[:2], ("gpu/0000:af:00.0", "Xid79")}
    assert kept in bench.findings(node)
    assert max(f[2] for f in bench.findings(node)) == 3


def test_a_second_agent_that_claims_a_held_node_is_refused_and_says_so(bench: Bench):
    node = bench.node()
    first = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    # long enough for a first that hardly gets a processor to answer the claim
    second = bench.agent(node, pod_uid="pod-2", folder="b", claim_grace_s=60.0).start()
    second.write(XID % 1)
    code, text = until(lambda: (a := second.get("/readyz"))[0] == 503 and "claimed" in a[1] and a)
    assert (code, "pod-1" in text) == (503, True)
    until(lambda: bench.status(node)["agent"]["podUID"] == "pod-1", what="a claim is answered")
    assert bench.findings(node) == [], "the refused one has published nothing"
    assert first.stop() == 0
    # a starved first may not have had the time to give the node back: then the second waits for two graces
    until(lambda: bench.findings(node), timeout_s=300.0, what="the second takes the node")
    assert bench.status(node)["agent"]["podUID"] == "pod-2"


def test_an_agent_that_stops_in_order_gives_its_node_back(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    assert bench.status(node)["agent"]["podUID"] == "pod-1"
    # it knows of its write by the answer or, if that was lost, by the watch
    until(lambda: "\nmuster_agent_unpublished_seconds 0.0\n" in agent.get("/metrics")[1], what="all is published")
    assert agent.stop() == 0
    assert not bench.status(node)["agent"].get("podUID")


def test_a_dead_agents_node_is_taken_over_after_the_grace(bench: Bench):
    node = bench.node()
    first = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    first.kill()
    began = time.monotonic()
    bench.agent(node, pod_uid="pod-2", folder="b").start().write(XID % 1)
    until(lambda: bench.findings(node))
    assert time.monotonic() - began >= 5
    assert bench.status(node)["agent"]["podUID"] == "pod-2"


def test_two_agents_on_one_state_folder_take_turns(bench: Bench):
    node = bench.node()
    first = bench.agent(node).start()
    until(lambda: bench.status(node).get("verdict") == "PASS")
    second = bench.agent(node, pod_uid="pod-2").start(wait=False)
    held = str(second.state.parent)
    until(lambda: any("WARNING" in line and held in line for line in second.log.splitlines()))
    assert first.stop() == 0
    until(lambda: bench.status(node)["agent"].get("podUID") == "pod-2")


def test_an_agent_without_a_nodehealth_waits_for_it(bench: Bench):
    node = f"agent-test-{next(_numbers)}"
    agent = bench.agent(node).start()
    agent.write(XID % 1)
    until(lambda: "DMESG Failed" in agent.get("/status")[1])
    bench.make(node)
    bench.nodes.append(node)
    until(lambda: bench.findings(node))


@pytest.mark.alone
def test_the_idle_agent_stays_within_its_memory_and_cpu(bench: Bench):
    node = bench.node()
    agent = bench.agent(node).start(loads_itself=True)
    until(lambda: bench.status(node).get("verdict") == "PASS")
    for path in ("/status", "/metrics", "/report", "/readyz"):
        assert agent.get(path)[0] == 200
    before = agent.cpu_s()
    time.sleep(5)
    used = (agent.cpu_s() - before) / 5
    print(json.dumps({"rss_mb": agent.rss_mb(), "idle_cpu": used}))
    assert agent.rss_mb() <= 70 * 1.2, "70 MB is measured by the bench; this guards against a heavy import"
    assert used <= 0.05
