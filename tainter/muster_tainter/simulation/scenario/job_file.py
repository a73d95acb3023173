"""Job files of `muster simulate`: CSV with the columns submitted, nodes and lasts."""

import csv
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from muster_tainter.simulation.scenario.fault_file import PROBLEMS_LIMIT, BoundedLines, open_text, read_time
from muster_tainter.simulation.scenario.fleet_file import FleetError, FleetFile, JobKind

COLUMNS = ("submitted", "nodes", "lasts")
OPTIONAL = ("name", "devices", "gang", "group", "checkpoint", "checkpointCost", "restart")
ROWS_LIMIT = 2_000_000  # held in memory
_Kinds = dict[tuple[tuple[str, str], ...], JobKind]  # by the values of a row; most jobs are of few kinds
_GANG = {"": True, "yes": True, "true": True, "no": False, "false": False}


class SubmittedJob(NamedTuple):
    """at: seconds since the epoch."""

    at: float
    kind: JobKind


def read_jobs(path: Path, fleet: FleetFile) -> tuple[SubmittedJob, ...]:
    """Raises FleetError, with the line and value of each problem; OSError."""
    problems: list[str] = []
    jobs: list[SubmittedJob] = []
    kinds: _Kinds = {}
    parts = 0
    with open_text(path) as text:
        lines = BoundedLines(text)
        reader = csv.reader(lines.texts(), strict=True)
        try:
            names = _header(next(reader, []))
            for values in reader:
                if not values:
                    continue
                try:
                    job = _job(names, values, kinds, fleet)
                    parts += 1 if job.kind.gang else job.kind.nodes
                    jobs.append(job)
                except ValueError as error:
                    problems.append(f"{path}:{lines.number}: {error}")
                if len(problems) >= PROBLEMS_LIMIT:
                    break
                if parts > ROWS_LIMIT:
                    problems.append(
                        f"{path}:{lines.number}: more jobs than {ROWS_LIMIT}, of which each node of a job without "
                        "gang is one: split the file by time"
                    )
                    break
        except (ValueError, csv.Error) as error:
            problems.append(f"{path}:{max(lines.number, 1)}: {error}")
    if problems:
        raise FleetError("\n".join(problems))
    return tuple(jobs)


def _header(values: list[str]) -> list[str]:
    names = [name.strip() for name in values]
    allowed = (*COLUMNS, *OPTIONAL)
    if any(names.count(name) != 1 for name in COLUMNS) or any(name not in allowed for name in names):
        found = ", ".join(repr(each[:40]) for each in names[:12]) or "none"
        raise ValueError(f"columns: found {found}; expected {', '.join(COLUMNS)}, and any of {', '.join(OPTIONAL)}")
    return names


def _job(names: list[str], values: list[str], kinds: _Kinds, fleet: FleetFile) -> SubmittedJob:
    """Raises ValueError."""
    if len(values) != len(names):
        raise ValueError(f"{len(values)} values; expected {len(names)}, as many as the header has columns")
    row = {name: text.strip() for name, text in zip(names, values, strict=True)}
    at = read_time("submitted", row.pop("submitted"))
    key = tuple(row.items())
    kind = kinds.get(key)
    if kind is None:
        kind = kinds[key] = _kind(row, fleet)
    return SubmittedJob(at, kind)


def _kind(values: dict[str, str], fleet: FleetFile) -> JobKind:
    gang = values.get("gang", "").lower()
    numbers = {name: values[name] for name in ("nodes", "devices") if name == "nodes" or values.get(name)}
    for name, text in numbers.items():
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise ValueError(f"{name}: {text[:40]!r}: expected a whole number from 1 on")
    if gang not in _GANG:
        raise ValueError(f"gang: {gang[:40]!r}: expected yes or no")
    given: dict[str, object] = {name: text for name, text in values.items() if text and name not in (*numbers, "gang")}
    given |= {name: int(text) for name, text in numbers.items()}
    try:
        kind = JobKind.model_validate({"name": "job", **given, "gang": _GANG[gang]})
    except ValidationError as error:
        detail = error.errors()[0]
        text = str(detail.get("ctx", {}).get("error", detail["msg"]))
        raise ValueError(f"{detail['loc'][0]}: {str(detail['input'])[:40]!r}: {text}") from None
    problem = fleet.too_large(kind)
    if problem:
        raise ValueError(problem)
    return kind
