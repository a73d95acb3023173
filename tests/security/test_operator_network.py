"""A network stranger and the operator's ports: the webhooks are for the API server, metrics ask for a token, and the
health port is open to the kubelet only, whom no policy stops."""

import pytest
from tests.chart.conftest import helm  # noqa: F401 - a fixture
from tests.chart.helm_render import Helm, Rendered


@pytest.fixture(scope="session")
def defaults(helm: Helm) -> Rendered:  # noqa: F811 - the fixture
    return helm.template()


def test_strangers_reach_the_operators_health_port_and_webhooks_only_on_the_nodes_network(
    helm: Helm,  # noqa: F811 - the fixture
    defaults: Rendered,
) -> None:
    name, apis = "gc-ipu-operator-controller-manager", ["10.0.0.0/28"]
    assert "hostNetwork" not in defaults.pod("Deployment", name)
    rendered = helm.template(values={"networkPolicy": {"apiServer": apis}})
    selected = rendered.one("NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= rendered.one("Deployment", name)["spec"]["template"]["metadata"]["labels"].items()

    def opened(to: Rendered) -> dict[int, list[str]]:
        """By port: the addresses that reach it, none for all."""
        rules = to.one("NetworkPolicy", name)["spec"]["ingress"]
        return {
            port["port"]: [peer["ipBlock"]["cidr"] for peer in rule.get("from", [])]
            for rule in rules
            for port in rule["ports"]
        }

    assert opened(defaults) == {8443: [], 9443: []}
    assert opened(rendered) == {8443: [], 9443: apis}
    shared = {"controller": {"hostNetwork": True}}
    assert not helm.template(values=shared).has("NetworkPolicy", name)
    assert "controller.hostNetwork is true" in helm.notes(values=shared)
