"""`muster sandbox` as a person uses it: the whole way from a kernel line to a taint and back, on real parts.

These tests write to this machine's /dev/kmsg, as the README's tour does.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.commands.running_sandbox import (
    FAULTY,
    GPU,
    PLACE,
    REPOSITORY,
    XID_79,
    RunningSandbox,
    published_addresses,
    start_sandbox,
)

from muster_sandbox.session.nodes import machine_name

needs_kmsg = pytest.mark.kmsg


def kernel_says(line: str) -> None:
    with Path("/dev/kmsg").open("wb", buffering=0) as device:  # what `echo … > /dev/kmsg` does
        device.write(f"{line}\n".encode())


@pytest.fixture(scope="module")
def box(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    with start_sandbox(tmp_path_factory.mktemp("sandbox") / "box", binaries) as running:
        yield running


@pytest.fixture
def here(box: RunningSandbox) -> Iterator[str]:
    """This machine's node, without faults before and after."""
    name = machine_name()
    yield name
    box.muster("clear", name)
    box.until(lambda: not box.taints(name) and not box.findings(name), "this machine is clear again")


@needs_kmsg
def test_a_gpu_off_the_bus_taints_this_machine_and_the_scheduler_goes_elsewhere(box: RunningSandbox, here: str) -> None:
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
def test_a_cleared_fault_stays_closed_until_the_line_comes_anew(box: RunningSandbox, here: str) -> None:
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
def test_application_errors_taint_nothing(box: RunningSandbox, here: str) -> None:
    kernel_says(f"NVRM: Xid (PCI:{PLACE}:00): 31, pid=99, name=train.py, MMU Fault")
    kernel_says(f"NVRM: Xid (PCI:{PLACE}:00): 45, pid=99, name=train.py, Ch 00000010")
    box.until(lambda: box.findings(here) == {"Xid31": "WARN", "Xid45": "WARN"}, "both are WARN")
    box.until(lambda: box.node(here)["metadata"]["labels"]["muster.dev/health"] == "warn", "the tainter has seen it")
    assert box.taints(here) == []


@needs_kmsg
def test_an_unused_xid_is_a_warning_with_an_event(box: RunningSandbox, here: str) -> None:
    kernel_says(f"NVRM: Xid ({PLACE}:00): 14, Channel 00000001")
    box.until(lambda: box.findings(here) == {"Xid14": "WARN"}, "WARN")
    box.until(lambda: any("Xid 14" in message for message in box.events(here)), "an Event")
    assert box.taints(here) == []


def test_a_simulated_node_is_tainted_and_a_reboot_gives_it_back(box: RunningSandbox) -> None:
    assert box.muster("sandbox", "inject", "sim-2", XID_79).returncode == 0
    box.until(lambda: box.taints("sim-2") == [FAULTY], "tainted")
    assert box.muster("sandbox", "reboot", "sim-2").returncode == 0
    box.until(lambda: box.taints("sim-2") == [], "free after the new boot's first full pass")
    box.until(lambda: box.status("sim-2")["verdict"] == "PASS", "PASS")


def test_reboots_in_a_row_do_not_end_the_sandbox(box: RunningSandbox) -> None:
    for _ in range(4):
        assert box.muster("sandbox", "reboot", "sim-4").returncode == 0
    assert box.muster("sandbox", "inject", "sim-4", XID_79).returncode == 0
    box.until(lambda: box.taints("sim-4") == [FAULTY], "tainted after its last boot")
    assert box.muster("clear", "sim-4").returncode == 0
    box.until(lambda: box.taints("sim-4") == [], "free")
    assert box.process.poll() is None


def test_agents_are_published_at_a_documentation_address(box: RunningSandbox) -> None:
    """Kubernetes 1.21.1 and later take no loopback address; earlier API servers take both."""
    version = box.admin.get("/apis/discovery.k8s.io")["preferredVersion"]["groupVersion"]
    slices = box.admin.get(f"/apis/{version}/namespaces/muster/endpointslices")["items"]
    addresses = {address for each in slices for found in each["endpoints"] for address in found["addresses"]}
    assert addresses == (set(published_addresses(box.folder)) if os.geteuid() == 0 else {"127.0.0.1"})
    assert len(addresses) == 1
    out = box.folder.with_name("box.out").read_text()
    port = re.search(r"--url http://127\.0\.0\.1:(\d+)", out)
    assert port
    answer = box.muster("run", "--url", f"http://127.0.0.1:{port[1]}", "--check", "ipulink", "--json")
    assert len(json.loads(answer.stdout)["nodes"]) == 8, answer.stdout
    assert answer.returncode == 0, answer.stdout


def test_a_second_sandbox_and_an_unknown_node_are_refused(box: RunningSandbox) -> None:
    second = box.muster("sandbox")
    assert second.returncode == 3
    assert "runs already" in second.stderr
    unknown = box.muster("sandbox", "inject", "sim-99", "x")
    assert unknown.returncode == 3
    assert "sim-7" in unknown.stderr


def _standing(box: RunningSandbox, path: str) -> tuple[int, str, str]:
    """How often it has moved, and the condition HealthDegraded."""
    status = box.admin.get(path)["status"]
    found = [each for each in status["conditions"] if each["type"] == "HealthDegraded"]
    return status["moves"], *((found[0]["status"], found[0]["reason"]) if found else ("", ""))


@needs_kmsg
@pytest.mark.timeout(900)
def test_an_ipujob_runs_on_no_tainted_node_and_leaves_one_that_becomes_tainted(
    box: RunningSandbox, tmp_path: Path
) -> None:
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
        for each in (rf"rank 0\b.*training-worker-0.*sim-7.*dmesg.*{GPU}: Xid79", r"sim-7 .*sim-5"):
            box.until(lambda each=each: bool(re.search(each, " ".join(box.events("training")))), f"an Event: {each}")
        story = box.muster("explain", "ipujob", "default/training").stdout
        steps = [line.split()[1] for line in story.splitlines() if line.startswith("  20")]
        # no "fault": the tainter tells the owners of the pods that it finds after the taint, and by then these may have
        # been moved
        assert {"submitted", "running", "moving", "moved"} <= set(steps), story
        assert re.search(r"^  20\S+ +moved +.*sim-7.*sim-5", story, re.MULTILINE), story
        assert "default/training" in box.muster("explain", "sim-7").stdout
    finally:
        box.kubectl("delete", "ipujob", "training", "--timeout=120s")
        for node in ("sim-5", "sim-6", "sim-7"):
            box.muster("sandbox", "reboot", node)
    box.until(lambda: not any(FAULTY in box.taints(f"sim-{each}") for each in (5, 6, 7)), "all are given back")
