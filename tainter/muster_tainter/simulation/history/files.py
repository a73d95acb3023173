"""Writes FLEET.yaml and faults.csv of a fleet's past."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from muster_kube.api.times import rfc3339_whole
from muster_tainter.simulation.scenario.fault_file import COLUMNS, UNTIL_REPAIRED, FaultRow

_LINE = 120


def fleet_document(groups: list[dict[str, Any]], begin: float, end: float) -> dict[str, Any]:
    """begin, end: seconds since the epoch. The jobs are assumed: as large as those of the published results
    (docs/time-machine.md), a quarter and a sixteenth of the largest group."""
    most = max(_size(group) for group in groups)
    kinds: list[dict[str, Any]] = [{"name": "small", "nodes": 1, "lasts": "12h", "share": 150, "restart": "2m"}]
    for name, nodes, lasts, share in (("medium", most // 16, "7d", 6), ("large", most // 4, "30d", 1)):
        if nodes > 1:
            kinds.append({"name": name, "nodes": nodes, "lasts": lasts, "share": share})
    return {
        "start": rfc3339_whole(begin),
        "end": rfc3339_whole(end),
        "groups": groups,
        "workload": {"kinds": kinds},
    }


def _size(group: dict[str, Any]) -> int:
    if "names" in group:
        return len(group["names"])
    return sum(len(names) for names in group["domain"]["names"].values())


def fleet_text(document: dict[str, Any], notes: Iterable[str]) -> str:
    """notes: what the reader must know, one line each; they become comments."""
    lines = [f"# {note}" for note in notes]
    body = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=_LINE, allow_unicode=False)
    return "\n".join([*lines, body])


def write_faults(path: Path, rows: Iterable[FaultRow]) -> None:
    """Raises OSError."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, "component", "check", "reason"])
        for row in rows:
            end = "" if row.end == UNTIL_REPAIRED else rfc3339_whole(row.end)
            writer.writerow(
                [row.node, rfc3339_whole(row.start), end, row.fault_class, row.component, row.check, row.reason]
            )
