"""Commands of the documents that people type beside `make sandbox`, typed there: each does what its page says.

A test says by ``covers`` which lines of the documents it types; it fails where it leaves one of them out.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.agent.ipu_host import BAD, IpuHost, component
from tests.cluster.commands.running_sandbox import FAULTY, GPU, REPOSITORY, XID_79, processes_of
from tests.cluster.commands.sandbox_terminal import SandboxTerminal, StartedPart, covers, http_request
from tests.cluster.commands.test_curl_commands import curl
from tests.docs.command_list import commands_of_test

from muster_checks.testing.recorded import lay_out
from muster_sandbox.controlplane.install import AGENT, NAMESPACE
from muster_sandbox.session.nodes import machine_name
from muster_sandbox.simulation.agents import pod_name
from muster_sandbox.simulation.nodes import NODES
from muster_tainter.agents.webhook import PATH as OWN_NODE

pytestmark = pytest.mark.usefixtures(curl.__name__)

LINES = commands_of_test(__file__)

PLAIN, KONDUKTOR = "make sandbox", "make sandbox ARGS=--policy examples/konduktor.yaml"
REQUEST = (
    'kubectl patch nodehealth NODE --type=merge -p {"spec":{"requests":[{"id":"ann-1","checks":["pciebw"],'
    '"params":{"runs":"5","passes":"4"},"by":"ann"}]}}'
)
ADMIN = "testbed"  # who types, by the kubeconfig
UNKNOWN = "muster.dev/unknown"
JOBS = "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
POLICY = """
rules:
  - {name: gpus, match: {check: dmesg, component: "gpu/*"}, action: taint}
  - {name: rest, match: {verdict: [WARN, FAIL]}, action: event}
pools: [{name: rack, selector: {matchLabels: {topology.muster.dev/rack: rack-0}}, budget: {tainted: 1}}]
"""
MISTAKEN = "rules: [{name: all, action: taint, taint: {effect: NoShedule}}]\n"
MISTAKE = 'policy.yaml: rules[0].taint.effect: "NoShedule": expected NoSchedule, PreferNoSchedule or NoExecute'
KERNEL = (  # a day of a node whose GPU falls off the bus, and which boots anew an hour later
    "2027-01-15T06:00:00,000000+00:00 Linux version 6.1.0\n"
    "2027-01-15T07:00:00,000000+00:00 NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    "2027-01-15T08:00:00,000000+00:00 Linux version 6.1.0\n"
    "2027-01-15T09:00:00,000000+00:00 an ordinary line\n"
)
UNCORRECTED = {
    "/sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count": "1\n",
    "/sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count": "0\n",
}
SERVICE = """
apiVersion: graphcore.ai/v1alpha1
kind: IPUJob
metadata: {name: serve}
spec:
  jobInstances: 1
  ipusPerJobInstance: "2"
  workers: {template: {spec: {containers: [{name: main, image: serve}]}}}
