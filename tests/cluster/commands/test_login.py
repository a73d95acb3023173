"""A kubeconfig whose user logs in by an exec plug-in, as cloud providers hand them out, against a real API server."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from muster_cli.__main__ import main
from muster_cli.cluster.login import load_user_config
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_sandbox.controlplane.cluster import ControlPlane


def with_plugin(folder: Path, kubeconfig: Path, status: dict[str, str]) -> Path:
    """As ``kubeconfig``, but its user is who the plug-in's answer says."""
    credential = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status}
    (folder / "credential.json").write_text(json.dumps(credential))
    login = {"apiVersion": credential["apiVersion"], "command": "cat", "args": [str(folder / "credential.json")]}
    document = json.loads(kubeconfig.read_text())
    document["users"][0]["user"] = {"exec": {**login, "interactiveMode": "Never"}}
    path = folder / "config"
    path.write_text(json.dumps(document))
    return path


def token_of(plane: ControlPlane, _: str) -> dict[str, str]:
    config = json.loads(plane.kubeconfig_for("person", "default").read_text())
    return {"token": config["users"][0]["user"]["token"]}


def certificate_of(plane: ControlPlane, user: str) -> dict[str, str]:
    config = load_config(plane.kubeconfig_for_user(user))
    assert config.client_certificate is not None
    assert config.client_key is not None
    return {
        "clientCertificateData": config.client_certificate.decode(),
        "clientKeyData": config.client_key.decode(),
    }


@pytest.mark.parametrize("credential", [token_of, certificate_of])
async def test_the_api_server_takes_what_the_plugin_answers(control_plane, tmp_path, credential) -> None:
    user = f"person-{uuid4().hex[:8]}"
    path = with_plugin(tmp_path, control_plane.kubeconfig, credential(control_plane, user))
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    async with KubeClient(load_user_config(path), timeout_s=30.0) as client:
        answer = await client.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    assert answer["status"]["resourceRules"], "known, or it would have been a 401"


def test_a_command_with_a_token_that_the_server_does_not_know_ends(control_plane, tmp_path, capsys) -> None:
    path = with_plugin(tmp_path, control_plane.kubeconfig, {"token": "of nobody"})
    assert main(["release", "--all", "--yes", "--kubeconfig", str(path)]) == EXIT_UNKNOWN
    assert "401" in capsys.readouterr().err
