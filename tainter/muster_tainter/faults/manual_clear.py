"""Manual clearing: an operator declares faults of a node resolved, as entries of its NodeHealth's ``spec.clear``."""

from collections.abc import Iterable

from muster_kube.nodehealth import CLEAR_LIMIT, ClearEntry, NodeHealth
from muster_tainter.faults.record.node_record import NodeRecord


def clear_entries(
    health: NodeHealth, memory: NodeRecord, check: str | None, component: str | None, by: str, at: str
) -> tuple[ClearEntry, ...]:
    """Entries that close every open fault and finding that the operator named: one for each component of a check, or
    one for all components of a check if there are more than CLEAR_LIMIT. at: RFC 3339."""
    highest: dict[tuple[str, str], int] = {}
    for found_check, found_component, occurrence in (*_findings(health), *_faults(memory)):
        if check not in (None, found_check) or component not in (None, found_component):
            continue
        key = (found_check, found_component)
        highest[key] = max(highest.get(key, 0), occurrence)
    if component is None and len(highest) > CLEAR_LIMIT:
        checks = {found_check for found_check, _ in highest}
        highest = {(each, "*"): max(n for key, n in highest.items() if key[0] == each) for each in checks}
    return tuple(
        ClearEntry(check=key[0], component=key[1], occurrence=occurrence, by=by, at=at)
        for key, occurrence in sorted(highest.items())
    )


def merge_clears(known: tuple[ClearEntry, ...], new: tuple[ClearEntry, ...]) -> tuple[ClearEntry, ...]:
    """``known`` with the entries of ``new`` replacing those for the same component; the oldest are dropped first."""
    replaced = {(entry.check, entry.component) for entry in new}
    kept = [entry for entry in known if (entry.check, entry.component) not in replaced]
    return (*kept, *new)[-CLEAR_LIMIT:]


def _findings(health: NodeHealth) -> Iterable[tuple[str, str, int]]:
    for check in health.status.checks:
        for finding in check.findings:
            yield check.name, finding.component, finding.occurrence


def _faults(memory: NodeRecord) -> Iterable[tuple[str, str, int]]:
    for fault in memory.open:
        yield fault.check, fault.component, fault.occurrence
