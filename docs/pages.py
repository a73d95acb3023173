"""`make docs`: builds all pages as HTML in build/docs/html, from the Markdown files that people read in the repository.

Sphinx builds the pages with MyST, which reads Markdown as GitHub does, and with the theme Furo. The menu comes from
docs/README.md: its headings and links, in that order. The pages are staged in the folders they have here, so links
between them and to examples and pictures work in both places. A warning, such as a dead link, fails the build. Pages
load nothing from other hosts.
"""

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parent.parent
START = "README"
INDEX = "docs/README"
CHART = "helm/muster/README"
# pages that the menu shows below another page
NESTED = {"docs/alerts": "docs/runbooks"}
LINKED_FILES = (
    "examples",
    "grafana/*.*",
    "docs/**/*.png",
    "docs/**/*.svg",
    "LICENSE",
    "agent/muster_agent/query/node_answer.py",
    "helm/muster/files/policy.yaml",
)
STYLE = ROOT / "docs" / "pages.css"
SETTINGS = {
    "project": "Muster",
    "root_doc": START,
    "extensions": "myst_parser",
    "html_theme": "furo",
    "html_title": "Muster",
    "html_static_path": "_static",
    "html_css_files": STYLE.name,
    "html_show_sphinx": "0",
    "html_show_copyright": "0",
    "html_copy_source": "0",
    "html_show_sourcelink": "0",
    "html_theme_options.top_of_page_buttons": "",
    "myst_heading_anchors": "4",
    # most code blocks name no language: they are commands with their output
    "highlight_language": "none",
}
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)\.md\)")


def pages() -> list[Path]:
    """All Markdown files that become a page, relative to the root."""
    return [
        Path(f"{START}.md"),
        Path(f"{CHART}.md"),
        Path("CONTRIBUTING.md"),
        *sorted(page.relative_to(ROOT) for page in (ROOT / "docs").glob("**/*.md")),
    ]


def read_menu(index: str) -> dict[str, dict[str, str]]:
    """Titles by page by heading, from the Markdown of docs/README.md. Names of pages are relative to the root."""
    _, *sections = _HEADING.split(index)
    folder = posixpath.dirname(INDEX)
    return {
        heading: {posixpath.normpath(f"{folder}/{link}"): title for title, link in _LINK.findall(text)}
        for heading, text in zip(sections[::2], sections[1::2], strict=True)
    }


def stage(place: Path) -> None:
    """Copies the sources to ``place`` and adds the menu to the front page."""
    names = [page.with_suffix("").as_posix() for page in pages()]
    for page in pages():
        _copy(page, place)
    for pattern in LINKED_FILES:
        for file in ROOT.glob(pattern):
            _copy(file.relative_to(ROOT), place)
    (place / "_static").mkdir()
    shutil.copyfile(STYLE, place / "_static" / STYLE.name)

    menu = read_menu((ROOT / f"{INDEX}.md").read_text())
    nested = {parent: [name for name in names if name.startswith(f"{folder}/")] for parent, folder in NESTED.items()}
    shown = {START, INDEX}.union(*menu.values(), *nested.values())
    unlisted = [name for name in names if name not in shown]
    front = {"": {INDEX: "All pages"}, **menu, "More": dict.fromkeys(unlisted, "")}
    _append(place / f"{START}.md", _toctrees(front))
    for parent, children in nested.items():
        _append(place / f"{parent}.md", _toctrees({"": dict.fromkeys(children, "")}))


def _toctrees(menu: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """MyST's directives. A page without a title has that of its first heading."""
    for heading, entries in menu.items():
        if entries:
            caption = [f":caption: {heading}"] if heading else []
            listed = [f"{title} </{name}>" if title else f"/{name}" for name, title in entries.items()]
            yield from ("", "```{toctree}", ":hidden:", *caption, "", *listed, "```")


def _append(page: Path, lines: Iterator[str]) -> None:
    with page.open("a") as file:
        file.write("\n".join(lines) + "\n")


def _copy(path: Path, place: Path) -> None:
    (place / path).parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / path).is_dir():
        shutil.copytree(ROOT / path, place / path)
    else:
        shutil.copyfile(ROOT / path, place / path)


def build(place: Path) -> int:
    """Builds into ``place``/html and returns Sphinx's exit code: 0 without any warning."""
    source = place / "source"
    if source.exists():
        shutil.rmtree(source)
    stage(source)
    settings = [word for key, value in SETTINGS.items() for word in ("-D", f"{key}={value}")]
    words = ["-C", "-q", "-E", "-W", "--keep-going", "-b", "html", "-d", str(place / "doctrees"), *settings]
    return build_main([*words, str(source), str(place / "html")])


if __name__ == "__main__":
    sys.exit(build(ROOT / "build" / "docs"))
