"""The past of a fleet as rows of a fault file: what overlaps is one fault, and what cannot be simulated is counted."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tainter.simulation.worlds import BEGIN, HOUR

from muster_tainter.simulation.history.files import write_faults
from muster_tainter.simulation.history.past_faults import (
    FAULTS_A_NODE,
    UNKNOWN_CLASS,
    PastFault,
    PastFaults,
    PastRows,
    component_of,
)
from muster_tainter.simulation.history.spans import Spans
from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED, FaultFile

END = BEGIN + 100 * HOUR


def past(start: float, end: float, fault_class: str = "reboot", **more: Any) -> PastFault:
    """Hours from the begin."""
    values = {"node": "n1", "component": "gpu/0", "check": "dmesg", "reason": "Xid79", **more}
    return PastFault(**values, fault_class=fault_class, start=BEGIN + start * HOUR, end=BEGIN + end * HOUR)


def collected(*faults: PastFault, not_ready: tuple[tuple[float, float], ...] = ()) -> PastRows:
    found = PastFaults(BEGIN, END)
    for fault in faults:
        found.add(fault)
    for start, end in not_ready:
        found.add_not_ready("n1", BEGIN + start * HOUR, BEGIN + end * HOUR)
    return found.rows()


def hours(rows: PastRows) -> list[tuple[float, float]]:
    return [((row.start - BEGIN) / HOUR, (row.end - BEGIN) / HOUR) for row in rows.rows]


def test_overlapping_reports_of_a_component_are_one_fault_with_the_heaviest_class() -> None:
    rows = collected(past(1, 3, "reset", reason="Xid95"), past(2, 5, "replace", reason="Xid64"), past(5, 6, "reset"))
    assert hours(rows) == [(1, 6)]
    assert (rows.rows[0].fault_class, rows.rows[0].reason) == ("replace", "Xid64")


def test_other_components_and_other_nodes_are_other_faults() -> None:
    rows = collected(past(1, 3), past(2, 5, component="gpu/1"), past(2, 5, node="n2"))
    assert hours(rows) == [(1, 3), (2, 5), (2, 5)]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(("reset",), "reset"), (("", "reset"), "reset"), (("",), UNKNOWN_CLASS), (("none",), None), (("", "none"), None)],
)
def test_class_of_a_fault_is_the_one_that_a_source_knows(classes: tuple[str, ...], expected: str | None) -> None:
    rows = collected(*(past(1, 3, each) for each in classes))
    assert [row.fault_class for row in rows.rows] == ([] if expected is None else [expected])
    assert rows.unknown_class == (classes == ("",))
    assert rows.left_out["no repair"] == (expected is None)


def test_silent_node_is_a_fault_unless_a_fault_explains_it() -> None:
    rows = collected(past(1, 3), past(40, 41), not_ready=((2, 4), (20, 21), (39.95, 40.5)))
    assert hours(rows) == [(1, 4), (20, 21), (39.95, 41)]
    assert [row.reason for row in rows.rows] == ["Xid79", "NotReady", "Xid79"]
    assert rows.not_ready == 1


def test_what_lasts_has_no_end_and_what_was_there_before_begins_with_the_file() -> None:
    rows = collected(past(-5, 1), past(10, float("inf"), component="gpu/1"))
    assert hours(rows)[0] == (0, 1)
    assert rows.rows[1].end == UNTIL_REPAIRED
    assert (rows.began_before, rows.lasting) == (1, 1)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"node": "../../etc"}, "invalid"),
        ({"node": "=cmd|x"}, "invalid"),
        ({"node": "n" * 300}, "invalid"),
        ({"component": "GPU 1"}, "invalid"),
        ({"check": "Dmesg"}, "invalid"),
        ({"check": "condition"}, "other sources"),
    ],
)
def test_labels_that_name_nothing_are_counted(values: dict[str, str], cause: str) -> None:
    rows = collected(past(1, 2, **values))
    assert rows.rows == []
    assert rows.left_out[cause] == 1


def test_node_that_lies_does_not_crowd_out_the_others() -> None:
    flood = [past(1, 2, component=f"gpu/{number}") for number in range(FAULTS_A_NODE + 50)]
    rows = collected(*flood, past(3, 4, node="n2"))
    assert rows.left_out["too many"] == 50
    assert rows.rows[-1].node == "n2"


@pytest.mark.parametrize(
    ("found", "expected"), [("ipu/10.1.5.6/3", "ipu/10.1.5.6_3"), ("gpu/0000:3b:00.0", "gpu/0000:3b:00.0"), ("/", "")]
)
def test_component(found: str, expected: str) -> None:
    assert component_of(found) == expected


_TIMES = st.floats(-3 * HOUR, 105 * HOUR).map(lambda at: BEGIN + at)
_ENDS = st.floats(0.1, 30 * HOUR) | st.just(float("inf"))


@settings(max_examples=60, deadline=None)
@given(
    faults=st.lists(
        st.builds(
            lambda start, lasts, node, component, fault_class: PastFault(
                node, component, "dmesg", "Xid 79", fault_class, start, start + lasts
            ),
            _TIMES,
            _ENDS,
            st.sampled_from(["n1", "n2", ""]),
            st.sampled_from(["gpu/0", "gpu/1", "host", "ipu/1/2"]),
            st.sampled_from(["reset", "reboot", "replace", "contact", "none", ""]),
        ),
        max_size=30,
    ),
    not_ready=st.lists(st.tuples(_TIMES, _ENDS), max_size=8),
)
def test_any_past_is_a_valid_fault_file(
    faults: list[PastFault], not_ready: list[tuple[float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What overlaps, lasts or lies must not make a file that `muster simulate` rejects."""
    found = PastFaults(BEGIN, END)
    for fault in faults:
        found.add(fault)
    at = 0.0  # spans of one series do not overlap
    for start, lasts in sorted(not_ready):
        if start > at:
            found.add_not_ready("n1", start, start + lasts)
            at = start + lasts
    rows = found.rows()
    path = tmp_path_factory.mktemp("past") / "faults.csv"
    write_faults(path, rows.rows)
    if rows.rows:
        again = [row._replace(fatal=True) for row in FaultFile(path, {"n1", "n2"}).rows()]
        assert again == rows.rows


# readings


@settings(max_examples=100, deadline=None)
@given(
    readings=st.lists(st.integers(0, 200), unique=True, max_size=60).map(sorted),
    windows=st.lists(st.integers(1, 199), unique=True, max_size=4).map(sorted),
)
def test_spans_do_not_depend_on_the_windows(readings: list[int], windows: list[int]) -> None:
    """Steps of 1, gaps of up to 5, and a last reading that may still last."""

    def spans(bounds: list[int]) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []

        def ended(_: str, start: float, end: float) -> None:
            found.append((start, end))

        tracked = Spans[str](1.0, 5.0, ended)
        for begin, end in zip([0, *bounds], [*bounds, 201], strict=True):
            tracked.read("key", [float(at) for at in readings if begin <= at < end])
            tracked.read_until(float(end))
        tracked.finish(201.0, ended)
        return found

    whole = spans([])
    assert spans(windows) == whole
    covered = {at for at in readings for start, end in whole if start <= at < end}
    assert covered == set(readings)
    assert all(later[0] - earlier[1] > 4 for earlier, later in pairwise(whole))
