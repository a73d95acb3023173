"""What a real node runs is made of packages: trees in the user's cache, and images without an engine."""

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster.control_plane.test_binaries import played_tools

from muster_sandbox.image.layers import Image, Layer, make_layer, muster_layer, write_archive
from muster_sandbox.programs.packages import RUNTIME, NoPackages, PackageTree, tree_folder, unpack_tree
from muster_sandbox.realnode.services import ServicePort, list_service_ports, ready_backends

ROOT = Path(__file__).parents[3]
TREE = PackageTree("tools", {"tool": "1.2"})


def read(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {name: file.read() for name in archive.getnames() if (file := archive.extractfile(name)) is not None}


def test_an_archive_holds_each_layer_once_and_its_digests_are_right(tmp_path: Path) -> None:
    file = tmp_path / "layer"
    file.write_bytes(b"root files")
    root = Layer(file, hashlib.sha256(b"root files").hexdigest())
    own = make_layer({"bin/x": b"x"}, ["bin/x"])
    out = io.BytesIO()
    write_archive([Image("a:1", (root,), ("/bin/sleep",)), Image("b:1", (root, own))], out)
    found = read(out.getvalue())
    manifest = json.loads(found["manifest.json"])
    assert [each["RepoTags"] for each in manifest] == [["a:1"], ["b:1"]]
    for each, entrypoint in zip(manifest, (["/bin/sleep"], []), strict=True):
        config = json.loads(found[each["Config"]])
        assert each["Config"] == f"{hashlib.sha256(found[each['Config']]).hexdigest()}.json"
        assert config["config"]["Entrypoint"] == entrypoint
        digests = [f"sha256:{hashlib.sha256(found[layer]).hexdigest()}" for layer in each["Layers"]]
        assert config["rootfs"]["diff_ids"] == digests
    assert len([name for name in found if name.endswith("layer.tar")]) == 2


def test_the_layer_of_a_checkout_has_its_command_and_no_compiled_files() -> None:
    layer = muster_layer([ROOT / "cli/muster_cli"])
    assert isinstance(layer.content, bytes)
    found = read(layer.content)
    assert found["usr/local/bin/muster"].startswith(b"#!/usr/bin/python3\n")
    assert any(name.endswith("/muster_cli/__main__.py") for name in found)
    assert not [name for name in found if "__pycache__" in name]
    assert muster_layer([ROOT / "cli/muster_cli"]).digest == layer.digest


def test_a_tree_in_the_cache_is_taken_and_one_of_other_versions_is_not(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    place = tree_folder(TREE, environ)
    place.mkdir(parents=True)
    asked: list[str] = []
    assert unpack_tree(TREE, asked.append, environ=environ) == place
    assert asked == []
    assert tree_folder(replace(TREE, versions={"tool": "1.3"}), environ) != place
    assert tree_folder(RUNTIME, environ).parent == place.parent


@pytest.mark.parametrize(
    ("apt_get", "says"),
    [
        ("exit 100", "apt-get.* 100"),
        ('case "$*" in *download*) touch tool_1.3-1_amd64.deb;; esac', "tool.*1\\.3.*1\\.2"),
        ("exit 0", r"tool.*\[\].*1\.2"),
    ],
)
def test_what_cannot_be_fetched_as_proven_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apt_get: str, says: str
) -> None:
    monkeypatch.setenv("PATH", played_tools(tmp_path / "bin", apt_get))
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said: list[str] = []
    with pytest.raises(NoPackages, match=says):
        unpack_tree(TREE, said.append, environ=environ, again_after_s=(0.0,))
    assert len([line for line in said if " 0 s" in line]) == 1, "tried again after 0 s"
    assert [path.name for path in (tmp_path / "cache/muster/node").iterdir()] == ["lock"]


def test_services_are_known_by_their_ports_and_lead_to_pods_that_are_ready() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    service = {"metadata": {"namespace": "a", "name": "web"}, "spec": {"clusterIP": "10.96.0.7", "ports": ports}}
    headless = {"metadata": {"namespace": "a", "name": "none"}, "spec": {"clusterIP": "None", "ports": ports}}
    server = {"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1"}}
    assert list_service_ports([service, headless, server]) == {ServicePort("a", "web", "10.96.0.7", 80, "http")}
    subset = {"addresses": [{"ip": "10.78.0.2"}], "notReadyAddresses": [{"ip": "10.78.0.3"}]}
    endpoints = {"subsets": [subset | {"ports": [{"name": "http", "port": 8080}, {"name": "other", "port": 1}]}]}
    assert ready_backends(endpoints, "http") == [("10.78.0.2", 8080)]
    assert ready_backends({}, "http") == []
