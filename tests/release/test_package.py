"""`make package`: one folder with all that an installation needs, and checksums that hold."""

import re
import subprocess
import tarfile
from pathlib import Path

from release.package import SUMS, fill

from muster_testbed.product import version


def verified(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", SUMS],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_package_has_everything_and_its_checksums_hold(tmp_path: Path, wheel: Path) -> None:
    folder = tmp_path / f"muster-v{version()}"

    fill(folder, wheel, tmp_path / "helm")

    assert verified(folder).returncode == 0
    listed = {line.split("  ", 1)[1] for line in (folder / SUMS).read_text().splitlines()}
    assert listed == {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} - {SUMS}
    for name in (
        "CRDs/graphcore.ai_ipujobs.yaml",
        "docs/install.md",
        f"muster-{version()}.tgz",
        f"images/muster-{version()}.tar",
        f"wheels/{wheel.name}",
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
    with tarfile.open(folder / f"muster-{version()}.tgz") as chart:
        assert {"muster/Chart.yaml", "muster/values.schema.json"} <= set(chart.getnames())
    with tarfile.open(folder / f"images/muster-{version()}.tar") as image:
        assert {"oci-layout", "index.json"} <= set(image.getnames())

    (folder / "docs/install.md").write_text("edited")
    spoilt = verified(folder)
    assert spoilt.returncode == 1
    assert "docs/install.md" in spoilt.stdout
