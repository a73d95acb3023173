"""`muster operator` as it is typed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.operator.act.test_proxy_token import token

from muster_operator.job.partition_api import PROXY_AUDIENCE

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


def run(*words: str, part: str = "operator") -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    command = [sys.executable, "-m", "muster_cli", part, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environ)


def test_help_names_every_flag_that_scripts_may_rely_on() -> None:
    done = run("--help")
    assert done.returncode == 0
    for flag in (
        "--vipu-proxy", "--proxy-token", "--webhook-port", "--metrics-port", "--port", "--cert-dir", "--host-network",
        "--no-host-network", "--launcher-image", "--launcher-image-pull-policy", "--kubectl-version", "--devel-logs",
        "--namespace", "--config", "--kubeconfig", "--log-level", "--log-format", "--host",
    ):  # fmt: skip
        assert flag in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "--vipu-proxy"),
        (("--vipu-proxy", "proxy"), "--vipu-proxy: 'proxy'"),
        (("--vipu-proxy", "http://proxy"), "--proxy-token"),
        (("--vipu-proxy", "http://proxy", "--proxy-token", "/t", "--kubeconfig", "/nowhere"), "/nowhere"),
        (("--what",), "--what"),
        (("--log-level", "loud"), "--log-level"),
    ],
)
def test_a_wrong_setting_is_named_and_exits_with_64(words: tuple[str, ...], expected: str) -> None:
    done = run(*words)
    assert done.returncode == 64
    assert expected in done.stderr
    assert done.stderr.splitlines()[-1].startswith("muster: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("part", "flag"),
    [
        ("operator", "--vipu-proxy"),
        ("operator", "--proxy-token"),
        ("vipu-proxy", "--controllers"),
        ("vipu-sim", "--state"),
    ],
)
def test_a_missing_required_flag_is_named_and_marked_in_the_help(part: str, flag: str) -> None:
    done = run(part=part)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("muster: ")
    assert flag in done.stderr
    assert "Field" not in done.stderr
    helped = run("--help", part=part).stdout
    assert "(required" in helped[helped.index(f"  {flag} ") :].partition("\n  --")[0]
    assert f"[{flag}" not in helped.partition("\n\n")[0]


@pytest.mark.parametrize("content", [None, token("https://kubernetes.default.svc")], ids=["no file", "API server"])
def test_without_a_token_for_the_proxy_alone_the_operator_does_not_start(tmp_path: Path, content: str | None) -> None:
    kubeconfig, file = tmp_path / "kubeconfig", tmp_path / "token"
    kubeconfig.write_text(KUBECONFIG)
    if content is not None:
        file.write_text(content)
    done = run("--vipu-proxy", "http://127.0.0.1:1", "--proxy-token", str(file), "--kubeconfig", str(kubeconfig))
    assert done.returncode == 64
    assert str(file) in done.stderr.splitlines()[-1]
    assert content is None or PROXY_AUDIENCE in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("vipu-proxy", ("--controllers", "v:8090:k=v", "--kubeconfig", "KUBECONFIG")),
        ("vipu-sim", ("--state", "FOLDER")),
    ],
)
def test_a_port_in_use_is_named_and_exits_with_3(tmp_path: Path, part: str, words: tuple[str, ...]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    places = {"KUBECONFIG": str(kubeconfig), "FOLDER": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(*(places.get(word, word) for word in words), "--host", "127.0.0.1", "--port", port, part=part)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("muster: ")
    assert port in done.stderr.splitlines()[-1]
