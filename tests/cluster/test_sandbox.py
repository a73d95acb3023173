"""`muster sandbox` as a person uses it: the whole way from a kernel line to a taint and back, on real parts.

These tests write to this machine's /dev/kmsg, as the README's tour does.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster_cli.sandbox.up import this_machine
from muster_testbed.admin import Admin
from muster_testbed.audit import AuditLog, Request

REPOSITORY = Path(__file__).resolve().parents[2]
PLACE = f"{random.randrange(1 << 16):04x}:{random.randrange(1, 1 << 8):02x}"  # of a GPU that no other run writes of
GPU = f"gpu/{PLACE}:00.0"
XID_79 = f"NVRM: Xid (PCI:{PLACE}:00): 79, pid=1234, GPU has fallen off the bus."
FAULTY = "muster.dev/faulty"
# guards against hanging: far more than anything takes
START_LIMIT_S = 240.0
CHANGE_LIMIT_S = 120.0
SETTLE_S = 20.0  # what the tests before caused has been written: Events that repeat are counted up every 10 s at most
IDLE_S = 300.0 if os.environ.get("CI") else 30.0
IDLE_TRIES = 3
TOLD = re.compile(r"node `\S+` (has|is rid of) ")  # as an agent logs a finding that comes or goes

needs_kmsg = pytest.mark.kmsg


class Box:
    """A running sandbox and the commands a person types beside it."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        self.folder = folder
        self.process = process
        self.kubeconfig = folder / "admin.kubeconfig"
        self.data = self.kubeconfig.resolve().parent
        self.admin = self.connect("the-test-itself")

    def connect(self, user_agent: str) -> Admin:
        pki = self.data / "pki"
        server = re.search(r"https://127\.0\.0\.1:\d+", self.kubeconfig.read_text())
        assert server
        client = (pki / "admin.crt", pki / "admin.key")
        return Admin(server[0], pki / "ca.crt", client=client, user_agent=user_agent)

    def close(self) -> None:
        self.admin.close()

    def ping(self, user_agent: str) -> None:
        with self.connect(user_agent) as admin:
            admin.get("/version")

    def muster(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "muster_cli", *words],
            env=environment(self.folder) | {"KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=CHANGE_LIMIT_S,
            check=False,
        )

    def kubectl(self, *words: str) -> str:
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
        deadline = time.monotonic() + CHANGE_LIMIT_S
        while not done():
            assert self.process.poll() is None, f"the sandbox ended while waiting for: {what}"
            assert time.monotonic() < deadline, f"not within {CHANGE_LIMIT_S:.0f} s: {what}\n{self.logs()}"
            time.sleep(0.05)

    def told(self) -> int:
        """How many findings have come or gone so far, on all nodes."""
        return sum(len(TOLD.findall(log.read_text())) for log in self.folder.glob("agent-*.log"))

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


def environment(folder: Path) -> dict[str, str]:
    return dict(os.environ) | {"MUSTER_SANDBOX": str(folder)}


@contextlib.contextmanager
def sandbox(folder: Path, binaries: Path, *words: str) -> Iterator[Box]:
    """A sandbox whose nodes are all PASS; ended by Ctrl-C. At the end nothing of it is left."""
    output = folder.with_name(folder.name + ".out")
    with output.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "muster_cli", "sandbox", "--plain", *words],
            env=environment(folder) | {"KUBEBUILDER_ASSETS": str(binaries)},
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )
    stack = contextlib.ExitStack()
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not (folder / "sandbox.json").exists():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        box = stack.enter_context(contextlib.closing(Box(folder, process)))
        names = [node["name"] for node in json.loads((folder / "sandbox.json").read_text())["nodes"]]
        box.until(lambda: all(box.status(name).get("verdict") == "PASS" for name in names), "all nodes PASS")
        assert len(names) == 8
        yield box
        data = box.data
    finally:
        stack.close()
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=CHANGE_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert code == 0, output.read_text()
    assert not folder.exists()
    assert not data.exists()
    assert not processes_of(folder, data), "left running"


