"""`make docs` builds all pages without a warning, so no link is dead. In Chromium they load nothing from other hosts,
fit a phone, and can be searched."""

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from tests.browser.chromium import Browser
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT, documents

PAGES = [page.relative_to(ROOT).with_suffix(".html").as_posix() for page in documents()]
PHONE = (390, 844)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkout(tmp_path_factory.mktemp("docs") / "muster")
    runner = CommandRunner(commands_of_test(__file__), {}, {}, folder)
    printed = runner.type("make docs", judge=lambda done: done.returncode == 0 and not done.stderr)
    front = Path(printed.splitlines()[-1])
    assert front == Path("build/docs/html/README.html")
    return folder / front.parent


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    """Address of a server of the pages."""
    handler = functools.partial(QuietHandler, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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


def test_no_page_asks_another_host_or_is_wider_than_a_phone(site: str, browser: Browser) -> None:
    browser.window(*PHONE)
    for page in PAGES:
        browser.open(f"{site}/{page}")
        assert browser.run("return document.documentElement.scrollWidth") <= PHONE[0], page
        requested = browser.requests()
        assert f"{site}/{page}" in requested
        assert [url for url in requested if not url.startswith((site, "data:"))] == [], page


def test_the_menu_has_the_pages_of_the_index_in_its_order(site: str, browser: Browser) -> None:
    index = (ROOT / "docs/README.md").read_text()
    browser.window(1440, 1000)
    browser.open(f"{site}/README.html")
    captions = [each.text.lower() for each in browser.find(".sidebar-tree .caption")]
    headings = [heading.lower() for heading in re.findall(r"^## (.+)$", index, flags=re.MULTILINE)]
    assert captions[: len(headings)] == headings
    linked = [urljoin("docs/", f"{link}.html") for link in re.findall(r"\]\(([^)]+)\.md\)", index)]
    entries = browser.find(".sidebar-tree .toctree-l1 > a")
    shown = [each.get_dom_attribute("href") for each in entries if each.is_displayed()]
    assert shown[1 : len(linked) + 1] == linked


def test_search_finds_a_check_by_its_name(site: str, browser: Browser) -> None:
    browser.window(1440, 1000)
    browser.open(f"{site}/search.html?q=pciebw")
    browser.until(lambda: browser.find("#search-results a[href*='checks.html']"), "the page of checks is found")


def test_pages_follow_the_dark_mode_of_the_system(site: str, browser: Browser) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    colours = []
    for dark in (False, True):
        browser.window(1440, 1000, dark=dark)
        browser.open(f"{site}/README.html")
        colours.append(browser.run(background))
    assert colours[0] == "rgb(255, 255, 255)"
    assert colours[1] != colours[0]
