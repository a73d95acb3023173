"""docs/coming-from.md on a real node: what the pages of the three founding systems have people type does here what it
promises there. The real helm, kubelet, API server and containers; IPUs are simulated.
"""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm_render import CHART, PROGRAM, SHA256, checked
from tests.chart.test_seeds import AUTOPILOT as YOUR_CONFIG
from tests.cluster.chart.real_node_images import MPI
from tests.cluster.chart.real_node_jobs import LIMIT_S, printed_by, ranks, training_job, until
from tests.cluster.chart.test_chart_on_node import IMAGE, IMPORT, VALUES, WITHOUT_REGISTRY, import_image
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT, commands

from muster_sandbox.controlplane.install import install
from muster_sandbox.realnode.containers import ADDRESS
from muster_sandbox.realnode.node import RealNode

pytestmark = pytest.mark.kmsg
PAGE = ROOT / "docs" / "coming-from.md"
AUTOPILOT, KONDUKTOR, IPU_OPERATOR = "## From IBM Autopilot", "## From Konduktor", "## From Graphcore"
SAMPLES = ROOT / "tests/operator/samples"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
IPUJOBS = "/apis/graphcore.ai/v1alpha1/ipujobs"
V_IPU_PORT = 8090
FAULTY = "trainy.konduktor.ai/faulty"
HERE = ("-f", "here.yml", "--set", WITHOUT_REGISTRY)  # what a machine without a registry needs
XID_14 = "NVRM: Xid (0000:03:00): 14, Channel 00000001\n"  # as the Konduktor page writes it


def section(title: str) -> set[str]:
    """The commands that stand below the heading which begins so, but for those of make, which other tests type."""
    below = PAGE.read_text().splitlines()
    for number, line in enumerate(below[1:], 1):
        below[number] = line if line.startswith("## ") else below[number - 1]
    found = {" ".join(each.words): int(each.where.rpartition(":")[2]) for each in commands(PAGE)}
    return {line for line, at in found.items() if below[at - 1].startswith(title) and not line.startswith("make ")}