def processes_of(*folders: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(str(folder) in command for folder in folders):
            found.append(command)
    return found


def kernel_says(line: str) -> None:
    with Path("/dev/kmsg").open("wb", buffering=0) as device:  # what `echo … > /dev/kmsg` does
        device.write(f"{line}\n".encode())


@pytest.fixture(scope="module")
def box(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "box", binaries) as running:
        yield running


@pytest.fixture
def here(box: Box) -> Iterator[str]:
    """This machine's node, without faults before and after."""
    name = this_machine()
    yield name
    box.muster("clear", name)
    box.until(lambda: not box.taints(name) and not box.findings(name), "this machine is clear again")


@needs_kmsg
def test_a_gpu_off_the_bus_taints_this_machine_and_the_scheduler_goes_elsewhere(box: Box, here: str) -> None:
    kernel_says(XID_79)
    box.until(lambda: box.taints(here) == [FAULTY], "this machine is tainted")
    node = box.node(here)
    assert node["metadata"]["labels"][FAULTY] == "true"
    assert node["metadata"]["labels"]["muster.dev/health"] == "fail"
    box.until(lambda: any("Xid" in message for message in box.events(here)), "an Event tells why")

    bound = box.muster("sandbox", "pod", "after-the-fault")
    assert bound.returncode == 0, bound.stderr
    assert "bound to sim-" in bound.stdout

    told = box.muster("explain", here)
    assert told.returncode == 2  # FAIL
    for word in (GPU, "Xid79", "reboot", FAULTY):
        assert word in told.stdout


@needs_kmsg
def test_a_cleared_fault_stays_closed_until_the_line_comes_anew(box: Box, here: str) -> None:
    kernel_says(XID_79)
    box.until(lambda: box.taints(here) == [FAULTY], "tainted")
    assert box.muster("clear", here).returncode == 0
    box.until(lambda: box.taints(here) == [], "the taint is off")
    box.until(lambda: box.findings(here) == {}, "the agent dropped the finding")
    kernel_says("an ordinary line, so that the agent has something new to read")
    kernel_says(f"NVRM: Xid (PCI:{PLACE}:00): 31, pid=7, MMU Fault")  # read after all that came before it
    box.until(lambda: box.findings(here) == {"Xid31": "WARN"}, "the later line was read")
    assert box.taints(here) == []
    kernel_says(XID_79)
    box.until(lambda: box.taints(here) == [FAULTY], "tainted anew")


@needs_kmsg
def test_application_errors_taint_nothing(box: Box, here: str) -> None:
    kernel_says(f"NVRM: Xid (PCI:{PLACE}:00): 31, pid=99, name=train.py, MMU Fault")
    kernel_says(f"NVRM: Xid (PCI:{PLACE}:00): 45, pid=99, name=train.py, Ch 00000010")
    box.until(lambda: box.findings(here) == {"Xid31": "WARN", "Xid45": "WARN"}, "both are WARN")
    box.until(lambda: box.node(here)["metadata"]["labels"]["muster.dev/health"] == "warn", "the tainter has seen it")
    assert box.taints(here) == []


@needs_kmsg
def test_an_unused_xid_is_a_warning_with_an_event(box: Box, here: str) -> None:
    kernel_says(f"NVRM: Xid ({PLACE}:00): 14, Channel 00000001")
    box.until(lambda: box.findings(here) == {"Xid14": "WARN"}, "WARN")
    box.until(lambda: any("Xid 14" in message for message in box.events(here)), "an Event")
    assert box.taints(here) == []


def test_a_simulated_node_is_tainted_and_a_reboot_gives_it_back(box: Box) -> None:
    assert box.muster("sandbox", "inject", "sim-2", XID_79).returncode == 0
    box.until(lambda: box.taints("sim-2") == [FAULTY], "tainted")
    assert box.muster("sandbox", "reboot", "sim-2").returncode == 0
    box.until(lambda: box.taints("sim-2") == [], "free after the new boot's first full pass")
    box.until(lambda: box.status("sim-2")["verdict"] == "PASS", "PASS")


def test_reboots_in_a_row_do_not_end_the_sandbox(box: Box) -> None:
    for _ in range(4):
        assert box.muster("sandbox", "reboot", "sim-4").returncode == 0
    assert box.muster("sandbox", "inject", "sim-4", XID_79).returncode == 0
    box.until(lambda: box.taints("sim-4") == [FAULTY], "tainted after its last boot")
    assert box.muster("clear", "sim-4").returncode == 0
    box.until(lambda: box.taints("sim-4") == [], "free")
    assert box.process.poll() is None


def test_a_second_sandbox_and_an_unknown_node_are_refused(box: Box) -> None:
    second = box.muster("sandbox")
    assert second.returncode == 3
    assert "runs already" in second.stderr
    unknown = box.muster("sandbox", "inject", "sim-99", "x")
    assert unknown.returncode == 3
    assert "sim-7" in unknown.stderr


@pytest.mark.timeout(IDLE_TRIES * (IDLE_S + SETTLE_S) + 300)
def test_an_idle_sandbox_makes_no_list_and_no_write(box: Box) -> None:
    """Counted from the API server's audit log, lease renewals aside (and what this test's own client does)."""
    audit = AuditLog(box.data / "audit.log", box.ping)
    for _ in range(IDLE_TRIES):
        told = box.told()
        time.sleep(SETTLE_S)
        since = audit.mark()
        time.sleep(IDLE_S)
        asked = audit.count(since, keep=of_muster)
        if box.told() == told:
            break  # else this machine's own kernel had something to say, which is to be written
    else:
        pytest.fail("findings come and go all the time here: this machine is not idle")
    leases = {key for key in asked if key[2] == "leases"}
    watches = {key for key in asked if key[1] == "watch"}
    assert set(asked) - leases - watches == set()
    assert leases, "the audit log shows not even the lease renewals: it proves nothing"


def of_muster(request: Request) -> bool:
    return request.user.startswith("system:serviceaccount:muster:") or request.user_agent.startswith("muster")


def _standing(box: Box, path: str) -> tuple[int, str, str]:
    """How often it has moved, and the condition HealthDegraded."""
    status = box.admin.get(path)["status"]
    found = [each for each in status["conditions"] if each["type"] == "HealthDegraded"]
    return status["moves"], *((found[0]["status"], found[0]["reason"]) if found else ("", ""))


@needs_kmsg
@pytest.mark.timeout(900)
def test_an_ipujob_runs_on_no_tainted_node_and_leaves_one_that_becomes_tainted(box: Box, tmp_path: Path) -> None:
    """Its template allows three nodes; two of them are tainted. Then one is good again, and its own goes bad (63)."""
    for node in ("sim-5", "sim-6"):
        assert box.muster("sandbox", "inject", node, XID_79).returncode == 0
    box.until(lambda: all(FAULTY in box.taints(node) for node in ("sim-5", "sim-6")), "both are tainted")
    job = yaml.safe_load((REPOSITORY / "examples/ipujob.yaml").read_text())
    hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["sim-5", "sim-6", "sim-7"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
    job["spec"]["workers"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    job["spec"]["healthPolicy"] = {"onFault": "Move", "gracePeriodSeconds": 5}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    box.kubectl("apply", "-f", str(file))
    path = "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs/training"
    try:
        box.until(lambda: box.admin.get(path).get("status", {}).get("launcherStatus") == "Running", "the job runs")
        pods = box.admin.get("/api/v1/namespaces/default/pods", {"labelSelector": "muster.dev/ipujob=training"})
        placed = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods["items"]}
        assert placed == dict.fromkeys(("training-launcher", "training-worker-0", "training-worker-1"), "sim-7")
        assert "training" in box.kubectl("get", "ipujobs")

        assert box.muster("clear", "sim-5").returncode == 0
        box.until(lambda: not box.taints("sim-5"), "sim-5 is free")
        assert box.muster("sandbox", "inject", "sim-7", XID_79).returncode == 0
        box.until(lambda: _standing(box, path) == (1, "False", "IPUJobMoved"), "the job has moved")
        pods = box.admin.get("/api/v1/namespaces/default/pods", {"labelSelector": "muster.dev/ipujob=training"})
        assert {pod["spec"]["nodeName"] for pod in pods["items"]} == {"sim-5"}
        told = " ".join(box.events("training"))
        assert f"rank 0 (pod training-worker-0) is on node sim-7: check dmesg on {GPU}: Xid79" in told
        assert "moved from sim-7 to sim-5" in told
        story = box.muster("explain", "ipujob", "default/training").stdout
        assert "moved once" in story.splitlines()[0]
        steps = [line.split()[1] for line in story.splitlines() if line.startswith("  20")]
        assert {"submitted", "running", "fault", "moving", "moved"} <= set(steps), story
        assert "moved from sim-7 to sim-5" in story
        assert "IPUJob default/training moved away from here" in box.muster("explain", "sim-7").stdout
    finally:
        box.kubectl("delete", "ipujob", "training", "--timeout=120s")
        for node in ("sim-5", "sim-6", "sim-7"):
            box.muster("sandbox", "reboot", node)
    box.until(lambda: not any(FAULTY in box.taints(f"sim-{each}") for each in (5, 6, 7)), "all are given back")


def test_the_konduktor_policy_taints_on_any_xid_with_its_own_key(binaries: Path, tmp_path: Path) -> None:
    policy = str(REPOSITORY / "examples" / "konduktor.yaml")
    with sandbox(tmp_path / "box", binaries, "--policy", policy) as box:
        kernel_says("NVRM: Xid (0000:03:00): 14, Channel 00000001")
        here = this_machine()
        box.until(lambda: box.taints(here) == ["trainy.konduktor.ai/faulty"], "tainted with that system's key")
        (taint,) = box.node(here)["spec"]["taints"]
        assert (taint["value"], taint["effect"]) == ("true", "NoSchedule")
        told = box.muster("explain", here).stdout
        assert "xid: WARN -> taint trainy.konduktor.ai/faulty=true:NoSchedule" in told, "explained by the same policy"


def test_a_killed_sandbox_leaves_no_process(binaries: Path, tmp_path: Path) -> None:
    folder = tmp_path / "box"
    with pytest.raises(AssertionError, match="left"), sandbox(folder, binaries) as box:  # noqa: PT012
        folders = (box.folder, box.data)
        box.process.kill()
        box.process.wait(timeout=10)
        deadline = time.monotonic() + CHANGE_LIMIT_S
        while processes_of(*folders) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_of(*folders) == []
        raise AssertionError("left as it is: a killed one cannot tidy its folder")
