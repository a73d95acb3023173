"""The chart, installed by the real helm on a real API server: what helm does to it over time.

No kubelet runs here, so no pod does. The chart's own jobs are carried out by the tests, with their accounts' rights.
"""

import base64
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import yaml
from release import manifests
from tests.chart.helm_render import CHART, PROGRAM, SHA256, Helm, Object, Refused, checked
from tests.chart.openshift_api import definition
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.machine import require
from tests.polling import pause_s

from muster_sandbox.controlplane.admin import AdminClient
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.kubeconfig import bearer_user, write_kubeconfig
from muster_sandbox.image import product
from muster_tainter.pause import PauseMap

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODEHEALTHS = f"{CRDS}/nodehealths.muster.dev"
IPUJOBS = "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs"
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
TRACKER = "/api/v1/namespaces/default/configmaps/ipu-partitions-tracker"
CONTROLLERS = "/api/v1/namespaces/default/configmaps/gc-ipu-operator-vipu-controllers"
DEPLOYMENTS = "/apis/apps/v1/deployments"
CLUSTER_WIDE = ("clusterroles", "clusterrolebindings")
GUIDE = r"global.vipuControllers=pod1:8090:ipunode=pod1\,pod2:8090:ipunode=pod2"
BUSY = r"another operation .* is in progress"  # helm's words
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Cluster:
    plane: ControlPlane
    helm: Helm
    folder: Path

    @property
    def admin(self) -> AdminClient:
        return self.plane.admin

    def install(self, release: str = "gc", *words: str) -> str:
        return self.helm.run("install", release, str(CHART), "--namespace", "default", *words)

    def upgrade(self, release: str = "gc", *words: str) -> str:
        """As the Autopilot page has it: to be typed at any time."""
        return self.helm.run("upgrade", release, str(CHART), "--install", "--namespace", "default", *words)

    def uninstall(self, release: str = "gc", *words: str) -> str:
        return self.helm.run("uninstall", release, "--namespace", "default", *words)

    def releases(self) -> set[str]:
        """The names of those that are there, whatever became of them: helm keeps each in Secrets."""
        kept = self.admin.get("/api/v1/namespaces/default/secrets", {"labelSelector": "owner=helm"})["items"]
        return {each["metadata"]["labels"]["name"] for each in kept}

    def disruption_budgets(self) -> str:
        version = self.admin.get("/apis/policy")["preferredVersion"]["groupVersion"]  # policy/v1beta1 before 1.21
        return f"/apis/{version}/poddisruptionbudgets"

    def objects(self) -> dict[tuple[str, str, str], Object]:
        """All that helm manages, by kind, namespace and name."""
        found: dict[tuple[str, str, str], Object] = {}
        for path in (
            "/api/v1/configmaps", "/api/v1/services", "/api/v1/serviceaccounts", "/api/v1/namespaces",
            "/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets", self.disruption_budgets(),
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

    def settled(self) -> dict[tuple[str, str, str], Object]:
        """As :meth:`objects`, once each account has the Secret that a controller gives it before Kubernetes 1.24."""

        def so() -> bool:
            accounts = [each for (kind, *_), each in self.objects().items() if kind == "serviceaccounts"]
            return self.plane.minor >= 24 or all(each.get("secrets") for each in accounts)

        until(so, "all accounts have their Secrets")
        return self.objects()

    def token(self, namespace: str, account: str, pod: Object | None = None) -> str:
        """Bound to ``pod``, as the kubelet has it made, or to none."""
        spec: Object = {}
        if pod is not None:
            reference = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", **reference}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.admin.create(path, body)["status"]["token"])

    def as_account(self, namespace: str, account: str, pod: Object | None = None) -> AdminClient:
        return AdminClient(self.plane.server, self.plane.ca_file, token=self.token(namespace, account, pod))

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
        self._complete(job)
        return printed

    def _complete(self, job: Object) -> None:
        """Lets the job's pod succeed; helm may delete the job once the Job controller calls it complete."""
        namespace, name, uid = (job["metadata"][key] for key in ("namespace", "name", "uid"))
        pods, path = f"/api/v1/namespaces/{namespace}/pods", f"{JOBS.format(namespace)}/{name}"

        def made() -> list[Object]:
            items: list[Object] = self.admin.get(pods, {"labelSelector": f"controller-uid={uid}"})["items"]
            return items

        until(lambda: bool(made()), f"the pod of job {name}")
        for each in made():
            self.admin.patch(f"{pods}/{each['metadata']['name']}/status", {"status": {"phase": "Succeeded"}})

        def is_over() -> bool:
            found = self.admin.found(path)
            conditions = found["status"].get("conditions", []) if found else [{"type": "Complete"}]
            return any(each["type"] == "Complete" for each in conditions)

        until(is_over, f"job {name} is complete")

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
        left = self._uid(path)  # of a helm that was killed
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(act)
            until(lambda: waiting.done() or self._uid(path) not in ("", left), f"{job} or the end of helm")
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

    def _uid(self, path: str) -> str:
        found = self.admin.found(path)
        return str(found["metadata"]["uid"]) if found is not None else ""

    def killed_at(self, namespace: str, job: str, *words: str) -> None:
        """helm, while it waits for one of the chart's jobs."""
        command = [str(PROGRAM), *words, "--namespace", "default"]
        path = f"{JOBS.format(namespace)}/{job}"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=self.helm.environment) as helm:
            try:
                until(lambda: self.admin.exists(path), job)
            finally:
                helm.kill()

    def wait_until_gone(self, *paths: str) -> None:
        until(lambda: not any(self.admin.exists(path) for path in paths), f"the end of {', '.join(paths)}")


