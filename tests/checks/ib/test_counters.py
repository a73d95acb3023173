"""Error counters are judged by their rise within a window, as the rows of thresholds.yaml say."""

import pytest
from tests.checks.ib.conftest import Node
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.ib.thresholds import CounterRow, load_counter_rows

PORT = "mlx5_4"


def _bad(one: Node, after_s: float = 60.0) -> list[tuple[Verdict, str]]:
    return [(verdict, reason) for component, verdict, reason in one.bad(after_s) if component == f"nic/{PORT}"]


@pytest.mark.parametrize("row", load_counter_rows(), ids=lambda row: row.reason)
def test_a_rise_above_its_limit_is_told_and_one_up_to_it_is_not(one: Node, row: CounterRow) -> None:
    one.set(PORT, **{row.counter: 1})
    one.findings()
    one.set(PORT, **{row.counter: 1 + int(row.more_than)})
    assert row.reason not in {reason for _, reason in _bad(one, 1.0)}
    one.set(PORT, **{row.counter: 2 + int(row.more_than)})
    assert (row.verdict, row.reason) in _bad(one, 1.0)


@pytest.mark.parametrize("row", load_counter_rows(), ids=lambda row: row.reason)
def test_a_rise_is_forgotten_when_its_window_is_over(one: Node, row: CounterRow) -> None:
    one.set(PORT, **{row.counter: 0})
    one.findings()
    one.set(PORT, **{row.counter: 1 + int(row.more_than)})
    assert (row.verdict, row.reason) in _bad(one, 1.0)
    assert _bad(one, row.within_s + 1.0) == []


@pytest.mark.parametrize("counter", sorted({row.counter for row in load_counter_rows()}))
def test_a_high_counter_that_stands_still_is_sound(one: Node, counter: str) -> None:
    one.set(PORT, **{counter: 60_000})
    one.findings()
    assert one.bad() == []


def test_a_link_lost_once_warns_and_four_times_fails_with_one_finding(one: Node) -> None:
    one.findings()
    one.set(PORT, link_downed=1)
    found = [f for f in one.findings() if f.verdict is not Verdict.PASS]
    assert [(f.verdict, f.reason, f.fault_class) for f in found] == [(Verdict.WARN, "LinkDowned", FaultClass.CONTACT)]
    assert missing_facts(found[0].message, "link_downed", "1", "0", "3 h") == []
    one.set(PORT, link_downed=4)
    assert _bad(one) == [(Verdict.FAIL, "LinkFlaps")]


def test_a_few_errors_in_a_first_look_of_a_second_are_not_blown_up_to_an_hour(one: Node) -> None:
    one.findings()
    one.set(PORT, symbol_error=2)
    assert _bad(one, 1.0) == []


def test_a_counter_that_was_cleared_counts_from_zero(one: Node) -> None:
    one.set(PORT, symbol_error=50_000)
    one.findings()
    one.set(PORT, symbol_error=5)
    assert _bad(one) == []


def test_a_port_that_is_down_is_told_of_its_flaps_too(one: Node) -> None:
    one.findings()
    one.down(PORT, link_downed=5)
    assert _bad(one) == [(Verdict.WARN, "PortDown"), (Verdict.FAIL, "LinkFlaps")]


def test_a_sound_port_shows_how_its_counters_rise(one: Node) -> None:
    one.findings()
    one.set(PORT, symbol_error=7)
    found = next(f for f in one.findings() if f.component == f"nic/{PORT}")
    assert found.verdict is Verdict.PASS
    assert ("symbol_error", 7.0, 120.0) in [(m.name, m.value, m.threshold) for m in found.measurements]


@pytest.mark.parametrize("text", ["", "N/A (no PMA)", "-1", "nan", "1e9", "0x", "\0", "Ungültig", "9" * 400])
def test_a_counter_that_cannot_be_read_is_no_fault(one: Node, text: str) -> None:
    one.findings()
    one.set(PORT, **dict.fromkeys({row.counter for row in load_counter_rows()}, text))
    assert one.bad() == []


def test_a_driver_without_such_counters_is_sound(empty: Node) -> None:
    empty.add("rdmap0", "EFA", "", link_layer="Unspecified", rate="100 Gb/sec (4X EDR)")
    empty.findings()
    assert empty.bad() == []


def test_every_row_has_a_source_and_fits_a_condition() -> None:
    for row in load_counter_rows():
        assert row.source
        assert row.reason.isalnum()
        assert row.verdict in (Verdict.WARN, Verdict.FAIL)
        assert row.folder in ("counters", "hw_counters")
