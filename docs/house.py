"""Generates the map in CONTRIBUTING.md: every component and topic, with the first line of the package's docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

from muster_checks.registry import SHIPPED

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: made by `make generate` from the packages' docstrings -->", "<!-- end of map -->"
COMPONENTS = {
    "checks/muster_checks": "the checks of a node; knows neither Kubernetes nor HTTP servers",
    "agent/muster_agent": "one per node: when to run checks, what to serve, what to publish",
    "tainter/muster_tainter": "one per cluster: turns findings into faults, and faults into taints",
    "operator/muster_operator": "IPUJobs, the V-IPU proxy and a V-IPU simulator",
    "kube/muster_kube": "access to the API server, shared by all parts",
    "sandbox/muster_sandbox": "a cluster on one machine, for `muster sandbox` and the tests",
    "cli/muster_cli": "the `muster` command, which also starts the parts",
}
CHECKS = {target.partition(":")[0].rpartition(".")[2] for target in SHIPPED.values()}


def files() -> dict[Path, str]:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return {PAGE: f"{head}{BEGIN}\n" + "\n".join(_lines()) + f"\n{END}{rest.partition(END)[2]}"}


def _lines() -> Iterator[str]:
    for component, meaning in COMPONENTS.items():
        yield from ("", f"**`{component}`**: {meaning}", "", "| topic | what is in it |", "|---|---|")
        if component.startswith("checks/"):
            yield f"| one folder for each of {len(CHECKS)} checks | `probe`, `judge`, `parse` where needed |"
        for package in sorted((ROOT / component).rglob("__init__.py")):
            name = package.parent.relative_to(ROOT / component)
            if name != Path() and name.parts[0] not in CHECKS - {"dmesg"}:
                yield f"| `{name}` | {_first_line(package)} |"
    yield ""


def _first_line(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse(package.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    if not paragraph:
        raise SystemExit(f"{package.relative_to(ROOT)}: no docstring: CONTRIBUTING.md needs its first line")
    return paragraph.replace("|", "\\|")
