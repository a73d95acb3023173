"""The sources of the pages: no link is dead, and the README begins with what a reader wants to know."""

import re

from tests.docs.document_commands import ROOT, documents
from tests.docs.image_sizes import image_sizes

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s#]+)(#[^)\s]+)?\)")


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