"""


@pytest.fixture(scope="module")
def beside_plain(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxTerminal]:
    with SandboxTerminal(PLAIN, tmp_path_factory.mktemp("plain") / "muster", binaries) as made:
        (made.checkout / "my-policy.yaml").write_text(POLICY)
        (made.checkout / "policy.yaml").write_text(MISTAKEN)
        yield made


@pytest.fixture
def desk(beside_plain: SandboxTerminal, request: pytest.FixtureRequest) -> Iterator[SandboxTerminal]:
    with beside_plain.at(request.node.originalname) as ready:
        yield ready


@covers(PLAIN)
def test_make_sandbox_is_a_real_control_plane_this_machine_and_seven_nodes(desk: SandboxTerminal) -> None:
    nodes = {node["metadata"]["name"] for node in desk.box.admin.get(NODES)["items"]}
    assert nodes == {machine_name(), *(f"sim-{number}" for number in range(1, 8))}
    programs = " ".join(processes_of(desk.box.data))
    assert all(name in programs for name in ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"))
    rows = re.findall(r"^\d\d:\d\d:\d\d (\S+) ", desk.out(), re.MULTILINE)
    assert nodes <= set(rows), "a line for each change, where no terminal takes the live table"


@covers("muster explain NODE", "muster status --host NODE", "muster clear NODE", "muster clear node-1")
def test_a_fault_is_explained_cleared_and_stays_closed_until_the_line_comes_anew(desk: SandboxTerminal) -> None:
    desk.tainted("sim-1")
    told = desk.type("muster explain NODE", code=2, NODE="sim-1")
    assert told.startswith("sim-1 TAINTED ")
    assert f"dmesg {GPU} Xid79" in told.splitlines()[0]
    links = {line.split()[0] for line in told.splitlines() if line.startswith("  ")}
    assert {"saw", "rule", "since", "ends"} <= links
    page = desk.type("muster status --host NODE", code=2, NODE="sim-1")
    assert page.startswith("sim-1  FAIL ")
    assert re.search(rf"^ *taints +{FAULTY}=true:NoSchedule\n *fault +dmesg {GPU} Xid79, .*reboot", page, re.MULTILINE)

    assert desk.type("muster clear NODE", NODE="sim-1").startswith(f"sim-1: dmesg {GPU} ")
    desk.box.until(lambda: not desk.box.taints("sim-1"), "the taint goes")
    desk.box.until(lambda: "TaintPutBack" not in desk.box.events("sim-1") and not desk.box.findings("sim-1"), "cleared")
    told = desk.type("muster explain NODE", NODE="sim-1")
    assert told.startswith("sim-1 FREE ")
    assert f"who      {ADMIN} (person)" in told
    desk.inject("sim-1", "an ordinary line")
    desk.tainted("sim-2")  # which came later
    assert not desk.box.taints("sim-1")
    desk.tainted("sim-1")
    desk.type("muster clear node-1", node_1="sim-1")
    desk.box.until(lambda: not desk.box.taints("sim-1"), "free again")


@covers("muster doctor --canary NODE")
def test_a_canary_arrives_and_taints_nothing(desk: SandboxTerminal) -> None:
    told = desk.type("muster doctor --canary NODE", NODE="sim-5")
    assert f"{FAULTY}=true:NoSchedule" in told
    assert desk.box.taints("sim-5") == []


@covers("muster clear NODE CHECK")
def test_a_check_that_is_cleared_leaves_the_faults_of_others(desk: SandboxTerminal) -> None:
    lay_out(desk.box.folder / "sim-3", UNCORRECTED)
    desk.box.muster("run", "--url", desk.agent, "--check", "memory", "--host", "sim-3")
    desk.tainted("sim-3")
    dimm, line = ("memory", "dimm/mc0/dimm0"), ("dmesg", GPU)
    desk.box.until(lambda: sorted(desk.faults("sim-3")) == [line, dimm], "two faults")
    assert "memory" in desk.type("muster clear NODE CHECK", NODE="sim-3", CHECK="memory")
    desk.box.until(lambda: desk.faults("sim-3") == [line], "that of the kernel log stays")
    assert desk.box.taints("sim-3") == [FAULTY]
    said = desk.type("muster clear NODE CHECK", NODE="sim-3", CHECK="gpumem")
    assert re.search(rf"sim-3: .*gpumem.* dmesg {GPU}", said), "what else there is to clear"
    desk.type("muster clear NODE CHECK", NODE="sim-3", CHECK="dmesg")
    desk.box.until(lambda: not desk.box.taints("sim-3") and not desk.faults("sim-3"), "free")
    shutil.rmtree(desk.box.folder / "sim-3/sys")


@covers("muster clear NODE ipu")
def test_an_ipu_that_somebody_has_looked_at_is_used_again(desk: SandboxTerminal, tmp_path: Path) -> None:
    with desk.ninth("poplar"), contextlib.closing(IpuHost(tmp_path, "poplar", desk.box.kubeconfig)) as host:
        host.start()
        host.says("ipu-2", BAD)
        url = f"http://127.0.0.1:{host.port}"
        asked = desk.box.muster("run", "--url", url, "--check", "ipu", "--host", "poplar")
        assert asked.returncode == 2, asked.stdout + asked.stderr
        path = f"{MAPS}/muster-ipu-quarantine"

        def quarantined() -> list[str]:
            data: dict[str, str] = desk.box.admin.get(path).get("data", {}) if desk.box.admin.exists(path) else {}
            return [json.loads(each)["ipu"] for each in data.values()]

        desk.box.until(lambda: quarantined() == [component(2)], "that IPU is kept out of use")
        assert not desk.box.taints("poplar"), "its host is left alone"
        desk.type("muster clear NODE ipu", NODE="poplar")
        desk.box.until(lambda: quarantined() == [], "it is used again")


@covers("muster pause --reason switch maintenance", "muster resume", "muster explain NODE")
def test_while_paused_nothing_new_is_tainted_and_recovery_goes_on(desk: SandboxTerminal) -> None:
    desk.tainted("sim-1")
    pause = "muster pause --reason switch maintenance"
    said = desk.type(pause).splitlines()[0]
    assert re.search(rf"{ADMIN} .*\dZ: switch maintenance$", said)
    metrics = f"{desk.page}/metrics"
    desk.box.until(lambda: "muster_tainter_paused 1.0" in http_request(metrics), "the tainter knows")
    desk.inject("sim-2")

    def condition() -> str:
        found = [
            each for each in desk.box.node("sim-2")["status"]["conditions"] if each["type"] == "muster.dev/Healthy"
        ]
        return str(found[0]["message"]) if found else ""

    desk.box.until(lambda: said in condition(), "the Node says why it is not tainted")
    told = desk.type("muster explain NODE", code=2, NODE="sim-2").splitlines()
    assert told[0].startswith(f"PAUSED{said.removeprefix('paused')}")
    assert told[1].startswith("sim-2 WITHHELD ")
    assert said in told[1]
    assert desk.box.muster("sandbox", "reboot", "sim-1").returncode == 0
    desk.box.until(lambda: not desk.box.taints("sim-1"), "recovery goes on")
    assert said in desk.type(pause)
    assert not desk.box.taints("sim-2")

    assert said in desk.type("muster resume")
    desk.box.until(lambda: desk.box.taints("sim-2") == [FAULTY], "what is still open is tainted then")
    assert "muster_tainter_paused 0.0" in http_request(metrics)


@covers("muster pause", "muster release --all", "muster resume")
def test_the_whole_fleet_is_given_back_and_nothing_comes_back(desk: SandboxTerminal) -> None:
    desk.tainted("sim-4")
    desk.tainted("sim-5")
    assert ADMIN in desk.type("muster pause")
    desk.inject("sim-6")
    desk.box.until(lambda: bool(desk.faults("sim-6")), "withheld")
    assert "--yes" in desk.type("muster release --all", code=64)
    desk.type("muster release --all", code=1, answer="n")
    assert len(desk.box.taints("sim-4") + desk.box.taints("sim-5")) == 2
    said = desk.type("muster release --all", answer="y")
    for node, carried in (("sim-4", FAULTY), ("sim-5", FAULTY), ("sim-6", "-")):
        assert re.search(rf"^{node} +{carried}\S* +\d+ +released$", said, re.MULTILINE), said
    assert not [node for node in desk.box.admin.get(NODES)["items"] if node["spec"].get("taints")]
    desk.type("muster resume")
    desk.tainted("sim-4")  # fires anew; the tainter has looked at all of them since
    assert not desk.box.taints("sim-5")
    assert not desk.box.taints("sim-6")


@covers("kubectl label node NODE muster.dev/managed=false")
def test_a_node_that_is_not_managed_is_left_alone(desk: SandboxTerminal) -> None:
    desk.tainted("sim-1")
    assert "labeled" in desk.type("kubectl label node NODE muster.dev/managed=false", NODE="sim-1")

    def of_muster() -> list[str]:
        node = desk.box.node("sim-1")
        noted = {**node["metadata"]["labels"], **node["metadata"].get("annotations", {})}
        conditions = [each["type"] for each in node["status"]["conditions"]]
        return [each for each in (*desk.box.taints("sim-1"), *noted, *conditions) if each.startswith("muster.dev/")]

    desk.box.until(lambda: of_muster() == ["muster.dev/managed"], "everything of Muster is off")
    desk.inject("sim-1", XID_79.replace(": 79,", ": 95,"))
    desk.box.until(lambda: "Xid95" in desk.box.findings("sim-1"), "its agent says that more has failed")
    desk.tainted("sim-2")  # the tainter has seen what came before
    assert of_muster() == ["muster.dev/managed"]
    desk.box.kubectl("label", "node", "sim-1", "muster.dev/managed-")
    desk.box.until(lambda: desk.box.taints("sim-1") == [FAULTY], "managed again")


@covers("kubectl taint node NODE muster.dev/faulty-")
def test_a_taint_that_a_person_takes_off_stays_off_until_it_fires_anew(desk: SandboxTerminal) -> None:
    desk.tainted("sim-3")
    assert "untainted" in desk.type("kubectl taint node NODE muster.dev/faulty-", NODE="sim-3")
    desk.box.until(lambda: not desk.faults("sim-3"), "it counts as a person's word")
    assert "(person)" in desk.box.muster("explain", "sim-3").stdout
    desk.box.until(lambda: not desk.box.findings("sim-3"), "its agent has let go of it")
    desk.tainted("sim-4")
    assert not desk.box.taints("sim-3")
    desk.tainted("sim-3")


@covers("kubectl cordon NODE", "muster run")
def test_a_node_of_which_nothing_is_known_is_cordoned_and_looked_at(desk: SandboxTerminal) -> None:
    assert desk.box.muster("explain", "sim-7").stdout.startswith("sim-7 FREE")
    desk.type("kubectl cordon NODE", NODE="sim-7")
    assert desk.box.node("sim-7")["spec"]["unschedulable"] is True
    rows = desk.type("muster run", "--url", desk.agent, "--host", "sim-7", code=1).splitlines()
    heads = {row.split()[0] for row in rows if re.match(r"\S+ +(PASS|WARN|FAIL|UNKNOWN) ", row)}
    assert heads <= {"sim-7"}, rows
    assert any(re.match(r"sim-7 +WARN +clock ", row) for row in rows), "this machine's clock is what a simulated has"
    desk.box.kubectl("uncordon", "sim-7")


@covers(
    "muster run --url http://127.0.0.1:PORT --check dmesg",
    "muster run --check ipulink",
    "muster run NODE --check gpucount,gpumem,pciebw",
)
def test_the_whole_fleet_is_asked_of_one_agent(desk: SandboxTerminal) -> None:
    line = "muster run --url http://127.0.0.1:PORT --check dmesg"
    desk.tainted("sim-2")
    said = desk.type(line, code=2).splitlines()
    first = next(number for number, row in enumerate(said) if row.startswith("NODE ")) + 1
    assert re.match(rf"sim-2 +FAIL +dmesg +{GPU} Xid79", said[first]), "worst first; the exit code is its verdict"
    assert any(row.startswith("8 nodes: ") and "1 FAIL" in row for row in said)
    said = desk.type("muster run --check ipulink", "--url", desk.agent).splitlines()
    assert [row for row in said if "8 nodes: 8 SKIP" in row], "no IPU is here"
    said = desk.type("muster run NODE --check gpucount,gpumem,pciebw", "--url", desk.agent, NODE="sim-2").splitlines()
    assert [row for row in said if "1 node: 1 SKIP" in row], "no GPU is here"


@covers(REQUEST)
def test_a_request_in_a_nodehealth_is_answered_there(desk: SandboxTerminal) -> None:
    assert desk.type(REQUEST, NODE="sim-6") == "nodehealth.muster.dev/sim-6 patched\n"

    def answers() -> list[dict[str, Any]]:
        return [each for each in desk.box.status("sim-6").get("answers", []) if each["id"] == "ann-1"]

    desk.box.until(lambda: bool(answers()), "an answer")
    (answer,) = answers()
    assert (answer["verdict"], answer["reason"]) == ("SKIP", "NoDevice"), answer
    desk.box.kubectl("patch", "nodehealth", "sim-6", "--type=merge", "-p", '{"spec":{"requests":null}}')
    desk.box.until(lambda: not answers(), "it goes with the request")


@covers("curl 127.0.0.1:PORT/status?check=dmesg,disk")
def test_curl_asks_the_whole_fleet(desk: SandboxTerminal) -> None:
    nodes = {node["metadata"]["name"] for node in desk.box.admin.get(NODES)["items"]}

    def asked() -> set[str]:
        answer = http_request(f"{desk.agent}/status?check=dmesg,disk&format=json")
        return {each["node"] for each in json.loads(answer)["nodes"]}

    desk.box.until(lambda: asked() == nodes, "a node of an earlier test is asked until its endpoint is gone")
    line = "curl 127.0.0.1:PORT/status?check=dmesg,disk"
    text = desk.type(line)
    assert set(re.findall(r"^.* of host (\S+) ", text, re.MULTILINE)) == nodes
    assert text.count("[[ DMESG ]] Briefings completed.") == text.count("[[ DISK ]] Briefings completed.") == len(nodes)
    answer = http_request(f"{desk.agent}/status?check=dmesg,disk&format=json")
    assert {each["node"] for each in json.loads(answer)["nodes"]} == nodes


@covers("muster policy check FILE", "muster policy check my-policy.yaml", "muster policy check policy.yaml")
def test_a_policy_is_told_as_what_it_makes_of_every_finding(desk: SandboxTerminal) -> None:
    said = desk.type("muster policy check my-policy.yaml")
    assert re.search(r"^FAIL +reboot +gpus +taint +dmesg: .*\bXid79\b", said, re.MULTILINE)
    assert re.search(r"^gpus \(.*kernel log, .*\): taint muster.dev/faulty=true:NoSchedule$", said, re.MULTILINE)
    assert "    closed by " in said
    said = desk.type("muster policy check FILE", FILE="examples/konduktor.yaml", code=0)
    assert re.search(r"^WARN +\S+ +xid +taint +dmesg: .*\bXid31\b", said, re.MULTILINE), said
    assert MISTAKE in desk.type("muster policy check policy.yaml", code=64)


@covers(
    "muster replay my-policy.yaml --log node-7=dmesg.txt",
    "muster replay policy.yaml --log node-1.log node-2.log",
    "kubectl get nodes -o json",
)
def test_a_replay_tells_what_a_policy_would_have_tainted(desk: SandboxTerminal) -> None:
    line = "muster replay my-policy.yaml --log node-7=dmesg.txt"
    (desk.checkout / "dmesg.txt").write_text(KERNEL)
    said = desk.type(line)
    row = r"^2027-01-15 07:00:00 +{} +61m +gpus +dmesg gpu/0000:3b:00.0 Xid79: .* closed .boot.: "
    assert re.search(row.format("node-7"), said, re.MULTILINE), said
    assert re.search(r"1 of 1 .* 1\.02 ", said), said
    assert "selector" in said, "no labels are known"
    (desk.checkout / "nodes.json").write_text(desk.type("kubectl get nodes -o json"))
    said = desk.type(line, "--nodes", "nodes.json")
    assert "1 of 9 " in said
    assert "selector" not in said

    line = "muster replay policy.yaml --log node-1.log node-2.log"
    for name in ("node-1.log", "node-2.log"):
        (desk.checkout / name).write_text(KERNEL)
    assert MISTAKE in desk.type(line, code=64)
    (desk.checkout / "policy.yaml").write_text(POLICY)
    del desk.environment["KUBECONFIG"]
    said = desk.type(line)
    desk.environment["KUBECONFIG"] = str(desk.box.kubeconfig)
    (desk.checkout / "policy.yaml").write_text(MISTAKEN)
    assert all(re.search(row.format(node), said, re.MULTILINE) for node in ("node-1", "node-2")), said
    assert re.search(r"2 of 2 .* 2\.03 .* 2 ", said), said


@covers(
    "kubectl get ipujobs,pods -o wide",
    "kubectl describe ipujob training",
    "kubectl describe ipujob NAME",
    "muster explain ipujob NAME",
    "muster explain ipujob NAMESPACE/NAME",
)
def test_a_job_runs_on_nodes_that_are_not_tainted_and_its_story_is_told(desk: SandboxTerminal) -> None:
    desk.tainted("sim-1")
    desk.box.kubectl("apply", "-f", str(desk.checkout / "examples/ipujob.yaml"))
    shown = desk.shows("kubectl get ipujobs,pods -o wide", r"^ipujob\S+/training +Running +1 +1 ")
    nodes = set(re.findall(r"^pod/training-\S+ .*\b(sim-\d)\b", shown, re.MULTILINE))
    assert len(re.findall(r"^pod/training-", shown, re.MULTILINE)) == 3
    assert nodes
    assert "sim-1" not in nodes
    described = desk.type("kubectl describe ipujob training")
    assert re.search(r"^Status:\n(?s:.*)Conditions:\n(?s:.*)Type: +Running\n", described, re.MULTILINE)
    story = desk.type("muster explain ipujob NAMESPACE/NAME", NAME="training")
    assert story.startswith("default/training RUNNING ")
    steps = [line.split()[1] for line in story.splitlines() if line.startswith("  20")]
    assert steps[:3] == ["submitted", "accepted", "running"]

    (node, *_) = nodes
    desk.tainted(node)
    named = "kubectl describe ipujob NAME"
    condition, event = r"^ +Type: +HealthDegraded$", rf"^ +Warning +HealthDegraded .*{node}: .*dmesg.*{GPU}"
    desk.shows(named, rf"{condition}(?s:.*){event}", NAME="training")
    story = desk.type("muster explain ipujob NAME", code=1, NAME="training")
    assert re.search(rf"^  20\S+ +fault +.*{node}", story, re.MULTILINE), story
    assert re.search(rf"^  {node}: .*FAIL: ", story, re.MULTILINE), story
    desk.box.kubectl("delete", "ipujob", "training", "--timeout=120s")


@covers("kubectl scale ipujob/NAME --replicas 4", "kubectl get ipujobs -A")
def test_a_job_without_launcher_is_scaled_by_instances(desk: SandboxTerminal) -> None:
    (desk.checkout / "serve.yaml").write_text(SERVICE)
    desk.box.kubectl("apply", "-f", str(desk.checkout / "serve.yaml"))
    assert "scaled" in desk.type("kubectl scale ipujob/NAME --replicas 4", NAME="serve")
    assert desk.box.admin.get(f"{JOBS}/serve")["spec"]["jobInstances"] == 4
    desk.shows("kubectl get ipujobs -A", r"^default +serve +Running +4 +4 ")
    pods = desk.box.admin.get("/api/v1/namespaces/default/pods", {"labelSelector": "muster.dev/ipujob=serve"})["items"]
    assert {pod["metadata"]["labels"]["muster.dev/instance"] for pod in pods} == {"0", "1", "2", "3"}
    desk.box.kubectl("delete", "ipujob", "serve", "--timeout=120s")


@covers("kubectl explain ipujob.spec", "kubectl explain ipujob.spec --recursive")
def test_kubectl_explains_every_field_of_a_job(desk: SandboxTerminal) -> None:
    page = (REPOSITORY / "docs/ipujob-fields.md").read_text()
    fields = set(re.findall(r"^\| `spec\.(\S+)` \|", page, re.MULTILINE))
    said = desk.type("kubectl explain ipujob.spec")
    # kubectl before 1.27 indents by three, and later ones list the allowed values first
    told = re.findall(r"^ {2,3}(\w+)\t<.*>.*\n(?: +enum: .*\n)? {4,5}(\S.*)$", said, re.MULTILINE)
    assert {name for name, _ in told} == {field for field in fields if "." not in field}
    place: list[str] = []
    listed = set()
    tree = desk.type("kubectl explain ipujob.spec --recursive").partition("FIELDS:\n")[2]
    lines = re.findall(r"^( +)(\w+)\t<", tree, re.MULTILINE)
    for indent, name in lines:
        place = [*place[: len(indent) // len(lines[0][0]) - 1], name]
        listed.add(".".join(place))
    assert listed == fields


@covers("muster clear", "muster explain", "muster explain ipujob")
def test_without_what_it_is_about_a_command_says_what_is_missing(desk: SandboxTerminal) -> None:
    for line in ("muster clear", "muster explain"):
        assert "NODE" in desk.type(line, code=64)
    assert "ipujob [NAMESPACE/]NAME" in desk.type("muster explain ipujob", code=64)


@covers("muster agent", "muster agent --help")
def test_an_agent_reads_the_kernel_log_answers_and_publishes(desk: SandboxTerminal) -> None:
    page = (REPOSITORY / "docs/agent.md").read_text()
    [keys] = re.findall(r"^\| (.+) \| \| as the flags; see `muster agent --help` \|$", page, re.MULTILINE)
    told = desk.type("muster agent --help")
    assert not [key for key in re.findall(r"`(\w+)`", keys) if f"--{key.replace('_', '-')} " not in told]

    root = desk.checkout / "extra"
    lay_out(root, {"/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "/dev/kmsg": ""})
    settings = {"NODE": "extra", "ROOT": str(root), "KMSG": str(root / "dev/kmsg"), "STATE_DIR": str(root / "state")}
    with desk.ninth("extra"), desk.up("muster agent", settings=settings) as agent:
        assert re.search(r" of host extra ", agent.get("/status?check=dmesg&host=extra"))
        desk.box.until(lambda: "verdict" in desk.box.status("extra"), "it publishes")
        with (root / "dev/kmsg").open("a") as log:
            log.write(f"2,1,1,-;{XID_79}\n")
        desk.box.until(lambda: desk.box.taints("extra") == [FAULTY], "its line taints the node")
        assert "Xid79" in agent.get("/report")
        assert "autopilot_health_checks{" in agent.get("/metrics")


@covers("muster tainter", "muster tainter --policy FILE", "muster tainter --webhook-port N")
def test_a_second_tainter_stands_by_and_serves(desk: SandboxTerminal) -> None:
    settings = {"NAMESPACE": NAMESPACE}
    leads = leadership(desk, "tainter")
    with desk.up("muster tainter", settings=settings) as part:
        desk.box.until(lambda: '"sim-7"' in part.get("/api/nodes"), "it knows the nodes")
        assert "<html" in part.get("/")
        assert part.get("/api/faults").startswith("[")
        assert "muster_tainter_policy_good 1.0" in part.get("/metrics")
    with desk.up("muster tainter --policy FILE", settings=settings, FILE="examples/konduktor.yaml") as part:
        assert "muster_tainter_policy_good 1.0" in part.get("/metrics")
    assert MISTAKE in desk.type("muster tainter --policy FILE", code=64, FILE="policy.yaml")
    with desk.up("muster tainter --webhook-port N", settings=settings) as part:
        url = f"https://{part.address('webhook listening')}{OWN_NODE}"
        own = review(desk, "sim-1")

        def allowed() -> bool:
            try:
                return bool(json.loads(http_request(url, own))["response"]["allowed"])
            except urllib.error.URLError:
                return False

        # it has its certificate before it listens, and a second to look a pod up
        desk.box.until(allowed, "the agent's own write is allowed")
        assert "new certificate" in part.terminal.text
        refused = json.loads(http_request(url, review(desk, "sim-2")))["response"]
        assert not refused["allowed"]
        for name in (pod_name("sim-1"), "sim-1", "sim-2"):
            assert name in refused["status"]["message"]
    leads_on(desk, "tainter", leads)


def leadership(desk: SandboxTerminal, part: str) -> tuple[str, int]:
    """Who holds the part's lease, and how often the sandbox's own process has lost it by its own word."""
    holder = desk.box.admin.get(f"{LEASES}/muster-{part}")["spec"]["holderIdentity"]
    return holder, (desk.box.folder / f"{part}.log").read_text().count("lost the leadership")


def leads_on(desk: SandboxTerminal, part: str, before: tuple[str, int]) -> None:
    """The holder is that of ``before``, unless it was starved for so long that it has lost the lease since."""

    def so() -> bool:
        holder, lost = leadership(desk, part)
        return holder == before[0] or lost > before[1]

    desk.box.until(so, f"the {part} of the sandbox leads on")


def review(desk: SandboxTerminal, node: str) -> dict[str, Any]:
    """What the API server asks when sim-1's agent writes the status of ``node``."""
    pod = desk.box.admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod_name('sim-1')}")["metadata"]
    claims = {f"authentication.kubernetes.io/pod-{claim}": [pod[claim]] for claim in ("name", "uid")}
    user = {"username": f"system:serviceaccount:{NAMESPACE}:{AGENT}", "extra": claims}
    kind = {"group": "muster.dev", "version": "v1alpha1", "resource": "nodehealths"}
    request = {"uid": "u", "resource": kind, "subResource": "status", "name": node, "operation": "UPDATE"}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return body | {"request": request | {"userInfo": user}}


