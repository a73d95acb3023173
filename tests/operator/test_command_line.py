"""`muster operator` as it is typed."""

import os
import subprocess
import sys

import pytest


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    command = [sys.executable, "-m", "muster_cli", "operator", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environ)


def test_help_names_every_flag_that_scripts_may_rely_on() -> None:
    done = run("--help")
    assert done.returncode == 0
    for flag in (
        "--vipu-proxy", "--webhook-port", "--metrics-port", "--port", "--cert-dir", "--host-network",
        "--no-host-network", "--launcher-image", "--launcher-image-pull-policy", "--kubectl-version", "--devel-logs",
        "--namespace", "--config", "--kubeconfig", "--log-format", "--host",
    ):  # fmt: skip
        assert flag in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "vipu_proxy"),
        (("--vipu-proxy", "proxy"), "--vipu-proxy: 'proxy'"),
        (("--vipu-proxy", "http://proxy", "--kubeconfig", "/nowhere"), "/nowhere"),
        (("--what",), "--what"),
    ],
)
def test_what_is_wrong_stops_the_start_and_is_named(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 64
    assert said in done.stderr
    assert "Traceback" not in done.stderr
