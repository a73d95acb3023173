"""The chart on a real node: the real helm installs it, and its pods run there, of Muster's own image, with the rights
that the chart gives them and no other. The agent reads this machine's /dev/kmsg.
"""

import contextlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.chart.charting import CHART, SHA256, Helm, Object, Refused, checked
from tests.cluster.real_node_jobs import LIMIT_S, until
from tests.docs.blocks import commands
from tests.docs.stages import allotted
from tests.docs.typist import Typist

from muster_testbed import product
from muster_testbed.admin import Refused as Denied
from muster_testbed.install import install
from muster_testbed.realnode import RealNode

pytestmark = pytest.mark.kmsg
FAULTY = "muster.dev/faulty"
IMAGE = f"localhost:5000/muster:{product.version()}"
AUTOPILOT = "autopilot"
IPUJOBS = "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PODS = {"muster-agent": 1, "muster-tainter": 2, "muster-operator": 1, "muster-vipu-proxy": 1}
IPU_PARTS = ("controller-manager", "vipu-proxy")
VALUES = {
    # other tests write to this machine's log, too: what is from before is not of interest
    "checks": {"dmesg": {"parameters": {"start": "now"}}},
    "vipuProxy": {"backend": "sim", "image": {"pullPolicy": "IfNotPresent"}},
    "controller": {"image": {"pullPolicy": "IfNotPresent"}},
}


