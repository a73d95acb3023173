"""The chart on a real node: the real helm installs it, and its pods run there, of Muster's own image, with the rights
that the chart gives them and no other. The agent reads this machine's /dev/kmsg.
"""

import contextlib
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.chart.helm_render import CHART, PROGRAM, SHA256, Helm, Object, Refused, checked
from tests.cluster.chart.real_node_images import CURL, MPI
from tests.cluster.chart.real_node_jobs import LIMIT_S, printed_by, ranks, training_job, until
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner, Done
from tests.docs.document_commands import commands
from tests.polling import pause_s

from muster_agent.process.capabilities import SYS_ADMIN, SYS_RAWIO
from muster_kube.run_permit import PREFIX
from muster_sandbox.controlplane.admin import AdminClient
from muster_sandbox.controlplane.admin import RequestRefused as Denied
from muster_sandbox.controlplane.install import install
from muster_sandbox.image import product
from muster_sandbox.realnode.node import RealNode

pytestmark = pytest.mark.kmsg
FAULTY = "muster.dev/faulty"
IMAGE = f"localhost:5000/muster:{product.project_version()}"
AUTOPILOT = "autopilot"
IMPORT = "ctr -n k8s.io images import images/muster-0.1.0.tar"
IPUJOBS = "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PODS = {"muster-agent": 1, "muster-tainter": 2, "muster-operator": 1, "muster-vipu-proxy": 1}
SECRETS = "/api/v1/namespaces/{}/secrets"
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
RUNBOOKS = sorted((CHART.parents[1] / "docs" / "runbooks").glob("*.md"))
CLEARED_S = 5.0  # then the command is typed again: another test's line came after it
NOT_DEPLOYED = "has no deployed releases"  # helm's words
IPU_PARTS = ("controller-manager", "vipu-proxy")
POLICY_MINOR = 30  # from here on, the API server enforces what the webhook of the tainter does before
OWN_NODE = "muster-own-node"  # that webhook, and its Secret
WEBHOOKS_SECRET = f"kubectl delete secret -n autopilot {OWN_NODE}"
# what the documents' placeholders stand for, but NODE, POD and REVISION, which are known later
NAMES = {
    "JOB": "looked-at",
    "RELEASE": "gc",
    "NAME": "gc-ipu-operator-webhook",  # of a Secret
    "muster-ipu-operator-vipu-controllers": "gc-ipu-operator-vipu-controllers",
    "RELEASE-ipu-operator-controller-manager": "gc-ipu-operator-controller-manager",
    "RELEASE-ipu-operator-vipu-proxy": "gc-ipu-operator-vipu-proxy",
    "NAME-launcher": "told-launcher",
    "NAME-worker-0": "told-worker-0",
    "NAMESPACE": "default",
    "RELEASE-NAMESPACE": "default",
    "nginx": CURL,
}
VALUES = {
    # other tests write to this machine's log, too: what is from before is not of interest
    "checks": {
        "dmesg": {"parameters": {"start": "now"}},
        # this kubelet has no device plug-ins, and so no pod with an accelerator
        "containerlog": {"enabled": True, "parameters": {"pods": "all", "namespaces": ["real-*"]}},
    },
    # for the founding page's call from a pod, which names a heavy check
    "agent": {"config": {"open_heavy_checks": True}},
    "vipuProxy": {"backend": "sim"},
}
# "Without Internet access": the argument of --set for a cluster whose nodes have the image and no registry
[WITHOUT_REGISTRY] = [
    each.words[each.words.index("--set") + 1]
    for each in commands(CHART.parents[1] / "docs" / "install.md")
    if "muster-0.1.0.tgz" in each.words
]


