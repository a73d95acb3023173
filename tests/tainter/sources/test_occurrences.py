"""The number of a firing, from what the Node's annotation remembers."""

from typing import Any

from muster_kube.api.times import rfc3339_whole, seconds
from muster_tainter.faults.record.node_record import ClosedFault, Fault, NodeRecord
from muster_tainter.sources.occurrences import firing_number

KEY = ("loki", "gpu/0000:3b:00.0", "Xid79")
T = 1_700_000_000_000  # milliseconds


def closed(occurrence: int, at_ms: int) -> ClosedFault:
    return ClosedFault(
        check=KEY[0], component=KEY[1], reason=KEY[2], occurrence=occurrence, closed_at=rfc3339_whole(at_ms / 1000)
    )


def fault(occurrence: int, **fields: Any) -> Fault:
    return Fault(check=KEY[0], component=KEY[1], reason=KEY[2], occurrence=occurrence, **fields)


def test_a_first_firing_is_named_by_its_line_s_milliseconds() -> None:
    assert firing_number(KEY, T, 0, NodeRecord()) == T


def test_further_lines_belong_to_the_firing_that_this_process_told() -> None:
    assert firing_number(KEY, T + 5000, T, NodeRecord(open=(fault(T),))) == T


def test_a_new_leader_gives_an_open_fault_its_old_number() -> None:
    assert firing_number(KEY, T + 60_000, 0, NodeRecord(open=(fault(T),))) == T


def test_what_was_closed_stays_closed_whichever_of_its_lines_is_read_again() -> None:
    memory = NodeRecord(closed=(closed(T, T + 100_000),))
    for at in (T, T + 1, T + 50_000, T + 99_999):
        assert firing_number(KEY, at, 0, memory) == 0


def test_a_line_after_the_closing_is_a_new_firing_with_a_higher_number() -> None:
    memory = NodeRecord(closed=(closed(T, T + 100_000),))
    assert firing_number(KEY, T + 101_000, 0, memory) == T + 101_000
    assert firing_number(KEY, T + 101_000, T, memory) == T + 101_000


def test_a_closing_of_another_finding_counts_for_nothing() -> None:
    other = ClosedFault(check="loki", component=KEY[1], reason="Xid48", occurrence=T + 9, closed_at=rfc3339_whole(2e9))
    assert firing_number(KEY, T, 0, NodeRecord(closed=(other,))) == T


def test_a_fault_that_is_over_and_waits_fires_anew_only_by_a_later_line() -> None:
    memory = NodeRecord(open=(fault(T, over=rfc3339_whole((T + 100_000) / 1000)),))
    assert firing_number(KEY, T + 50_000, 0, memory) == 0
    assert firing_number(KEY, T + 50_000, T, memory) == 0
    assert firing_number(KEY, T + 200_000, T, memory) == T + 200_000


def test_times_that_people_wrote_as_they_liked_end_nothing_in_the_future() -> None:
    memory = NodeRecord(
        closed=(ClosedFault(check=KEY[0], component=KEY[1], reason=KEY[2], occurrence=T, closed_at="soon"),)
    )
    assert seconds("soon") == 0
    assert firing_number(KEY, T, 0, memory) == 0
    assert firing_number(KEY, T + 1, 0, memory) == T + 1
