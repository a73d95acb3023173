"""Performance data of Nagios plug-ins, as they stand in the field."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.plugins.perfdata import FIGURES_LIMIT, read_figures, split_output


def figures(text: str, *, warned: bool = False) -> list[tuple[object, ...]]:
    return [(m.name, m.value, m.unit, m.threshold) for m in read_figures(text, warned=warned)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/=13892MB;13774;15496;0;17218", [("/", 13892, "MB", 15496)]),
        ("rta=0.80ms;100.0;500.0;0 pl=0%;20;60;;", [("rta", 0.8, "ms", 500), ("pl", 0, "%", 60)]),
        ("'load 1'=1.5 'it''s = here'=2c", [("load 1", 1.5, "", None), ("it's = here", 2, "c", None)]),
        ("users=4", [("users", 4, "", None)]),
        ("a=-1.5;;", [("a", -1.5, "", None)]),
        ("a=1e3B", [("a", 1000, "B", None)]),
        ("a=.5s b=5.s", [("a", 0.5, "s", None), ("b", 5, "s", None)]),
        ("unknown=U;1;2 next=1", [("next", 1, "", None)]),
        ("comma=1,5 next=1", [("next", 1, "", None)]),
        ("a=1;2 rubbish =3 b=2", [("a", 1, "", 2), ("b", 2, "", None)]),
        ("a=", []),
        ("'open=1", []),
        ("''=1", []),
        ("a=1e999 b=nan c=inf d=0x10", []),
        ("x" * 100 + "=1", [("x" * 63, 1, "", None)]),
        ("", []),
    ],
)
def test_figures_are_read_and_what_is_none_is_passed_over(text, found):
    assert figures(text) == found


@pytest.mark.parametrize(
    ("range_", "value", "bound"),
    [
        ("10", 5, 10),
        ("10:", 5, 10),
        ("~:10", 5, 10),
        ("10:20", 11, 10),
        ("10:20", 19, 20),
        ("10:20", 99, 20),
        ("@10:20", 9, 10),
        ("@~:-3", 0, -3),
        ("~:", 1, None),
        (":10", 1, 10),
        ("", 1, None),
        ("ten", 1, None),
        ("1e999", 1, None),
    ],
)
def test_the_threshold_is_the_end_of_the_range_that_the_value_may_run_into(range_, value, bound):
    assert figures(f"a={value};;{range_}") == [("a", value, "", bound)]


def test_the_threshold_is_that_of_the_verdict_where_both_are_there():
    assert figures("a=1;2;3", warned=True) == [("a", 1, "", 2)]
    assert figures("a=1;2;3") == [("a", 1, "", 3)]
    assert figures("a=1;;3", warned=True) == [("a", 1, "", 3)]
    assert figures("a=1;2") == [("a", 1, "", 2)]


@pytest.mark.parametrize(
    ("output", "text", "data"),
    [
        ("OK - fine\n", "OK - fine", ""),
        ("OK - fine | a=1 b=2\n", "OK - fine", "a=1 b=2"),
        ("OK | a=1\nlong text\nmore | b=2\nc=3\n", "OK", "a=1 b=2\nc=3"),
        ("OK\nlong text\n", "OK", ""),
        ("| a=1", "", "a=1"),
        ("OK | 'a|b'=1", "OK", "'a|b'=1"),
        ("", "", ""),
    ],
)
def test_the_first_line_is_the_text_and_figures_stand_behind_bars(output, text, data):
    said, figures_ = split_output(output)
    assert (said, figures_.split()) == (text, data.split())


def test_further_lines_have_figures_too():
    _, data = split_output("OK | a=1\nlong text | b=2\n'c d'=3;4;5\n")
    assert [name for name, *_ in figures(data)] == ["a", "b", "c d"]


def test_there_are_no_more_than_so_many():
    assert len(read_figures("a=1 " * 1000)) == FIGURES_LIMIT


@pytest.mark.parametrize(
    "text", ["'" * 65_536, "=" * 65_536, "a" * 65_536, "'a" * 30_000, "a=" + "1" * 60_000, "1;" * 30_000]
)
def test_no_text_takes_long(text):
    started = time.process_time()
    read_figures(text)
    assert time.process_time() - started < 2.0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | st.text("a'= ;:@~.|-+0123456789eUmsB%\n", max_size=60))
def test_any_text_gives_finite_figures(text):
    _, data = split_output(text)
    for m in read_figures(data):
        assert math.isfinite(m.value)
        assert m.name
        assert m.threshold is None or math.isfinite(m.threshold)


LABELS = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Z")), min_size=1, max_size=20)
NUMBERS = st.floats(-1e12, 1e12, allow_nan=False).map(lambda value: round(value, 3))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LABELS, NUMBERS, st.sampled_from(["", "s", "ms", "%", "B", "KB", "c"]), NUMBERS), max_size=6))
def test_what_is_written_by_the_guideline_is_read_back(written):
    text = " ".join(
        f"'{label.replace(chr(39), 2 * chr(39))}'={v!r}{unit};;{crit!r};0;" for label, v, unit, crit in written
    )
    assert figures(text) == [(label, v, unit, crit) for label, v, unit, crit in written]
