"""`make docs`: all pages as HTML in build/docs/html, from the same Markdown that is read in the repository.

Sphinx builds it, with MyST, which reads Markdown as GitHub does. The pages are staged with the folders they have here,
so links between them, to examples and to pictures are those of the repository; a warning ends the build. Nothing
in the pages comes from elsewhere: no fonts, no scripts.
"""

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parent.parent
START = "README"
# what is read in which order; a page that stands in none of these lists comes after them
CHAPTERS = {
    "To begin with": ("tour",),
    "For operators": (
        "install",
        "coming-from",
        "operating",
        "fleet",
        "dashboards",
        "policy",
        "cookbook",
        "sources",
        "sizing",
        "security",
        "rights",
        "limits",
    ),
    "For users of jobs": ("ipujob", "debugging", "ipujob-fields", "vipu"),
    "For authors of checks": ("plugins",),
    "Reference": ("agent", "checks", "kernel-log", "metrics", "api", "settings"),
    "Inside": ("architecture", "decisions"),
}
CHART = "helm/muster/README"
BESIDE = (
    "examples",
    "grafana/*.*",
    "docs/**/*.png",
    "docs/**/*.svg",
    "LICENSE",
    "agent/muster_agent/query/node_answer.py",
    "helm/muster/files/policy.yaml",
)
SETTINGS = {
    "project": "Muster",
    "root_doc": START,
    "extensions": "myst_parser",
    "html_theme": "alabaster",
    "html_show_sphinx": "0",
    "html_copy_source": "0",
    "myst_heading_anchors": "4",
    "html_theme_options.description": "Only nodes that pass muster get work",
    "html_theme_options.fixed_sidebar": "true",
    "html_theme_options.page_width": "1100px",
    "html_theme_options.font_family": "sans-serif",
    "html_theme_options.head_font_family": "sans-serif",
    # plain text and kubectl's output stand in blocks without a language
    "highlight_language": "none",
}


def pages() -> list[Path]:
    """Relative to the root."""
    return [
        Path(f"{START}.md"),
        Path(f"{CHART}.md"),
        Path("CONTRIBUTING.md"),
        *sorted(page.relative_to(ROOT) for page in (ROOT / "docs").glob("**/*.md")),
    ]


def stage(place: Path) -> None:
    """What is built. Raises SystemExit for a chapter's page that is not there."""
    found = {page.relative_to("docs").with_suffix("").as_posix() for page in pages() if page.parts[0] == "docs"}
    listed = [name for names in CHAPTERS.values() for name in names]
    rest = sorted(found.difference(listed))
    if missing := set(listed) - found:
        raise SystemExit(f"docs/pages.py: there is no docs/{', docs/'.join(sorted(missing))}")
    for page in pages():
        copy(page, place)
    for pattern in BESIDE:
        for file in ROOT.glob(pattern):
            copy(file.relative_to(ROOT), place)
    trees = []
    for title, names in {**CHAPTERS, "More": tuple(rest)}.items():
        if names:
            more = (f"docs/{name}" for name in names)
            trees += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *more]
            trees += [*{"Reference": [CHART], "Inside": ["CONTRIBUTING"]}.get(title, []), "```"]
    with (place / f"{START}.md").open("a") as front:
        front.write("\n".join(trees) + "\n")


def copy(path: Path, place: Path) -> None:
    (place / path).parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / path).is_dir():
        shutil.copytree(ROOT / path, place / path)
    else:
        shutil.copyfile(ROOT / path, place / path)


def build(place: Path) -> int:
    """Into ``place``/html. Sphinx's exit code: 0 without any warning."""
    source = place / "source"
    if source.exists():
        shutil.rmtree(source)
    stage(source)
    settings = [word for key, value in SETTINGS.items() for word in ("-D", f"{key}={value}")]
    words = ["-C", "-q", "-E", "-W", "--keep-going", "-b", "html", "-d", str(place / "doctrees"), *settings]
    return build_main([*words, str(source), str(place / "html")])


if __name__ == "__main__":
    sys.exit(build(ROOT / "build" / "docs"))
