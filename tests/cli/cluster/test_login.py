"""Commands log in as a kubeconfig says: by an exec plug-in, with the kubernetes package."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from muster_cli.__main__ import main
from muster_cli.cluster.login import load_user_config
from muster_kube.api.errors import ConfigError
from muster_kube.process.command_line import EXIT_UNKNOWN


def kubeconfig(folder: Path, plugin: str) -> Path:
    """Its user logs in by the shell script ``plugin``, which lies beside it."""
    program = folder / "plug"
    program.write_text(f"#!/bin/sh\n{plugin}\n")
    program.chmod(0o755)
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plug", "interactiveMode": "Never"}
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": login}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


async def test_an_exec_plugin_next_to_the_kubeconfig_logs_us_in_and_again_when_refused(tmp_path: Path) -> None:
    answer = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "N"}}
    script = f"echo x >> {tmp_path}/runs; n=$(wc -l < {tmp_path}/runs); echo '{json.dumps(answer)}' | sed s/N/t$n/"
    found = load_user_config(kubeconfig(tmp_path, script))
    assert await found.credentials.header() == "Bearer t1"
    assert await found.credentials.header() == "Bearer t1"
    assert found.credentials.refused("Bearer t1")
    assert await found.credentials.header() == "Bearer t2"


def test_a_plugin_that_fails_is_a_clear_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = kubeconfig(tmp_path, "exit 3")
    with pytest.raises(ConfigError):
        load_user_config(path)
    assert main(["doctor", "--kubeconfig", str(path)]) == EXIT_UNKNOWN
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"{path}: users[u].exec: " in said


def test_without_the_kubernetes_package_the_error_names_it_and_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    path = kubeconfig(tmp_path, "true")
    with pytest.raises(ConfigError) as caught:
        load_user_config(path)
    said = str(caught.value)
    assert f"{path}: users[u].exec: " in said
    assert "kubernetes" in said
    assert "image" in said
