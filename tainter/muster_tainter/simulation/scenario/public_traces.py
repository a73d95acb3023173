"""Converts two public fault traces: events of a GPU cluster, and outages of HPC systems.

Both name what was wrong, but not what a kernel or a check would have reported. The tables below map their causes to a
class and a check. Recorded intervals of one node that overlap or touch are one fault, from the first start to the last
end, with the heaviest class: a node is out of use once, however many tickets it has.
"""

import csv
import json
from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from muster_tainter.simulation.scenario.fault_file import (
    CLASSES,
    BoundedLines,
    FaultRow,
    RecordedFaults,
    open_text,
)
from muster_tainter.simulation.scenario.fleet_file import FleetError

_DAY = 86_400.0
_JSON_LIMIT = 64 << 20  # characters, which take 20 times as much memory
_ROWS_LIMIT = 2_000_000  # of outages, in memory
_DAYS_LIMIT = 36_500.0
JOINED = "overlapping and touching intervals of one node are one fault, with the heaviest class"


class _Kind(NamedTuple):
    fault_class: str
    component: str
    check: str
    fatal: bool = True


class _Interval(NamedTuple):
    start: float
    end: float
    kind: _Kind
    reason: str


# https://github.com/stepfun-ai/InfiniteHBD-Trace: fault_type.Class. Classes by what repairs them: a cable, fan or board
# takes a person; an error without a known cause too. A failed stress test is found while no job runs.
_GPU_CLUSTER = {
    "GPU": _Kind("replace", "gpu/0", "dmesg"),
    "Parameter Plane Cable": _Kind("contact", "nic/0", "nic"),
    "NIC": _Kind("contact", "nic/0", "nic"),
    "Fan": _Kind("contact", "host", "ipmi", fatal=False),
    "Power Supply": _Kind("contact", "host", "ipmi", fatal=False),
    "Stress Test Failure": _Kind("contact", "gpu/0", "gpumem", fatal=False),
    "Software Tool": _Kind("reboot", "host", "dmesg"),
    "File System": _Kind("reboot", "host", "dmesg"),
    "Operating System": _Kind("reboot", "host", "dmesg"),
    "System Crash": _Kind("reboot", "host", "dmesg"),
}
_GPU_CLUSTER_OTHER = _Kind("contact", "host", "inventory")
_GPU_CLUSTER_BEGIN = datetime(2024, 3, 30, tzinfo=UTC).timestamp()  # its first event is day 0 of the file
# Los Alamos National Laboratory, LA-UR-05-7318: the column that names the cause
_HPC_CAUSES = {
    "Hardware": _Kind("replace", "host", "inventory"),
    "Network": _Kind("contact", "host", "inventory"),
    "Facilities": _Kind("contact", "host", "inventory"),
    "Human Error": _Kind("reboot", "host", "dmesg"),
    "Software": _Kind("reboot", "host", "dmesg"),
    "Undetermined": _Kind("reboot", "host", "dmesg"),
}


def read_gpu_cluster(path: Path) -> RecordedFaults:
    """stepfun-ai/InfiniteHBD-Trace: a JSON list of events ``fault_start`` and ``fault_end``. Raises FleetError."""
    with open_text(path) as text:
        raw = text.read(_JSON_LIMIT + 1)
    if len(raw) > _JSON_LIMIT:
        raise FleetError(f"{path}: expected at most {_JSON_LIMIT} characters: convert it to CSV, which is streamed")
    try:
        events = json.loads(raw)
        found, last = _pairs(events)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FleetError(f"{path}: {type(error).__name__} {error}: expected events of a GPU cluster") from None
    return RecordedFaults(_joined(found), (f"{len(events)} events until day {last:g}; {JOINED}",))


