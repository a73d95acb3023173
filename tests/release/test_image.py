"""The image: what makes it with an engine and what makes it without do the same, and each time the same."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from muster_sandbox.image import oci, product, requirements
from muster_sandbox.image.layers import Layer, make_layer
from muster_sandbox.image.requirements import image_requirements, name_of

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = (ROOT / "release/Containerfile").read_text()
VERSION = "org.opencontainers.image.version"
SHELL_TOOLS = ("cat", "dirname", "sed")


def instruction(name: str) -> str:
    """The argument of the last one."""
    return re.findall(rf"^{name} (.*)$", CONTAINERFILE, re.MULTILINE)[-1]


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {each.name: file.read() for each in opened if (file := opened.extractfile(each)) is not None}


def test_with_and_without_an_engine_the_same_packages_and_settings() -> None:
    packages = product.debian_packages(ROOT)
    assert {"iperf3", "iputils-ping", "kubernetes-client", "python3"} <= set(packages)
    listed = f"sed '/^#/d' /tmp/{product.PACKAGE_LIST.name} |"
    assert f"{listed} DEBIAN_FRONTEND=noninteractive xargs apt-get install" in CONTAINERFILE
    assert f"COPY {product.PACKAGE_LIST} /tmp/{product.PACKAGE_LIST.name}" in CONTAINERFILE
    assert json.loads(instruction("ENTRYPOINT")) == list(product.ENTRYPOINT)
    assert instruction("USER") == product.USER
    for name, value in product.ENVIRONMENT.items():
        assert name == "PATH" or f"ENV {name}={value}\n" in CONTAINERFILE
    for name, value in product.LABELS.items():
        assert f'{name}="{value}"' in CONTAINERFILE


def test_both_leave_out_what_no_part_in_a_pod_loads() -> None:
    assert "COPY requirements/image.txt requirements/build.txt ./\n" in CONTAINERFILE
    installs = re.findall(r"pip install (.*?)(?: \\|$)", CONTAINERFILE, re.MULTILINE)
    assert [("--require-hashes" in each, "--no-deps --no-build-isolation" in each) for each in installs] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    locked = {name_of(line) for line in (ROOT / "requirements/image.txt").read_text().splitlines()}
    assert locked >= {"pydantic", "prometheus-client"}
    assert "kubernetes" not in locked


def test_only_a_dependency_can_be_left_out() -> None:
    with pytest.raises(ValueError, match=", ".join(requirements.LEFT_OUT)):
        image_requirements('[project]\ndependencies = ["pydantic>=2"]\n')


def test_what_the_containerfile_copies_is_sent_to_the_engine() -> None:
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE)
    for name in (word for line in lines for word in line.split()):
        assert name == "." or {f"!{each}" for each in (name, *Path(name).parents)} & set(sent)
    for name in (*product.ROOMS, "README.md", "LICENSE"):
        assert f"!{name}" in sent, "the wheel is made of it"


def test_no_compiler_is_in_the_image() -> None:
    compilers = re.compile(r"gcc$|g\+\+|clang|build-essential|.*-dev$")
    assert not [each for each in product.debian_packages(ROOT) if compilers.match(each)]
    final = CONTAINERFILE.rpartition("\nFROM ")[2]
    assert "pip" not in final


def test_an_archive_is_an_oci_layout_that_docker_reads_too(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    below = make_layer({"etc/os-release": b"Debian"})
    assert isinstance(below.content, bytes)
    plain.write_bytes(below.content)
    layers = (oci.pack_layer(Layer(plain, below.digest), tmp_path / "packed"), oci.pack_layer(make_layer({"a": b"a"})))
    image = oci.OciImage(("localhost/a:1", "localhost/a:2"), layers, ("muster",), "65534:65534", {"A": "b"}, {"c": "d"})
    texts = []
    for _ in range(2):
        out = io.BytesIO()
        oci.write_archive(image, out)
        texts.append(out.getvalue())
    assert texts[0] == texts[1]
    (tmp_path / "archive").write_bytes(texts[0])

    found = members(tmp_path / "archive")
    for name, content in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(found["index.json"])
    names = [each["annotations"]["org.opencontainers.image.ref.name"] for each in index["manifests"]]
    assert names == ["localhost/a:1", "localhost/a:2"]
    manifest = json.loads(found["blobs/sha256/" + index["manifests"][0]["digest"].removeprefix("sha256:")])
    config = json.loads(found["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")])
    assert config["config"]["User"] == "65534:65534"
    assert config["config"]["Entrypoint"] == ["muster"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.diff_id}" for layer in layers]
    (docker,) = json.loads(found["manifest.json"])
    assert docker["RepoTags"] == ["localhost/a:1", "localhost/a:2"]
    assert [found[name] for name in docker["Layers"]] == [
        found["blobs/sha256/" + each["digest"].removeprefix("sha256:")] for each in manifest["layers"]
    ]


def test_the_wheel_becomes_what_pip_would_install(wheel: Path) -> None:
    layer = product.muster_code_layer(wheel)
    assert isinstance(layer.content, bytes)
    with tarfile.open(fileobj=io.BytesIO(layer.content)) as archive:
        names = set(archive.getnames())
        program = archive.getmember("usr/local/bin/muster")
        text = archive.extractfile(program)
        assert text is not None
        assert b"from muster_cli.__main__ import main" in text.read()
    assert program.mode == 0o755
    for name in ("muster_agent/__main__.py", "muster_tainter/policy/default.yaml"):
        assert f"usr/local/lib/python3.11/dist-packages/{name}" in names
    assert "usr/local/share/muster/crds/muster.dev_nodehealths.yaml" in names
    assert "usr/local/bin/muster-sim-vipu" in names
    assert not [name for name in names if name.endswith(".egg-info") or "/tests/" in name]


def test_make_image_builds_with_the_engine_that_answers(tmp_path: Path) -> None:
    played(tmp_path / "docker", "exit 1")
    played(tmp_path / "podman", f'echo "$*" >> {tmp_path}/calls')
    done = make_image(tmp_path, "registry/muster", "v1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == [
        "info",
        f"build --file release/Containerfile --label {VERSION}={product.project_version()} --tag registry/muster:v1 .",
    ]


def test_the_base_image_is_named_by_its_content_and_can_be_replaced(tmp_path: Path) -> None:
    (base,) = re.findall(r"^ARG BASE=(.*)$", CONTAINERFILE, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/debian@sha256:[0-9a-f]{64}", base)
    assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert CONTAINERFILE.index("ARG BASE=") < CONTAINERFILE.index("FROM ")
    played(tmp_path / "podman", f'echo "$*" >> {tmp_path}/calls')
    assert make_image(tmp_path, "a", "b", "mirror.example.com/debian@sha256:0").returncode == 0
    assert " --build-arg BASE=mirror.example.com/debian@sha256:0 " in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("engines", "words", "code", "says"),
    [
        ({}, ("a", "b"), 1, "neither docker nor podman is on PATH"),
        ({"docker": "exit 1"}, ("a", "b"), 1, "'docker info' fails"),
        ({}, ("a", ""), 64, "usage: make image IMAGE=NAME TAG=TAG [BASE=IMAGE]"),
    ],
)
def test_make_image_says_what_is_missing(
    tmp_path: Path, engines: dict[str, str], words: tuple[str, ...], code: int, says: str
) -> None:
    for name, text in engines.items():
        played(tmp_path / name, text)
    done = make_image(tmp_path, *words)
    assert done.returncode == code
    assert says in done.stderr


def played(place: Path, text: str) -> None:
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


def make_image(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """With no other programs than those in ``folder`` and what the script itself needs."""
    for name in SHELL_TOOLS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    command = ["/bin/sh", str(ROOT / "release/image.sh"), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PATH": str(folder)}
    )
