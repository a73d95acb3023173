"""What the founding pages type gives what they promise: the Autopilot page's file, both IPU guides' lines, and all."""

import base64

import pytest
from tests.chart.helm_render import Helm, Rendered

# the Autopilot page, "Helm Chart customization", as it stands there
AUTOPILOT = """\
namespace:
  create: true
  name: autopilot

image:
  repository: your-repo/autopilot/autopilot
  tag: preferred-tag

pullSecrets:
  create: true
  name: autopilot-pull-secret
  imagePullSecretData: <encoded-key>

annotations:
  k8s.v1.cni.cncf.io/networks: multi-nic-config
"""
# the IPU Operator guides, 6.3.2
INSTALL = (
    *("--set", r"global.vipuControllers=pod1:8090:ipunode=pod1\,pod2:8090:ipunode=pod2"),
    *("--set", "controller.image.repository=controller-image", "--set", "vipuProxy.image.repository=proxy-image"),
)
SEVERAL = ("--set", r"vipuControllers=pod001:8090:ipunode=node1\,pod002:8091:ipunode=node2")
ALPHA_5 = (
    *("--set", "vipuServerAddr=vipu.example.com", "--set", "vipuServerPort=8191", "--set", "vipuCLusterName=test"),
    *("--set", "controller.image.repository=controller-image", "--set", "vipuProxy.image.repository=proxy-image"),
)


def promises_of_autopilot(rendered: Rendered) -> None:
    namespace = rendered.one("Namespace", "autopilot")
    assert namespace["metadata"]["labels"]["openshift.io/cluster-monitoring"] == "true"
    agent = rendered.agent
    assert agent["metadata"]["namespace"] == "autopilot"
    pod = agent["spec"]["template"]
    assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "multi-nic-config"
    assert pod["spec"]["containers"][0]["image"] == "your-repo/autopilot/autopilot:preferred-tag"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "autopilot-pull-secret"}]
    secret = rendered.one("Secret", "autopilot-pull-secret")
    assert secret["metadata"]["namespace"] == "autopilot"
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    service = rendered.one("Service", "autopilot-healthchecks")
    assert service["metadata"]["namespace"] == "autopilot"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert [port["port"] for port in service["spec"]["ports"]] == [3333]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    settings = rendered.settings("muster-agent", "agent.yaml")
    assert settings["repeat"] == 1
    assert settings["checks"]["pciebw"]["parameters"]["min_bandwidth_gb_per_s"] == 4


def promises_of_the_guide(rendered: Rendered, controllers: str) -> None:
    manager = rendered.container("Deployment", "gc-ipu-operator-controller-manager")
    proxy = rendered.container("Deployment", "gc-ipu-operator-vipu-proxy")
    assert manager["image"] == "controller-image:0.1.0"
    assert proxy["image"] == "proxy-image:0.1.0"
    assert rendered.one("ConfigMap", "gc-ipu-operator-vipu-controllers")["data"]["controllers.yaml"] == controllers
    service = rendered.one("Service", "gc-ipu-operator-vipu-proxy")
    assert (service["spec"]["type"], service["spec"]["ports"][0]["port"]) == ("ClusterIP", 80)
    reader = rendered.one("ClusterRole", "gc-metrics-reader")
    assert reader["metadata"]["labels"]["component"] == "metrics-reader"
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert [name for name in rendered.kind(kind) if name.startswith("gc-")] == ["gc-ipu-operator-webhook"]
    for kind in ("Deployment", "Service", "ServiceAccount", "ConfigMap"):
        for name, each in rendered.kind(kind).items():
            if name.startswith("gc-"):
                assert each["metadata"]["namespace"] == "default"
    settings = rendered.settings("gc-ipu-operator-controller-manager", "operator.yaml")
    assert settings["tracker"] == "ipu-partitions-tracker"
    assert settings["vipu_proxy"] == "http://gc-ipu-operator-vipu-proxy.default.svc:80"


def test_the_autopilot_pages_file(helm: Helm) -> None:
    rendered = helm.template(values=AUTOPILOT, release="autopilot")

    promises_of_autopilot(rendered)
    assert rendered.agent["metadata"]["name"] == "autopilot-daemon-autopilot"


