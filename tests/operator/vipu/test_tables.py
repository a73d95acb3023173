"""Tables of the `vipu` program, and what is none."""

import pytest

from muster_operator.vipu.controller import VipuPartition
from muster_operator.vipu.tables import TableError, parse_allocations, parse_partitions

# in the form of docs.graphcore.ai, vipu-user, partitions
PARTITIONS = """\
 Partition   | Cluster  | ILDs | GW Routing | ILD Routing | Size | GCDs | State
---------------------------------------------------------------------------------
 p64         | pod-b    | 1    | DEFAULT    | DNC         | 64   | 1    | ACTIVE
---------------------------------------------------------------------------------
"""
# in the form of the same pages, allocations
ALLOCATIONS = """\
---------------------------------
 Allocation ID | Agents
---------------------------------
 racks-a       | ag0 ag1 ag2 ag3
 racks-b       | ag4 ag5
---------------------------------
"""
HEAD, DASHES, ROW, _ = PARTITIONS.splitlines()


def test_a_list_of_partitions_is_read() -> None:
    assert parse_partitions(PARTITIONS) == (VipuPartition("p64", 64, 1, "ACTIVE"),)


def test_a_list_of_allocations_is_read() -> None:
    assert parse_allocations(ALLOCATIONS) == (frozenset(("ag0", "ag1", "ag2", "ag3")), frozenset(("ag4", "ag5")))


def test_an_agent_of_two_allocations_counts_once() -> None:
    twice = ALLOCATIONS.replace("ag4 ag5", "ag3 ag4")
    assert parse_allocations(twice)[1] == frozenset(("ag4",))


@pytest.mark.parametrize("text", [f"{HEAD}\n{DASHES}\n", f"{HEAD}\n{DASHES}\n{DASHES}\n"])
def test_a_table_without_rows_has_none(text: str) -> None:
    assert parse_partitions(text) == ()


def test_columns_are_found_by_name_wherever_they_stand() -> None:
    text = " State | Size | More | GCDs | Partition\n---\n ACTIVE | 4 | ? | 2 | a\n---\n"
    assert parse_partitions(text) == (VipuPartition("a", 4, 2, "ACTIVE"),)


@pytest.mark.parametrize(
    ("word", "state"),
    [("PS_ACTIVE", "ACTIVE"), ("ERROR", "ERROR"), ("CREATING", "CREATING"), ("active", "OTHER"), ("", "OTHER")],
)
def test_a_state_that_is_not_known_is_never_taken_for_active(word: str, state: str) -> None:
    found = parse_partitions(PARTITIONS.replace("ACTIVE", word))[0]
    assert found.state == state
    assert bool(found.message) == (state != "ACTIVE")
    assert state == "ACTIVE" or repr(word) in found.message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "nothing"),
        ("\n \n", "nothing"),
        ("hello", "'hello'"),
        (f"{HEAD}\n", "Partition"),
        (f"{HEAD}\n{DASHES}\n{ROW}\n", "' p64"),
        (f"{HEAD}\n{ROW}\n{DASHES}\n", "'----"),
        (f"{DASHES}\n", "nothing"),
        (f"{HEAD}\n{DASHES}\n{ROW[:40]}\n{DASHES}\n", "expected 8 cells"),
        (f"{HEAD}\n{DASHES}\n{ROW} | more\n{DASHES}\n", "expected 8 cells"),
        (f"{HEAD}\n{DASHES}\n{ROW}\n{ROW}\n{DASHES}\n", "'p64'"),
        (f"{HEAD}\n{DASHES}\n{ROW.replace('p64', '   ')}\n{DASHES}\n", "'Partition'"),
        (PARTITIONS.replace(" 64 ", " -4 "), "Size: '-4'"),
        (PARTITIONS.replace(" 64 ", " 0  "), "Size: '0'"),
        (PARTITIONS.replace(" 64 ", " ٤ "), "Size: '٤'"),
        (PARTITIONS.replace(" 64 ", " " + "9" * 5000), "Size: '9999"),
        (PARTITIONS.replace("GCDs", "Gcds"), "'GCDs'"),
        (PARTITIONS.replace("ILDs", "Size"), "'Size'"),
        (ALLOCATIONS, "'Partition'"),
        (f"Warning: old server\n{PARTITIONS}", "'----"),
        (f"{PARTITIONS}1 partition\n", "'1 partition'"),
    ],
)
def test_an_invalid_table_of_partitions_is_reported_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_partitions(text)
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 400