FOR_PROXY = "kubectl create token ACCOUNT -n NAMESPACE --audience=muster-vipu-proxy"


@covers("muster operator", "muster operator --vipu-proxy URL --proxy-token FILE", FOR_PROXY)
def test_a_second_operator_stands_by(desk: SandboxTerminal) -> None:
    settings = {"NAMESPACE": NAMESPACE, "METRICS_PORT": "0", "WEBHOOK_PORT": "0"}
    proxy = "http://127.0.0.1:1"
    leads = leadership(desk, "operator")
    assert "--vipu-proxy is required" in desk.type("muster operator", code=64)
    token = desk.checkout / "token"
    made = desk.type_if_known(FOR_PROXY, "--audience", ACCOUNT="muster-operator", NAMESPACE=NAMESPACE)
    token.write_text(made if made is not None else requested_token(desk, "muster-operator", "muster-vipu-proxy"))
    with desk.up("muster operator", settings=settings | {"VIPU_PROXY": proxy, "PROXY_TOKEN": str(token)}) as part:
        desk.box.until(lambda: ready(part), "it is ready")
    line = "muster operator --vipu-proxy URL --proxy-token FILE"
    with desk.up(line, settings=settings, URL=proxy, FILE=str(token)) as part:
        desk.box.until(lambda: ready(part), "it is ready")
        assert part.get("/healthz")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            http_request(f"https://{part.address('metrics')}/metrics")
        assert part.address("webhooks")
    leads_on(desk, "operator", leads)


