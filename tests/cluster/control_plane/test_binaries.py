"""Where the control plane's programs come from."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from muster_sandbox.programs import requirements
from muster_sandbox.programs.apt import choose_mirrors, remove_tree
from muster_sandbox.programs.binaries import (
    BUILD_NAME,
    KUBELET,
    KUBELET_BUILD_NAME,
    PROGRAMS,
    NoControlPlane,
    cache_directory,
    find_binaries,
    find_kubelet,
)
from muster_sandbox.programs.debian import build, openapi_packages


def programs(directory: Path, names: tuple[str, ...] = PROGRAMS) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


def test_the_named_folder_outranks_the_cache(tmp_path: Path) -> None:
    programs(tmp_path / "cache/muster/control-plane" / BUILD_NAME)
    named = programs(tmp_path / "named")
    assert find_binaries({"KUBEBUILDER_ASSETS": str(named), "XDG_CACHE_HOME": str(tmp_path / "cache")}) == named


def test_a_named_folder_without_a_scheduler_is_an_error_that_says_so(tmp_path: Path) -> None:
    named = programs(tmp_path, ("etcd", "kube-apiserver", "kubectl"))
    with pytest.raises(NoControlPlane, match="kube-controller-manager, kube-scheduler missing"):
        find_binaries({"KUBEBUILDER_ASSETS": str(named)})


def test_half_a_cache_does_not_count(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    place = tmp_path / "muster/control-plane" / BUILD_NAME
    programs(place, PROGRAMS[:3])
    assert find_binaries(environ) is None
    programs(place)
    assert find_binaries(environ) == place


def test_a_kubelet_is_looked_for_apart_from_the_control_plane(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    cache = tmp_path / "muster/control-plane"
    programs(cache / BUILD_NAME)
    assert find_kubelet(environ) is None
    programs(cache / KUBELET_BUILD_NAME, KUBELET)
    assert find_kubelet(environ) == cache / KUBELET_BUILD_NAME / "kubelet"


def test_a_named_folder_without_a_kubelet_is_an_error(tmp_path: Path) -> None:
    named = programs(tmp_path)
    with pytest.raises(NoControlPlane, match=re.escape(str(named))):
        find_kubelet({"KUBEBUILDER_ASSETS": str(named)})


def test_what_is_cached_is_not_built_again(tmp_path: Path) -> None:
    asked: list[str] = []
    programs(tmp_path / "cache/plane")
    build(tmp_path / "cache", {"plane": PROGRAMS}, asked.append)
    assert asked == []


def test_a_relative_cache_home_is_ignored() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "here"}) == Path.home() / ".cache/muster/control-plane"


def test_mirrors_of_bookworm_come_first_and_partial_archives_not_at_all() -> None:
    uris = (
        "'https://example.org/tool/dists/bookworm/InRelease' a 0 \n"
        "'http://mirror/debian/dists/trixie/InRelease' b 0 \n"
        "'http://mirror/debian-security/dists/bookworm-security/InRelease' c 0 \n"
        "'http://near/debian/dists/bookworm/InRelease' d 0 \n"
        "'http://near/debian/dists/bookworm/main/binary-amd64/Packages.xz' e 0 \n"
    )
    assert choose_mirrors(uris) == ["http://near/debian", "https://example.org/tool", "http://mirror/debian"]


def test_openapi_packages_are_found_through_links_and_examples_are_left_out(tmp_path: Path) -> None:
    marked = "// +k8s:openapi-gen=true\npackage x\n"
    for path, text in {
        "pkg/a/doc.go": marked,
        "pkg/a/deep/doc.go": "package deep\n",
        "pkg/a/testdata/doc.go": marked,
        "staging/api/core/doc.go": marked,
        "vendor/k8s.io/code-generator/doc.go": marked,
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "vendor/k8s.io/api").symlink_to("../../staging/api")
    assert openapi_packages(tmp_path) == ["pkg/a", "vendor/k8s.io/api/core"]


def test_a_tree_with_read_only_folders_goes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner/file").touch()
    (tree / "inner").chmod(0o500)
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists()


def test_missing_tools_are_named_with_their_packages(tmp_path: Path) -> None:
    # an empty PATH: no apt-get, no dpkg-deb
    done = subprocess.run(
        [sys.executable, "-m", "muster_sandbox.programs.requirements"],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "KUBEBUILDER_ASSETS" in done.stderr
    assert set(requirements.missing_packages()) <= set(requirements.REQUIRED_PACKAGES)


def played_tools(folder: Path, apt_get: str) -> str:
    """A $PATH with an apt-get that knows one mirror and for the rest does what ``apt_get`` says."""
    programs(folder, ("dpkg-deb", "tar", "gzip", "apt-get"))
    (folder / "apt-get").write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --print-uris ]; then echo "\'http://127.0.0.1:9/debian/dists/bookworm/InRelease\' x 0"; exit; fi\n'
        f"{apt_get}\n"
    )
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(("failures", "tries"), [(0, 1), (2, 3), (9, 4)])
def test_what_cannot_be_fetched_is_tried_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, tries: int
) -> None:
    asked = tmp_path / "asked"
    fails = f'case "$*" in *update) echo x >> {asked}; [ $(wc -l < {asked}) -gt {failures} ];; esac'
    monkeypatch.setenv("PATH", played_tools(tmp_path / "bin", fails))
    # the mirror has nothing: once all was fetched, the source is missing
    with pytest.raises(NoControlPlane) as error:
        build(tmp_path / "cache", {"wanted": PROGRAMS}, lambda _: None, again_after_s=(0.0, 0.0, 0.0))
    assert ("[]" in str(error.value)) == (failures < tries), "an empty list of sources"
    assert len(asked.read_text().splitlines()) == tries


@pytest.mark.parametrize(("failures", "tries", "done"), [(0, 1, True), (2, 3, True), (9, 3, False)])
def test_what_cannot_be_installed_is_tried_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, tries: int, done: bool
) -> None:
    asked = tmp_path / "asked"
    fails = f'case "$*" in *install*) echo x >> {asked}; [ $(wc -l < {asked}) -gt {failures} ];; *) exit 100;; esac'
    monkeypatch.setenv("PATH", played_tools(tmp_path / "bin", fails))
    assert requirements.install(["tar"], again_after_s=(0.0, 0.0)) is done
    assert len(asked.read_text().splitlines()) == tries


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while a step runs: its process, our directory and the half-made result are gone."""
    path = played_tools(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    cache = tmp_path / "cache"
    script = (
        "from muster_sandbox.programs.debian import build; from pathlib import Path\n"
        f"build(Path({str(cache)!r}), {{'wanted': ['etcd']}}, lambda line: print(line, flush=True))\n"
    )
    environ = {**os.environ, "PATH": path}
    builder = subprocess.Popen(
        [sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert builder.stdout is not None
        assert builder.stdout.readline(), "it says what it does"
        pid = tmp_path / "pid"
        _wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        child = int(pid.read_text())
        builder.send_signal(2)
        assert builder.wait(timeout=60) != 0
    finally:
        builder.kill()
        builder.wait()
        if builder.stdout is not None:
            builder.stdout.close()
    _wait_until(lambda: not psutil.pid_exists(child))  # once its parent is gone, somebody else sees it off
    assert [path.name for path in cache.iterdir()] == ["lock"]


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
