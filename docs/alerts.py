"""Generates the table in docs/alerts.md from the chart's alert rules."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
RULES = ROOT / "helm/muster/files/alerts.yaml"
PAGE = ROOT / "docs/alerts.md"
BEGIN = "<!-- made by `make generate` from helm/muster/files/alerts.yaml; edits are overwritten -->"
END = "<!-- end -->"
VALUE = re.compile(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}")
PARTS = {
    "muster-agent": "agents",
    "muster-tainter": "tainter",
    "muster-operator": "operator",
    "muster-vipu-proxy": "V-IPU proxy",
}


def files() -> dict[Path, str]:
    text = RULES.read_text()
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return {PAGE: f"{head}{BEGIN}\n{_table(yaml.safe_load(text))}\n{END}{tail}"}


def _table(rules: dict[str, Any]) -> str:
    lines = ["| alert | part | severity | after | summary |", "|---|---|---|---|---|"]
    for group in rules["groups"]:
        for rule in group["rules"]:
            name = rule["alert"]
            summary = VALUE.sub(lambda found: found[1].upper(), rule["annotations"]["summary"])
            link = f"[{name}](runbooks/{name}.md)"
            after = rule.get("for", "at once")
            lines.append(f"| {link} | {PARTS[group['name']]} | {rule['labels']['severity']} | {after} | {summary} |")
    return "\n".join(lines)
