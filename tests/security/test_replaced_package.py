"""A mirror of PyPI, or whoever takes over a package's account, replaces a file of a version that Muster uses; a
registry of images replaces what a tag names."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from release.lock import FOLDER

NAME = "h11"
WHEEL = "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def locked_lines() -> str:
    """What requirements/image.txt has of the package."""
    text = (FOLDER / "image.txt").read_text()
    begin = text.index(f"\n{NAME}==") + 1
    lines = text[begin:].splitlines()
    return "\n".join(line for number, line in enumerate(lines) if number == 0 or lines[number - 1].endswith("\\"))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Has the package, with another content."""
    version = locked_lines().split()[0].partition("==")[2]
    folder = tmp_path / "mirror"
    folder.mkdir()
    info = f"{NAME}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{NAME}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{NAME}/__init__.py", "import os; print('taken over')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")
        wheel.writestr(f"{info}/{WHEEL[0]}", WHEEL[1])
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def install(mirror: Path, requirements: str, *options: str) -> "subprocess.CompletedProcess[str]":
    place = mirror.parent
    (place / "wanted.txt").write_text(requirements)
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--disable-pip-version-check", "--no-cache-dir"]
    source = ["--no-index", "--find-links", str(mirror), "--target", str(place / "target")]
    command = [*pip, *source, *options, "--requirement", str(place / "wanted.txt")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_pip_installs_no_file_whose_hash_is_another(mirror: Path) -> None:
    done = install(mirror, locked_lines(), "--require-hashes", "--no-deps")
    assert done.returncode != 0
    assert "HASH" in done.stderr
    assert not (mirror.parent / "target").exists()


def test_by_its_version_alone_it_would_be_installed(mirror: Path) -> None:
    """The attack works where only the version is pinned."""
    done = install(mirror, locked_lines().split()[0])
    assert done.returncode == 0, done.stderr
    assert "taken over" in (mirror.parent / "target" / NAME / "__init__.py").read_text()


def test_what_a_registry_puts_behind_a_tag_is_not_built_upon() -> None:
    text = (FOLDER.parent / "release" / "Containerfile").read_text()
    bases = re.findall(r"^(?:ARG BASE=|FROM )(\S+)", text, re.MULTILINE)
    assert bases
    assert [each for each in bases if each != "${BASE}" and not re.search(r"@sha256:[0-9a-f]{64}$", each)] == []
