"""`make docs`: pages are built without a warning, so each link and anchor leads somewhere, and need nothing from
elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, documents

BUILD = (
    "import sys; sys.path.insert(0, 'docs'); import pages; from pathlib import Path; sys.exit(pages.build(Path('{}')))"
)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s#]+)(#[^)\s]+)?\)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-c", BUILD.format(place)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr, ended.stderr
    return place / "html"


def test_every_document_is_a_page(built: Path) -> None:
    for page in documents():
        assert (built / page.relative_to(ROOT).with_suffix(".html")).exists(), page


def test_no_font_script_style_or_picture_comes_from_elsewhere(built: Path) -> None:
    for page in built.glob("**/*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert not [each for each in loaded if "//" in each], page
    for style in built.glob("**/*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_every_link_of_a_document_leads_to_a_file_of_the_repository() -> None:
    for page in documents():
        for target, _ in _LINK.findall(page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
