"""The HTML pages of `make docs` in Chromium: they load nothing from other hosts, fit a phone, and can be searched."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from tests.browser.chromium import Browser
from tests.docs.checkout import checkout
from tests.docs.document_commands import ROOT, documents

PAGES = [page.relative_to(ROOT).with_suffix(".html").as_posix() for page in documents()]
PHONE = (390, 844)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of the pages, built from this checkout."""
    folder = checkout(tmp_path_factory.mktemp("html") / "muster")
    subprocess.run([sys.executable, "docs/pages.py"], cwd=folder, check=True, timeout=300)
    handler = functools.partial(QuietHandler, directory=str(Path(folder, "build/docs/html")))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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
