"""The operator's settings: file, variables, flags; and what is wrong is named."""

from pathlib import Path

import pytest

from muster_kube.process.settings import SettingsError
from muster_operator.settings import load

URL = {"vipu_proxy": "http://proxy:8080", "proxy_token": "/token"}


def test_flags_stand_over_variables_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("vipu_proxy: http://file\nlauncher_image: file:1\nscope: [a, b]\nmax_ipus: 128\n")
    environ = {"MUSTER_OPERATOR_VIPU_PROXY": "http://variable", "MUSTER_OPERATOR_SCOPE": "c, d", "OTHER": "x"}
    settings = load(file, {"vipu_proxy": "http://flag", "proxy_token": "/token", "launcher_image": None}, environ)
    assert settings.vipu_proxy == "http://flag"
    assert settings.launcher_image == "file:1"
    assert settings.scope == ("c", "d")
    assert settings.setup().max_ipus == 128


def test_the_defaults_are_the_seeds() -> None:
    settings = load(None, URL, {})
    assert settings.log_level == "info"
    assert (settings.port, settings.metrics_port, settings.webhook_port) == (8081, 8443, 9443)
    setup = settings.setup()
    assert (setup.launcher_image, setup.launcher_image_pull_policy) == ("launcher:latest", "Never")
    assert setup.host_network is setup.privileged is True
    assert settings.limits().allow == {"hostNetwork", "privileged"}
    assert setup.max_ipus == 64
    assert setup.our_taints == ("muster.dev/faulty",)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, "vipu_proxy"),
        ({"vipu_proxy": "http://proxy:8080"}, "proxy_token"),
        ({"vipu_proxy": "proxy:8080"}, "--vipu-proxy: 'proxy:8080'"),
        ({"vipu_proxy": "http://user@proxy"}, "--vipu-proxy"),
        (URL | {"max_ipus": 48}, "--max-ipus: 48"),
        (URL | {"port": 70000}, "--port: 70000"),
        (URL | {"scope": ["Not A Name"]}, "--scope.0: 'Not A Name'"),
        (URL | {"kubectl_version": "latest"}, "--kubectl-version: 'latest'"),
        (URL | {"launcher_image_pull_policy": "Sometimes"}, "'Always', 'IfNotPresent' or 'Never'"),
        (URL | {"dns_policy": "x"}, "--dns-policy: 'x'"),
        (URL | {"log_level": "loud"}, "--log-level: 'loud'"),
        (URL | {"btl_tcp_if_include": "eth0; rm"}, "--btl-tcp-if-include"),
        (URL | {"allow_in_templates": ["everything"]}, "capability:NAME"),
        (URL | {"allow_in_templates": ["capability:"]}, "--allow-in-templates.0: 'capability:'"),
    ],
)
def test_wrong_argument_is_named_with_the_allowed_ones(flags: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(None, flags, {})
    assert expected in str(error.value)


def test_an_unknown_variable_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="MUSTER_OPERATOR_LAUNCHERIMAGE"):
        load(None, URL, {"MUSTER_OPERATOR_LAUNCHERIMAGE": "x"})