@dataclass(frozen=True)
class Release:
    node: RealNode
    helm: Helm
    typist: CommandRunner

    def type(self, line: str, *more: str, within: Sequence[str] = (), stdin: str = "") -> str:
        """A line of the documents, as an administrator on the machine's network."""
        try:
            return self.typist.type(line, *more, within=[*self.node.machine.on_its_network, *within], stdin=stdin)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.state()}") from None

    def install(self) -> None:
        """Returns once every pod that it made is ready."""
        words = ("install", "gc", str(CHART), "--namespace", "default", "-f", "-", "--set", WITHOUT_REGISTRY)
        self.helm.run(*words, stdin=json.dumps(VALUES))
        until(lambda: all(self.ready(app) == count for app, count in PODS.items()), self.state)

    def set_values(self, values: Object) -> None:
        """``values`` over those of the installation."""
        words = ("upgrade", "gc", str(CHART), "--namespace", "default", "--reset-then-reuse-values", "-f", "-")
        self.helm.run(*words, stdin=json.dumps(values))

    def upgrade(self, values: Object) -> None:
        """As set_values, with what changes the agents. Returns once a new agent is ready."""
        before = [pod["metadata"]["uid"] for pod in self.pods("muster-agent")]
        self.set_values(values)

        def renewed() -> bool:
            now = [pod["metadata"]["uid"] for pod in self.pods("muster-agent")]
            return not set(before) & set(now) and self.ready("muster-agent") == PODS["muster-agent"]

        until(renewed, self.state)

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
        for app in (*PODS, "muster-release", "muster-run", "muster-test"):
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
            ended = subprocess.run([*command, kubeconfig], capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert ended.returncode == 0, ended.stderr
            begun = time.monotonic()
            while FAULTY in self.taints() and time.monotonic() < begun + CLEARED_S:
                time.sleep(pause_s(begun))
            return FAULTY not in self.taints()

        until(cleared, self.state)


def import_image(node: RealNode, archive: Path, folder: Path, typist: CommandRunner) -> None:
    """As from ``folder``, which is that of `make package`."""
    place = folder / IMPORT.rpartition(" ")[2]
    place.parent.mkdir()
    place.symlink_to(archive)
    typist.type(IMPORT, within=[*node.machine.inside, "env", f"--chdir={folder}"])


@pytest.fixture(scope="module")
def release(real_node: RealNode, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    assert checked() == SHA256
    admin = real_node.plane.admin
    for kind in ("clusterroles", "clusterrolebindings"):
        # the test bed's own have the chart's names; helm takes over nothing that is not its own
        for each in admin.get(f"{RBAC}/{kind}")["items"]:
            if (name := each["metadata"]["name"]).startswith("muster-"):
                admin.delete(f"{RBAC}/{kind}/{name}")
    environ = {"KUBECONFIG": str(real_node.plane.kubeconfig)}
    editor = tmp_path_factory.mktemp("editor") / "editor"
    editor.write_text("#!/bin/sh\nexec sed -i 's/^\\( *controllers.yaml:\\).*/\\1 pod001:8090:ipunode=node1/' \"$1\"\n")
    editor.chmod(0o755)
    names = NAMES | dict.fromkeys(("NODE", "node-1"), real_node.name)
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    more = {"PATH": path, "KUBE_EDITOR": str(editor), "CONTAINERD_ADDRESS": str(real_node.machine.socket)}
    typist = CommandRunner(commands_of_test(__file__), names, environ | more)
    import_image(real_node, image_archive, tmp_path_factory.mktemp("package"), typist)
    made = Release(real_node, Helm(tmp_path_factory.mktemp("helm"), environ), typist)
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
    (agent,) = release.pods("muster-agent")

    def publishes() -> bool:
        health = release.node.plane.admin.get(f"/apis/muster.dev/v1alpha1/nodehealths/{release.node.name}")
        return bool(health.get("status", {}).get("agent", {}).get("podUID") == agent["metadata"]["uid"])

    until(publishes, release.state)


def test_the_agent_gives_back_every_right(release: Release) -> None:
    """It was started as root and privileged, as only so it can open the kernel log."""
    status = dict(line.split(":", 1) for line in release.in_agent("cat", "/proc/1/status").splitlines())
    assert status["Uid"].split() == ["65534"] * 4
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"


def test_a_helper_with_two_rights_reads_disks_for_the_agent(release: Release) -> None:
    script = 'for p in /proc/[0-9]*; do read -r n < $p/comm; [ "$n" != muster-helper ] || cat $p/status; done'
    status = dict(line.split(":", 1) for line in release.in_agent("sh", "-c", script).splitlines())
    assert status["Uid"].split() == ["0"] * 4
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[name], 16) == 1 << SYS_ADMIN | 1 << SYS_RAWIO, name
    assert status["NoNewPrivs"].strip() == "1"
    for words in (("smartctl", "--version"), ("nvme", "version"), ("ipmitool", "-V")):
        assert words[0] in release.in_agent(*words), "the image has it, with its libraries"


def test_the_operators_webhook_judges_jobs(release: Release) -> None:
    assert "ipusPerJobInstance" in refusal_of_an_odd_job(release)


def refusal_of_an_odd_job(release: Release) -> str:
    job = yaml.safe_load(
        "{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: odd}, spec: {jobInstances: 1,"
        " ipusPerJobInstance: '3', workers: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}}"
    )
    with pytest.raises(Denied, match=r"ipujob\.graphcore\.ai") as refused:
        release.node.plane.admin.create(IPUJOBS, job)
    return str(refused.value)


def break_gpu(release: Release) -> None:
    """By a kernel line. Returns once the fault is open."""
    place = f"{random.randrange(1 << 16):04x}:{random.randrange(1, 1 << 8):02x}"
    with Path("/dev/kmsg").open("wb", buffering=0) as log:
        log.write(f"NVRM: Xid (PCI:{place}:00): 79, pid=1234, GPU has fallen off the bus.\n".encode())
    until(lambda: f"gpu/{place}:00.0" in release.open_faults(), release.state)


def test_a_kernel_line_keeps_pods_off_the_node_until_it_is_cleared(release: Release, real_namespace: str) -> None:
    break_gpu(release)
    assert FAULTY in release.taints()

    admin = release.node.plane.admin
    pods = f"/api/v1/namespaces/{real_namespace}/pods"
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    events = f"/api/v1/namespaces/{real_namespace}/events"

    def refusals(pod: str) -> list[str]:
        found = admin.get(events, {"fieldSelector": f"involvedObject.name={pod}"})["items"]
        return [event["message"] for event in found if event["reason"] == "FailedScheduling"]

    def refused(pod: str) -> list[str]:
        """What the scheduler says of a new one; nothing if it finds a node for it."""
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
        admin.create(pods, {"metadata": {"name": pod}, "spec": spec})
        until(lambda: refusals(pod) or "nodeName" in admin.get(f"{pods}/{pod}")["spec"], release.state)
        return refusals(pod)

    # the scheduler hears of nodes and of pods by two watches
    probes = (f"probe-{number}" for number in itertools.count())
    until(lambda: refused(next(probes)), lambda: f"the scheduler still places pods\n{release.state()}")
    assert "taint" in refused("job")[0]  # newer schedulers do not name it
    job = admin.get(f"{pods}/job")
    assert (job["status"]["phase"], "nodeName" in job["spec"]) == ("Pending", False)

    release.clear()
    until(lambda: admin.get(f"{pods}/job")["status"]["phase"] == "Running", release.state)
    assert admin.get(f"{pods}/job")["spec"]["nodeName"] == release.node.name


def test_a_line_in_a_pods_log_is_a_warning_and_opens_no_fault(release: Release, real_namespace: str) -> None:
    """containerd's file, which belongs to root, read for an agent that has no right any more."""
    admin = release.node.plane.admin
    print_line = "echo RuntimeError: CUDA error: uncorrectable ECC error encountered; exec sleep 600"
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", print_line]}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1}
    admin.create(f"/api/v1/namespaces/{real_namespace}/pods", {"metadata": {"name": "trains"}, "spec": spec})
    component = f"pod/{real_namespace}/trains"

    def findings() -> list[Object]:
        health = admin.get(f"/apis/muster.dev/v1alpha1/nodehealths/{release.node.name}")
        (check,) = [each for each in health["status"]["checks"] if each["name"] == "containerlog"]
        return [each for each in check.get("findings", []) if each["component"] == component]

    (found,) = until(findings, release.state)
    assert (found["reason"], found["verdict"], found["class"]) == ("CudaUncorrectableEcc", "WARN", "reset")

    def events() -> list[Object]:
        listed = admin.get("/api/v1/events", {"fieldSelector": f"involvedObject.name={release.node.name}"})["items"]
        return [each for each in listed if component in each["message"]]

    until(events, release.state)
    assert component not in release.open_faults()


def typed(release: Release, line: str, codes: Sequence[int] = (0,)) -> str:
    """What the line prints, typed as an administrator on the machine's network. codes: with which it may end."""
    words = [*release.node.machine.on_its_network, *shlex.split(line)]
    known = os.environ | {"KUBECONFIG": str(release.node.plane.kubeconfig)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=known)
    assert done.returncode in codes, f"{line}: {done.stderr}\n{release.state()}"
    return done.stdout


def test_a_fault_is_cleared_on_the_page_with_a_token_as_it_says(release: Release) -> None:
    """docs/fleet.md, "Clearing": the account may do it once its lines were typed, and not before."""
    typed(release, "kubectl create namespace ops")
    typed(release, "kubectl create serviceaccount ada -n ops")
    raw = "kubectl create --raw /api/v1/namespaces/ops/serviceaccounts/ada/token -f -"
    tokens = [json.loads(release.type(raw, stdin="{}"))["status"]["token"]]
    # from kubectl 1.24 on
    inside = release.node.machine.on_its_network
    if token := release.typist.type("kubectl -n ops create token ada", within=inside, judge=is_made_or_unknown):
        tokens.append(token.strip())
    break_gpu(release)
    body = json.dumps({"node": release.node.name})

    def answer(token: str) -> str:
        words = (
            f"curl -s -w %{{http_code}} -H 'Authorization: Bearer {token}' -d '{body}' http://127.0.0.1:3334/api/clear"
        )
        return typed(release, words)[-3:]

    line = "kubectl -n autopilot port-forward deployment/muster-tainter 3334"
    try:
        with release.typist.going_on(line, "Forwarding from 127.0.0.1:3334 -> 3334", within=inside):
            assert "<title>" in typed(release, "curl -s http://127.0.0.1:3334/")
            assert [answer(token) for token in tokens] == ["403"] * len(tokens)
            assert FAULTY in release.taints()
            release.type("kubectl create clusterrole muster-clear --verb=patch --resource=nodehealths.muster.dev")
            release.type(
                "kubectl create clusterrolebinding muster-clear-ada --clusterrole=muster-clear --serviceaccount=ops:ada"
            )
            for token in tokens:
                until(lambda token=token: answer(token) == "200", release.state)  # type: ignore[misc]
        until(lambda: FAULTY not in release.taints(), release.state)
    finally:
        typed(release, "kubectl delete --ignore-not-found clusterrole/muster-clear clusterrolebinding/muster-clear-ada")
        typed(release, "kubectl delete namespace ops --wait=false")


def is_made_or_unknown(done: Done) -> bool:
    """unknown: to a kubectl that is older than the line says."""
    return done.returncode == 0 or 'unknown command "token ada"' in done.stderr


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
    assert "gc-metrics-reader" in release.type("kubectl get clusterrole -l component=metrics-reader")


IN_POD = ("kubectl", "exec", "jobs/curl-pod", "--")


@pytest.fixture(scope="module")
def curl_pod(release: Release) -> Iterator[None]:
    """docs/agent.md's: from it a Service's name is reached."""
    release.clear()
    release.type("kubectl create job curl-pod --image=nginx -- sleep inf")
    pods = {"labelSelector": "job-name=curl-pod"}

    def runs() -> bool:
        found = release.node.plane.admin.get("/api/v1/namespaces/default/pods", pods)["items"]
        return [pod["status"]["phase"] for pod in found] == ["Running"]

    until(runs, release.state)
    yield
    typed(release, "kubectl delete job curl-pod --wait=false")


@pytest.fixture(scope="module")
def controller(release: Release) -> Iterator[None]:
    """The guide's first one, by the guide's line: a simulated V-IPU of 16 IPUs."""
    admin = release.node.plane.admin
    made = {"name": "pod001", "labels": {"app": "pod001"}}
    words = ["muster", "vipu-sim", "--host", "0.0.0.0", "--ipus", "16", "--state", "/tmp/fleet"]  # noqa: S104 - of a pod
    container = {"name": "sim", "image": IMAGE, "imagePullPolicy": "Never", "command": words}
    admin.create("/api/v1/namespaces/default/pods", {"metadata": made, "spec": {"containers": [container]}})
    ports = {"ports": [{"port": 8090}], "selector": {"app": "pod001"}}
    admin.create("/api/v1/namespaces/default/services", {"metadata": {"name": "pod001"}, "spec": ports})
    # a job of another file on this node may have had a label of that name
    typed(release, f"kubectl label nodes {release.node.name} ipunode-")
    typed(release, f"kubectl label nodes {release.node.name} ipunode=node1")
    release.type("kubectl edit configmap -n NAMESPACE muster-ipu-operator-vipu-controllers")
    yield
    typed(release, "kubectl delete pod/pod001 service/pod001 --wait=false")


@pytest.mark.usefixtures("controller", "curl_pod")
def test_a_controller_that_is_edited_in_is_asked(release: Release) -> None:
    """Within the guide's 60 seconds, because the proxy watches the ConfigMap."""
    path = "/api/v1/namespaces/default/configmaps/gc-ipu-operator-vipu-controllers"
    assert release.node.plane.admin.get(path)["data"] == {"controllers.yaml": "pod001:8090:ipunode=node1"}

    query = 'curl --request POST -H Content-Type: application/json --data {"size":2} gc-ipu-operator-vipu-proxy/query'
    until(lambda: json.loads(release.type(query, within=IN_POD))["available"], release.state)
    stats = json.loads(release.type("curl gc-ipu-operator-vipu-proxy/stats", within=IN_POD))
    assert stats == {"total": {"used": 0, "available": 16}}


@pytest.mark.usefixtures("curl_pod")
def test_the_pages_lines_are_answered_as_they_stand(release: Release) -> None:
    """Of Autopilot's, "Query with Port-Forward" and "Query from a pod"; the image of the pod is one that is here."""
    line = "kubectl port-forward service/autopilot-healthchecks 3333:3333 -n autopilot"
    inside = release.node.machine.on_its_network
    with release.typist.going_on(line, "Forwarding from 127.0.0.1:3333 -> 3333", within=inside):
        said = typed(release, 'curl "http://127.0.0.1:3333/status?check=pciebw"')
    assert f"Node: {release.node.name}\n" in said

    url = "http://autopilot-healthchecks.autopilot.svc:3333/status?check=pciebw"
    again = release.type(f"kubectl exec jobs/curl-pod -- curl {url}")
    assert f"Node: {release.node.name}\n" in again


SERVES = """\
{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: told}, spec: {jobInstances: 1,
 ipusPerJobInstance: "1", workers: {replicas: 1, template: {spec: {terminationGracePeriodSeconds: 1, containers: [
 {name: main, image: IMAGE, imagePullPolicy: Never, resources: {requests: {cpu: 1000}},
  command: [sh, -c, "echo serving; exec sleep 600"]}]}}}}}
"""


@pytest.mark.usefixtures("controller")
def test_a_job_is_looked_into_as_the_pages_say(release: Release) -> None:
    """docs/debugging.md and docs/ipujob.md: one that cannot be scheduled and then serves, and one that trains."""
    admin = release.node.plane.admin
    told, pod = f"{IPUJOBS}/told", "/api/v1/namespaces/default/pods/told-{}"

    def state(name: str) -> str:
        found = admin.found(pod.format(name))
        return str(found["status"]["phase"]) if found else ""

    release.clear()
    serves = yaml.safe_load(SERVES.replace("IMAGE", MPI))
    admin.create(IPUJOBS, serves)
    until(lambda: admin.exists(pod.format("worker-0")), release.state)
    until(lambda: "Insufficient cpu" in release.type("kubectl describe pod NAME-worker-0"), release.state)
    until(lambda: admin.get(told).get("status", {}).get("currentReplicas") == 1, release.state)
    del serves["spec"]["workers"]["template"]["spec"]["containers"][0]["resources"]
    admin.patch(told, {"spec": {"workers": serves["spec"]["workers"]}})
    until(lambda: state("worker-0") == "Running", release.state)
    until(lambda: release.type("kubectl logs NAME-worker-0") == "serving\n", release.state)
    admin.delete(told)
    until(lambda: not admin.exists(told) and not state("worker-0"), release.state)

    trains = training_job("default", 2)
    trains["metadata"]["name"] = "told"
    trains["spec"]["ipusPerJobInstance"] = "2"
    trains["spec"]["workers"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    trains["spec"]["launcher"]["command"][-1] += "import time; time.sleep(600)\n"
    admin.create(IPUJOBS, trains)
    until(lambda: state("launcher") == "Running", release.state)
    until(lambda: ranks(release.type("kubectl logs NAME-launcher")) == printed_by(2), release.state)
    assert release.type("kubectl logs NAME-worker-0") == "", "it prints through the launcher"
    assert " 2 " in release.type("kubectl logs NAME-launcher -c wait-workers"), "it names how many there are"
    hosts = release.type("kubectl exec NAME-launcher -- cat /etc/mpi/hostfile").splitlines()
    assert [line.split()[0] for line in hosts] == ["told-worker-0", "told-worker-1"]
    environ = dict(line.split("=", 1) for line in release.type("kubectl exec NAME-worker-0 -- env").splitlines())
    assert environ["IPUOF_VIPU_API_PARTITION_ID"] == "p-told-default-0"
    assert environ["IPUOF_VIPU_API_GCD_ID"] == "0"
    assert (environ["IPUOF_VIPU_API_HOST"], environ["IPUOF_VIPU_API_PORT"]) == ("pod001", "8090")
    for part in IPU_PARTS:
        assert "told" in release.type(f"kubectl logs -n NAMESPACE deploy/RELEASE-ipu-operator-{part}"), part
    admin.delete(told)
    until(lambda: not admin.exists(told), release.state)


def test_a_certificates_secret_that_is_deleted_is_made_anew(release: Release) -> None:
    """Both runbooks' line, and what holds again after it."""
    admin = release.node.plane.admin
    kinds = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")

    def bundles(secret: str) -> set[str]:
        found = [each for kind in kinds for each in admin.get(f"{REGISTRATIONS}/{kind}")["items"]]
        webhooks = [hook for each in found if each["metadata"]["name"] == secret for hook in each["webhooks"]]
        return {hook["clientConfig"].get("caBundle", "") for hook in webhooks}

    lines = ["kubectl delete secret -n RELEASE-NAMESPACE NAME"]
    if release.node.plane.minor < POLICY_MINOR:
        lines.append(WEBHOOKS_SECRET)
    for line in lines:
        *_, namespace, name = release.typist.words(line)
        path = f"{SECRETS.format(namespace)}/{name}"
        former = admin.get(path)["data"]["ca.crt"]
        assert bundles(name) == {former}
        release.type(line)

        def is_anew(path: str = path, name: str = name, former: str = former) -> bool:
            found = admin.found(path)
            return found is not None and bundles(name) == {found["data"]["ca.crt"]} != {former}

        until(is_anew, release.state)
    until(lambda: "ipusPerJobInstance" in refusal_of_an_odd_job(release), release.state)
    until(lambda: "own-node" in refusal_of_anothers_report(release), release.state)


def refusal_of_anothers_report(release: Release) -> str:
    """What the agent of this node is told that writes of another; empty where it may."""
    plane, path = release.node.plane, "/apis/muster.dev/v1alpha1/nodehealths"
    plane.admin.create(
        path, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "other"}}, exist_ok=True
    )
    token = release.in_agent("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
    with AdminClient(plane.server, plane.ca_file, token=token) as agent:
        try:
            agent.patch(f"{path}/other/status", {"status": {"verdict": "FAIL"}})
        except Denied as error:
            return str(error)
        finally:
            plane.admin.delete(f"{path}/other")
    return ""


@pytest.mark.usefixtures("curl_pod")
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
    said = typed(release, f'{" ".join(IN_POD)} curl "{url}"')
    assert "[[ UPTIMEMONITOR ]] SUCCESS" in said, said


HELM_LIMIT = f"--timeout={LIMIT_S:g}s"
JOBS = f"/apis/batch/v1/namespaces/{AUTOPILOT}/jobs"
# without --force, an agent that opens heavy checks to everybody would ask for no right
RUN = {"heavyChecks": True, "checks": ["ipu"], "args": ["--force"]}


def ended_run(release: Release, job: str) -> Object:
    """How the only container of the job's only pod ended: exitCode, message."""
    pods = f"/api/v1/namespaces/{AUTOPILOT}/pods"

    def ended() -> Object | None:
        items = release.node.plane.admin.get(pods, {"labelSelector": f"job-name={job}"})["items"]
        states = [each["state"] for pod in items for each in pod["status"].get("containerStatuses", [])]
        assert len(states) <= 1, "it was repeated"
        return states[0].get("terminated") if states else None

    found: Object = until(ended, release.state)
    return found


def test_helm_test_and_jobs_run_checks_and_name_the_node_and_check_that_fail(release: Release, tmp_path: Path) -> None:
    """docs/operating.md, "Run checks from the cluster": on this machine without IPUs, then with a broken GPU."""
    node, admin = release.node.name, release.node.plane.admin
    release.clear()
    release.set_values({"helmTest": {"args": ["--check=ipu"]}, "run": RUN})
    printed = release.type("helm test RELEASE -n RELEASE-NAMESPACE --logs", HELM_LIMIT)
    assert re.search(rf"^{node} +SKIP +ipu\b", printed, re.MULTILINE), printed

    made = release.type("kubectl get configmap muster-run -n autopilot -o jsonpath={.data.job}")
    place = tmp_path / "job.yaml"
    place.write_text(made)
    names = release.typist.names
    names["job.yaml"] = str(place)
    names["RUN"] = re.fullmatch(r"job\.batch/(\S+) created\n", release.type("kubectl create -f job.yaml"))[1]  # type: ignore[index]
    assert ended_run(release, names["RUN"])["exitCode"] == 0, release.state()
    log = release.type("kubectl logs -f -n autopilot job/RUN")
    assert re.search(rf"^{node} +SKIP +ipu\b", log, re.MULTILINE), log
    described = release.type("kubectl describe pods -n autopilot -l job-name=RUN")
    assert re.search(r"^ +Exit Code: +0$", described, re.MULTILINE), described
    health = admin.get(f"/apis/muster.dev/v1alpha1/nodehealths/{node}")
    assert not [key for key in health["metadata"].get("annotations", {}) if key.startswith(PREFIX)], "it was deleted"

    break_gpu(release)  # the pods run although the only node is tainted
    edited = yaml.safe_load(made)
    pod = edited["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = ["run", "--namespace=autopilot", f"--host={node}", "--check=dmesg"]
    fails = admin.create(JOBS, edited)["metadata"]["name"]
    # the same without a token
    pod |= {"volumes": []}
    url = "--url=http://autopilot-healthchecks.autopilot.svc:3333"
    pod["containers"][0] |= {"args": ["run", url, "--check=ipu", "--force"], "volumeMounts": []}
    refused_run = admin.create(JOBS, edited)["metadata"]["name"]
    for job, exit_code, facts in (
        (fails, 2, rf"^{node} +FAIL +dmesg +gpu/\S+ Xid79\b"),
        (refused_run, 3, r"\brun\.heavyChecks=true\b"),
    ):
        ended = ended_run(release, job)
        assert ended["exitCode"] == exit_code, release.state()
        assert re.search(facts, ended["message"], re.MULTILINE), ended
    until(lambda: admin.get(f"{JOBS}/{fails}")["status"].get("failed") == 1, release.state)

    release.set_values({"helmTest": {"args": ["--check=dmesg"]}})
    with pytest.raises(Refused) as refused:
        release.helm.run("test", "gc", "--namespace", "default", "--logs", HELM_LIMIT)
    assert re.search(rf"^{node} +FAIL +dmesg +gpu/\S+ Xid79\b", str(refused.value), re.MULTILINE)
    release.type("kubectl delete pod muster-test -n RELEASE-NAMESPACE")
    release.clear()


KUBECTL_LOOKS = ("get", "describe", "logs", "auth")
MUSTER_LOOKS = ("status", "explain", "doctor", "checks")
# objects of the runbooks that are there only when their alert is: the line is right if nothing else is missing
ONLY_THEN = ("muster-policy", "muster-ipu-quarantine", "podmonitors", "jobs.batch", "muster-pause", "muster-repairs")


def test_the_runbooks_lines_that_look_are_answered_as_they_stand(release: Release) -> None:
    job = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": NAMES["JOB"]}}
    workers = {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": IMAGE}]}}}
    spec = {"jobInstances": 1, "ipusPerJobInstance": "1", "workers": workers}
    release.node.plane.admin.create(IPUJOBS, job | {"spec": spec})
    (agent,) = release.pods("muster-agent")
    release.typist.names["POD"] = agent["metadata"]["name"]
    inside = release.node.machine.on_its_network
    line = "kubectl port-forward -n autopilot POD 3333"
    with release.typist.going_on(line, "Forwarding from 127.0.0.1:3333 -> 3333", within=inside):
        until(lambda: release.type("curl http://127.0.0.1:3333/readyz") == "ok\n", release.state)
    absent = (*ONLY_THEN, *((OWN_NODE,) if release.node.plane.minor >= POLICY_MINOR else ()))
    for command in [each for page in RUNBOOKS for each in commands(page)]:
        program, verb, *_ = [word for word in command.words if not word.startswith("-")] + [""]
        line = " ".join(command.words)
        if program == "kubectl" and verb in KUBECTL_LOOKS and line in commands_of_test(__file__):
            release.typist.type(line, within=inside, judge=partial(is_answered, absent=absent))
        elif program == "muster" and verb in MUSTER_LOOKS:
            words = [release.typist.names.get(word, word) for word in command.words[1:]]
            typed(release, shlex.join([sys.executable, "-m", "muster_cli", *words]), codes=(0, 1, 2, 3))
    release.node.plane.admin.delete(f"{IPUJOBS}/{NAMES['JOB']}")


def is_answered(done: Done, absent: Sequence[str]) -> bool:
    if done.returncode:
        is_absent = "not found" in done.stderr or "doesn't have a resource type" in done.stderr
        return is_absent and any(name in done.stderr for name in absent)
    chooses_our_pods = any(word.startswith("app=muster-") for word in done.args)
    return not (chooses_our_pods and "No resources found" in done.stderr)


def test_an_uninstall_that_fails_says_why_and_is_taken_back_as_the_page_says(release: Release) -> None:
    """docs/install.md, "Uninstall": by an API server that lets nobody change a Node."""
    admin = release.node.plane.admin
    job = f"/apis/batch/v1/namespaces/{AUTOPILOT}/jobs/muster-release"
    tainter = f"/apis/apps/v1/namespaces/{AUTOPILOT}/deployments/muster-tainter"
    webhook = {
        "name": "nobody.answers.invalid",
        "clientConfig": {"url": "https://127.0.0.1:1"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    configurations = f"{REGISTRATIONS}/validatingwebhookconfigurations"
    admin.create(configurations, {"metadata": {"name": "nodes-are-fixed"}, "webhooks": [webhook]})
    try:
        with ThreadPoolExecutor(1) as pool:
            uninstalling = pool.submit(release.helm.run, "uninstall", "gc", "--namespace", "default")
            until(lambda: admin.exists(job), release.state)
            admin.patch(job, {"spec": {"backoffLimit": 0}})  # one try says what three would
            with pytest.raises(Refused, match="muster-release failed: BackoffLimitExceeded"):
                uninstalling.result()
        said = release.type("kubectl logs job/muster-release -n autopilot --all-containers")
    finally:
        admin.delete(f"{configurations}/nodes-are-fixed")
    assert f"{release.node.name} " in said
    assert "nobody.answers.invalid" in said
    assert release.ready("muster-agent") == PODS["muster-agent"]
    assert not admin.exists(tainter)

    with pytest.raises(Refused, match=NOT_DEPLOYED):
        release.helm.run("upgrade", "gc", str(CHART), "--namespace", "default", "--reset-then-reuse-values")
    release.typist.names["REVISION"] = release.type("helm history RELEASE").splitlines()[-1].split()[0]
    release.type("helm rollback RELEASE REVISION")
    until(lambda: release.ready("muster-tainter") == PODS["muster-tainter"], release.state)


def test_uninstalling_takes_everything_off_the_node(release: Release) -> None:
    """A job of the chart does it, in a pod of the same image."""
    assert release.body()["metadata"]["labels"]["muster.dev/health"]
    release.type("helm uninstall RELEASE")
    labels = release.body()["metadata"]["labels"]
    assert not [label for label in labels if label.startswith("muster.dev/")]
    assert FAULTY not in release.taints()


def test_all_lines_of_the_documents_that_are_allotted_to_this_file_were_typed(release: Release) -> None:
    """The last one."""
    assert release.typist.left <= ({WEBHOOKS_SECRET} if release.node.plane.minor >= POLICY_MINOR else set())
