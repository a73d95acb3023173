"""The ConfigMap that MPI works by. kubeexec runs here in real shells, with a kubectl that writes down its words."""

import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
from tests.operator.plan.job_factory import make_job, template

from muster_operator.job.snapshot import JobSetup
from muster_operator.resources.config import HOSTFILE, KUBEEXEC, config_map
from muster_operator.resources.pods import build_launcher

SHELLS = [shell for shell in ("/bin/sh", "/bin/bash", "/bin/dash") if Path(shell).exists()]
# what it was called with, each word ended by a NUL; then it does what kubectl exec would: run the rest
KUBECTL = """#!/bin/sh
printf '%s\\0' "$@" > "$WORDS"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.parametrize("shell", SHELLS)
class TestKubeexec:
    """Behaviour 18."""

    def run(self, shell: str, folder: Path, *arguments: str) -> tuple[list[str], str]:
        """kubectl's words, and what the command over there prints."""
        kubectl = folder / "kubectl"
        kubectl.write_text(KUBECTL)
        kubectl.chmod(0o755)
        script = folder / "kubeexec"
        script.write_text(config_map(make_job())["data"][KUBEEXEC])
        words = folder / "words"
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "WORDS": str(words)}
        done = subprocess.run(
            [shell, str(script), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert not done.stderr, done.stderr
        assert done.returncode == 0
        return words.read_text().split("\0")[:-1], done.stdout

    def test_18_runs_the_words_in_a_shell_in_the_main_container(self, shell: str, tmp_path: Path) -> None:
        words, _ = self.run(shell, tmp_path, "train-worker-0", "echo", "a", "b")
        assert words == ["exec", "train-worker-0", "-c", "main", "--", "/bin/sh", "-c", "echo a b"]

    @pytest.mark.parametrize(
        "argument",
        [
            "two  blanks",
            "it's",
            'say "hello"',
            "$HOME and `id` and \\n",
            "a;b|c&d>e<f",
            "*",
            "tab\there",
            "line\nbreak",
            "-n",
            "",
        ],
    )
    def test_18_an_argument_that_is_quoted_for_a_shell_arrives_whole(
        self, shell: str, tmp_path: Path, argument: str
    ) -> None:
        command = f"printf %s {shlex.quote(argument)}"
        words, printed = self.run(shell, tmp_path, "train-worker-0", command)
        assert words[-1] == command
        assert printed == argument

    def test_18_words_are_joined_as_ssh_joins_them(self, shell: str, tmp_path: Path) -> None:
        _, printed = self.run(shell, tmp_path, "train-worker-0", "PATH=/bin:$PATH ;", "printf '<%s>'", '"a  b"', "c")
        assert printed == "<a  b><c>"

    def test_says_how_it_is_used(self, shell: str, tmp_path: Path) -> None:
        script = tmp_path / "kubeexec"
        script.write_text(config_map(make_job())["data"][KUBEEXEC])
        done = subprocess.run([shell, str(script), "pod"], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 64
        assert "usage: kubeexec POD COMMAND" in done.stderr


def test_18_the_main_container_is_the_one_that_kubectl_takes_by_default() -> None:
    pods = template(containers=[{"name": "proxy", "image": "p"}, {"name": "work", "image": "w"}])
    assert " -c proxy " in config_map(make_job(pods=pods))["data"][KUBEEXEC]
    pods["metadata"] = {"annotations": {"kubectl.kubernetes.io/default-container": "work"}}
    assert " -c work " in config_map(make_job(pods=pods))["data"][KUBEEXEC]
    pods["metadata"] = {"annotations": {"kubectl.kubernetes.io/default-container": "none-of-them"}}
    assert " -c proxy " in config_map(make_job(pods=pods))["data"][KUBEEXEC]


def test_17_hostfile_has_a_line_for_each_worker_in_order() -> None:
    text = config_map(make_job(instances=3, workers=4))["data"][HOSTFILE]
    assert text.splitlines() == [f"train-worker-{index} slots=1" for index in range(12)]
    assert text.endswith("\n")


def test_17_is_the_jobs_own() -> None:
    job = make_job(name="a", namespace="b")
    made = config_map(job)
    assert (made["kind"], made["metadata"]["name"], made["metadata"]["namespace"]) == ("ConfigMap", "a-config", "b")
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "graphcore.ai/v1alpha1",
            "kind": "IPUJob",
            "name": "a",
            "uid": job.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_content_changes_its_digest() -> None:
    def digest(instances: int) -> str:
        return str(config_map(make_job(instances=instances))["metadata"]["annotations"]["muster.dev/content"])

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_17_kubeexec_is_mounted_executable_and_hostfile_readable() -> None:
    spec = build_launcher(make_job(), [], 0, JobSetup())["spec"]
    volume = next(each for each in spec["volumes"] if "configMap" in each)
    modes = {item["path"]: item["mode"] for item in volume["configMap"]["items"]}
    assert modes["kubeexec"] & stat.S_IXOTH
    assert modes == {"kubeexec": 0o555, "hostfile": 0o444}
