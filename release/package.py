"""``make package``: creates build/muster-vX.Y.Z, everything for an installation without Internet access.

The same as one file is build/muster-vX.Y.Z.tar.gz, with its checksum beside it.
"""

import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import sbom
from tests.chart.helm_render import CHART, Helm, Refused

from muster_sandbox.image import oci, product
from muster_sandbox.programs.packages import NoPackages

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
_DOCUMENTS = (".md", ".png")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")  # to a file of ours


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def fill(folder: Path, wheel: Path, home: Path) -> None:
    """Create ``folder``, which must not exist. Raises NoPackages, Refused."""
    version = product.project_version()
    (folder / "images").mkdir(parents=True)
    (folder / "wheels").mkdir()
    for name in ("README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    _copy(CHART / "crds", folder / "CRDs", (".yaml",))
    _copy(ROOT / "docs", folder / "docs", _DOCUMENTS)
    _copy_linked(folder)
    Helm(home).run("package", str(CHART), "--destination", str(folder))
    shutil.copyfile(wheel, folder / "wheels" / wheel.name)
    shutil.copyfile(ROOT / "requirements" / "command-line.txt", folder / "wheels" / "requirements.txt")
    image = folder / "images" / f"muster-{version}.tar"
    with image.open("wb") as file:
        oci.write_archive(product.build_image(say, wheel), file)
    hashes = {**product.python_hashes(say), sbom.MUSTER: sbom.sha256(wheel)}
    image.with_suffix(".cdx.json").write_text(sbom.describe_image(image, version, hashes))
    (folder / SUMS).write_text(sums(folder))


def _copy(source: Path, target: Path, kinds: Sequence[str]) -> None:
    for each in sorted(source.rglob("*")):
        if each.is_file() and each.suffix in kinds:
            place = target / each.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, place)


def _copy_linked(folder: Path) -> None:
    """Copy the files that the documents link to, such as examples and dashboards, to the same relative paths."""
    pages = list(folder.rglob("*.md"))
    while pages:
        page = pages.pop()
        for link in _LINK.findall(page.read_text()):
            target = Path(os.path.normpath(page.parent / link))
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target.relative_to(folder), target)
            if target.suffix == ".md":
                pages.append(target)


def sums(folder: Path) -> str:
    """Checksums of all files below ``folder``, in the format of sha256sum."""
    lines = []
    for each in sorted(folder.rglob("*")):
        if each.is_file():
            with each.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {each.relative_to(folder)}\n")
    return "".join(lines)


def pack(folder: Path) -> Path:
    """Write ``folder`` as one file beside it, and the checksum of that file, in the format of sha256sum."""
    archive = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as file:
        file.add(folder, folder.name, filter=_without_owner)
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    archive.with_name(f"{archive.name}.sha256").write_text(f"{digest}  {archive.name}\n")
    return archive


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def main() -> int:
    target = ROOT / "build" / f"muster-v{product.project_version()}"
    try:
        with tempfile.TemporaryDirectory(prefix="muster-package-") as place:
            work = Path(place)
            fill(work / target.name, product.build_wheel(work, say), work / "helm")
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(work / target.name, target)
            pack(target)
    except (NoPackages, Refused) as error:
        say(f"muster: {error}")
        return 1
    print(target.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