@dataclass(frozen=True)
class Release:
    node: RealNode
    helm: Helm

    def install(self) -> None:
        """Returns once every pod that it made is ready."""
        self.helm.run("install", "gc", str(CHART), "--namespace", "default", "-f", "-", stdin=json.dumps(VALUES))
        until(lambda: all(self.ready(app) == count for app, count in PODS.items()), self.state)

    def upgrade(self, values: Object) -> None:
        """With ``values`` over those of the installation. Returns once a new agent is ready."""
        before = [pod["metadata"]["uid"] for pod in self.pods("muster-agent")]
        words = ("upgrade", "gc", str(CHART), "--namespace", "default", "--reset-then-reuse-values", "-f", "-")
        self.helm.run(*words, stdin=json.dumps(values))

        def renewed() -> bool:
            now = [pod["metadata"]["uid"] for pod in self.pods("muster-agent")]
            return not set(before) & set(now) and self.ready("muster-agent") == PODS["muster-agent"]

        until(renewed, self.state)

    def uninstall(self) -> None:
        try:
            self.helm.run("uninstall", "gc", "--namespace", "default", "--timeout", f"{LIMIT_S:g}s")
        except Refused as error:
            pytest.fail(f"{error}\n{self.state()}", pytrace=False)

    def pods(self, app: str) -> list[Object]:
        found = self.node.plane.admin.get("/api/v1/pods", {"labelSelector": f"app={app}"})
        return list(found["items"])

    def ready(self, app: str) -> int:
        conditions = [each for pod in self.pods(app) for each in pod["status"].get("conditions", [])]
        return len([each for each in conditions if (each["type"], each["status"]) == ("Ready", "True")])

    def in_agent(self, *words: str) -> str:
        (pod,) = self.pods("muster-agent")
        done = self.node.kubectl("exec", "-n", AUTOPILOT, pod["metadata"]["name"], "--", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state(self) -> str:
        """For a test that failed."""
        told = [self.node.kubectl("get", "pods,nodehealths", "--all-namespaces", "-o", "wide").stdout]
        for app in (*PODS, "muster-release"):
            told.append(self.node.kubectl("describe", "pods", "--all-namespaces", "-l", f"app={app}").stdout)
            for pod in self.pods(app):
                place = ["-n", pod["metadata"]["namespace"], pod["metadata"]["name"]]
                told.append(self.node.kubectl("logs", "--tail=60", "--all-containers", *place).stdout)
        return "\n".join([*told, self.node.log()])

    def body(self) -> Object:
        return self.node.plane.admin.get(f"/api/v1/nodes/{self.node.name}")

    def taints(self) -> list[str]:
        return [taint["key"] for taint in self.body()["spec"].get("taints", [])]

    def open_faults(self) -> set[str]:
        """Components."""
        kept = json.loads(self.body()["metadata"].get("annotations", {}).get("muster.dev/faults", "{}"))
        return {fault["component"] for fault in kept.get("open", [])}

    def clear(self) -> None:
        """Until no fault is left: another test's line may come in between."""

        def cleared() -> bool:
            command = [sys.executable, "-m", "muster_cli", "clear", self.node.name]
            kubeconfig = f"--kubeconfig={self.node.plane.kubeconfig}"
            subprocess.run([*command, kubeconfig], capture_output=True, timeout=LIMIT_S, check=True)
            return FAULTY not in self.taints()

        until(cleared, self.state)


def import_image(node: RealNode, archive: Path, folder: Path) -> None:
    """As from ``folder``, which is that of `make package`."""
    line = "ctr -n k8s.io images import images/muster-0.1.0.tar"
    place = folder / line.rpartition(" ")[2]
    place.parent.mkdir()
    place.symlink_to(archive)
    typist = Typist(allotted(__file__), {}, {"CONTAINERD_ADDRESS": str(node.machine.socket)})
    typist.type(line, within=[*node.machine.inside, "env", f"--chdir={folder}"])


@pytest.fixture(scope="module")
def release(real_node: RealNode, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    assert checked() == SHA256
    import_image(real_node, image_archive, tmp_path_factory.mktemp("package"))
    admin = real_node.plane.admin
    for kind in ("clusterroles", "clusterrolebindings"):
        # the test bed's own have the chart's names; helm takes over nothing that is not its own
        for each in admin.get(f"{RBAC}/{kind}")["items"]:
            if (name := each["metadata"]["name"]).startswith("muster-"):
                admin.delete(f"{RBAC}/{kind}/{name}")
    made = Release(real_node, Helm(tmp_path_factory.mktemp("helm"), {"KUBECONFIG": str(real_node.plane.kubeconfig)}))
    try:
        made.install()
        yield made
    finally:
        with contextlib.suppress(Refused):  # the last test has done it
            made.helm.run("uninstall", "gc", "--namespace", "default", "--no-hooks")
        until(lambda: not admin.exists(f"/api/v1/namespaces/{AUTOPILOT}"), made.state)
        install(admin)


def test_every_part_is_ready_and_speaks_of_itself(release: Release) -> None:
    for app, count in PODS.items():
        pods = release.pods(app)
        assert len(pods) == count, release.state()
        for pod in pods:
            (container,) = pod["status"]["containerStatuses"]
            # a pod that is slow to start on a busy machine is started again: that is not what is asked here
            assert (container["ready"], container["image"]) == (True, IMAGE), release.state()
    health = release.node.plane.admin.get(f"/apis/muster.dev/v1alpha1/nodehealths/{release.node.name}")
    (agent,) = release.pods("muster-agent")
    assert health["status"]["agent"]["podUID"] == agent["metadata"]["uid"]


def test_the_agent_gives_back_every_right(release: Release) -> None:
    """It was started as root and privileged, as only so it can open the kernel log."""
    status = dict(line.split(":", 1) for line in release.in_agent("cat", "/proc/1/status").splitlines())
    assert status["Uid"].split() == ["65534"] * 4
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"


def test_the_operators_webhook_judges_jobs(release: Release) -> None:
    job = yaml.safe_load(
        "{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: odd}, spec: {jobInstances: 1,"
        " ipusPerJobInstance: '3', workers: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}}"
    )
    with pytest.raises(Denied, match=r"ipujob\.graphcore\.ai"):
        release.node.plane.admin.create(IPUJOBS, job)


def test_a_kernel_line_keeps_pods_off_the_node_until_it_is_cleared(release: Release, real_namespace: str) -> None:
    place = f"{random.randrange(1 << 16):04x}:{random.randrange(1, 1 << 8):02x}"
    with Path("/dev/kmsg").open("wb", buffering=0) as log:
        log.write(f"NVRM: Xid (PCI:{place}:00): 79, pid=1234, GPU has fallen off the bus.\n".encode())
    until(lambda: f"gpu/{place}:00.0" in release.open_faults(), release.state)
    assert FAULTY in release.taints()

    admin = release.node.plane.admin
    pods = f"/api/v1/namespaces/{real_namespace}/pods"
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    admin.create(pods, {"metadata": {"name": "job"}, "spec": {"containers": [container]}})

    def refusals() -> list[str]:
        events = admin.get(f"/api/v1/namespaces/{real_namespace}/events")["items"]
        return [event["message"] for event in events if event["reason"] == "FailedScheduling"]

    until(refusals, release.state)
    assert FAULTY in refusals()[0]
    job = admin.get(f"{pods}/job")
    assert (job["status"]["phase"], "nodeName" in job["spec"]) == ("Pending", False)

    release.clear()
    until(lambda: admin.get(f"{pods}/job")["status"]["phase"] == "Running", release.state)
    assert admin.get(f"{pods}/job")["spec"]["nodeName"] == release.node.name


def typed(release: Release, line: str, **environ: str) -> str:
    """What the line prints, typed as an administrator on the machine's network."""
    words = [*release.node.machine.on_its_network, *shlex.split(line)]
    known = os.environ | {"KUBECONFIG": str(release.node.plane.kubeconfig)} | environ
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=known)
    assert done.returncode == 0, f"{line}: {done.stderr}\n{release.state()}"
    return done.stdout


def test_the_guides_lines_are_answered_as_they_stand(release: Release) -> None:
    """Of both IPU Operator guides, "Verify the installation" and "Debugging"; a guide's placeholders are filled in."""
    assert "ipujobs.graphcore.ai" in typed(release, f"kubectl apply -f {CHART}/crds/graphcore.ai_ipujobs.yaml")
    assert "ipujobs.graphcore.ai" in typed(release, "kubectl get crd")
    listed = release.helm.run("ls", "-n", "default").splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["gc"]
    assert "deployed" in listed[1]
    pods = typed(release, "kubectl get pods -n default")
    found = [re.search(rf"^(gc-ipu-operator-{part}-\S+) +1/1 +Running", pods, re.MULTILINE) for part in IPU_PARTS]
    assert all(found), pods
    for pod in found:
        assert pod
        assert typed(release, f"kubectl logs {pod[1]} -n default")
    assert "gc-metrics-reader" in typed(release, "kubectl get clusterrole -l component=metrics-reader")


def asked_in(release: Release, pod: str, url: str, body: str = "") -> str:
    """What a POST of ``body``, or else a GET, is answered in a pod. Its image has no curl."""
    program = (
        "import sys; from urllib.request import Request, urlopen; url, body = sys.argv[1:];"
        "asked = Request(url, body.encode() or None, {'Content-Type': 'application/json'});"
        "print(urlopen(asked).read().decode())"
    )
    done = release.node.kubectl("exec", "-n", "default", pod, "--", "python3", "-c", program, url, body)
    assert done.returncode == 0, f"{url}: {done.stderr}\n{release.state()}"
    return done.stdout


def test_a_controller_that_is_edited_in_is_asked(release: Release, tmp_path: Path) -> None:
    """The guide gives it 60 seconds; the kubelet brings a ConfigMap within a minute and some."""
    typed(release, f"kubectl label nodes {release.node.name} ipunode=node1")
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nexec sed -i 's/^\\( *controllers.yaml:\\).*/\\1 pod001:8090:ipunode=node1/' \"$1\"\n")
    editor.chmod(0o755)
    typed(release, "kubectl edit configmap gc-ipu-operator-vipu-controllers", KUBE_EDITOR=str(editor))
    path = "/api/v1/namespaces/default/configmaps/gc-ipu-operator-vipu-controllers"
    assert release.node.plane.admin.get(path)["data"] == {"controllers.yaml": "pod001:8090:ipunode=node1"}

    proxy = "deploy/gc-ipu-operator-vipu-proxy"
    assert asked_in(release, proxy, "http://gc-ipu-operator-vipu-proxy/stats")
    query = "http://gc-ipu-operator-vipu-proxy/query"
    until(lambda: "pod001:8090" in asked_in(release, proxy, query, '{"size":2}'), release.state)


