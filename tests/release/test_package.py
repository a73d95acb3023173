"""`make package`: one folder with all that an installation needs, and checksums that hold."""

import os
import re
import sys
import tarfile
from pathlib import Path

from release.package import SUMS
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

    installed = re.compile(rf"^Would install .*\bpassmuster-{project_version()}", re.MULTILINE)
    installs = "pip install -c wheels/constraints.txt wheels/passmuster-0.1.0-py3-none-any.whl"
    assert installed.search(there.type(installs, *TRIED))
    here = CommandRunner(commands_of_test(__file__), {}, environ, place)
    assert installed.search(here.type("pip install -c constraints.txt .", *TRIED))

    listed = {line.split("  ", 1)[1] for line in (folder / SUMS).read_text().splitlines()}
    assert listed == {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} - {SUMS}
    for name in (
        "CRDs/graphcore.ai_ipujobs.yaml",
        "docs/install.md",
        f"muster-{project_version()}.tgz",
        f"images/muster-{project_version()}.tar",
        f"wheels/passmuster-{project_version()}-py3-none-any.whl",
        "wheels/constraints.txt",
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

    (folder / "docs/install.md").write_text("edited")
    spoilt = there.type("sha256sum --check SHA256SUMS", judge=lambda done: done.returncode == 1)
    assert [line for line in spoilt.splitlines() if not line.endswith(": OK")] == ["docs/install.md: FAILED"]
