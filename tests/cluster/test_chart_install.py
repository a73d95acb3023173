"""The chart, installed by the real helm on a real API server: what helm does to it over time, and who may do what then.

No kubelet runs here, so no pod does. The chart's own jobs are carried out by the tests, with their accounts' rights.
"""

import base64
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.charting import CHART, SHA256, Helm, Object, Refused, checked

from muster_testbed.admin import Admin
from muster_testbed.admin import Refused as Denied
from muster_testbed.controlplane import ControlPlane
from muster_testbed.kubeconfig import bearer_user, write_kubeconfig

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
IPUJOBS = "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs"
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
TRACKER = "/api/v1/namespaces/default/configmaps/ipu-partitions-tracker"
CONTROLLERS = "/api/v1/namespaces/default/configmaps/gc-ipu-operator-vipu-controllers"
CLUSTER_WIDE = ("clusterroles", "clusterrolebindings")
GUIDE = r"global.vipuControllers=pod1:8090:ipunode=pod1\,pod2:8090:ipunode=pod2"
LOOK_S = 0.05
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Cluster:
    plane: ControlPlane
    helm: Helm
    folder: Path

    @property
    def admin(self) -> Admin:
        return self.plane.admin

    def install(self, release: str = "gc", *words: str) -> str:
        return self.helm.run("install", release, str(CHART), "--namespace", "default", *words)

    def upgrade(self, release: str = "gc", *words: str) -> str:
        """As the Autopilot page has it: to be typed at any time."""
        return self.helm.run("upgrade", release, str(CHART), "--install", "--namespace", "default", *words)

    def uninstall(self, release: str = "gc", *words: str) -> str:
        return self.helm.run("uninstall", release, "--namespace", "default", *words)

    def objects(self) -> dict[tuple[str, str, str], Object]:
        """All that helm manages, by kind, namespace and name."""
        found: dict[tuple[str, str, str], Object] = {}
        for path in (
            "/api/v1/configmaps", "/api/v1/services", "/api/v1/serviceaccounts", "/api/v1/namespaces",
            "/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets", "/apis/policy/v1beta1/poddisruptionbudgets",
            "/apis/networking.k8s.io/v1/networkpolicies", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/roles",
            "/apis/rbac.authorization.k8s.io/v1/rolebindings",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        ):  # fmt: skip
            answer = self.admin.get(path, {"labelSelector": "app.kubernetes.io/managed-by=Helm"})
            for each in answer["items"]:
                metadata = each["metadata"]
                found[path.rpartition("/")[2], metadata.get("namespace", ""), metadata["name"]] = each
        return found

    def token(self, namespace: str, account: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.admin.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        return str(answer["status"]["token"])

    def as_account(self, namespace: str, account: str) -> Admin:
        return Admin(self.plane.server, self.plane.ca_file, token=self.token(namespace, account))

    def carry_out(self, job: Object) -> list[str]:
        """What a kubelet would do with the pod of one of the chart's jobs: its containers in order, with its account's
        rights. Returns what they printed; the job then is complete."""
        namespace, pod = job["metadata"]["namespace"], job["spec"]["template"]["spec"]
        kubeconfig = self.folder / f"{job['metadata']['name']}.kubeconfig"
        user = bearer_user(self.token(namespace, pod["serviceAccountName"]))
        ca = self.plane.ca_file.read_bytes()
        write_kubeconfig(kubeconfig, server=self.plane.server, ca=ca, user=user, namespace=namespace)
        mounted = self._mounted(namespace, pod)
        printed = []
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            words = [mounted(word) for word in [*container["command"], *container["args"]]]
            if words[0] == "muster":
                words = [sys.executable, "-m", "muster_cli", *words[1:]]
            ended = subprocess.run(
                [*words, f"--kubeconfig={kubeconfig}"], capture_output=True, text=True, timeout=200, check=False
            )
            assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
            printed.append(ended.stdout)
        done = {"type": "Complete", "status": "True"}
        path = f"{JOBS.format(namespace)}/{job['metadata']['name']}/status"
        self.admin.patch(path, {"status": {"succeeded": 1, "conditions": [done]}})
        return printed

    def _mounted(self, namespace: str, pod: Object) -> Callable[[str], str]:
        """Where the ConfigMaps that are mounted lie here."""
        places: dict[str, Path] = {}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                name = volume["configMap"]["name"]
                data = self.admin.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")["data"]
                (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == volume["name"])
                place = self.folder / name
                place.mkdir(exist_ok=True)
                for key, text in data.items():
                    (place / key).write_text(text)
                places[mount["mountPath"]] = place

        def at(word: str) -> str:
            for mount, place in (places | {"/tmp": self.folder}).items():
                if f"={mount}" in word:
                    return word.replace(f"={mount}", f"={place}")
            return word

        return at

    def beside(self, act: Callable[[], str], namespace: str, job: str) -> list[str]:
        """``act`` (a helm that waits for its hook) and the job that it waits for. Returns what the job printed."""
        path = f"{JOBS.format(namespace)}/{job}"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(act)
            until(lambda: waiting.done() or self.admin.exists(path), f"{job} or the end of helm")
            if waiting.done():
                waiting.result()
                raise AssertionError(f"helm ended without the job {job}")
            try:
                printed = self.carry_out(self.admin.get(path))
            except BaseException:
                self.admin.delete(path)  # helm would wait for it for minutes
                raise
            waiting.result(timeout=PATIENCE_S)
        return printed

    def wait_until_gone(self, *paths: str) -> None:
        until(lambda: not any(self.admin.exists(path) for path in paths), f"the end of {', '.join(paths)}")


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(LOOK_S)


@pytest.fixture(scope="module")
def cluster(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with nothing of Muster's: the session's has the roles already, under the same names."""
    assert checked() == SHA256
    folder = tmp_path_factory.mktemp("chart")
    with ControlPlane(binaries) as plane:
        yield Cluster(plane, Helm(folder, {"KUBECONFIG": str(plane.kubeconfig)}), folder)


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """Nothing of a release before, and nothing after."""
    yield cluster
    for release in ("gc", "other"):
        with contextlib.suppress(Refused):
            cluster.uninstall(release, "--no-hooks")
    cluster.admin.delete("/api/v1/namespaces/autopilot")
    cluster.wait_until_gone("/api/v1/namespaces/autopilot")
    left = [key for key in cluster.objects() if key[0] in CLUSTER_WIDE]
    for kind, _, name in left:
        cluster.admin.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{name}")


def rest(objects: dict[tuple[str, str, str], Object]) -> dict[tuple[str, str, str], object]:
    """What changes with each write: controllers write states, which leave the generation."""
    return {
        key: each["metadata"].get("generation") or each["metadata"]["resourceVersion"] for key, each in objects.items()
    }


def test_installed_once_and_upgraded_twice_nothing_changes(clean: Cluster) -> None:
    printed = clean.upgrade("gc", "--set", GUIDE)
    first = clean.objects()
    again = clean.upgrade("gc", "--set", GUIDE)
    second = clean.objects()
    clean.upgrade("gc", "--set", GUIDE)

    assert "STATUS: deployed" in printed
    assert "STATUS: deployed" in again
    assert ("deployments", "default", "gc-ipu-operator-controller-manager") in first
    assert ("daemonsets", "autopilot", "autopilot-daemon-gc") in first
    assert rest(first) == rest(second) == rest(clean.objects())
    for name in ("ipujobs.graphcore.ai", "nodehealths.muster.dev"):
        assert clean.admin.exists(f"{CRDS}/{name}")


def test_uninstall_frees_the_nodes_and_leaves_jobs_partitions_and_crds(clean: Cluster) -> None:
    admin = clean.admin
    clean.install("gc", "--set", GUIDE, "--set", "admissionWebhooks.failurePolicy=Ignore")
    job = yaml.safe_load(
        "{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: running}, spec: {jobInstances: 1,"
        " ipusPerJobInstance: '1', workers: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}}"
    )
    made = admin.create(IPUJOBS, job)
    tracker = {"metadata": {"name": "ipu-partitions-tracker"}, "data": {"p-running-default-0": "{}"}}
    admin.create(TRACKER.rpartition("/")[0], tracker)
    node = {"metadata": {"name": "bad-1", "labels": {"muster.dev/faulty": "true", "muster.dev/health": "fail"}}}
    taints = [{"key": key, "value": "true", "effect": "NoSchedule"} for key in ("muster.dev/faulty", "somebody/else")]
    admin.create("/api/v1/nodes", node | {"spec": {"taints": taints}})

    printed = clean.beside(clean.uninstall, "autopilot", "muster-release")

    left = admin.get("/api/v1/nodes/bad-1")
    assert [taint["key"] for taint in left["spec"]["taints"] if "kubernetes.io" not in taint["key"]] == [
        "somebody/else"
    ]
    assert not [label for label in left["metadata"].get("labels", {}) if label.startswith("muster.dev/")]
    assert "released 1 node" in printed[-1]
    now = admin.get(f"{IPUJOBS}/running")
    assert (now["metadata"]["uid"], now["metadata"]["generation"]) == (made["metadata"]["uid"], 1)
    assert admin.get(TRACKER)["data"] == {"p-running-default-0": "{}"}
    assert admin.exists(f"{CRDS}/ipujobs.graphcore.ai")
    assert admin.exists(f"{CRDS}/nodehealths.muster.dev")
    clean.wait_until_gone("/api/v1/namespaces/autopilot")
    assert not clean.objects()
    admin.delete("/api/v1/nodes/bad-1")

    # under another name: what was left is found
    clean.install("other", "--set", GUIDE)

    assert ("deployments", "default", "other-ipu-operator-vipu-proxy") in clean.objects()
    assert admin.get(f"{IPUJOBS}/running")["metadata"]["uid"] == made["metadata"]["uid"]
    assert admin.get(TRACKER)["data"] == {"p-running-default-0": "{}"}
    admin.delete(f"{IPUJOBS}/running")
    admin.delete(TRACKER)


def test_a_namespace_that_exists_is_told_with_what_to_type(clean: Cluster) -> None:
    clean.admin.create("/api/v1/namespaces", {"metadata": {"name": "autopilot"}})
    with pytest.raises(Refused, match=r"namespace autopilot is there already.*--set namespace.create=false"):
        clean.install()

    printed = clean.install("gc", "--set", "namespace.create=false")

    said = printed.partition("kubectl label --overwrite namespace autopilot ")[2].split()[:2]
    clean.admin.patch("/api/v1/namespaces/autopilot", {"metadata": {"labels": dict(s.split("=") for s in said)}})
    assert "kubectl label" not in clean.upgrade("gc", "--set", "namespace.create=false")
    clean.uninstall("gc", "--no-hooks")
    assert clean.admin.exists("/api/v1/namespaces/autopilot")


def test_a_second_release_is_refused_by_name(clean: Cluster) -> None:
    clean.install()

    with pytest.raises(Refused, match="namespace autopilot is there already"):
        clean.install("other")
    with pytest.raises(Refused, match=r"(?s)muster-agent.*gc"):
        clean.install("other", "--set", "namespace.create=false")


def test_controllers_that_a_person_wrote_outlive_an_upgrade(clean: Cluster) -> None:
    clean.install("gc", "--set", GUIDE)
    clean.admin.patch(CONTROLLERS, {"data": {"controllers.yaml": "edited:1:k=v"}})

    printed = clean.upgrade("gc", "--set", GUIDE)

    assert clean.admin.get(CONTROLLERS)["data"] == {"controllers.yaml": "edited:1:k=v"}
    assert "was edited by hand and is kept" in printed

    clean.upgrade("gc", "--set", "vipuControllers=new:1:k=v")

    assert clean.admin.get(CONTROLLERS)["data"] == {"controllers.yaml": "new:1:k=v"}


def test_the_bundle_that_a_webhook_is_trusted_by_outlives_an_upgrade(clean: Cluster) -> None:
    clean.install()
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gc-ipu-operator-webhook"
    found = clean.admin.get(path)
    bundle = base64.b64encode(clean.plane.ca_file.read_bytes()).decode()
    for webhook in found["webhooks"]:
        webhook["clientConfig"]["caBundle"] = bundle
    clean.admin.patch(path, {"webhooks": found["webhooks"]})

    clean.upgrade("gc", "--set", "admissionWebhooks.timeoutSeconds=7")

    after = clean.admin.get(path)["webhooks"]
    assert [(each["timeoutSeconds"], each["clientConfig"]["caBundle"]) for each in after] == [(7, bundle)] * 2


def test_crds_that_are_too_old_are_brought_up_to_date(clean: Cluster) -> None:
    clean.install()
    path = f"{CRDS}/nodehealths.muster.dev"
    fresh = clean.admin.get(path)["spec"]
    old = clean.admin.get(path)["spec"]
    old["versions"][0]["additionalPrinterColumns"].pop()
    status = old["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status["forgotten"] = {"type": "string"}
    clean.admin.patch(path, {"spec": {"versions": old["versions"]}})

    private = ("--set", "pullSecrets.imagePullSecretData=e30=")
    clean.beside(lambda: clean.upgrade("gc", *private), "default", "gc-ipu-operator-crds")

    assert clean.admin.get(path)["spec"] == fresh
    hooks = list(yaml.safe_load_all(clean.helm.run("get", "hooks", "gc", "--namespace", "default")))
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in hooks
        if (each["kind"], each["metadata"]["name"]) == ("Job", "gc-ipu-operator-crds")
    )
    (secret,) = (each for each in hooks if each["kind"] == "Secret")
    assert pod["imagePullSecrets"] == [{"name": secret["metadata"]["name"]}]
    assert not clean.admin.exists(f"/api/v1/namespaces/default/secrets/{secret['metadata']['name']}")
    clean.upgrade()  # and now there is nothing to do, so no job to wait for
    assert not clean.admin.exists("/api/v1/namespaces/default/serviceaccounts/gc-ipu-operator-crds")


def test_values_of_an_older_chart_are_refused_with_what_to_type_instead(clean: Cluster) -> None:
    """The older one has no dashboards, and so no value for them."""
    older = clean.folder / "older" / CHART.name
    shutil.copytree(CHART, older)
    values = yaml.safe_load((older / "values.yaml").read_text())
    del values["grafana"]
    (older / "values.yaml").write_text(yaml.safe_dump(values))
    (older / "values.schema.json").unlink()
    (older / "templates" / "dashboards.yaml").unlink()
    given = ("--set", "vipuControllers=pod1:8090:ipunode=pod1")
    clean.helm.run("install", "gc", str(older), "--namespace", "default", *given)
    kept = clean.objects()

    with pytest.raises(Refused, match=r"(?s)\(root\): grafana is required.*--reset-then-reuse-values, in place of"):
        clean.upgrade("gc", "--reuse-values")
    assert rest(clean.objects()) == rest(kept)

    clean.upgrade("gc", "--reset-then-reuse-values")

    assert ("configmaps", "autopilot", "muster-fleet-dashboard") in clean.objects()
    assert clean.admin.get(CONTROLLERS)["data"] == {"controllers.yaml": "pod1:8090:ipunode=pod1"}


def test_everything_of_the_chart_is_taken_by_kubectl_too(clean: Cluster) -> None:
    """With its own look at each field, by the schemas of this very server."""
    printed = clean.helm.run("template", "gc", str(CHART), "--no-hooks", "--kube-version", clean.plane.server_version)

    kubectl = ["kubectl", "--kubeconfig", str(clean.plane.kubeconfig)]
    ended = subprocess.run(
        [*kubectl, "create", "--validate=true", "--dry-run=client", "-f", "-"],
        input=printed, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) > 40


@pytest.fixture(scope="module")
def parts(cluster: Cluster) -> Iterator[Cluster]:
    """Installed for all tests of rights; those above are done with by then."""
    cluster.upgrade("gc", "--set", "admissionWebhooks.failurePolicy=Ignore")
    cluster.admin.create(
        HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "n"}}
    )
    cluster.admin.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    yield cluster
    cluster.admin.delete("/api/v1/nodes/n")
    cluster.admin.delete(f"{HEALTHS}/n")
    cluster.uninstall("gc", "--no-hooks")


AGENT, TAINTER = ("autopilot", "muster-agent"), ("autopilot", "muster-tainter")
OPERATOR, PROXY = ("default", "gc-ipu-operator-controller-manager"), ("default", "gc-ipu-operator-vipu-proxy")
DRY = "?dryRun=All"
ONLY = "fieldSelector=metadata.name="  # as the watches of single objects select
CORE, AUTO, MINE = "/api/v1", "/api/v1/namespaces/autopilot", "/api/v1/namespaces/default"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
Call = tuple[str, str, Any]
NAMED: Object = {"metadata": {"name": "x"}}
POD: Object = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
LEASE: Object = {"metadata": {"name": "x"}, "spec": {}}
REVIEW: Object = {"spec": {"token": "t"}}
EVENT: Object = {
    "metadata": {"name": "x"}, "reason": "R", "message": "m", "type": "Normal",
    "involvedObject": {"kind": "Node", "name": "n", "namespace": ""},
}  # fmt: skip
ROLE: Object = {
    "metadata": {"name": "x"},
    "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}],
}
ANYTHING: Object = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"

MAY: dict[tuple[str, str], list[Call]] = {
    AGENT: [
        ("get", HEALTHS, None),
        ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}}),
        ("get", "/apis/discovery.k8s.io/v1beta1/namespaces/autopilot/endpointslices", None),
        ("create", TOKENS, REVIEW),
    ],
    TAINTER: [
        ("get", HEALTHS, None),
        ("patch", f"{HEALTHS}/n{DRY}", {"spec": {}}),
        ("get", f"{CORE}/nodes", None),
        ("patch", f"{CORE}/nodes/n{DRY}", {"metadata": {"labels": {"muster.dev/health": "pass"}}}),
        ("patch", f"{CORE}/nodes/n/status{DRY}", {"status": {}}),
        ("get", f"{CORE}/pods", None),
        ("create", f"{MINE}/events{DRY}", EVENT),
        ("create", LEASES.format("autopilot") + DRY, LEASE),
        ("create", f"{AUTO}/configmaps{DRY}", NAMED),
        ("create", f"{AUTO}/secrets{DRY}", NAMED),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations/muster-own-node", None),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations?{ONLY}muster-own-node", None),
        ("get", f"{AUTO}/secrets?{ONLY}muster-own-node", None),
        ("create", TOKENS, REVIEW),
    ],
    OPERATOR: [
        ("get", IPUJOBS, None),
        ("get", f"{CORE}/nodes", None),
        ("create", f"{MINE}/pods{DRY}", POD),
        ("create", f"{MINE}/configmaps{DRY}", NAMED),
        ("create", f"{MINE}/serviceaccounts{DRY}", NAMED),
        ("create", f"{RBAC}/namespaces/default/roles{DRY}", ROLE),
        ("create", f"{MINE}/events{DRY}", EVENT | {"involvedObject": {"kind": "IPUJob", "namespace": "default"}}),
        ("create", LEASES.format("default") + DRY, LEASE),
        ("create", f"{MINE}/secrets{DRY}", NAMED),
        ("get", f"{WEBHOOKS}/mutatingwebhookconfigurations/gc-ipu-operator-webhook", None),
        ("get", f"{WEBHOOKS}/mutatingwebhookconfigurations?{ONLY}gc-ipu-operator-webhook", None),
        ("get", f"{MINE}/secrets?{ONLY}gc-ipu-operator-webhook", None),
        ("create", TOKENS, REVIEW),
    ],
    PROXY: [
        ("create", f"{MINE}/configmaps{DRY}", NAMED),
        ("create", TOKENS, REVIEW),
    ],
}
MAY_NOT: dict[tuple[str, str], list[Call]] = {
    AGENT: [
        ("get", f"{CORE}/nodes", None),
        ("get", f"{CORE}/pods", None),
        ("get", f"{CORE}/secrets", None),
        ("get", f"{AUTO}/configmaps", None),
        ("patch", f"{CORE}/nodes/n{DRY}", {"metadata": {"labels": {"a": "b"}}}),
        ("patch", f"{HEALTHS}/n{DRY}", {"spec": {}}),
        ("create", f"{HEALTHS}{DRY}", NAMED),
        ("delete", f"{HEALTHS}/n", None),
        ("create", f"{MINE}/events{DRY}", EVENT),
        ("get", "/apis/discovery.k8s.io/v1beta1/endpointslices", None),
    ],
    TAINTER: [
        ("get", f"{AUTO}/secrets", None),
        ("get", f"{AUTO}/secrets/autopilot-pull-secret", None),
        ("get", f"{AUTO}/secrets?{ONLY}autopilot-pull-secret", None),
        ("create", f"{MINE}/secrets{DRY}", NAMED),
        ("create", f"{MINE}/configmaps{DRY}", NAMED),
        ("create", f"{MINE}/pods{DRY}", POD),
        ("delete", f"{CORE}/nodes/n", None),
        ("delete", f"{MINE}/pods/x", None),
        ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}}),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations/gc-ipu-operator-webhook", None),
        ("create", f"{RBAC}/clusterroles{DRY}", NAMED),
        ("get", IPUJOBS, None),
    ],
    OPERATOR: [
        ("get", f"{MINE}/secrets", None),
        ("create", f"{AUTO}/secrets{DRY}", NAMED),
        ("patch", f"{CORE}/nodes/n{DRY}", {"metadata": {"labels": {"a": "b"}}}),
        ("create", f"{RBAC}/clusterrolebindings{DRY}", NAMED),
        # no right is given on that it does not have
        ("create", f"{RBAC}/namespaces/default/roles{DRY}", NAMED | {"rules": [ANYTHING]}),
        ("get", HEALTHS, None),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations/muster-own-node", None),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations", None),
        ("create", f"{IPUJOBS}{DRY}", NAMED),
        ("patch", f"{CRDS}/ipujobs.graphcore.ai{DRY}", {"metadata": {"labels": {"a": "b"}}}),
    ],
    PROXY: [
        ("get", f"{MINE}/configmaps", None),
        ("get", f"{MINE}/secrets", None),
        ("create", f"{AUTO}/configmaps{DRY}", NAMED),
        ("get", f"{CORE}/nodes", None),
        ("get", f"{CORE}/pods", None),
        ("get", IPUJOBS, None),
        ("create", f"{MINE}/pods{DRY}", POD),
        ("create", LEASES.format("default") + DRY, LEASE),
    ],
}  # fmt: skip


def allowed(client: Admin, call: Call) -> bool:
    """Whether the API server lets it through; what it then makes of it is not asked."""
    method, path, body = call
    words = (path,) if body is None else (path, body)
    try:
        getattr(client, method)(*words)
    except Denied as error:
        return error.status != 403
    return True


@pytest.mark.parametrize("account", MAY, ids=lambda account: account[1])
def test_a_part_may_do_what_it_does(parts: Cluster, account: tuple[str, str]) -> None:
    with parts.as_account(*account) as client:
        assert [call[:2] for call in MAY[account] if not allowed(client, call)] == []


@pytest.mark.parametrize("account", MAY_NOT, ids=lambda account: account[1])
def test_a_part_may_do_nothing_else(parts: Cluster, account: tuple[str, str]) -> None:
    with parts.as_account(*account) as client:
        assert [call[:2] for call in MAY_NOT[account] if allowed(client, call)] == []


def test_the_tracker_is_the_proxys(parts: Cluster) -> None:
    with parts.as_account(*PROXY) as client:
        client.create(f"{MINE}/configmaps", {"metadata": {"name": "ipu-partitions-tracker"}})
        try:
            client.patch(TRACKER, {"data": {"p": "{}"}})
            assert client.get(TRACKER)["data"] == {"p": "{}"}
            assert not allowed(client, ("delete", TRACKER, None))
        finally:
            parts.admin.delete(TRACKER)


def test_metrics_may_be_read_once_the_guides_line_is_typed(parts: Cluster) -> None:
    parts.admin.create(f"{MINE}/serviceaccounts", {"metadata": {"name": "prometheus"}})

    def may_read() -> bool:
        attributes = {"path": "/metrics", "verb": "get"}
        spec = {"user": "system:serviceaccount:default:prometheus", "nonResourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = parts.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    assert not may_read()
    kubectl = ["kubectl", "--kubeconfig", str(parts.plane.kubeconfig)]
    found = subprocess.run(
        [*kubectl, "get", "clusterrole", "-l", "component=metrics-reader"], capture_output=True, text=True, check=True
    )
    assert "gc-metrics-reader" in found.stdout
    line = [
        "create",
        "clusterrolebinding",
        "metrics",
        "--clusterrole=gc-metrics-reader",
        "--serviceaccount=default:prometheus",
    ]
    subprocess.run([*kubectl, *line], capture_output=True, check=True)
    until(may_read, "the right to read metrics")
    parts.admin.delete(f"{RBAC}/clusterrolebindings/metrics")
    parts.admin.delete(f"{MINE}/serviceaccounts/prometheus")
