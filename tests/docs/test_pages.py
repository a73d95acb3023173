"""`make docs` builds all pages without a warning, so no link is dead, and they load nothing from other hosts."""

import re
from pathlib import Path

import pytest
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT, documents
from tests.docs.image_sizes import image_sizes

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s#]+)(#[^)\s]+)?\)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkout(tmp_path_factory.mktemp("docs") / "muster")
    runner = CommandRunner(commands_of_test(__file__), {}, {}, folder)
    printed = runner.type("make docs", judge=lambda done: done.returncode == 0 and not done.stderr)
    front = Path(printed.splitlines()[-1])
    assert front == Path("build/docs/html/README.html")
    return folder / front.parent


def test_every_document_is_a_page(built: Path) -> None:
    for page in documents():
        assert (built / page.relative_to(ROOT).with_suffix(".html")).exists(), page


def test_no_font_script_style_or_picture_comes_from_another_host(built: Path) -> None:
    for page in built.glob("**/*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert not [each for each in loaded if "//" in each], page
        assert not re.findall(r"\bimport\s*\(?\s*[\"'](?:https?:)?//", page.read_text()), page
    for style in built.glob("**/*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_every_link_of_a_document_leads_to_a_file_of_the_repository() -> None:
    for page in documents():
        for target, _ in _LINK.findall(page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_first_screen_of_the_readme_says_what_muster_is_and_how_to_run_it() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:50])
    assert "docs/fleet.png" in screen
    commands = ("make sandbox", "muster sandbox inject", "make image", "docker push", "helm upgrade")
    assert all(command in screen for command in commands)
    assert "muster.dev/faulty=true:NoSchedule" in screen, "what the reader sees"
    assert "docs/hardware.md" in screen, "what it has not run on"


def test_the_contents_of_the_image_add_up_to_its_size() -> None:
    sizes = image_sizes()
    assert sum(sizes.table) == sizes.archive