def test_the_guides_first_line(helm: Helm) -> None:
    promises_of_the_guide(helm.template(*INSTALL), "pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2")


def test_the_guides_line_for_several_controllers(helm: Helm) -> None:
    rendered = helm.template(*INSTALL[2:], *SEVERAL)

    promises_of_the_guide(rendered, "pod001:8090:ipunode=node1,pod002:8091:ipunode=node2")


def test_the_line_of_the_chart_of_alpha_5(helm: Helm) -> None:
    promises_of_the_guide(helm.template(*ALPHA_5), "vipu.example.com:8191:muster.dev/vipu-cluster=test")


def test_all_of_them_together(helm: Helm) -> None:
    rendered = helm.template(*INSTALL, *SEVERAL, *ALPHA_5, values=AUTOPILOT)

    promises_of_autopilot(rendered)
    promises_of_the_guide(
        rendered,
        "pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2,pod001:8090:ipunode=node1,pod002:8091:ipunode=node2,"
        "vipu.example.com:8191:muster.dev/vipu-cluster=test",
    )
    assert rendered.container("Deployment", "muster-tainter")["image"] == "your-repo/autopilot/autopilot:preferred-tag"


@pytest.mark.parametrize(
    "data",
    ['{"auths": {}}', base64.b64encode(b'{"auths": {}}').decode(), base64.encodebytes(b'{"auths": {}}').decode()],
)
def test_a_pull_secret_is_taken_encoded_or_plain(helm: Helm, data: str) -> None:
    rendered = helm.template(values={"pullSecrets": {"imagePullSecretData": data}})

    stored = rendered.one("Secret", "autopilot-pull-secret")["data"][".dockerconfigjson"]
    assert base64.b64decode(stored, validate=True) == b'{"auths": {}}'


def test_every_pod_of_the_image_that_all_parts_share_is_pulled_alike(helm: Helm) -> None:
    """The page's file names one private image; the IPU parts run in the release's namespace."""
    rendered = helm.template(values=AUTOPILOT)

    made = [each["metadata"] for each in rendered.objects if each["kind"] == "Secret"]
    assert {(each["namespace"], each["name"]) for each in made} == {
        (namespace, "autopilot-pull-secret") for namespace in ("default", "autopilot")
    }
    for each in rendered.objects:
        if each["kind"] in ("Deployment", "DaemonSet", "Job"):
            assert each["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "autopilot-pull-secret"}], each


def test_an_ipu_part_of_another_image_is_pulled_without_it(helm: Helm) -> None:
    """The pod of `helm test`, which is of the shared image, is off."""
    own = {"image": {"repository": "elsewhere.example.com/part"}}
    secrets = {"imagePullSecretData": "e30="}
    rendered = helm.template(
        values={"pullSecrets": secrets, "controller": own, "vipuProxy": own, "helmTest": {"enabled": False}}
    )

    assert [each["metadata"]["namespace"] for each in rendered.objects if each["kind"] == "Secret"] == ["autopilot"]
    for name in ("gc-ipu-operator-controller-manager", "gc-ipu-operator-vipu-proxy"):
        assert "imagePullSecrets" not in rendered.pod("Deployment", name)


def test_a_pull_secret_that_is_there_is_named_and_not_made(helm: Helm) -> None:
    rendered = helm.template(values={"pullSecrets": {"create": False, "name": "ours"}})

    assert not rendered.kind("Secret")
    assert rendered.agent["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "ours"}]
    assert rendered.pod("Deployment", "muster-tainter")["imagePullSecrets"] == [{"name": "ours"}]


def test_a_namespace_that_is_there_is_not_made(helm: Helm) -> None:
    rendered = helm.template(values={"namespace": {"create": False, "name": "ours"}})

    assert not rendered.kind("Namespace")
    assert rendered.agent["metadata"]["namespace"] == "ours"
    assert rendered.settings("muster-agent", "agent.yaml")["namespace"] == "ours"


def test_the_releases_own_namespace_is_not_made_twice(helm: Helm) -> None:
    assert not helm.template(namespace="autopilot").kind("Namespace")