@covers("kubectl get nodes -L muster.dev/role", "kubectl label node NODE muster.dev/spare=true")
def test_a_person_names_a_spare(desk: SandboxTerminal) -> None:
    desk.type("kubectl label node NODE muster.dev/spare=true", NODE="sim-4")
    assert desk.box.admin.get(f"{NODES}/sim-4")["metadata"]["labels"]["muster.dev/spare"] == "true"
    # the built-in policy keeps no spares, so the node has no role
    row = next(line for line in desk.type("kubectl get nodes -L muster.dev/role").splitlines() if "sim-4" in line)
    assert not row.endswith("spare")
    desk.box.admin.patch(f"{NODES}/sim-4", {"metadata": {"labels": {"muster.dev/spare": None}}})


def requested_token(desk: SandboxTerminal, account: str, audience: str) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience]}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return str(desk.box.admin.create(path, body)["status"]["token"])


def ready(part: StartedPart, path: str = "/readyz") -> bool:
    try:
        return bool(part.get(path))
    except urllib.error.HTTPError:
        return False


@covers(
    "muster vipu-sim --ipus 64 --state DIR", "muster vipu-sim", "muster vipu-proxy --backend vipu", "muster vipu-proxy"
)
def test_a_proxy_tells_what_room_a_v_ipu_controller_has(desk: SandboxTerminal) -> None:
    tools = desk.checkout / "tools"
    tools.mkdir()
    (tools / "vipu").symlink_to(Path(sys.executable).with_name("muster-sim-vipu"))
    own = {"NAMESPACE": "default", "TRACKER": "of-a-person", "PATH": f"{tools}:{desk.environment['PATH']}"}
    with desk.up("muster vipu-sim --ipus 64 --state DIR", settings={}) as simulator:
        own["CONTROLLERS"] = f"{simulator.address()}:ipunode=sandbox"
        with desk.up("muster vipu-proxy --backend vipu", settings=own) as proxy:
            desk.box.until(lambda: ready(proxy, "/health"), "it knows its partitions")
            assert json.loads(proxy.get("/stats"))["total"] == {"used": 0, "available": 64}
    with desk.up("muster vipu-sim", settings={"STATE": "vipu"}) as simulator:
        own["CONTROLLERS"] = f"{simulator.address()}:ipunode=sandbox"
        with desk.up("muster vipu-proxy", settings=own) as proxy:
            desk.box.until(lambda: ready(proxy, "/health"), "it knows its partitions")
            assert json.loads(proxy.get("/stats"))["total"] == {"used": 0, "available": 64}


