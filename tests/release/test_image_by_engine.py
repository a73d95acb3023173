"""The image as podman builds it, by the command that docs/install.md has: it ends, and it is what the archive is."""

import json
import posixpath
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import IO, Any

import pytest
from packaging.requirements import Requirement
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.image_sizes import image_sizes
from tests.machine import require
from tests.release import engine

from muster_sandbox.image import product
from muster_sandbox.image.requirements import LEFT_OUT, image_requirements, name_of
from muster_sandbox.programs.packages import NoPackages
from muster_sandbox.realnode.containers import PROGRAMS as NODE_PROGRAMS
from muster_sandbox.realnode.containers import find_obstacle

pytestmark = pytest.mark.timeout(1800)  # the first time, packages come before all else
ROOT = Path(__file__).resolve().parents[2]
NAME = "localhost/muster"
PROGRAM_FOLDERS = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
STATUS = "var/lib/dpkg/status"
ASKS = "debconf: unable to initialize frontend"  # what debconf prints where an installation script asks a question
CAPABILITY = "SCHILY.xattr.security.capability"
UNWANTED = re.compile(r"(pip|cc|gcc|g\+\+|c\+\+|clang|cpp|as|ld|make)[-.\d]*$")


@dataclass(frozen=True)
class Image:
    """settings: of containers. files: by path, in bytes. packages: Debian's."""

    settings: dict[str, Any]
    files: dict[str, int]
    capabilities: frozenset[str]
    packages: frozenset[str]

    @property
    def distributions(self) -> set[str]:
        return {name for path in self.files for name in path.split("/") if name.endswith(".dist-info")}


def read(archive: Path) -> Image:
    """As `docker save` makes it."""
    files: dict[str, tarfile.TarInfo] = {}
    status = b""
    with tarfile.open(archive) as outer:
        (image,) = json.load(member(outer, "manifest.json"))
        for layer in image["Layers"]:
            with tarfile.open(fileobj=member(outer, layer)) as inner:
                lay_over(files, inner)
                if STATUS in inner.getnames():
                    status = member(inner, STATUS).read()
        settings = json.load(member(outer, image["Config"]))["config"]
    return Image(
        settings=settings,
        files={path: each.size for path, each in files.items()},
        capabilities=frozenset(path for path, each in files.items() if CAPABILITY in each.pax_headers),
        packages=packages(status),
    )


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    assert file is not None, name
    return file


def lay_over(files: dict[str, tarfile.TarInfo], layer: tarfile.TarFile) -> None:
    for each in layer:
        path = posixpath.normpath(each.name)
        folder, name = posixpath.split(path)
        if name.startswith(".wh."):  # takes away what lies below
            gone = posixpath.join(folder, name.removeprefix(".wh."))
            for old in [old for old in files if old == gone or old.startswith(f"{gone}/")]:
                del files[old]
        elif not each.isdir():
            files[path] = each


def with_all_they_need(lines: Iterable[str]) -> set[str]:
    """The names of distributions, by what is installed here."""
    found: set[tuple[str, str]] = set()  # names, each with an extra or none
    waiting = [Requirement(line) for line in lines]
    while waiting:
        wanted = waiting.pop()
        name = name_of(wanted.name)
        for extra in {(name, each) for each in (*wanted.extras, "")} - found:
            found.add(extra)
            needs = map(Requirement, distribution(name).requires or ())
            waiting += [each for each in needs if not each.marker or each.marker.evaluate({"extra": extra[1]})]
    return {name for name, _ in found}


def packages(status: bytes) -> frozenset[str]:
    return frozenset(re.findall(r"^Package: (.*)$", status.decode(), re.MULTILINE))


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Engine]:
    """With debian:bookworm-slim, which it does not fetch."""
    require("root", *NODE_PROGRAMS)
    if reason := find_obstacle():
        pytest.skip(f"needs a container engine's namespaces: {reason}")
    work = tmp_path_factory.mktemp("podman")
    try:
        running = engine.Engine(engine.podman(print), work)
        shutil.copyfile(engine.slim(print), running.given / "slim.tar")
    except NoPackages as error:
        pytest.fail(str(error), pytrace=False)
    try:
        done = running.run("podman", "import", "/given/slim.tar", engine.BASE)
        assert done.returncode == 0, done.stderr
        yield running
    finally:
        shutil.rmtree(work)
    assert str(work) not in Path("/proc/mounts").read_text(), "mounts were left behind"


