"""Keeps what a run of the bench has measured, as JSON, from which `make generate` makes docs/performance.md.

A file holds the last run of each part, so that parts can be measured one at a time.
"""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FORMAT = 1
_ROOT = Path(__file__).parents[3]


def plain(value: object) -> Any:
    """As JSON has it: dataclasses as objects, tuples in keys joined by blanks."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {" ".join(key) if isinstance(key, tuple) else str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def machine() -> dict[str, object]:
    """What a figure depends on beside the code."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def save(
    file: Path,
    part: str,
    outcome: object,
    *,
    table: str,
    seconds: float,
    load: float,
    kubernetes: str,
    options: Mapping[str, object],
) -> None:
    """Put the run of ``part`` into ``file``. load: the machine's, before the run. Raises ValueError for a file that is
    not JSON, and leaves it."""
    found = json.loads(file.read_text()) if file.exists() else {}
    parts = found.get("parts", {}) if found.get("format") == FORMAT else {}
    parts[part] = {
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _commit(),
        "seconds": round(seconds),
        "machine": machine() | {"load": round(load, 1), "kubernetes": kubernetes},
        "options": plain(options),
        "table": table,
        "outcome": plain(outcome),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"format": FORMAT, "parts": dict(sorted(parts.items()))}, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