@covers(KONDUKTOR, "muster clear NODE agent")
def test_any_xid_taints_by_konduktors_policy_and_a_silent_agent_by_another(
    binaries: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    key = "trainy.konduktor.ai/faulty"
    with (
        SandboxTerminal(KONDUKTOR, tmp_path / "muster", binaries) as beside,
        beside.at(request.node.originalname) as desk,
    ):
        for node, line in {
            "sim-1": "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            "sim-2": "NVRM: Xid (PCI:0000:3b:00): 31, pid=99, name=train.py, MMU Fault",
            "sim-3": "nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 12028, Non-fatal, Link 32 egress non-posted error",
        }.items():
            desk.inject(node, line)
        for node in ("sim-1", "sim-2", "sim-3"):
            desk.box.until(lambda node=node: desk.box.taints(node) == [key], f"{node} is tainted")
        (taint,) = desk.box.node("sim-1")["spec"]["taints"]
        assert (taint["value"], taint["effect"]) == ("true", "NoSchedule")
        told = desk.box.muster("explain", "sim-1").stdout
        assert f"xid: WARN -> taint {key}=true:NoSchedule" in told, "explained by the same policy"

        policy = desk.checkout / "examples/konduktor.yaml"
        another = policy.with_suffix(".new")
        another.write_text(
            policy.read_text().replace("deadMan: {action: ignore}", "deadMan: {grace: 1s, action: taint}")
        )
        another.rename(policy)
        agent = int((desk.box.folder / "sim-4/agent.pid").read_text())
        os.kill(agent, signal.SIGSTOP)
        try:
            desk.box.until(lambda: desk.box.taints("sim-4") == [UNKNOWN], "its agent is silent")
            desk.type("muster clear NODE agent", NODE="sim-4")
            desk.box.until(lambda: not desk.box.taints("sim-4"), "released for this silence")
            desk.inject("sim-5", "NVRM: Xid (0000:03:00): 14, Channel 00000001")
            desk.box.until(lambda: desk.box.taints("sim-5") == [key], "the tainter has looked since")
            assert not desk.box.taints("sim-4")
            assert desk.box.node("sim-4")["metadata"]["labels"]["muster.dev/health"] == "unknown"
        finally:
            os.kill(agent, signal.SIGCONT)