@pytest.fixture(scope="module")
def name(podman: engine.Engine) -> str:
    """The image's, once it is built as the document says."""
    (line,) = lines = commands_of_test(__file__)
    # the base that is there, because nothing is fetched from a registry
    done = podman.run(*CommandRunner(lines, {"REGISTRY": "localhost"}, {}).words(line), f"BASE={engine.BASE}")
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-3000:]
    assert ASKS not in printed, "an installation script asks"
    tag = line.partition("TAG=")[2]
    assert f"Successfully tagged {NAME}:{tag}" in printed
    return f"{NAME}:{tag}"


@pytest.fixture(scope="module")
def built(podman: engine.Engine, name: str) -> Image:
    done = podman.run("podman", "save", "--format", "docker-archive", "--output", "/given/muster.tar", name)
    assert done.returncode == 0, done.stderr
    return read(podman.given / "muster.tar")


@pytest.fixture(scope="module")
def archive(image_archive: Path) -> Image:
    """What is made without an engine."""
    return read(image_archive)


def test_a_container_is_started_as_one_of_the_archive(built: Image, archive: Image) -> None:
    assert {**built.settings, "Env": None, "Labels": None} == {**archive.settings, "Env": None, "Labels": None}
    labels = {name: text for name, text in built.settings["Labels"].items() if not name.startswith("io.buildah.")}
    assert labels == archive.settings["Labels"]
    ours, theirs = (dict(each.split("=", 1) for each in image.settings["Env"]) for image in (built, archive))
    assert set(theirs.pop("PATH").split(":")) <= set(ours.pop("PATH").split(":"))
    assert ours == theirs


def test_what_muster_stands_on_is_what_the_archive_has(built: Image, archive: Image) -> None:
    assert built.distributions == archive.distributions


def test_what_is_left_out_is_not_there_nor_what_only_it_needs(archive: Image) -> None:
    names = {name_of(each.removesuffix(".dist-info").rpartition("-")[0]) for each in archive.distributions}
    wanted = with_all_they_need(image_requirements((ROOT / "pyproject.toml").read_text()))
    only_theirs = with_all_they_need(LEFT_OUT) - wanted
    assert only_theirs >= {"kubernetes", "requests", "websocket-client"}
    assert not names & only_theirs
    assert names == wanted | {"passmuster"}


def test_of_debian_it_has_what_the_archive_has_its_base_and_what_installation_scripts_need(
    podman: engine.Engine, built: Image, archive: Image
) -> None:
    with tarfile.open(podman.given / "slim.tar") as base:
        below = packages(member(base, f"./{STATUS}").read())
    assert archive.packages <= built.packages
    assert built.packages - archive.packages - below <= set(product.WITHOUT)


def test_neither_pip_nor_a_compiler_is_in_it_and_nothing_of_what_was_fetched(built: Image) -> None:
    programs = [posixpath.split(path) for path in built.files]
    assert not [name for folder, name in programs if folder in PROGRAM_FOLDERS and UNWANTED.match(name)]
    assert not [path for path in built.files if "/pip/" in path or path.endswith(".deb")]
    assert not [path for path in built.files if path.startswith(("tmp/", "var/lib/apt/lists/", "src/"))]


def test_neither_ping_nor_another_program_has_a_file_capability(built: Image) -> None:
    assert "usr/bin/ping" in built.files
    assert not built.capabilities


def test_its_user_can_call_muster_in_it(podman: engine.Engine, name: str) -> None:
    lines = f'FROM {name}\nRUN ["id", "-u"]\nRUN ["muster", "--help"]\nRUN ["muster", "check", "--help"]\n'
    done = podman.run("podman", "build", "--file", "-", "/given", stdin=lines)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^65534$", done.stdout, re.MULTILINE)
    assert "usage: muster " in done.stdout
    assert "usage: muster check " in done.stdout


def test_both_images_are_as_large_as_the_page_says(built: Image, archive: Image) -> None:
    stated = image_sizes()
    for image, size in ((archive, stated.archive), (built, stated.by_engine)):
        assert sum(image.files.values()) / 1e6 == pytest.approx(size, rel=0.1)