def until(true: Callable[[], bool], what: str) -> None:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() < begun + PATIENCE_S, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(pause_s(begun))


@pytest.fixture(scope="module")
def cluster(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with nothing of Muster's: the session's has the roles already, under the same names."""
    require("kubectl")  # the chart's hooks run it
    assert checked() == SHA256
    folder = tmp_path_factory.mktemp("chart")
    with ControlPlane(binaries) as plane:
        yield Cluster(plane, Helm(folder, {"KUBECONFIG": str(plane.kubeconfig)}), folder)


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """Nothing of a release before, and nothing after."""
    yield cluster
    for release in cluster.releases():
        cluster.uninstall(release, "--no-hooks")
    cluster.admin.delete("/api/v1/namespaces/autopilot")
    cluster.wait_until_gone("/api/v1/namespaces/autopilot")
    left = [key for key in cluster.objects() if key[0] in CLUSTER_WIDE]
    for kind, _, name in left:
        cluster.admin.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{name}")


@pytest.fixture(scope="module")
def typist(cluster: Cluster) -> CommandRunner:
    """In a folder that holds what the page's lines name."""
    place = cluster.folder / "typed"
    place.mkdir()
    (place / "helm").symlink_to(CHART.parent)
    cluster.helm.run("package", str(CHART), "--destination", str(place))
    manifests.write(["--kube-version", cluster.plane.server_version], place / manifests.PLACE, cluster.folder / "home")
    environ = cluster.helm.environment
    path = f"{PROGRAM.parent}:{environ['PATH']}"
    return CommandRunner(
        commands_of_test(__file__), {"REGISTRY": "registry.invalid", "RELEASE": "gc"}, environ | {"PATH": path}, place
    )


def rest(objects: dict[tuple[str, str, str], Object]) -> dict[tuple[str, str, str], object]:
    """What changes with each write: controllers write states, which leave the generation."""
    return {
        key: each["metadata"].get("generation") or each["metadata"]["resourceVersion"] for key, each in objects.items()
    }


def test_installed_once_and_upgraded_twice_nothing_changes(clean: Cluster) -> None:
    printed = clean.upgrade("gc", "--set", GUIDE)
    first = clean.settled()
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
    assert admin.exists(NODEHEALTHS)
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

    # as an uninstall leaves it that was killed half way
    admin.delete("/apis/apps/v1/namespaces/autopilot/deployments/muster-tainter")
    clean.wait_until_gone("/apis/apps/v1/namespaces/autopilot/deployments/muster-tainter")
    clean.beside(lambda: clean.uninstall("other"), "autopilot", "muster-release")
    clean.wait_until_gone("/api/v1/namespaces/autopilot")
    assert not clean.objects()


def test_the_numbers_of_ipus_leave_the_nodes_when_turned_off_and_at_an_uninstall(clean: Cluster) -> None:
    """Without a tainter, whose own hook would run too."""
    admin, parts = clean.admin, ("--set", "tainter.enabled=false,agent.enabled=false", "--set", GUIDE)
    clean.install("gc", *parts, "--set", "ipuVisibility.advertise=labels")
    keys = {"muster.dev/ipus-free": "4", "muster.dev/ipus-total": "64"}
    status = {"capacity": {"cpu": "8"} | keys, "allocatable": {"cpu": "8"} | keys}
    admin.create("/api/v1/nodes", {"metadata": {"name": "ipu-1", "labels": keys | {"ipunode": "pod1"}}})
    admin.patch("/api/v1/nodes/ipu-1/status", {"status": status})

    def left() -> set[str]:
        node = admin.get("/api/v1/nodes/ipu-1")
        found = node["metadata"]["labels"], node["status"]["capacity"], node["status"]["allocatable"]
        return {key for each in found for key in each if key in keys}

    # nothing was turned off: helm waits for no job
    clean.upgrade("gc", *parts, "--set", "ipuVisibility.advertise=labels")
    assert left() == set(keys)

    resources = (*parts, "--set", "ipuVisibility.advertise=resources")
    clean.beside(lambda: clean.upgrade("gc", *resources), "default", "gc-ipu-operator-ipus-post-upgrade")
    assert not left()
    assert not [key for key in clean.objects() if "ipu-labels" in key[2]]

    admin.patch("/api/v1/nodes/ipu-1/status", {"status": status})
    clean.beside(clean.uninstall, "default", "gc-ipu-operator-ipus-pre-delete")
    assert not left()
    clean.wait_until_gone("/api/v1/namespaces/autopilot")
    assert not clean.objects()
    admin.delete("/api/v1/nodes/ipu-1")


def test_a_namespace_that_exists_is_told_with_what_to_type(clean: Cluster, typist: CommandRunner) -> None:
    clean.admin.create("/api/v1/namespaces", {"metadata": {"name": "autopilot"}})
    with pytest.raises(Refused, match=r"autopilot.*--set namespace\.create=false"):
        clean.install()

    printed = clean.install("gc", "--set", "namespace.create=false")

    line = "kubectl label namespace autopilot {} {}".format(
        *printed.partition("kubectl label --overwrite namespace autopilot ")[2].split()[:2]
    )
    assert line in typist.left, "the notes and docs/install.md say the same"
    typist.type(line)
    assert "kubectl label" not in clean.upgrade("gc", "--set", "namespace.create=false")
    clean.uninstall("gc", "--no-hooks")
    assert clean.admin.exists("/api/v1/namespaces/autopilot")


def test_a_namespace_of_the_chart_outlives_create_false_only_with_the_pages_annotation(
    clean: Cluster, typist: CommandRunner
) -> None:
    path = "/api/v1/namespaces/autopilot"
    clean.install()
    clean.upgrade("gc", "--set", "namespace.create=false")
    clean.wait_until_gone(path)
    clean.uninstall("gc", "--no-hooks")

    clean.install()
    typist.names["NAME"] = "autopilot"
    typist.type("kubectl annotate namespace NAME helm.sh/resource-policy=keep")
    clean.upgrade("gc", "--set", "namespace.create=false")
    assert "deletionTimestamp" not in clean.admin.get(path)["metadata"]
    clean.uninstall("gc", "--no-hooks")
    assert "deletionTimestamp" not in clean.admin.get(path)["metadata"]


def test_kubectl_alone_pauses_and_resumes(clean: Cluster, typist: CommandRunner) -> None:
    path = "/api/v1/namespaces/autopilot/configmaps/muster-pause"
    clean.admin.create("/api/v1/namespaces", {"metadata": {"name": "autopilot"}})
    typist.names |= {"NAME": "ada", "TEXT": "switch maintenance"}
    typist.type("kubectl create configmap muster-pause -n autopilot --from-literal=by=NAME --from-literal=reason=TEXT")
    pause = msgspec.convert(clean.admin.get(path), PauseMap)
    assert (pause.by, pause.text) == ("ada", "switch maintenance")
    assert pause.since, "when it was created"
    typist.type("kubectl delete configmap muster-pause -n autopilot")
    assert not clean.admin.exists(path)


def test_a_second_release_is_refused_by_name(clean: Cluster) -> None:
    clean.install()

    with pytest.raises(Refused, match=r"autopilot.*--set namespace\.create=false"):
        clean.install("other")
    with pytest.raises(Refused, match=r"(?s)muster-agent.*gc"):
        clean.install("other", "--set", "namespace.create=false")


def test_controllers_that_a_person_wrote_outlive_an_upgrade(clean: Cluster) -> None:
    clean.install("gc", "--set", GUIDE)
    clean.admin.patch(CONTROLLERS, {"data": {"controllers.yaml": "edited:1:k=v"}})

    printed = clean.upgrade("gc", "--set", GUIDE)

    assert clean.admin.get(CONTROLLERS)["data"] == {"controllers.yaml": "edited:1:k=v"}
    assert "ConfigMap gc-ipu-operator-vipu-controllers" in printed, "it is said that it is kept"

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
    fresh = make_old(clean.admin)

    private = ("--set", "pullSecrets.imagePullSecretData=e30=")
    clean.beside(lambda: clean.upgrade("gc", *private), "default", "gc-ipu-operator-crds")

    assert clean.admin.get(NODEHEALTHS)["spec"] == fresh
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


def test_a_helm_that_was_killed_half_way_is_healed_as_the_page_says(clean: Cluster, typist: CommandRunner) -> None:
    """docs/install.md, "helm was interrupted": at a first install, and at an upgrade."""
    clean.install()
    clean.uninstall("gc", "--no-hooks")
    clean.wait_until_gone("/api/v1/namespaces/autopilot")
    make_old(clean.admin)
    clean.killed_at("default", "gc-ipu-operator-crds", "install", "gc", str(CHART))

    with pytest.raises(Refused, match=BUSY):
        clean.upgrade()
    typist.type("helm uninstall RELEASE --no-hooks")
    clean.beside(clean.upgrade, "default", "gc-ipu-operator-crds")

    installed = clean.settled()
    assert ("daemonsets", "autopilot", "autopilot-daemon-gc") in installed

    make_old(clean.admin)
    clean.killed_at("default", "gc-ipu-operator-crds", "upgrade", "gc", str(CHART), "--set", "tainter.replicas=3")

    with pytest.raises(Refused, match=BUSY):
        clean.upgrade()
    typist.type("helm rollback RELEASE")
    assert rest(installed).items() <= rest(clean.objects()).items()
    clean.beside(lambda: clean.upgrade("gc", "--set", "tainter.replicas=3"), "default", "gc-ipu-operator-crds")
    tainter = clean.admin.get("/apis/apps/v1/namespaces/autopilot/deployments/muster-tainter")
    assert tainter["spec"]["replicas"] == 3
    assert not [name for _, _, name in clean.objects() if name.endswith("-crds")], "of the helm that was killed"


def make_old(admin: AdminClient) -> Object:
    """The CRD of NodeHealths as an older chart may have had it. Returns the spec that it should have."""
    fresh: Object = admin.get(NODEHEALTHS)["spec"]
    old = admin.get(NODEHEALTHS)["spec"]
    old["versions"][0]["additionalPrinterColumns"].pop()
    status = old["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status["forgotten"] = {"type": "string"}
    admin.patch(NODEHEALTHS, {"spec": {"versions": old["versions"]}})
    return fresh


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
    kept = clean.settled()

    with pytest.raises(Refused, match=r"(?s)grafana.*--reset-then-reuse-values"):
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


def test_on_openshift_the_constraints_of_its_accounts_come_and_go_with_the_release(clean: Cluster) -> None:
    """Its API, with the fields that the chart's tests know, on the real API server. Nothing judges pods here."""
    made = "/apis/security.openshift.io/v1/securitycontextconstraints"
    name = f"{made.rpartition('/')[2]}.security.openshift.io"
    clean.admin.create(CRDS, definition())
    try:
        until(lambda: clean.admin.exists(made), f"{name} is served")
        group = name.partition(".")[2]  # which helm looks for
        until(lambda: group in [each["name"] for each in clean.admin.get("/apis")["groups"]], f"{group} is listed")
        clean.install()
        installed = clean.admin.get(f"{made}/muster-agent")
        rendered = clean.helm.run("template", "gc", str(CHART), "--validate", "-s", "templates/openshift.yaml")
        [wanted] = [each for each in yaml.safe_load_all(rendered) if each["kind"] == installed["kind"]]
        assert {key: installed[key] for key in wanted if key != "metadata"} == {
            key: value for key, value in wanted.items() if key != "metadata"
        }, "no field is unknown there, and none that it requires is missing"
        clean.upgrade()
        assert rest({("", "", ""): clean.admin.get(f"{made}/muster-agent")}) == rest({("", "", ""): installed})
        clean.uninstall("gc", "--no-hooks")
        assert clean.admin.get(made)["items"] == []
    finally:
        clean.admin.delete(f"{CRDS}/{name}")
        clean.wait_until_gone(f"{CRDS}/{name}")


def test_whichever_of_the_pages_lines_is_typed_the_release_goes_on_from_it(
    clean: Cluster, typist: CommandRunner
) -> None:
    typist.type(
        "helm upgrade muster helm/muster --install --set image.repository=REGISTRY/muster --set tainter.dryRun=true"
    )
    settings = "/api/v1/namespaces/autopilot/configmaps/muster-tainter"
    assert "dry_run: true" in clean.admin.get(settings)["data"]["tainter.yaml"]
    typist.type("helm upgrade muster helm/muster --install --set image.repository=REGISTRY/muster")
    assert "dry_run: false" in clean.admin.get(settings)["data"]["tainter.yaml"]
    assert images(clean) == {f"registry.invalid/muster:{product.project_version()}"}
    installed = clean.settled()
    typist.type("helm upgrade muster helm/muster --install --set image.repository=REGISTRY/muster")
    assert rest(clean.objects()) == rest(installed)

    clean.admin.create("/api/v1/namespaces", {"metadata": {"name": "monitoring"}})
    typist.names["RELEASE"] = "muster"
    typist.type(
        "helm upgrade RELEASE helm/muster --reset-then-reuse-values --set grafana.dashboards.namespace=monitoring"
        " --set grafana.dashboards.annotations.grafana_folder=Muster"
    )
    typist.names["RELEASE"] = "gc"
    assert images(clean) == {f"registry.invalid/muster:{product.project_version()}"}, "the other values stay"
    found = {key: each for key, each in clean.objects().items() if key[0] == "configmaps" and "dashboard" in key[2]}
    assert len(found) >= 4
    for (_, namespace, _), each in found.items():
        assert (namespace, each["metadata"]["annotations"]["grafana_folder"]) == ("monitoring", "Muster")

    typist.type(
        "helm upgrade muster muster-0.1.0.tgz --install"
        " --set controller.image.pullPolicy=IfNotPresent,vipuProxy.image.pullPolicy=IfNotPresent"
    )
    assert images(clean) == {f"localhost:5000/muster:{product.project_version()}"}
    assert pull_policies(clean) == {"IfNotPresent"}, "there is no registry"
    (listed,) = clean.helm.run("ls", "--namespace", "default").splitlines()[1:]
    assert listed.split()[:3] == ["muster", "default", "5"]
    clean.admin.delete("/api/v1/namespaces/monitoring")


def test_a_policy_comes_with_an_upgrade_and_the_other_values_stay(clean: Cluster, typist: CommandRunner) -> None:
    clean.install("gc", "--set", "tainter.replicas=3")
    policy = {"rules": [{"name": "watch", "match": {"verdict": ["WARN", "FAIL"]}, "action": "event"}]}
    (clean.folder / "typed/policy.yaml").write_text(yaml.safe_dump(policy))
    manifest = typist.type("helm get manifest RELEASE")
    assert "3335" in manifest
    assert "proxy_token" in manifest
    typist.type("helm upgrade RELEASE helm/muster --reset-then-reuse-values --set-file tainter.policy=policy.yaml")
    stored = clean.admin.get("/api/v1/namespaces/autopilot/configmaps/muster-policy")["data"]["policy.yaml"]
    assert yaml.safe_load(stored) == policy
    typist.type("helm upgrade RELEASE helm/muster --reset-then-reuse-values")
    stored = clean.admin.get("/api/v1/namespaces/autopilot/configmaps/muster-policy")["data"]["policy.yaml"]
    assert yaml.safe_load(stored) == policy
    (tainter,) = (
        each for each in clean.admin.get(DEPLOYMENTS)["items"] if each["metadata"]["name"] == "muster-tainter"
    )
    assert tainter["spec"]["replicas"] == 3

    for revision, given in (("1", None), ("2", policy), ("3", policy)):
        typist.names["REVISION"] = revision
        values = json.loads(typist.type("helm get values RELEASE --revision REVISION -o json"))
        text = values["tainter"].get("policy")
        assert (yaml.safe_load(text) if text else None) == given, revision


def images(cluster: Cluster) -> set[str]:
    return {container["image"] for container in containers(cluster)}


def pull_policies(cluster: Cluster) -> set[str]:
    return {container["imagePullPolicy"] for container in containers(cluster)}


def containers(cluster: Cluster) -> list[Object]:
    pods = [each["spec"]["template"]["spec"] for each in cluster.admin.get(DEPLOYMENTS)["items"]]
    return [container for pod in pods for container in pod["containers"]]


def test_the_pages_controllers_are_those_that_the_proxy_is_given(clean: Cluster, typist: CommandRunner) -> None:
    typist.type(
        "helm upgrade muster helm/muster --install --set image.repository=REGISTRY/muster"
        r" --set vipuControllers=pod001:8090:ipunode=node1\,pod002:8091:ipunode=node2"
    )
    given = clean.admin.get(CONTROLLERS.replace("gc-", "muster-"))["data"]["controllers.yaml"]
    assert given == "pod001:8090:ipunode=node1,pod002:8091:ipunode=node2"


def test_kubectl_alone_installs_frees_the_nodes_and_leaves_nothing(clean: Cluster, typist: CommandRunner) -> None:
    admin = clean.admin
    typist.type(
        "kubectl apply -f build/manifests/crd-graphcore.ai_ipujobs.yaml"
        " -f build/manifests/crd-muster.dev_nodehealths.yaml"
    )
    typist.type("kubectl apply -f build/manifests/muster.yaml")
    again = typist.type("kubectl apply -f build/manifests/muster.yaml").splitlines()
    assert len(again) > 40
    # in policy/v1, kubectl replaces a disruption budget's selector each time, and calls that configured
    changed = [line for line in again if not line.endswith(" unchanged")]
    assert all(line.startswith("poddisruptionbudget.policy/") for line in changed)
    assert {each["metadata"]["generation"] for each in admin.get(clean.disruption_budgets())["items"]} == {1}
    assert admin.exists("/apis/apps/v1/namespaces/autopilot/deployments/muster-tainter")
    labels = {"muster.dev/faulty": "true"}
    taint = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
    admin.create("/api/v1/nodes", {"metadata": {"name": "bad-2", "labels": labels}, "spec": {"taints": [taint]}})

    typist.type("kubectl apply -f build/manifests/before-uninstall.yaml")
    clean.carry_out(admin.get(f"{JOBS.format('autopilot')}/muster-release"))
    typist.type("kubectl wait --for=condition=Complete -n autopilot job/muster-release --timeout=5m")

    assert "muster.dev/faulty" not in str(admin.get("/api/v1/nodes/bad-2")["spec"])
    admin.delete("/api/v1/nodes/bad-2")
    typist.type(
        "kubectl delete --ignore-not-found -f build/manifests/before-uninstall.yaml -f build/manifests/muster.yaml"
    )
    clean.wait_until_gone("/api/v1/namespaces/autopilot")
    of_ours = {"labelSelector": "app.kubernetes.io/name=muster"}
    for kind in CLUSTER_WIDE:
        assert admin.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}", of_ours)["items"] == []
    assert admin.exists(f"{CRDS}/ipujobs.graphcore.ai")


def test_all_lines_of_the_documents_that_are_allotted_to_this_file_were_typed(typist: CommandRunner) -> None:
    """The last one."""
    assert not typist.left