class Desk:
    """Where lines are typed: a folder with the files that they name, on the machine's network, by an administrator."""

    def __init__(self, node: RealNode, folder: Path) -> None:
        self.node, self.folder = node, folder
        self._within = node.machine.on_its_network
        self._environ = {
            "KUBECONFIG": str(node.plane.kubeconfig),
            "HOME": str(folder),
            "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
            "KUBE_EDITOR": "sed -i s/pod2:8090/pod3:8090/",
        }
        # a label says pod1 as well, and so does what it is compared with
        registry = IMAGE.rpartition("/")[0]
        names = {
            "NODE": node.name, "NAMESPACE": "default", "RELEASE": "autopilot", "REGISTRY": registry, "pod1": ADDRESS,
        }  # fmt: skip
        lines = section(AUTOPILOT) | section(KONDUKTOR) | section(IPU_OPERATOR)
        self.typist = CommandRunner(lines, names, self._environ, folder)

    def type(self, line: str, *more: str) -> str:
        """What it prints. more: words that this machine needs after those of the line."""
        return self.typist.type(line, *more, within=self._within)

    @contextlib.contextmanager
    def typing(self, line: str, terminal: int = subprocess.DEVNULL) -> Iterator["subprocess.Popen[str]"]:
        """While it goes on running. terminal: that it is typed at."""
        words = [*self._within, *self.typist.words(line)]
        self.typist.left.discard(line)
        environ = os.environ | self._environ
        with subprocess.Popen(
            words, cwd=self.folder, env=environ, stdin=terminal, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    def uninstall(self, release: str) -> None:
        """Whether it is there or not."""
        words = [*self._within, str(PROGRAM), "uninstall", release, "--no-hooks"]
        environ = os.environ | self._environ
        subprocess.run(words, env=environ, capture_output=True, timeout=LIMIT_S, check=False)

    def ready(self, namespace: str, *begins: str) -> bool:
        """Whether every pod of these names is there and its one container ready. Asks the API: this is asked again and
        again, and each kubectl is a process."""
        pods = self.node.plane.admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        ready = [each["metadata"]["name"] for each in pods if _is_ready(each)]
        return all(any(name.startswith(begin) for name in ready) for begin in begins)

    def state(self) -> str:
        """For a test that failed."""
        told = self.node.kubectl("get", "pods,ipujobs", "--all-namespaces", "-o", "wide").stdout
        for namespace in ("default", "autopilot"):
            told += self.node.kubectl("describe", "pods", "-n", namespace).stdout
            told += self.node.kubectl("logs", "-n", namespace, "-l", "app", "--prefix", "--tail=40").stdout
        return f"{told}\n{self.node.log()}"


def _is_ready(pod: dict[str, Any]) -> bool:
    """What kubectl prints as 1/1 and Running."""
    status, leaves = pod["status"], "deletionTimestamp" in pod["metadata"]
    containers = [each["ready"] for each in status.get("containerStatuses", [])]
    return (status["phase"], containers, leaves) == ("Running", [True], False)


@pytest.fixture(scope="module")
def desk(real_node: RealNode, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    assert checked() == SHA256
    importing = CommandRunner({IMPORT}, {}, {"CONTAINERD_ADDRESS": str(real_node.machine.socket)})
    import_image(real_node, image_archive, tmp_path_factory.mktemp("package"), importing)
    admin = real_node.plane.admin
    for kind in ("clusterroles", "clusterrolebindings"):
        # the test bed's own have the chart's names; helm takes over nothing that is not its own
        for each in admin.get(f"{RBAC}/{kind}")["items"]:
            if (name := each["metadata"]["name"]).startswith("muster-"):
                admin.delete(f"{RBAC}/{kind}/{name}")
    # a node on which nothing of ours has been
    forgetting = [*real_node.machine.inside, "sh", "-c", "rm -rf /var/lib/muster/*"]
    subprocess.run(forgetting, check=True, timeout=LIMIT_S)
    real_node.kubectl("label", "node", real_node.name, "ipunode-")
    folder = tmp_path_factory.mktemp("desk")
    (folder / "helm").symlink_to(CHART.parent)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "your-config.yml").write_text(YOUR_CONFIG)
    repository, _, tag = IMAGE.rpartition(":")
    secret = {"imagePullSecretData": "e30="}
    here = {"image": {"repository": repository, "tag": tag}, "pullSecrets": secret}
    (folder / "here.yml").write_text(yaml.safe_dump(VALUES | here))
    made = Desk(real_node, folder)
    try:
        yield made
    finally:
        for name in ("autopilot", "gc"):  # the tests have done it
            made.uninstall(name)
        until(lambda: not admin.exists("/api/v1/namespaces/autopilot"), made.state)
        install(admin)


@pytest.fixture(scope="module")
def v_ipu(desk: Desk) -> Iterator[None]:
    """A simulated controller where the lines look for pod1."""
    words = [*desk.node.machine.on_its_network, sys.executable, "-m", "muster_cli", "vipu-sim", "--ipus", "16"]
    place = ["--host", ADDRESS, "--port", str(V_IPU_PORT), "--state", str(desk.folder / "v-ipu")]
    with subprocess.Popen([*words, *place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as simulator:
        try:
            yield
        finally:
            simulator.terminate()


def test_no_line_is_left_to_others() -> None:
    assert commands_of_test(__file__) <= section(AUTOPILOT) | section(KONDUKTOR) | section(IPU_OPERATOR)


def test_autopilots_lines(desk: Desk) -> None:
    desk.type("helm upgrade autopilot helm/muster --install --namespace=default -f your-config.yml", *HERE)
    until(lambda: desk.ready("autopilot", "autopilot-daemon-autopilot-", "muster-tainter-"), desk.state)
    printed = desk.type("kubectl get po -n autopilot")
    assert re.search(r"^NAME +READY +STATUS +RESTARTS +AGE\n", printed)
    assert re.search(r"^autopilot-daemon-autopilot-\w{5} +1/1 +Running ", printed, re.MULTILINE)
    with desk.typing("kubectl port-forward service/autopilot-healthchecks 3333:3333 -n autopilot") as forward:
        assert forward.stdout
        assert forward.stdout.readline() == "Forwarding from 127.0.0.1:3333 -> 3333\n", desk.state()
        said = desk.type("curl http://127.0.0.1:3333/status?check=pciebw")
    assert re.search(rf"^Node: {desk.node.name}\nurl\(s\): http://\S+:3333/status\?", said, re.MULTILINE), said
    assert "[[ PCIEBW ]]" in said
    assert "Node Summary:" in said


def test_konduktors_lines(desk: Desk) -> None:
    """On the release that the lines of Autopilot have installed: both systems at once."""
    desk.type(
        "helm upgrade RELEASE helm/muster --install --set image.repository=REGISTRY/muster --set tainter.dryRun=true"
        " --set controller.enabled=false,vipuProxy.enabled=false --set-file tainter.policy=examples/konduktor.yaml",
        *HERE,
    )
    admin = desk.node.plane.admin
    settings = "/api/v1/namespaces/autopilot/configmaps/muster-tainter"
    assert "dry_run: true" in admin.get(settings)["data"]["tainter.yaml"]
    desk.type("helm upgrade RELEASE helm/muster --reset-then-reuse-values --set tainter.dryRun=false")
    assert "dry_run: false" in admin.get(settings)["data"]["tainter.yaml"]
    policy = admin.get("/api/v1/namespaces/autopilot/configmaps/muster-policy")["data"]["policy.yaml"]
    assert yaml.safe_load(policy) == yaml.safe_load((ROOT / "examples/konduktor.yaml").read_text())
    for each in ("daemonset/autopilot-daemon-autopilot", "deployment/muster-tainter"):
        rolled = desk.node.kubectl(
            "rollout", "status", "-n", "autopilot", each, f"--timeout={LIMIT_S:g}s", timeout_s=LIMIT_S
        )
        assert rolled.returncode == 0, desk.state()
    _until_none_ends(desk, "app=muster-tainter")
    with desk.typing("kubectl logs -f -l app=muster-tainter -n autopilot") as log:
        assert log.stdout
        with Path("/dev/kmsg").open("wb", buffering=0) as kernel:
            kernel.write(XID_14.encode())
        followed = _until_line(log, rf"Node {desk.node.name} tainted: .*\n", desk)
    assert "dmesg gpu/0000:03:00.0 Xid14: " in followed
    described = desk.type("kubectl describe node NODE")
    assert re.search(rf"^Taints: +{FAULTY}=true:NoSchedule$", described, re.MULTILINE), described
    desk.type(f"kubectl taint node NODE {FAULTY}:NoSchedule-")
    assert re.search(r"^Taints: +<none>$", desk.type("kubectl describe node NODE"), re.MULTILINE)
    desk.type("helm uninstall autopilot -n default")
    until(lambda: not admin.exists("/api/v1/namespaces/autopilot"), desk.state)
    assert not desk.typist.left & (section(AUTOPILOT) | section(KONDUKTOR))


def _until_none_ends(desk: Desk, selector: str) -> None:
    """`kubectl logs -f` ends with the first of the pods that it follows."""
    ends = time.monotonic() + LIMIT_S
    while "Terminating" in desk.node.kubectl("get", "pods", "-n", "autopilot", "-l", selector).stdout:
        assert time.monotonic() < ends, desk.state()
        time.sleep(1.0)


def _until_line(process: "subprocess.Popen[str]", pattern: str, desk: Desk) -> str:
    """What it printed, until a line matches."""
    assert process.stdout
    printed = ""
    ends = time.monotonic() + LIMIT_S
    while not re.search(pattern, printed):
        ready, _, _ = select.select([process.stdout], [], [], max(ends - time.monotonic(), 0))
        piece = os.read(process.stdout.fileno(), 1 << 16).decode() if ready else ""
        assert piece, f"never {pattern!r}, but:\n{printed}\n{desk.state()}"
        printed += piece
    return printed


def job(sample: str, image: str = MPI) -> dict[str, Any]:
    """The sample's, of an image that is here."""
    body: dict[str, Any] = yaml.safe_load((SAMPLES / sample).read_text())
    body["spec"]["workers"]["template"]["spec"]["containers"][0] |= {"image": image, "imagePullPolicy": "Never"}
    return body


def test_the_ipu_operators_lines(desk: Desk, v_ipu: None) -> None:
    for name, body in (
        ("single-gcd-sample.yaml", training_job("default", workers=1)),
        ("interactive-job.yaml", job("ipujob_interactive.yaml")),
        ("inference.yaml", job("ipujob_inference.yaml")),
    ):
        (desk.folder / name).write_text(yaml.safe_dump(body))
    crd = desk.type("kubectl apply -f helm/muster/crds/graphcore.ai_ipujobs.yaml")
    assert crd.startswith("customresourcedefinition.apiextensions.k8s.io/ipujobs.graphcore.ai ")
    line = "helm install gc helm/muster --set global.vipuControllers="
    desk.type(line + r"pod1:8090:ipunode=pod1\,pod2:8090:ipunode=pod2", *HERE)
    desk.type("kubectl label nodes NODE ipunode=pod1")
    parts = ("gc-ipu-operator-controller-manager-", "gc-ipu-operator-vipu-proxy-")
    until(lambda: desk.ready("default", *parts) and desk.ready("autopilot", "muster-tainter-"), desk.state)
    assert re.search(r"^ipujobs\.graphcore\.ai +\d{4}-", desk.type("kubectl get crd"), re.MULTILINE)
    assert re.search(r"^gc\s+default\s+1\s.*\bdeployed\b", desk.type("helm ls -n NAMESPACE"), re.MULTILINE)
    printed = desk.type("kubectl get pods -n NAMESPACE")
    assert all(re.search(rf"^{part}\S+ +1/1 +Running ", printed, re.MULTILINE) for part in parts), printed
    edited = desk.type("kubectl edit configmap gc-ipu-operator-vipu-controllers")
    assert edited == "configmap/gc-ipu-operator-vipu-controllers edited\n"

    created = desk.type("kubectl apply -f single-gcd-sample.yaml")
    assert created == "ipujob.graphcore.ai/ipujob-sample created\n"
    until(lambda: _status(desk, "ipujob-sample") in ("Completed", "Failed"), desk.state)
    printed = desk.type("kubectl logs ipujob-sample-launcher -n NAMESPACE")
    assert ranks(printed) == printed_by(1), desk.state()
    assert re.search(r"^ipujob-sample-launcher +0/1 +Completed ", desk.type("kubectl get pods"), re.MULTILINE)
    listed = desk.type("kubectl get ipujobs.graphcore.ai")
    assert re.search(r"^NAME +STATUS +CURRENT +DESIRED +LASTMESSAGE +AGE\nipujob-sample +Completed +0 +1 ", listed), (
        listed
    )
    described = desk.type("kubectl describe ipujobs.graphcore.ai ipujob-sample")
    assert "IPUJobPending" in described
    assert re.search(r"Launcher Status: +Completed", described), described

    assert "created" in desk.type("kubectl apply -f interactive-job.yaml")
    until(lambda: desk.ready("default", "interactive-sample-job-launcher"), desk.state)
    _run_at_a_terminal(desk, "kubectl exec -it interactive-sample-job-launcher -- bash")

    assert "created" in desk.type("kubectl apply -f inference.yaml")
    until(lambda: _status(desk, "job-inference-1") == "Running", desk.state)
    scaled = desk.type("kubectl scale ipujob.graphcore.ai/job-inference-1 --replicas 2")
    assert scaled == "ipujob.graphcore.ai/job-inference-1 scaled\n"
    until(lambda: desk.ready("default", "job-inference-1-worker-0", "job-inference-1-worker-1"), desk.state)
    row = r"^ipujob\.graphcore\.ai/job-inference-1 +Running +2 +2 +Successfully reconciled IPUJob "
    until(lambda: re.search(row, desk.type("kubectl get pods,ipujobs"), re.MULTILINE), desk.state)
    assert "gc-metrics-reader" in desk.type("kubectl get clusterrole -l component=metrics-reader")

    desk.node.kubectl("delete", "ipujobs", "--all", "--wait=false")
    desk.node.kubectl("delete", "pods", "-l", "muster.dev/ipujob", "--grace-period=1", timeout_s=LIMIT_S)
    until(lambda: not desk.node.plane.admin.get(IPUJOBS)["items"], desk.state)
    desk.type("helm uninstall gc")
    assert desk.type("kubectl delete configmap ipu-partitions-tracker -n NAMESPACE") == (
        'configmap "ipu-partitions-tracker" deleted\n'
    )
    assert not desk.typist.left & section(IPU_OPERATOR)


def _status(desk: Desk, name: str) -> str:
    job = desk.node.plane.admin.get(f"/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs/{name}")
    return str(job.get("status", {}).get("launcherStatus", ""))


def _run_at_a_terminal(desk: Desk, line: str) -> None:
    """An MPI program, typed in the launcher: it runs in its worker."""
    ours, theirs = pty.openpty()
    try:
        with desk.typing(line, theirs) as shell:
            command = "mpirun --allow-run-as-root -np 1 sh -c 'echo ran with GCD $IPUOF_VIPU_API_GCD_ID'; exit"
            os.write(ours, f"{command}\n".encode())
            _until_line(shell, r"(?m)^ran with GCD 0\r?$", desk)
    finally:
        os.close(ours)
        os.close(theirs)
