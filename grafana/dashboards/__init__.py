"""The Grafana dashboards, as Python: `docs/generate.py` writes their JSON into the chart, where grafana/ links to it.

One module per dashboard. They share colours.py, panel types (model.py), and complete panels (shared_panels.py).
"""

import json
from pathlib import Path

from dashboards import fleet, goodput, ipujobs, network, node, tainter

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "muster" / "files" / "dashboards"  # helm cannot read files outside the chart
ALL = (fleet, node, goodput, network, ipujobs, tainter)


def files() -> dict[Path, str]:
    """Each dashboard's JSON, by file."""
    made = {}
    for module in ALL:
        found = module.dashboard()
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        made[CHART / f"{found['uid']}.json"] = text
    return made
