"""The files in requirements/ fit pyproject.toml, have hashes for every package, and can be installed on Debian 12."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from release.lock import ALONE, FOLDER, LEFT_OUT, PYTHON, WHOLE, inputs

ROOT = Path(__file__).resolve().parents[1]
INPUTS = inputs((ROOT / "pyproject.toml").read_text())
NAMES = sorted(INPUTS)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


class Locked(NamedTuple):
    requirement: Requirement
    hashes: list[str]

    @property
    def version(self) -> str:
        (pin,) = self.requirement.specifier
        assert pin.operator == "=="
        return pin.version


def locked(name: str) -> dict[str, Locked]:
    """The packages of one file. Raises AssertionError for a line that is not one of a package with hashes."""
    return {canonicalize_name(each.requirement.name): each for each in _read(FOLDER / f"{name}.txt")}


def _read(file: Path) -> Iterator[Locked]:
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        package, *options = re.split(r"\s+(?=--)", line.strip())
        assert all(HASH.fullmatch(option) for option in options), line
        yield Locked(Requirement(package), options)


def test_there_are_no_other_files() -> None:
    assert sorted(file.stem for file in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_requirement_of_the_project_is_met(name: str) -> None:
    found = locked(name)
    wanted = [Requirement(line) for line in INPUTS[name]]
    assert wanted
    for each in wanted:
        assert each.specifier.contains(found[canonicalize_name(each.name)].version), f"{each}: run `make lock`"


@pytest.mark.parametrize("name", NAMES)
def test_each_package_has_one_version_and_hashes(name: str) -> None:
    for package, found in locked(name).items():
        assert found.version
        assert found.hashes, package


@pytest.mark.parametrize("name", sorted({*NAMES} - {WHOLE, ALONE, "lock", "mutation"}))
def test_the_files_agree(name: str) -> None:
    whole = locked(WHOLE)
    for package, each in locked(name).items():
        assert (each.version, each.hashes) == (whole[package].version, whole[package].hashes), package


def test_the_environment_has_what_its_file_has() -> None:
    installed = {canonicalize_name(each.name): each.version for each in distributions()}
    here = {
        name: each.version
        for name, each in locked(WHOLE).items()
        if each.requirement.marker is None or each.requirement.marker.evaluate()
    }
    assert {name: version for name, version in installed.items() if name != "passmuster"} == here


# of those left out, nothing is installed here
@pytest.mark.parametrize("name", sorted({*NAMES} - {ALONE, "lock", "mutation"}))
def test_each_file_has_all_that_its_packages_need(name: str) -> None:
    """pip installs them with --no-deps."""
    here, waiting, seen = locked(name), [Requirement(line) for line in INPUTS[name]], set()
    while waiting:
        each = waiting.pop()
        if (each.name, frozenset(each.extras)) in seen:
            continue
        seen.add((each.name, frozenset(each.extras)))
        assert canonicalize_name(each.name) in here, f"{each}: run `make lock`"
        for needed in map(Requirement, requires(each.name) or ()):
            if needed.name in LEFT_OUT:
                continue
            if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in ("", *each.extras)):
                waiting.append(needed)
    assert seen


def test_every_installed_package_supports_the_python_of_debian_12() -> None:
    unsupported = {
        (distribution.name, distribution.version)
        for distribution in distributions()
        if not SpecifierSet(distribution.metadata.get("Requires-Python") or "").contains(PYTHON)
    }
    assert unsupported == set()


def test_every_way_to_install_muster_requires_hashes() -> None:
    installs = [
        (file, line)
        for file in ("Makefile", "tests/environment.sh", "release/Containerfile")
        for line in re.sub(r"\\\n", " ", (ROOT / file).read_text()).replace("&&", "\n").splitlines()
        if re.search(r"\bpip \$?(install|locked)", line)
    ]
    assert len(installs) == 8
    for file, line in installs:
        # without dependencies: Muster itself, from its checkout, built by what is installed already
        assert re.search(r"--require-hashes --no-deps|\$locked|--no-deps --no-build-isolation", line), f"{file}: {line}"


def test_what_builds_muster_is_what_the_project_names() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert list(locked("build")) == [canonicalize_name(Requirement(line).name) for line in build]