def _pairs(events: list[dict[str, Any]]) -> tuple[dict[str, list[_Interval]], float]:
    """The intervals of each node, and the day of the last event. Of several equal faults the first ends first."""
    begun: defaultdict[tuple[str, str, str], deque[float]] = defaultdict(deque)
    found: defaultdict[str, list[_Interval]] = defaultdict(list)
    last = 0.0
    for number, event in enumerate(events, 1):
        node, day, kind = str(event["node_id"]), float(event["event_time"]), event["fault_type"]
        if not last <= day <= _DAYS_LIMIT:
            raise ValueError(
                f"event {number}: event_time: {day:g}: expected {last:g}, the time before it, or a later day"
            )
        last = day
        key = node, str(kind["Class"]), str(kind["Desc"])
        if event["event_type"] == "fault_start":
            begun[key].append(day)
        elif begun[key]:
            found[node].append(_gpu_interval(key, begun[key].popleft(), day))
    for key, starts in begun.items():  # still out at the end
        found[key[0]] += [_gpu_interval(key, start, last) for start in starts]
    return found, last


def _gpu_interval(key: tuple[str, str, str], start: float, end: float) -> _Interval:
    reason = "".join(word.capitalize() for word in key[1].split())
    begin = _GPU_CLUSTER_BEGIN
    return _Interval(begin + start * _DAY, begin + end * _DAY, _GPU_CLUSTER.get(key[1], _GPU_CLUSTER_OTHER), reason)


def read_hpc_outages(path: Path, systems: Iterable[str] = ()) -> RecordedFaults:
    """LA-UR-05-7318 as CSV: a row an outage. Its local times are read as UTC. systems: only these; empty: all. Rows
    without an end, or with one before the start, are left out and counted. Raises FleetError."""
    wanted = frozenset(systems)
    found: defaultdict[str, list[_Interval]] = defaultdict(list)
    left_out = 0
    with open_text(path) as text:
        lines = BoundedLines(text)
        rows = csv.DictReader(lines.texts())
        try:
            for row in rows:
                if lines.number > _ROWS_LIMIT:
                    raise FleetError(
                        f"{path}:{lines.number}: expected at most {_ROWS_LIMIT} rows: split the file by time"
                    )
                if wanted and row["System"] not in wanted:
                    continue
                try:
                    start, end = (_hpc_time(row[name]) for name in ("Prob Started", "Prob Fixed"))
                except (ValueError, TypeError):  # TypeError: the row is too short
                    left_out += 1
                    continue
                if end <= start:
                    left_out += 1
                    continue
                cause = next((name for name in _HPC_CAUSES if (row.get(name) or "").strip()), "Undetermined")
                node = f"s{row['System']}-{row['nodenum']}"
                found[node].append(_Interval(start, end, _HPC_CAUSES[cause], cause.replace(" ", "")))
        except (KeyError, ValueError, csv.Error) as error:
            raise FleetError(f"{path}:{max(lines.number, 1)}: {error}: expected outages as in LA-UR-05-7318") from None
    notes = f"{left_out} rows without a valid start and end are left out; local times are read as UTC; {JOINED}"
    return RecordedFaults(_joined(found), (notes,))


def _hpc_time(text: str) -> float:
    return datetime.strptime(text, "%m/%d/%Y %H:%M").replace(tzinfo=UTC).timestamp()


def _joined(found: dict[str, list[_Interval]]) -> list[FaultRow]:
    rows: list[FaultRow] = []
    for node, intervals in found.items():
        intervals.sort(key=lambda each: each[:2])
        joined: list[_Interval] = []
        for each in intervals:
            if joined and each.start <= joined[-1].end:
                last = joined[-1]
                heavier = max(last, each, key=lambda one: CLASSES.index(one.kind.fault_class))
                kind = heavier.kind._replace(fatal=last.kind.fatal or each.kind.fatal)
                joined[-1] = _Interval(last.start, max(last.end, each.end), kind, heavier.reason)
            else:
                joined.append(each)
        for start, end, kind, reason in joined:
            first = float(int(start))
            last_s = max(float(int(end)), first + 1.0)
            rows.append(
                FaultRow(0, node, first, last_s, kind.fault_class, kind.component, kind.check, reason, kind.fatal)
            )
    rows.sort(key=lambda row: (row.start, row.node))
    return [row._replace(number=number) for number, row in enumerate(rows, 1)]
