"""Which entries a person's clear writes."""

from typing import Any

import msgspec
import pytest

from muster_kube.nodehealth import CLEAR_LIMIT, ClearEntry, NodeHealth, ReportedCheck
from muster_tainter.faults.manual_clear import clear_entries, merge_clears
from muster_tainter.faults.record.node_record import Fault, NodeRecord

BY, AT = "ada", "2026-01-01T00:00:00Z"


def health(make: Any, **checks: list[tuple[str, int]]) -> NodeHealth:
    """Findings by check: component and occurrence."""
    reported = tuple(
        ReportedCheck(
            name=name,
            verdict="FAIL",
            findings=tuple(make.finding(occurrence=number, component=component) for component, number in findings),
        )
        for name, findings in checks.items()
    )
    empty: NodeHealth = make.health()
    return msgspec.structs.replace(empty, status=msgspec.structs.replace(empty.status, checks=reported))


def record(*faults: tuple[str, str, int]) -> NodeRecord:
    return NodeRecord(
        open=tuple(
            Fault(check=check, component=component, reason="X", occurrence=number, verdict="FAIL", since=AT)
            for check, component, number in faults
        )
    )


def entry(check: str, component: str, occurrence: int) -> ClearEntry:
    return ClearEntry(check=check, component=component, occurrence=occurrence, by=BY, at=AT)


@pytest.mark.parametrize(
    ("check", "component", "cleared"),
    [
        (None, None, ["dmesg gpu/a 5", "dmesg gpu/b 2", "dmesg gpu/c 0", "pciebw gpu/a 3"]),
        ("dmesg", None, ["dmesg gpu/a 5", "dmesg gpu/b 2", "dmesg gpu/c 0"]),
        (None, "gpu/a", ["dmesg gpu/a 5", "pciebw gpu/a 3"]),
        ("pciebw", "gpu/a", ["pciebw gpu/a 3"]),
        ("pciebw", "gpu/b", []),
    ],
)
def test_what_was_named_is_cleared_up_to_its_highest_occurrence(
    make: Any, check: str | None, component: str | None, cleared: list[str]
) -> None:
    found = health(make, dmesg=[("gpu/a", 4), ("gpu/c", 0)])
    memory = record(("pciebw", "gpu/a", 3), ("dmesg", "gpu/a", 5), ("dmesg", "gpu/b", 2))
    entries = clear_entries(found, memory, check, component, BY, AT)
    assert [f"{each.check} {each.component} {each.occurrence}" for each in entries] == cleared
    assert {(each.by, each.at) for each in entries} <= {(BY, AT)}


@pytest.mark.parametrize(("count", "entries"), [(CLEAR_LIMIT, CLEAR_LIMIT), (CLEAR_LIMIT + 1, 2)])
def test_more_components_than_fit_are_cleared_check_by_check(make: Any, count: int, entries: int) -> None:
    found = health(make, dmesg=[(f"gpu/{number}", number + 1) for number in range(count - 1)], pciebw=[("gpu/0", 99)])
    made = clear_entries(found, NodeRecord(), None, None, BY, AT)
    assert len(made) == entries
    if entries == 2:
        assert made == (entry("dmesg", "*", count - 1), entry("pciebw", "*", 99))


def test_a_named_component_is_cleared_alone_however_many_checks_it_fails(make: Any) -> None:
    """So no other component is cleared with it."""
    found = health(make, **{f"c{number}": [("gpu/a", 1), ("gpu/b", 1)] for number in range(CLEAR_LIMIT + 1)})
    made = clear_entries(found, NodeRecord(), None, "gpu/a", BY, AT)
    assert ({each.component for each in made}, len(made)) == ({"gpu/a"}, CLEAR_LIMIT + 1)


def test_new_clears_replace_those_of_the_same_component_and_the_oldest_go_first() -> None:
    known = tuple(entry("dmesg", f"gpu/{number}", 1) for number in range(CLEAR_LIMIT))
    new = (entry("dmesg", "gpu/3", 2), entry("dmesg", "gpu/new", 1))
    merged = merge_clears(known, new)
    assert merged == (*known[1:3], *known[4:], *new)
