"""`make package`: one folder with all that an installation needs, and checksums that hold."""

import hashlib
import json
import os
import re
import sys
import tarfile
from pathlib import Path

from release import sbom
from release.lock import FOLDER
from release.package import SUMS, pack
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

from muster_sandbox.image.product import project_version

TRIED = ("--dry-run", "--ignore-installed")  # found and resolved, all of it


def test_a_package_has_everything_and_its_checksums_hold(tmp_path: Path) -> None:
    place = checkout(tmp_path / "muster")
    folder = place / CommandRunner(commands_of_test(__file__), {}, {}, place).type("make package").strip()
    assert folder == place / f"build/muster-v{project_version()}"
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    there = CommandRunner(commands_of_test(__file__), {}, environ, folder)
    said = there.type("sha256sum --check SHA256SUMS").splitlines()
    assert len(said) == len((folder / SUMS).read_text().splitlines())

    locked, installed = (
        re.compile(rf"^Would install .*\b{name}", re.MULTILINE)
        for name in ("pydantic_core-", f"passmuster-{project_version()}")
    )
    assert locked.search(there.type("pip install --require-hashes --no-deps -r wheels/requirements.txt", *TRIED))
    assert installed.search(there.type("pip install --no-deps wheels/passmuster-0.1.0-py3-none-any.whl", *TRIED))
    here = CommandRunner(commands_of_test(__file__), {}, environ, place)
    assert locked.search(here.type("pip install --require-hashes --no-deps -r requirements/command-line.txt", *TRIED))
    assert installed.search(here.type("pip install --no-deps --no-build-isolation .", *TRIED))

    listed = {line.split("  ", 1)[1] for line in (folder / SUMS).read_text().splitlines()}
    assert listed == {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} - {SUMS}
    for name in (
        "CRDs/graphcore.ai_ipujobs.yaml",
        "docs/install.md",
        f"muster-{project_version()}.tgz",
        f"images/muster-{project_version()}.tar",
        f"images/muster-{project_version()}.cdx.json",
        f"wheels/passmuster-{project_version()}-py3-none-any.whl",
        "wheels/requirements.txt",
        "LICENSE",
    ):
        assert name in listed
    dead = [
        f"{page.relative_to(folder)}: {link}"
        for page in folder.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:\s]+)", page.read_text())
        if not (page.parent / link).is_file()
    ]
    assert dead == []
    with tarfile.open(folder / f"muster-{project_version()}.tgz") as chart:
        assert {"muster/Chart.yaml", "muster/values.schema.json"} <= set(chart.getnames())
    with tarfile.open(folder / f"images/muster-{project_version()}.tar") as image:
        assert {"oci-layout", "index.json"} <= set(image.getnames())
    assert_lists_the_image((folder / f"images/muster-{project_version()}.cdx.json").read_text())

    assert_packs(folder, listed | {SUMS})

    (folder / "docs/install.md").write_text("edited")
    spoilt = there.type("sha256sum --check SHA256SUMS", judge=lambda done: done.returncode == 1)
    assert [line for line in spoilt.splitlines() if not line.endswith(": OK")] == ["docs/install.md: FAILED"]


def assert_packs(folder: Path, names: set[str]) -> None:
    archive = folder.with_name(f"{folder.name}.tar.gz")
    digest, name = archive.with_name(f"{archive.name}.sha256").read_text().split()
    assert (digest, name) == (hashlib.sha256(archive.read_bytes()).hexdigest(), archive.name)
    with tarfile.open(archive) as whole:
        assert {each.name for each in whole if each.isfile()} == {f"{folder.name}/{each}" for each in names}
        assert {(each.uid, each.gid, each.uname) for each in whole} == {(0, 0, "root")}


def test_the_package_as_one_file_holds_the_whole_folder_and_has_a_checksum(tmp_path: Path) -> None:
    folder = tmp_path / "muster-v1.2.3"
    (folder / "images").mkdir(parents=True)
    (folder / SUMS).write_text("sums")
    (folder / "images" / "muster.tar").write_bytes(bytes(100_000))
    pack(folder)
    assert_packs(folder, {SUMS, "images/muster.tar"})
    (folder / "README.md").write_text("new")
    pack(folder)
    assert_packs(folder, {SUMS, "images/muster.tar", "README.md"})


def assert_lists_the_image(text: str) -> None:
    from cyclonedx.validation.json import JsonStrictValidator  # a second to load, which each worker would take

    assert JsonStrictValidator(sbom.VERSION).validate_str(text) is None
    components = json.loads(text)["components"]
    assert [each["purl"] for each in components if "hashes" not in each] == []
    found = {each["purl"].partition("?")[0].rpartition("@")[0] for each in components}
    locked = re.findall(r"^([a-z0-9-]+)==", (FOLDER / "image.txt").read_text(), re.MULTILINE)
    here = {f"pkg:pypi/{name}" for name in (*locked, sbom.MUSTER)}
    assert {each for each in found if each.startswith("pkg:pypi/")} <= here
    assert found >= {"pkg:pypi/pydantic", "pkg:pypi/passmuster", "pkg:deb/debian/python3", "pkg:deb/debian/iperf3"}
    by_url = {each["purl"].partition("@")[0]: each for each in components}
    assert by_url["pkg:pypi/passmuster"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
