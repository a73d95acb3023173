"""The result of `muster replay` as text and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from muster_cli.report.columns import print_table
from muster_cli.report.quantities import format_duration, plural
from muster_kube.api.times import rfc3339_whole
from muster_tainter.budgets.incidents import FLEET
from muster_tainter.explain.device_periods import DevicePeriod
from muster_tainter.explain.replay import ReplayOutcome, TaintPeriod
from muster_tainter.policy.rules import Policy

ROWS_LIMIT = 200  # of the table; --json has all rows
HEAD = ("SINCE (UTC)", "NODE", "FOR", "RULE", "WHY", "ENDED")
WITHHELD_HEAD = ("SINCE (UTC)", "NODE", "FOR", "RULE", "WITHHELD", "ENDED")
DEVICES_HEAD = ("SINCE (UTC)", "NODE", "FOR", "RULE", "ONE DEVICE KEPT OUT", "ENDED")


@dataclass(frozen=True)
class LogStatistics:
    """What was read. undated: nodes whose log has no dates; strange: files without a line of a kernel log; labelled:
    --nodes gave the nodes of the fleet; slices: how many --slices gave"""

    files: int
    lines: int
    malformed: int
    overlong: int
    undated: tuple[str, ...]
    strange: tuple[str, ...]
    labelled: bool
    slices: int = 0


def print_outcome(outcome: ReplayOutcome, read: LogStatistics, policy: Policy) -> None:
    tables: tuple[tuple[tuple[str, ...], Sequence[TaintPeriod | DevicePeriod], str], ...] = (
        (HEAD, outcome.spells, "taints"),
        (DEVICES_HEAD, outcome.devices.periods, "devices"),
        (WITHHELD_HEAD, outcome.withheld_spells, "withheld taints"),
    )
    for head, spells, what in tables:
        if spells:
            _table(head, spells, what)
            print()
    for line in summary(outcome, read, policy):
        print(line)


def _table(head: tuple[str, ...], spells: Sequence[TaintPeriod | DevicePeriod], what: str) -> None:
    print_table(head, [_row(spell) for spell in spells[:ROWS_LIMIT]])
    if len(spells) > ROWS_LIMIT:
        print(f"{len(spells) - ROWS_LIMIT} more {what} are not shown; --json lists all")


def _row(spell: TaintPeriod | DevicePeriod) -> tuple[str, ...]:
    since = rfc3339_whole(spell.since).replace("T", " ").rstrip("Z")
    return (
        since,
        spell.node,
        format_duration(spell.until - spell.since),
        spell.rules,
        spell.why,
        spell.ended or "(not ended)",
    )


def hours(seconds: float) -> float:
    return round(seconds / 3600, 2)


def summary(outcome: ReplayOutcome, read: LogStatistics, policy: Policy) -> Iterable[str]:
    most = f", at most {outcome.at_once} at a time (first {rfc3339_whole(outcome.at_once_at)})"
    total = f"{hours(outcome.tainted_s):g} node-hours in total{most if outcome.at_once else ''}"
    yield f"{len(outcome.tainted)} of {plural(outcome.nodes, 'node')} tainted, {total}"
    if times := outcome.devices.count:
        alone, spared = hours(outcome.devices.alone_s), hours(outcome.devices.spared_s)
        yield (
            f"a device was kept out alone {plural(times, 'time')}, {alone:g} device-hours in total; the others of its "
            f"node stayed in use for {spared:g}"
        )
    if outcome.withheld:
        withheld = f"{hours(outcome.withheld_s):g} node-hours in total"
        yield f"{plural(len(outcome.withheld), 'node')} with a withheld taint, {withheld}"
    rules = ", ".join(f"{rule} {count}" for rule, count in sorted(outcome.opened.items()))
    if rules:
        yield f"faults opened by rule: {rules}"
    for incident in sorted(outcome.incidents.values(), key=lambda incident: (incident.since, incident.id))[:20]:
        where = "" if incident.ground == FLEET else f" of {incident.ground[0]}={incident.ground[1]}"
        yield (
            f"incident: {incident.check} {incident.reason} on {incident.count} nodes{where}, since "
            f"{rfc3339_whole(incident.since)}"
        )
    if outcome.end:
        yield f"from {rfc3339_whole(outcome.begin)} to {rfc3339_whole(outcome.end)}, {_read(read)}"
    else:
        yield f"no fault in {_read(read)}"
    yield from notes(outcome, read, policy)


def _read(read: LogStatistics) -> str:
    bad = [f"{count} {what}" for count, what in ((read.malformed, "malformed"), (read.overlong, "truncated")) if count]
    trouble = f" ({', '.join(bad)})" if bad else ""
    return f"{plural(read.lines, 'line')} of {plural(read.files, 'file')}{trouble}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def notes(outcome: ReplayOutcome, read: LogStatistics, policy: Policy) -> Iterable[str]:
    if read.strange:
        yield f"note: {_some(read.strange)}: no line of a kernel log or of a tainter's log was found: not judged"
    if read.undated:
        yield (
            f"note: {_some(read.undated)}: the log has no dates (times since boot, no times, or no year: --year); its "
            f"times count from 1970 and cannot be compared with those of other nodes"
        )
    if any(pool.selector.match_labels for pool in policy.pools) and not read.labelled:
        yield "note: the labels of the nodes are not known (--nodes FILE): pools with a selector match none of them"
    if policy.devices.quarantine == "rules" and not read.slices:
        yield "note: the devices of the nodes are not known (--slices FILE): every fault taints its node"
    elif policy.devices.quarantine != "rules" and read.slices:
        yield f"note: devices.quarantine is {policy.devices.quarantine}: every fault taints its node"
    if left_out := outcome.left_out + outcome.devices.left_out:
        yield f"note: {left_out} taints and devices are counted but not listed"
    ends = [*(spell.ended for spell in outcome.spells), *(period.ended for period in outcome.devices.periods)]
    if not all(ends):
        yield "note: a replay runs no verification and no person clears faults: faults that only these close stay open"


def as_document(outcome: ReplayOutcome, read: LogStatistics, policy: Policy) -> dict[str, Any]:
    return {
        "from": rfc3339_whole(outcome.begin) if outcome.end else "",
        "to": rfc3339_whole(outcome.end) if outcome.end else "",
        "files": read.files,
        "lines": read.lines,
        "badLines": read.malformed,
        "cutLines": read.overlong,
        "nodes": outcome.nodes,
        "nodesTainted": len(outcome.tainted),
        "nodeHours": hours(outcome.tainted_s),
        "atOnce": outcome.at_once,
        "devicesKeptOut": outcome.devices.count,
        "deviceHours": hours(outcome.devices.alone_s),
        "sparedDeviceHours": hours(outcome.devices.spared_s),
        "nodesWithheld": len(outcome.withheld),
        "withheldNodeHours": hours(outcome.withheld_s),
        "opened": dict(sorted(outcome.opened.items())),
        "closed": dict(sorted(outcome.closed.items())),
        "taints": [_spell(spell) for spell in outcome.spells],
        "devices": [_device(period) for period in outcome.devices.periods],
        "withheld": [_spell(spell) for spell in outcome.withheld_spells],
        "incidents": [
            {
                "id": incident.id,
                "check": incident.check,
                "reason": incident.reason,
                "ground": "" if incident.ground == FLEET else f"{incident.ground[0]}={incident.ground[1]}",
                "since": rfc3339_whole(incident.since),
                "nodes": incident.count,
            }
            for incident in sorted(outcome.incidents.values(), key=lambda incident: (incident.since, incident.id))
        ],
        "leftOut": outcome.left_out + outcome.devices.left_out,
        "notes": list(notes(outcome, read, policy)),
    }


def _spell(spell: TaintPeriod) -> dict[str, Any]:
    return {
        "node": spell.node,
        "since": rfc3339_whole(spell.since),
        "until": rfc3339_whole(spell.until),
        "seconds": int(spell.until - spell.since),
        "taint": spell.taint,
        "rules": spell.rules,
        "why": spell.why,
        "ended": spell.ended,
    }


def _device(period: DevicePeriod) -> dict[str, Any]:
    return {
        "node": period.node,
        "device": period.device,
        "since": rfc3339_whole(period.since),
        "until": rfc3339_whole(period.until),
        "seconds": int(period.until - period.since),
        "rules": period.rules,
        "why": period.why,
        "ended": period.ended,
    }