def test_the_pages_lines_are_answered_as_they_stand(release: Release) -> None:
    """Of Autopilot's, "Query with Port-Forward" and "Query from a pod"; the image of the pod is one that is here."""
    line = "kubectl port-forward service/autopilot-healthchecks 3333:3333 -n autopilot"
    words = [*release.node.machine.on_its_network, *shlex.split(line)]
    known = os.environ | {"KUBECONFIG": str(release.node.plane.kubeconfig)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=known) as forward:
        try:
            assert forward.stdout
            assert forward.stdout.readline() == "Forwarding from 127.0.0.1:3333 -> 3333\n", release.state()
            said = typed(release, 'curl "http://127.0.0.1:3333/status?check=pciebw"')
        finally:
            forward.terminate()
    assert said.startswith("Checking status on all nodes\n")
    assert f"Node: {release.node.name}\n" in said

    typed(release, f"kubectl create job curl-pod --image={IMAGE} -- sleep inf")
    try:
        typed(release, f"kubectl wait --for=condition=Ready pod -l job-name=curl-pod --timeout={LIMIT_S:g}s")
        url = "http://autopilot-healthchecks.autopilot.svc:3333/status?check=pciebw"
        again = asked_in(release, "jobs/curl-pod", url)
    finally:
        typed(release, "kubectl delete job curl-pod --wait=false")
    assert f"Node: {release.node.name}\n" in again


