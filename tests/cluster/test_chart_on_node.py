"""The chart on a real node: the real helm installs it, and its pods run there, of Muster's own image, with the rights
that the chart gives them and no other. The agent reads this machine's /dev/kmsg.
"""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.chart.charting import CHART, SHA256, Helm, Object, Refused, checked
from tests.cluster.real_node_jobs import LIMIT_S, until

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


@pytest.fixture(scope="module")
def release(real_node: RealNode, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    assert checked() == SHA256
    real_node.machine.import_archive(image_archive, LIMIT_S)
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


def test_uninstalling_takes_everything_off_the_node(release: Release) -> None:
    """The last one: a job of the chart does it, in a pod of the same image."""
    assert release.body()["metadata"]["labels"]["muster.dev/health"]
    release.uninstall()
    labels = release.body()["metadata"]["labels"]
    assert not [label for label in labels if label.startswith("muster.dev/")]
    assert FAULTY not in release.taints()