def test_a_check_of_ones_own_comes_with_an_upgrade(release: Release, tmp_path: Path) -> None:
    """docs/plugins.md as it stands: both files of its first example, and its values."""
    page = (CHART.parents[1] / "docs" / "plugins.md").read_text()
    folder = tmp_path / "plugins"
    folder.mkdir()
    for name, text in re.findall(r"`/etc/muster/plugins/(uptime\.\w+)`[^\n]*:\n\n```\w+\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(text)
    assert len(list(folder.iterdir())) == 2
    typed(release, f"kubectl create configmap muster-plugins -n autopilot --from-file={folder}")
    (values,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if block.startswith("agent:"))

    release.upgrade(yaml.safe_load(values))

    url = "http://autopilot-healthchecks.autopilot.svc:3333/status?check=uptimemonitor"
    said = asked_in(release, "deploy/gc-ipu-operator-vipu-proxy", url)
    assert "[[ UPTIMEMONITOR ]] SUCCESS" in said, said


LOOKS = {"kubectl": ("get", "describe", "logs", "auth"), "muster": ("status", "explain", "doctor", "checks")}
# objects of the runbooks that are there only when their alert is: the line is right if nothing else is missing
ONLY_THEN = ("muster-policy", "muster-ipu-quarantine", "podmonitors", "jobs.batch", "muster-pause")


def test_the_runbooks_lines_that_look_are_answered_as_they_stand(release: Release) -> None:
    job = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "looked-at"}}
    workers = {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": IMAGE}]}}}
    spec = {"jobInstances": 1, "ipusPerJobInstance": "1", "workers": workers}
    release.node.plane.admin.create(IPUJOBS, job | {"spec": spec})
    (agent,) = release.pods("muster-agent")
    names = {
        "NAMESPACE": "default",
        "RELEASE-NAMESPACE": "default",
        "JOB": "looked-at",
        "POD": agent["metadata"]["name"],
    }
    names |= dict.fromkeys(("NODE", "node-1"), release.node.name)
    known = re.compile(rf"(?<![\w-])({'|'.join(sorted(names, key=len, reverse=True))})(?![\w-])")
    looked, missing = set(), []
    for page in sorted((CHART.parents[1] / "docs" / "runbooks").glob("*.md")):
        for command in commands(page):
            program, *words = [known.sub(lambda match: names[match[1]], word) for word in command.words]
            verb = next((word for word in words if not word.startswith("-")), "")
            if verb not in LOOKS.get(program, ()) or (program == "kubectl" and len(words) == 1):
                continue
            start = [sys.executable, "-m", "muster_cli"] if program == "muster" else [program]
            done = subprocess.run(
                [*release.node.machine.on_its_network, *start, *words],
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
                env=os.environ | {"KUBECONFIG": str(release.node.plane.kubeconfig)},
            )  # fmt: skip
            if not _is_answered(program, words, done):
                said = f"{done.returncode}: {done.stderr}"
                missing.append(f"{command.where}: {' '.join(command.words)}: {said}")
            looked.add(f"{program} {verb}")
    release.node.plane.admin.delete(f"{IPUJOBS}/looked-at")
    assert not missing, "\n".join(missing)
    assert looked >= {"kubectl get", "kubectl describe", "kubectl logs", "kubectl auth", "muster status"}


def _is_answered(program: str, words: list[str], done: "subprocess.CompletedProcess[str]") -> bool:
    if program == "muster":
        return done.returncode in (0, 1, 2, 3)  # the worst verdict
    if done.returncode:
        is_absent = "not found" in done.stderr or "doesn't have a resource type" in done.stderr
        return is_absent and any(name in done.stderr for name in ONLY_THEN)
    chooses_our_pods = any(word.startswith("app=muster-") for word in words)
    return not (chooses_our_pods and "No resources found" in done.stderr)


def test_uninstalling_takes_everything_off_the_node(release: Release) -> None:
    """The last one: a job of the chart does it, in a pod of the same image."""
    assert release.body()["metadata"]["labels"]["muster.dev/health"]
    release.uninstall()
    labels = release.body()["metadata"]["labels"]
    assert not [label for label in labels if label.startswith("muster.dev/")]
    assert FAULTY not in release.taints()
